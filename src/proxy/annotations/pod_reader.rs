//! What to merge into responses: computed when pods or devices change, not for every response.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::sync::Arc;

use serde_json::Value;
use twox_hash::XxHash64;

use super::attribution::{at_most, distribute};
use super::budget;
use super::koordinator::{self, Allocated, DEVICES, STATUS, Status};
use super::names;
use super::node::{Known, Node};
use super::problem::{Kind, Problem, Problems};
use super::rules::{Mapping, Rules};
use super::{ID_LIMIT, IDS_LIMIT, NODE_BYTES, TYPES_LIMIT};
use crate::machine::IdSet;
use crate::pod::{Annotation, Pod, PodName};
use crate::util::json_path::{Match, Template};

/// What to merge into responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub(super) devices: Table,
    /// Sorted by namespace and name; pods that get nothing are left out.
    pub(super) pods: Vec<PodPlan>,
    /// The node's devices, if they are merged.
    pub(super) allocatable: Table,
    pub(super) problems: Vec<Problem>,
}

/// Distinct devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    /// Sorted.
    pub(super) resources: Vec<Arc<str>>,
    /// Sorted.
    pub(super) devices: Vec<Device>,
}

/// One device as named in responses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Device {
    /// The index of its resource.
    pub(super) resource: usize,
    pub(super) id: Box<str>,
    pub(super) nodes: IdSet,
}

/// What one pod gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodPlan {
    pub(super) name: PodName,
    /// Containers in the order of the specification, each with its devices in the order of their allocation.
    pub(super) containers: Vec<(Box<str>, Vec<Given>)>,
    pub(super) status: Status,
}

/// A device of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    /// Its index in the table.
    pub(super) device: usize,
    /// The number of its part, if parts have ids of their own. Whether another pod has the device is decided
    /// by the device's own id.
    pub(super) part: Option<u64>,
}

impl Plan {
    /// Returns the problems with annotations, sorted.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the problems that an earlier plan did not have, for counting.
    pub fn new_problems<'a>(&'a self, earlier: &'a Self) -> impl Iterator<Item = &'a Problem> {
        self.problems.iter().filter(|problem| earlier.problems.binary_search(problem).is_err())
    }

    /// Whether it changes no response about pods.
    #[cfg(test)]
    pub(super) const fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Whether an annotation names a device that the node is not known to have, so that the devices should be
    /// read again.
    #[must_use]
    pub fn misses_devices(&self) -> bool {
        self.problems.iter().any(|problem| problem.kind.is_about_devices())
    }
}

impl Table {
    /// Returns the index of a resource.
    pub(super) fn resource(&self, name: &[u8]) -> Option<usize> {
        self.resources.binary_search_by(|known| known.as_bytes().cmp(name)).ok()
    }

    /// Returns the index of a device.
    pub(super) fn device(&self, resource: usize, id: &[u8]) -> Option<usize> {
        let key = |device: &Device| (device.resource, device.id.as_bytes()).cmp(&(resource, id));
        self.devices.binary_search_by(key).ok()
    }

    /// Marks the devices that an id from elsewhere refers to: that device, the device that it is a part of,
    /// and its parts.
    pub(super) fn mark(&self, resource: usize, id: &[u8], marks: &mut [bool]) {
        for id in [Some(id), whole(id)].into_iter().flatten() {
            if let Some(device) = self.device(resource, id) {
                marks[device] = true;
            }
        }
        let before = |device: &Device| {
            let ids = || device.id.bytes().cmp(id.iter().chain(b"::").copied());
            device.resource.cmp(&resource).then_with(ids).is_lt()
        };
        let first = self.devices.partition_point(before);
        for (device, mark) in self.devices[first..].iter().zip(&mut marks[first..]) {
            let rest = device.id.as_bytes().strip_prefix(id).filter(|_| device.resource == resource);
            if !rest.is_some_and(|rest| rest.starts_with(b"::")) {
                break;
            }
            *mark |= whole(device.id.as_bytes()) == Some(id);
        }
    }

    /// Builds a table. If a device occurs twice, its first location counts.
    fn of(all: Vec<(Named, IdSet)>) -> Self {
        let mut resources: Vec<Arc<str>> = all.iter().map(|((resource, _), _)| resource.clone()).collect();
        resources.sort_unstable();
        resources.dedup();
        let at = |name: &Arc<str>| resources.partition_point(|known| known < name);
        let device = |((resource, id), nodes)| Device { resource: at(&resource), id, nodes };
        let mut devices: Vec<Device> = all.into_iter().map(device).collect();
        devices.sort_by(|a, b| (a.resource, &a.id).cmp(&(b.resource, &b.id)));
        devices.dedup_by(|b, a| (a.resource, &a.id) == (b.resource, &b.id));
        Self { resources, devices }
    }
}

