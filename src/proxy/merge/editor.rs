//! Merges a plan into a response. Only the containers that get something change, and the lengths of the
//! messages around them; the rest is copied as it is, once.

use std::collections::BTreeSet;
use std::ops::Range;

use prost::bytes::Bytes;

use super::plan::{Device, Given, Plan, PodPlan, Table, is_same};
use crate::machine::IdSet;
use crate::util::wire::{Value, WireError, fields_in, put_bytes, put_head, put_number, put_varint};

/// The field numbers, the same in both API versions (v1alpha1 has fewer of the fields). Fields that are not
/// listed are not needed.
mod number {
    pub(super) const PODS: u32 = 1;
    pub(super) const POD_NAME: u32 = 1;
    pub(super) const POD_NAMESPACE: u32 = 2;
    pub(super) const CONTAINERS: u32 = 3;
    pub(super) const POD_CPUS: u32 = 4;
    pub(super) const POD_MEMORY: u32 = 5;
    pub(super) const CONTAINER_NAME: u32 = 1;
    pub(super) const DEVICES: u32 = 2;
    pub(super) const CPUS: u32 = 3;
    pub(super) const MEMORY: u32 = 4;
    pub(super) const CLAIMS: u32 = 5;
    pub(super) const RESOURCE: u32 = 1;
    pub(super) const IDS: u32 = 2;
    pub(super) const TOPOLOGY: u32 = 3;
    pub(super) const NODES: u32 = 1;
    pub(super) const NODE_ID: u32 = 1;
    pub(super) const MEMORY_TYPE: u32 = 1;
    pub(super) const SIZE: u32 = 2;
    pub(super) const CLAIMED: u32 = 4;
    pub(super) const CDI: u32 = 1;
    pub(super) const CDI_NAME: u32 = 1;
    pub(super) const ALLOCATABLE: u32 = 1;
}

/// The API version of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// CPUs, memory and devices.
    V1,
    /// Devices only, without topology.
    V1alpha1,
}

/// A response with the plan merged in.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The response: the very same bytes if nothing was merged.
    pub bytes: Bytes,
    /// Number of pods that were changed.
    pub pods: usize,
    /// Number of devices that were added.
    pub devices: usize,
    /// What the plan has but was not added.
    pub left_out: LeftOut,
    /// The pods in the response.
    pub listed: Listed,
}

/// Numbers of ids that a plan has for the pods of a response, but that were not added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The kubelet already lists the device, for any pod.
    pub listed: usize,
    /// The kubelet itself allocated devices of this resource to the pod: those are the pod's devices.
    pub allocated: usize,
    /// A resource claim of the pod has the device.
    pub claimed: usize,
    /// The response does not have the container.
    pub no_container: usize,
}

impl LeftOut {
    /// Returns the name and the number of each reason, for metrics.
    #[must_use]
    pub const fn reasons(&self) -> [(&'static str, usize); 4] {
        [
            ("listed", self.listed),
            ("allocated", self.allocated),
            ("claimed", self.claimed),
            ("container_not_listed", self.no_container),
        ]
    }
}

/// The pods of a response, in its order: where their names are in the kubelet's bytes.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    bytes: Bytes,
    /// Namespace and name.
    names: Vec<(Range<usize>, Range<usize>)>,
}

impl Listed {
    /// Returns namespaces and names. A name that is not UTF-8 cannot be a pod's and is skipped.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = |range: &Range<usize>| str::from_utf8(&self.bytes[range.clone()]).ok();
        self.names.iter().filter_map(move |(namespace, name)| text(namespace).zip(text(name)))
    }
}

/// A record that contains a message: the range of the record, and that of the message.
#[derive(Clone, Debug)]
struct Part {
    record: Range<usize>,
    content: Range<usize>,
}

/// A container of a response.
struct Container<'a> {
    name: &'a [u8],
    part: Part,
    /// The index of the pod's part that contains it.
    of: usize,
}

/// What a response has of one pod that the plan changes.
#[derive(Default)]
struct PodInAnswer<'a> {
    containers: Vec<Container<'a>>,
    /// The plan's resources that the kubelet allocated to it.
    resources: BTreeSet<usize>,
    /// The CDI names of claimed devices: `vendor.com/class=device`.
    claimed: Vec<&'a [u8]>,
    cpus: bool,
    memory: bool,
}