/// Returns the id of the device that an id names a part of: `GPU-a` of `GPU-a::3`.
fn whole(id: &[u8]) -> Option<&[u8]> {
    let at = id.windows(2).rposition(|pair| pair == b"::")?;
    let (whole, part) = (&id[..at], &id[at + 2..]);
    (!whole.is_empty() && !part.is_empty() && part.iter().all(u8::is_ascii_digit)).then_some(whole)
}

/// Whether two ids name the same device, or one a part of what the other names.
pub(super) fn is_same(one: &[u8], other: &[u8]) -> bool {
    one == other || whole(one) == Some(other) || whole(other) == Some(one)
}

impl Rules {
    /// Computes what to merge into responses for these pods on this node.
    pub fn plan<'a>(&self, pods: impl Iterator<Item = &'a Pod>, node: &Node) -> Plan {
        let mut drafts: Vec<Draft<'_>> = Vec::new();
        for pod in living(pods) {
            let mut draft = Draft::new(pod, self, node);
            draft.read();
            drafts.push(draft);
        }
        budget::keep(&mut drafts, NODE_BYTES);
        if self.shared_ids {
            number_parts(&mut drafts);
        }
        claimed_twice(&mut drafts);
        let all = drafts.iter().flat_map(|draft| &draft.wanted);
        let devices = Table::of(all.map(|wanted| (wanted.named(), wanted.nodes.clone())).collect());
        let allocatable = self.allocatable(node, &devices);
        let mut plan = Plan { devices, allocatable, ..Plan::default() };
        let mut chosen = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let (pod, problems) = draft.finish(&plan.devices);
            plan.problems.extend(problems.of(&pod.name));
            if !pod.containers.is_empty() || pod.status != Status::default() {
                chosen.push(pod);
            }
        }
        plan.pods = chosen;
        plan.problems.sort_unstable();
        plan
    }

    /// Returns the node's healthy devices, allocated or not.
    fn allocatable(&self, node: &Node, held: &Table) -> Table {
        let mut all = Vec::new();
        if !self.allocatable {
            return Table::default();
        }
        for device in node.devices().filter(|device| device.healthy) {
            let Some(name) = names::resource(&self.resources, &device.kind, node.vendor()) else { continue };
            let resource = held.resource(name.as_bytes());
            let is_held =
                |id: &str| resource.is_some_and(|resource| held.device(resource, id.as_bytes()).is_some());
            // Either the functions or the card itself: if the card is allocated, none of its functions is
            // free.
            let is_whole = device.functions.is_empty() || is_held(&device.id);
            let functions = device.functions.iter().filter(|id| !is_whole || is_held(id));
            for id in is_whole.then_some(&device.id).into_iter().chain(functions).filter(|id| is_id(id)) {
                all.push(((name.clone(), id.clone()), node.nodes_of(id, Some(device))));
            }
        }
        Table::of(all)
    }
}

/// Returns the pods that are allocated devices, sorted by name. If several share a name, the last one that is
/// not deleted counts, or else the last.
fn living<'a>(pods: impl Iterator<Item = &'a Pod>) -> impl Iterator<Item = &'a Pod> {
    let mut all: BTreeMap<(&str, &str), &Pod> = BTreeMap::new();
    for pod in pods.filter(|pod| !pod.phase.is_terminal()) {
        let known = all.entry((&pod.namespace, &pod.name)).or_insert(pod);
        if known.deleted || !pod.deleted {
            *known = pod;
        }
    }
    all.into_values()
}

/// A device by its resource and its id.
type Named = (Arc<str>, Box<str>);

/// A pod whose annotations are being read.
pub(super) struct Draft<'a> {
    pod: &'a Pod,
    rules: &'a Rules,
    node: &'a Node,
    /// In the order of allocation.
    pub(super) wanted: Vec<Wanted>,
    seen: BTreeSet<Named>,
    pub(super) status: Status,
    pub(super) problems: Problems,
}

/// A device of a pod.
pub(super) struct Wanted {
    pub(super) resource: Arc<str>,
    pub(super) id: Box<str>,
    nodes: IdSet,
    /// The index of its container.
    container: usize,
    share: Share,
    /// The number of its part, if parts have ids of their own.
    part: Option<u64>,
}

/// How much of a device a pod is allocated.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Share {
    #[default]
    All,
    Part,
    /// A part of an accelerator, which may have an id of its own.
    Accelerator,
}

impl Wanted {
    fn named(&self) -> Named {
        (self.resource.clone(), self.id.clone())
    }
}

/// Devices that belong together: one device, or the functions of one.
#[derive(Default)]
struct Unit {
    ids: Vec<(Box<str>, IdSet)>,
    share: Share,
}

impl<'a> Draft<'a> {
    fn new(pod: &'a Pod, rules: &'a Rules, node: &'a Node) -> Self {
        let (status, problems) = (Status::default(), Problems::default());
        Self { pod, rules, node, wanted: Vec::new(), seen: BTreeSet::new(), status, problems }
    }

    fn read(&mut self) {
        if self.rules.koordinator
            && let Some(text) = self.annotation(DEVICES)
        {
            let types = koordinator::devices(text, &mut self.problems);
            let mut types = types.into_iter().filter(|(_, allocated)| !allocated.is_empty());
            for (kind, allocated) in types.by_ref().take(TYPES_LIMIT) {
                self.allocated(&kind, allocated);
            }
            let more: usize = types.map(|(_, allocated)| allocated.len()).sum();
            if more > 0 {
                let what = || format!("it has devices of more than {TYPES_LIMIT} types");
                self.problems.add(Kind::TooMany, more, what);
            }
        }
        let rules = self.rules;
        for mapping in &rules.mappings {
            if let Some(text) = self.annotation(&mapping.annotation) {
                self.mapped(mapping, text);
            }
        }
        if self.rules.cpus
            && let Some(text) = self.annotation(STATUS)
        {
            self.status = koordinator::status(text, &mut self.problems);
        }
    }