/// Replaces the bytes in `replaced`.
struct Edit {
    replaced: Range<usize>,
    /// The range in the new bytes.
    by: Range<usize>,
}

/// A response that is being changed.
struct Splice<'a> {
    plan: &'a Plan,
    bytes: &'a Bytes,
    version: Version,
    /// By device of the plan: whether the kubelet lists it.
    taken: Vec<bool>,
    edits: Vec<Edit>,
    /// All new bytes.
    new: Vec<u8>,
    pods: usize,
    devices: usize,
    left_out: LeftOut,
}

impl Plan {
    /// Merges the plan into a `ListPodResourcesResponse`.
    ///
    /// # Errors
    /// If the kubelet's response is not such a message.
    pub fn list(&self, bytes: &Bytes, version: Version) -> Result<Merged, WireError> {
        let mut names = Vec::new();
        let mut parts = Vec::new();
        let mut planned = Vec::new();
        for part in messages(bytes, 0..bytes.len(), number::PODS) {
            let part = part?;
            let (namespace, name) = names_of(bytes, std::slice::from_ref(&part))?;
            if let Some(pod) = self.pod(&bytes[namespace.clone()], &bytes[name.clone()]) {
                planned.push((pod, parts.len()));
            }
            names.push((namespace, name));
            parts.push(part);
        }
        let listed = Listed { bytes: bytes.clone(), names };
        if planned.is_empty() {
            return Ok(Merged::unchanged(bytes, listed));
        }
        let mut splice = Splice::new(self, bytes, version);
        for part in &parts {
            splice.take(std::slice::from_ref(part))?;
        }
        let mut done = vec![false; self.pods.len()];
        for (pod, part) in planned {
            // If two pods share a name, it is unknown which one is meant, but only one is.
            if !done[pod] {
                done[pod] = splice.pod(&self.pods[pod], std::slice::from_ref(&parts[part]))?;
            }
        }
        Ok(splice.finish(listed))
    }

    /// Merges the plan into a `GetPodResourcesResponse`.
    ///
    /// # Errors
    /// As [`Plan::list`].
    pub fn get(&self, bytes: &Bytes) -> Result<Merged, WireError> {
        // There is one pod. If it comes in several records, they are the pieces of one message.
        let parts: Vec<Part> = messages(bytes, 0..bytes.len(), number::PODS).collect::<Result<_, _>>()?;
        let (namespace, name) = names_of(bytes, &parts)?;
        let pod = self.pod(&bytes[namespace.clone()], &bytes[name.clone()]);
        let names = if parts.is_empty() { Vec::new() } else { vec![(namespace, name)] };
        let listed = Listed { bytes: bytes.clone(), names };
        let Some(pod) = pod.filter(|_| !parts.is_empty()) else {
            return Ok(Merged::unchanged(bytes, listed));
        };
        let mut splice = Splice::new(self, bytes, Version::V1);
        splice.take(&parts)?;
        splice.pod(&self.pods[pod], &parts)?;
        Ok(splice.finish(listed))
    }

    /// Adds the node's devices to an `AllocatableResourcesResponse`, except those it already has.
    ///
    /// # Errors
    /// As [`Plan::list`].
    pub fn allocatable(&self, bytes: &Bytes) -> Result<Merged, WireError> {
        let table = &self.allocatable;
        if table.devices.is_empty() {
            return Ok(Merged::unchanged(bytes, Listed::default()));
        }
        let mut taken = vec![false; table.devices.len()];
        for part in messages(bytes, 0..bytes.len(), number::ALLOCATABLE) {
            mark(table, bytes, &part?.content, &mut taken)?;
        }
        let free = (0..table.devices.len()).filter(|device| !taken[*device]);
        let free: Vec<Given> = free.map(|device| Given { device, part: None }).collect();
        let mut new = Vec::new();
        put_devices(&mut new, table, &free, number::ALLOCATABLE, Version::V1);
        let left_out = LeftOut { listed: table.devices.len() - free.len(), ..LeftOut::default() };
        if new.is_empty() {
            return Ok(Merged { left_out, ..Merged::unchanged(bytes, Listed::default()) });
        }
        let mut all = Vec::with_capacity(bytes.len() + new.len());
        all.extend_from_slice(bytes);
        all.extend_from_slice(&new);
        let listed = Listed::default();
        Ok(Merged { bytes: all.into(), pods: 0, devices: free.len(), left_out, listed })
    }