    /// Returns the value of an annotation.
    fn annotation(&mut self, key: &str) -> Option<&'a str> {
        let all = &self.pod.annotations;
        let at = all.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        match &all[at].1 {
            Annotation::Text(text) => Some(text),
            Annotation::TooLong(bytes) => {
                let what = || format!("annotation `{key}` has {bytes} bytes, too many to be read");
                self.problems.add(Kind::TooLong, 0, what);
                None
            }
        }
    }

    /// Reads the devices of one type that Koordinator's scheduler allocated.
    fn allocated(&mut self, kind: &str, allocated: Vec<Allocated>) {
        let Some(resource) = names::resource(&self.rules.resources, kind, self.node.vendor()) else {
            return koordinator::malformed(
                &mut self.problems,
                DEVICES,
                "a type that no resource can be named by",
            );
        };
        let units = allocated.into_iter().map(|device| self.unit(kind, device));
        let units: Vec<Unit> = units.filter(|unit| !unit.ids.is_empty()).collect();
        self.share_out(Some(kind), &resource, units);
    }

    /// Returns the ids of a device: those of its functions if some were allocated, else its own.
    fn unit(&mut self, kind: &str, device: Allocated) -> Unit {
        let Allocated { id, minor, functions, part } = device;
        let ids = match (functions.is_empty(), id) {
            (false, _) => functions,
            (true, Some(id)) => vec![id],
            (true, None) => match minor.and_then(|minor| self.node.id_of(kind, minor)) {
                Some(id) => vec![id.to_owned()],
                None => {
                    let number =
                        minor.map_or_else(|| "without a number".to_owned(), |n| format!("number {n}"));
                    let what =
                        || format!("a device of type `{kind}` has no id, and of {number} none is known");
                    self.problems.add(Kind::NoId, 1, what);
                    Vec::new()
                }
            },
        };
        let ids = ids.into_iter().filter_map(|id| self.known(kind, id)).collect();
        let share = match part {
            false => Share::All,
            true if kind == names::GPU => Share::Accelerator,
            true => Share::Part,
        };
        Unit { ids, share }
    }

    /// Returns an id with the device's NUMA nodes, unless the node is known not to have the device. An
    /// unhealthy device stays as long as a pod has it.
    fn known(&mut self, kind: &str, id: String) -> Option<(Box<str>, IdSet)> {
        let id = self.checked(id)?;
        let device = match self.node.find(kind, &id) {
            Known::Nothing => None,
            Known::Is(device) => Some(device),
            Known::Missing => {
                let what = || format!("the node has no device `{id}` of type `{kind}`, as its Device says");
                self.problems.add(Kind::UnknownId, 1, what);
                return None;
            }
        };
        let nodes = self.node.nodes_of(&id, device);
        Some((id, nodes))
    }

    fn checked(&mut self, id: String) -> Option<Box<str>> {
        if is_id(&id) {
            return Some(id.into());
        }
        let what = || format!("an id is empty, not printable or longer than {ID_LIMIT} bytes");
        self.problems.add(Kind::BadId, 1, what);
        None
    }

    /// Reads an annotation according to its mapping.
    fn mapped(&mut self, mapping: &'a Mapping, text: &str) {
        let mut found: Vec<(Box<str>, Option<String>)> = Vec::new();
        let Some(path) = &mapping.path else {
            let ids = text.split(',').map(str::trim).filter(|id| !id.is_empty());
            for id in ids.take(IDS_LIMIT + 1) {
                self.found(mapping, &Value::from(id), &[], &mut found);
            }
            return self.share_out_mapped(mapping, found);
        };
        let value = match koordinator::parse(text) {
            Ok(value) => value,
            Err(error) => return koordinator::malformed(&mut self.problems, &mapping.annotation, &error),
        };
        let mut left = IDS_LIMIT + 1;
        path.select(&value, &mut |node, matched| {
            self.found(mapping, node, matched, &mut found);
            left -= 1;
            left > 0
        });
        self.share_out_mapped(mapping, found);
    }

    /// Reads one node that a mapping's path selected.
    fn found(
        &mut self,
        mapping: &Mapping,
        node: &Value,
        matched: &[Match<'_>],
        found: &mut Vec<(Box<str>, Option<String>)>,
    ) {
        let fill = |template: &Template| template.fill(node, matched);
        let id = fill(&mapping.id);
        let container = mapping.container.as_ref().map(fill);
        let (Some(id), true) = (id, container.as_ref().is_none_or(Option::is_some)) else {
            let reason =
                "something that an id or a container is made of is missing, or neither a text nor a number";
            return koordinator::malformed(&mut self.problems, &mapping.annotation, reason);
        };
        if let Some(id) = self.checked(id) {
            found.push((id, container.flatten()));
        }
    }

    fn share_out_mapped(&mut self, mapping: &Mapping, found: Vec<(Box<str>, Option<String>)>) {
        let mut free = Vec::new();
        let mut named: BTreeMap<String, usize> = BTreeMap::new();
        let mut distinct = BTreeSet::new();
        for (id, container) in found.into_iter().filter(|one| distinct.insert(one.clone())) {
            let ids = vec![(id.clone(), self.node.nodes_of(&id, None))];
            let unit = Unit { ids, share: Share::All };
            match container {
                None => free.push(unit),
                Some(name) => {
                    let before = named.entry(name.clone()).or_default();
                    self.share_out_to(&mapping.resource, &name, unit, *before);
                    *before += 1;
                }
            }
        }
        self.share_out(None, &mapping.resource, free);
    }

    /// Gives a device to the container with this name, which already has `before` devices.
    fn share_out_to(&mut self, resource: &Arc<str>, name: &str, unit: Unit, before: usize) {
        let containers = &self.pod.containers;
        match containers.iter().position(|container| &*container.name == name) {
            Some(container) if before < at_most(&containers[container], resource) => {
                self.give(resource, container, unit);
            }
            Some(_) => self.problems.add(Kind::TooMany, unit.ids.len(), || {
                format!(
                    "an annotation gives container `{}` more of `{resource}` than it asks for",
                    shown(name)
                )
            }),
            None => self.problems.add(Kind::NoContainer, unit.ids.len(), || {
                format!("an annotation gives a device to container `{}`, which it does not have", shown(name))
            }),
        }
    }

    /// Distributes devices to the containers that they appear to be for.
    fn share_out(&mut self, kind: Option<&str>, resource: &Arc<str>, units: Vec<Unit>) {
        if units.is_empty() {
            return;
        }
        match distribute(&self.pod.containers, kind, resource, units.len()) {
            Some(places) => {
                let (all, asked) = (units.len(), places.len());
                let unasked: usize = units[asked..].iter().map(|unit| unit.ids.len()).sum();
                for (unit, container) in units.into_iter().zip(places) {
                    self.give(resource, container, unit);
                }
                if unasked > 0 {
                    let what = || {
                        format!(
                            "an annotation gives it {all} of `{resource}`, and it asks for {asked} at most"
                        )
                    };
                    self.problems.add(Kind::TooMany, unasked, what);
                }
            }
            None => {
                let ids = units.iter().map(|unit| unit.ids.len()).sum();
                let what = || format!("it has no container that its `{resource}` could be given to");
                self.problems.add(Kind::NoContainer, ids, what);
            }
        }
    }

    fn give(&mut self, resource: &Arc<str>, container: usize, unit: Unit) {
        for (id, nodes) in unit.ids {
            if self.wanted.len() >= IDS_LIMIT {
                let what = || format!("it has more than {IDS_LIMIT} devices by annotation");
                self.problems.add(Kind::TooMany, 1, what);
                continue;
            }
            // An id that occurs twice counts once.
            if self.seen.insert((resource.clone(), id.clone())) {
                let resource = resource.clone();
                self.wanted.push(Wanted { resource, id, nodes, container, share: unit.share, part: None });
            }
        }
    }

    /// Returns the pod's part of the plan, with devices by index.
    fn finish(self, devices: &Table) -> (PodPlan, Problems) {
        let mut containers: Vec<(Box<str>, Vec<Given>)> = Vec::new();
        let mut of: BTreeMap<usize, Vec<Given>> = BTreeMap::new();
        for Wanted { resource, id, container, part, .. } in &self.wanted {
            let resource = devices.resource(resource.as_bytes());
            let device = resource.and_then(|resource| devices.device(resource, id.as_bytes()));
            let given = device.map(|device| Given { device, part: *part });
            of.entry(*container).or_default().extend(given);
        }
        for (container, devices) in of {
            containers.push((self.pod.containers[container].name.clone(), devices));
        }
        (PodPlan { name: self.pod.full_name(), containers, status: self.status }, self.problems)
    }
}