    /// Returns the index of a pod's plan.
    fn pod(&self, namespace: &[u8], name: &[u8]) -> Option<usize> {
        let key = |pod: &PodPlan| (pod.name.0.as_bytes(), pod.name.1.as_bytes()).cmp(&(namespace, name));
        self.pods.binary_search_by(key).ok()
    }
}

impl Merged {
    fn unchanged(bytes: &Bytes, listed: Listed) -> Self {
        Self { bytes: bytes.clone(), pods: 0, devices: 0, left_out: LeftOut::default(), listed }
    }
}

/// Returns the messages in a field.
fn messages(
    bytes: &[u8],
    part: Range<usize>,
    number: u32,
) -> impl Iterator<Item = Result<Part, WireError>> + '_ {
    fields_in(bytes, part).filter_map(move |field| match field {
        Ok(field) if field.number == number => match field.value {
            Value::Bytes(content) => Some(Ok(Part { record: field.record, content })),
            // A record with another wire type than the field's is an unknown field.
            _ => None,
        },
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

/// Returns the namespace and name of a pod. The last of each counts.
fn names_of(bytes: &[u8], parts: &[Part]) -> Result<(Range<usize>, Range<usize>), WireError> {
    let (mut namespace, mut name) = (0..0, 0..0);
    for part in parts {
        for field in fields_in(bytes, part.content.clone()) {
            let field = field?;
            match (field.number, field.value) {
                (number::POD_NAME, Value::Bytes(text)) => name = text,
                (number::POD_NAMESPACE, Value::Bytes(text)) => namespace = text,
                _ => {}
            }
        }
    }
    Ok((namespace, name))
}

/// Marks the table's devices that a `ContainerDevices` has. Returns the index of its resource, if it has any
/// id.
fn mark(
    table: &Table,
    bytes: &[u8],
    message: &Range<usize>,
    taken: &mut [bool],
) -> Result<Option<usize>, WireError> {
    let (mut name, mut any): (&[u8], bool) = (&[], false);
    for field in fields_in(bytes, message.clone()) {
        let field = field?;
        match (field.number, field.value) {
            (number::RESOURCE, Value::Bytes(text)) => name = &bytes[text],
            (number::IDS, Value::Bytes(_)) => any = true,
            _ => {}
        }
    }
    let Some(resource) = table.resource(name).filter(|_| any) else { return Ok(None) };
    for id in messages(bytes, message.clone(), number::IDS) {
        table.mark(resource, &bytes[id?.content], taken);
    }
    Ok(Some(resource))
}

impl<'a> Splice<'a> {
    fn new(plan: &'a Plan, bytes: &'a Bytes, version: Version) -> Self {
        Self {
            plan,
            bytes,
            version,
            taken: vec![false; plan.devices.devices.len()],
            edits: Vec::new(),
            new: Vec::new(),
            pods: 0,
            devices: 0,
            left_out: LeftOut::default(),
        }
    }

    /// Records which of the plan's devices the kubelet lists.
    fn take(&mut self, pod: &[Part]) -> Result<(), WireError> {
        let bytes: &[u8] = self.bytes;
        for part in pod {
            for container in messages(bytes, part.content.clone(), number::CONTAINERS) {
                for devices in messages(bytes, container?.content, number::DEVICES) {
                    mark(&self.plan.devices, bytes, &devices?.content, &mut self.taken)?;
                }
            }
        }
        Ok(())
    }

    /// Merges a pod's plan into it. Returns whether the response has any of the plan's containers.
    fn pod(&mut self, plan: &PodPlan, parts: &[Part]) -> Result<bool, WireError> {
        let pod = self.read(parts)?;
        // By how many bytes each part grows; `None` if it stays as it is.
        let mut grown: Vec<Option<isize>> = vec![None; parts.len()];
        let mut grow = |of: usize, by: Option<isize>| {
            grown[of] = by.map(|by| grown[of].unwrap_or(0).saturating_add(by)).or(grown[of]);
        };
        let mut found = plan.containers.is_empty();
        for (name, devices) in &plan.containers {
            let Some(container) = pod.containers.iter().find(|known| known.name == name.as_bytes()) else {
                self.left_out.no_container += devices.len();
                continue;
            };
            found = true;
            let devices = self.choose(&pod, devices);
            grow(container.of, self.container(&container.part, &devices));
        }
        if let (Version::V1, Some((last, part))) = (self.version, parts.iter().enumerate().next_back()) {
            grow(last, self.status(plan, &pod, part));
        }
        self.pods += usize::from(grown.iter().any(Option::is_some));
        for (part, grown) in parts.iter().zip(grown) {
            if let Some(grown) = grown {
                self.lengthen(part, number::PODS, grown);
            }
        }
        Ok(found)
    }

    fn read(&mut self, parts: &[Part]) -> Result<PodInAnswer<'a>, WireError> {
        let bytes: &'a [u8] = self.bytes;
        let mut pod = PodInAnswer::default();
        for (of, part) in parts.iter().enumerate() {
            for field in fields_in(bytes, part.content.clone()) {
                let field = field?;
                match (field.number, field.value) {
                    (number::CONTAINERS, Value::Bytes(content)) => {
                        let part = Part { record: field.record, content };
                        self.read_container(part, of, &mut pod)?;
                    }
                    (number::POD_CPUS, value) => pod.cpus |= says_something(&value),
                    (number::POD_MEMORY, _) => pod.memory = true,
                    _ => {}
                }
            }
        }
        Ok(pod)
    }

    fn read_container(&mut self, part: Part, of: usize, pod: &mut PodInAnswer<'a>) -> Result<(), WireError> {
        let bytes: &'a [u8] = self.bytes;
        let mut name: &[u8] = &[];
        for field in fields_in(bytes, part.content.clone()) {
            let field = field?;
            match (field.number, field.value) {
                (number::CONTAINER_NAME, Value::Bytes(text)) => name = &bytes[text],
                (number::DEVICES, Value::Bytes(devices)) => {
                    pod.resources.extend(mark(&self.plan.devices, bytes, &devices, &mut self.taken)?);
                }
                (number::CPUS, value) => pod.cpus |= says_something(&value),
                (number::MEMORY, _) => pod.memory = true,
                (number::CLAIMS, Value::Bytes(claim)) => read_claim(bytes, claim, &mut pod.claimed)?,
                _ => {}
            }
        }
        pod.containers.push(Container { name, part, of });
        Ok(())
    }

    /// Returns those of a pod's devices that are to be added.
    fn choose(&mut self, pod: &PodInAnswer<'_>, devices: &[Given]) -> Vec<Given> {
        let table = &self.plan.devices;
        let mut chosen = Vec::with_capacity(devices.len());
        for given in devices {
            let Device { resource, id, .. } = &table.devices[given.device];
            if pod.resources.contains(resource) {
                self.left_out.allocated += 1;
            } else if self.taken[given.device] {
                self.left_out.listed += 1;
            } else if pod.claimed.iter().any(|name| is_cdi(name, &table.resources[*resource], id)) {
                self.left_out.claimed += 1;
            } else {
                chosen.push(*given);
            }
        }
        chosen
    }

    /// Appends devices to a container. Returns by how many bytes the container's record grows, if there are
    /// any.
    fn container(&mut self, part: &Part, devices: &[Given]) -> Option<isize> {
        let start = self.new.len();
        put_devices(&mut self.new, &self.plan.devices, devices, number::DEVICES, self.version);
        self.devices += devices.len();
        let grown = self.append(part.content.end, start)?;
        Some(self.lengthen(part, number::CONTAINERS, grown))
    }

    /// Appends the CPUs and the memory of a pod where the kubelet reports none. Returns by how many bytes the
    /// pod grows.
    fn status(&mut self, plan: &PodPlan, pod: &PodInAnswer<'_>, part: &Part) -> Option<isize> {
        let start = self.new.len();
        if !pod.cpus && !plan.status.cpus.is_empty() {
            let mut packed = Vec::new();
            plan.status.cpus.iter().for_each(|cpu| put_varint(&mut packed, cpu.into()));
            put_bytes(&mut self.new, number::POD_CPUS, &packed);
        }
        for (kind, size, node) in plan.status.memory.iter().filter(|_| !pod.memory) {
            let mut block = Vec::new();
            put_bytes(&mut block, number::MEMORY_TYPE, kind.as_bytes());
            put_number(&mut block, number::SIZE, *size);
            put_topology(&mut block, &[*node].into_iter().collect());
            put_bytes(&mut self.new, number::POD_MEMORY, &block);
        }
        self.append(part.content.end, start)
    }

    /// Inserts everything new since `start` at this position. Returns the number of bytes.
    fn append(&mut self, at: usize, start: usize) -> Option<isize> {
        let by = start..self.new.len();
        let added = isize::try_from(by.len()).ok().filter(|added| *added > 0)?;
        self.edits.push(Edit { replaced: at..at, by });
        Some(added)
    }

    /// Writes the header of a message that has grown. Returns by how much its record grows: the old header
    /// may have been longer than necessary.
    fn lengthen(&mut self, part: &Part, number: u32, grown: isize) -> isize {
        let start = self.new.len();
        put_head(&mut self.new, number, part.content.len().saturating_add_signed(grown));
        let replaced = part.record.start..part.content.start;
        let by = start..self.new.len();
        let longer = by.len() as isize - replaced.len() as isize;
        self.edits.push(Edit { replaced, by });
        grown.saturating_add(longer)
    }

    fn finish(mut self, listed: Listed) -> Merged {
        let Self { pods, devices, left_out, .. } = self;
        if self.edits.is_empty() {
            return Merged { left_out, ..Merged::unchanged(self.bytes, listed) };
        }
        self.edits.sort_by_key(|edit| (edit.replaced.start, edit.replaced.end));
        let mut all = Vec::with_capacity(self.bytes.len() + self.new.len());
        let mut copied = 0;
        for Edit { replaced, by } in self.edits {
            all.extend_from_slice(&self.bytes[copied..replaced.start]);
            all.extend_from_slice(&self.new[by]);
            copied = replaced.end;
        }
        all.extend_from_slice(&self.bytes[copied..]);
        Merged { bytes: all.into(), pods, devices, left_out, listed }
    }
}

/// Whether the field has any numbers, one by one or packed.
fn says_something(value: &Value) -> bool {
    !matches!(value, Value::Bytes(packed) if packed.is_empty())
}

/// Collects the CDI names of the devices in a claim.
fn read_claim<'a>(bytes: &'a [u8], claim: Range<usize>, names: &mut Vec<&'a [u8]>) -> Result<(), WireError> {
    for device in messages(bytes, claim, number::CLAIMED) {
        for cdi in messages(bytes, device?.content, number::CDI) {
            for name in messages(bytes, cdi?.content, number::CDI_NAME) {
                names.push(&bytes[name?.content]);
            }
        }
    }
    Ok(())
}