/// Whether a text can be a device's id: printable ASCII without spaces, up to the maximum length.
fn is_id(id: &str) -> bool {
    (1..=ID_LIMIT).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Escapes and truncates an untrusted text for a message.
fn shown(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

/// Numbers the parts of each device. A pod keeps its number when other pods start or end: it is a hash of the
/// pod's namespace, name and UID.
fn number_parts(drafts: &mut [Draft<'_>]) {
    let mut parts: Vec<(Named, u64, usize, usize)> = Vec::new();
    for (pod, draft) in drafts.iter().enumerate() {
        for (at, wanted) in
            draft.wanted.iter().enumerate().filter(|(_, wanted)| wanted.share == Share::Accelerator)
        {
            parts.push((wanted.named(), number_of(draft.pod), pod, at));
        }
    }
    parts.sort_unstable();
    let mut last: Option<(Named, u64)> = None;
    for (device, mut number, pod, at) in parts {
        // Two equal numbers of 2^31 are rare: the later one takes the next.
        if let Some((_, taken)) = last.as_ref().filter(|(known, _)| *known == device) {
            number = number.max(taken + 1);
        }
        drafts[pod].wanted[at].part = Some(number);
        last = Some((device, number));
    }
}

pub(super) fn number_of(pod: &Pod) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    for text in [&pod.namespace, &pod.name, &pod.uid] {
        hasher.write(text.as_bytes());
        hasher.write(&[0]);
    }
    hasher.finish() % (1 << 31)
}

/// The pods that have a device, and how much of it each has.
type Holders = Vec<(usize, Share)>;

/// Reports devices that two pods have, at least one of them the whole. Only the scheduler knows which is
/// right.
fn claimed_twice(drafts: &mut [Draft<'_>]) {
    let mut all: BTreeMap<Named, Holders> = BTreeMap::new();
    for (pod, draft) in drafts.iter().enumerate() {
        for wanted in &draft.wanted {
            all.entry(wanted.named()).or_default().push((pod, wanted.share));
        }
    }
    for ((resource, id), holders) in all {
        if holders.len() < 2 || holders.iter().all(|(_, share)| *share != Share::All) {
            continue;
        }
        let first = holders[0].0;
        let other = drafts[first].pod.full_name();
        for (pod, _) in &holders[1..] {
            let what = || {
                format!("`{resource}` `{id}` is given to pod {}/{} as well, not in parts", other.0, other.1)
            };
            drafts[*pod].problems.add(Kind::ClaimedTwice, 0, what);
        }
    }
}