/// Whether this is the CDI name of the device, `<resource>=<id>`, or one id is a part of the other.
fn is_cdi(name: &[u8], resource: &str, id: &str) -> bool {
    let rest = name.strip_prefix(resource.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
    rest.is_some_and(|rest| is_same(rest, id.as_bytes()))
}

/// Writes devices as the kubelet does: successive devices with the same resource and the same NUMA nodes
/// share a message.
fn put_devices(out: &mut Vec<u8>, table: &Table, devices: &[Given], number: u32, version: Version) {
    let of = |given: &Given| &table.devices[given.device];
    let together = |a: &Given, b: &Given| (of(a).resource, &of(a).nodes) == (of(b).resource, &of(b).nodes);
    for run in devices.chunk_by(together) {
        let Device { resource, nodes, .. } = of(&run[0]);
        let mut message = Vec::new();
        put_bytes(&mut message, number::RESOURCE, table.resources[*resource].as_bytes());
        for given in run {
            let id = &of(given).id;
            match given.part {
                None => put_bytes(&mut message, number::IDS, id.as_bytes()),
                Some(part) => put_bytes(&mut message, number::IDS, format!("{id}::{part}").as_bytes()),
            }
        }
        if version == Version::V1 {
            put_topology(&mut message, nodes);
        }
        put_bytes(out, number, &message);
    }
}

/// Writes the NUMA nodes, if they are known.
fn put_topology(out: &mut Vec<u8>, nodes: &IdSet) {
    if nodes.is_empty() {
        return;
    }
    let mut topology = Vec::new();
    for node in nodes.iter() {
        let mut message = Vec::new();
        // As all encoders do: 0 is left out.
        if node > 0 {
            put_number(&mut message, number::NODE_ID, node.into());
        }
        put_bytes(&mut topology, number::NODES, &message);
    }
    put_bytes(out, number::TOPOLOGY, &topology);
}
