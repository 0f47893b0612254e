//! The live object at startup: its resource names and policies are kept until they are read again, its
//! amounts for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::names::is_device;
use crate::nrt::{NodeResourceTopology, POLICY, SCOPE, ZONE_TYPE, Zone, zone_name};
use crate::topology::{Amounts, Topology};

/// The live object before this agent's first write.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Standing {
    /// Not known yet.
    #[default]
    Unknown,
    /// There was none.
    Missing,
    /// We may not read it.
    Unreadable,
    /// It exists.
    Object(Box<NodeResourceTopology>),
}

/// A policy without its scope is misinterpreted: both are carried over, or neither.
const TOGETHER: [&str; 2] = [POLICY, SCOPE];
/// Other attributes from the kubelet's configuration.
const OTHERS: [&str; 3] = ["topologyManagerMaxNUMANodes", "cpuManagerPolicy", "memoryManagerPolicy"];
/// Prefix of the names of policy options.
const OPTION: &str = "topologyManagerOption";

impl Standing {
    /// Returns true if it is known what there was, or that it cannot be read.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown)
    }

    /// Returns the object, if there was one.
    #[must_use]
    pub fn object(&self) -> Option<&NodeResourceTopology> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// Returns the zones that are NUMA nodes.
    pub fn zones(&self) -> impl Iterator<Item = &Zone> {
        let zones = self.object().into_iter().flat_map(|object| &object.spec.zones);
        zones.filter(|zone| zone.kind == ZONE_TYPE)
    }

    /// Returns the device resources that its zones listed.
    #[must_use]
    pub fn devices(&self) -> BTreeSet<String> {
        let resources = self.zones().flat_map(|zone| zone.resources.iter().flatten());
        let names = resources.map(|resource| resource.name.as_str());
        // Resources of the kubelet's own managers have no domain, and another writer may have invented names.
        names.filter(|name| is_device(name)).map(str::to_owned).collect()
    }

    /// Returns the attributes from the kubelet's configuration; none if the policy or the scope is missing.
    #[must_use]
    pub fn policies(&self) -> Vec<(String, String)> {
        let attributes =
            self.object().and_then(|object| object.spec.attributes.as_deref()).unwrap_or_default();
        let has = |name: &&str| attributes.iter().any(|attribute| attribute.name == **name);
        if !TOGETHER.iter().all(has) {
            return Vec::new();
        }
        let kept = attributes.iter().filter(|attribute| is_policy(&attribute.name));
        kept.map(|attribute| (attribute.name.clone(), attribute.value.clone())).collect()
    }
}

fn is_policy(name: &str) -> bool {
    TOGETHER.contains(&name) || OTHERS.contains(&name) || name.starts_with(OPTION)
}

/// Compares a recently started kubelet with the live object. Such a kubelet, which may have started together
/// with us, may not know its pods yet, and must not make the node look freer at once.
#[derive(Debug, Default)]
pub(super) struct Promise {
    /// Allocatable and available amounts by zone and resource, from the object.
    amounts: BTreeMap<(String, String), (u64, u64)>,
    /// Since when the kubelet could know its pods; `None` once it is trusted.
    since: Option<Instant>,
}

/// What the pod source knows of the pods that the List should contain.
pub(super) enum Others {
    /// The List contains all of them.
    Agree,
    /// The List lacks some, or the source has not synced yet. The text is the reason.
    Miss(String),
    /// No pod source is configured, or it does not work.
    Silent,
}

impl Promise {
    /// Returns a guard that compares with `standing`. The kubelet could know its pods for `age` already.
    pub(super) fn of(standing: &Standing, now: Instant, age: Duration) -> Self {
        let mut amounts = BTreeMap::new();
        for zone in standing.zones() {
            for resource in zone.resources.iter().flatten() {
                let key = (zone.name.clone(), resource.name.clone());
                amounts.insert(key, (resource.allocatable.ceil(), resource.available.ceil()));
            }
        }
        // If the subtraction fails, the wait starts now.
        Self { amounts, since: Some(now.checked_sub(age).unwrap_or(now)) }
    }

    /// Returns why a topology is not accepted yet; once one is, the guard is off. If `others` know which pods
    /// exist, available amounts may have grown, since pods may be gone; allocatable ones may not.
    pub(super) fn doubt(
        &mut self,
        topology: &Topology,
        others: impl FnOnce() -> Others,
        now: Instant,
        bound: Duration,
    ) -> Option<String> {
        let since = self.since?;
        let doubt = match now.duration_since(since) < bound {
            false => None,
            true => match others() {
                Others::Agree => self.more(topology, |now, (then, _)| (now.allocatable, then)),
                Others::Miss(what) => Some(what),
                Others::Silent => self.more(topology, |now, (_, then)| (now.available, then)),
            },
        };
        if doubt.is_none() {
            *self = Self::default();
        }
        doubt.map(|doubt| format!("the kubelet started lately and {doubt}: it may not know everything yet"))
    }

    /// Returns true while the kubelet is still compared with the object.
    pub(super) const fn is_doubting(&self) -> bool {
        self.since.is_some()
    }

    /// Returns where the topology has more than the object, by the amounts that `look` selects.
    fn more(&self, topology: &Topology, look: impl Fn(&Amounts, (u64, u64)) -> (u64, u64)) -> Option<String> {
        topology.zones.iter().find_map(|zone| {
            let name = zone_name(zone.id);
            zone.resources.iter().find_map(|(resource, amounts)| {
                let (now, then) = look(amounts, *self.amounts.get(&(name.clone(), resource.clone()))?);
                (now > then).then(|| format!("gives {name} {now} {resource}, not {then} as the object says"))
            })
        })
    }
}

/// How certain the kubelet's configuration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is what the kubelet runs with.
    Certain,
    /// The kubelet may still run with another.
    Doubtful,
    /// It is unknown.
    Nothing,
}

/// The policies to keep while the kubelet's configuration cannot be read. Only a configuration that was read
/// replaces them, however long that takes: without them the scheduler plugin would align nothing on the node.
#[derive(Debug)]
pub(super) struct Carried {
    policies: Vec<(String, String)>,
    /// How long nothing is published if there are none to carry over...
    patience: Duration,
    /// ...and since when it has been waiting.
    waiting_since: Option<Instant>,
    /// When to report that policies are carried over.
    report_at: Instant,
    reported: bool,
    /// Whether the configuration was read once (the scanner keeps it), or has no source.
    over: bool,
}

impl Carried {
    /// Returns an empty carryover. What it will carry is reported after `bound`; if there is nothing,
    /// publishing waits up to `patience`.
    pub(super) fn new(now: Instant, patience: Duration, bound: Duration) -> Self {
        Self {
            policies: Vec::new(),
            patience,
            waiting_since: None,
            report_at: now + bound,
            reported: false,
            over: false,
        }
    }

    /// Returns one that neither carries over nor waits.
    pub(super) fn nothing() -> Self {
        Self { over: true, ..Self::new(Instant::now(), Duration::ZERO, Duration::ZERO) }
    }

    /// Takes the policies of the live object.
    pub(super) fn take(&mut self, standing: &Standing) {
        self.policies = standing.policies();
    }

    /// Returns true if it is too early to publish: the object would have no policies, and they may be known
    /// soon.
    pub(super) fn waits(&mut self, known: Known, now: Instant) -> bool {
        if known != Known::Nothing || self.over || !self.policies.is_empty() {
            return false;
        }
        let since = *self.waiting_since.get_or_insert(now);
        now.duration_since(since) < self.patience
    }

    /// Adds the policies that the topology lacks. Returns a sentence to report, once, if they could not be
    /// read in time.
    pub(super) fn complete(&mut self, topology: &mut Topology, known: Known, now: Instant) -> Option<String> {
        self.over |= known == Known::Certain;
        if self.over {
            return None;
        }
        self.put_before_others(topology);
        if known == Known::Doubtful {
            return None;
        }
        self.report(now)
    }

    /// Replaces the policies that were read by those that are carried over.
    fn put_before_others(&self, topology: &mut Topology) {
        if !self.policies.is_empty() {
            topology.attributes.retain(|(name, _)| !is_policy(name));
            topology.attributes.splice(0..0, self.policies.iter().cloned());
        }
    }

    fn report(&mut self, now: Instant) -> Option<String> {
        let early = !self.policies.is_empty() && now < self.report_at;
        if early || self.reported {
            return None;
        }
        self.reported = true;
        let consequence = match self.policies.is_empty() {
            true => "has no policies",
            false => "keeps the policies that it had before, until the configuration can be read",
        };
        Some(format!(
            "the kubelet's configuration has not been readable since the agent started, so the object {consequence}: \
             let its file be read (`kubelet.config.file`), the kubelet be asked (`kubelet.config.source`), or give the \
             policies by hand"
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::topology;

    fn standing(attributes: &[(&str, &str)], resources: &[&str]) -> Standing {
        let attributes: Vec<_> =
            attributes.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let one = |name: &&str| json!({"name": name, "capacity": 1, "allocatable": 1, "available": 1});
        let resources: Vec<_> = resources.iter().map(one).collect();
        let object = json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": "w"},
            "zones": [
                {"name": "node-0", "type": "Node", "resources": resources},
                {"name": "balloon", "type": "balloon", "resources": [one(&"example.com/no")]},
            ],
            "attributes": attributes,
        });
        Standing::Object(Box::new(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn what_cannot_be_read_is_known_as_well() {
        assert!(!Standing::Unknown.is_known());
        assert!([Standing::Missing, Standing::Unreadable, standing(&[], &[])].iter().all(Standing::is_known));
    }

    #[test]
    fn devices_are_what_has_a_domain() {
        let names = ["cpu", "memory", "hugepages-2Mi", "example.com/nic", "made up/nic"];
        assert_eq!(standing(&[], &names).devices(), ["example.com/nic".to_owned()].into());
        assert_eq!(Standing::Missing.devices(), BTreeSet::new());
    }

    #[test]
    fn a_policy_is_never_carried_without_its_scope() {
        let (policy, scope) = (("topologyManagerPolicy", "restricted"), ("topologyManagerScope", "pod"));
        assert_eq!(standing(&[policy], &[]).policies(), []);
        assert_eq!(standing(&[scope], &[]).policies(), []);
        let others = ("nodeTopologyPodsFingerprint", "pfp0v001ef46db3751d8e999");
        assert_eq!(standing(&[others, policy], &[]).policies(), []);
        let option = ("topologyManagerOptionPreferClosestNumaNodes", "true");
        let policies = standing(&[others, policy, option, scope], &[]).policies();
        let names: Vec<&str> = policies.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [policy.0, option.0, scope.0], "a fingerprint is no policy");
    }

    #[test]
    fn policies_are_carried_until_they_are_read() {
        let standing = standing(&[("topologyManagerPolicy", "none"), ("topologyManagerScope", "pod")], &[]);
        let start = Instant::now();
        const PATIENCE: Duration = Duration::from_secs(30);
        let bound = Duration::from_secs(300);
        let carried = || {
            let mut carried = Carried::new(start, PATIENCE, bound);
            carried.take(&standing);
            carried
        };
        let attributes = |carried: &mut Carried, known, now| {
            let mut topology = Topology::default();
            let sentence = carried.complete(&mut topology, known, now);
            (topology.attributes, sentence)
        };
        let mut one = carried();
        assert_eq!(attributes(&mut one, Known::Nothing, start), (standing.policies(), None));
        let (kept, sentence) = attributes(&mut one, Known::Nothing, start + bound);
        assert!(sentence.unwrap().contains("keeps the policies"));
        assert_eq!(kept, standing.policies());
        let hour = Duration::from_secs(3600);
        assert_eq!(
            attributes(&mut one, Known::Nothing, start + hour),
            (standing.policies(), None),
            "said once"
        );
        assert_eq!(
            attributes(&mut one, Known::Certain, start + hour),
            (Vec::new(), None),
            "what was read holds"
        );

        let mut doubted = carried();
        let read = ["topologyManagerPolicy", "topologyManagerOptionNew", "cpu_core"];
        let mut topology = Topology {
            attributes: read.map(|name| (name.to_owned(), "new".to_owned())).to_vec(),
            ..Topology::default()
        };
        assert_eq!(doubted.complete(&mut topology, Known::Doubtful, start + bound * 2), None);
        let names: Vec<&str> = topology.attributes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [TOGETHER[0], TOGETHER[1], "cpu_core"], "the file is not believed yet");
        assert_eq!(topology.attributes[..2], standing.policies());
    }

    #[test]
    fn an_object_without_policies_waits_for_them_but_not_for_ever() {
        const PATIENCE: Duration = Duration::from_secs(30);
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let carried = || Carried::new(start, PATIENCE, PATIENCE * 10);
        let mut one = carried();
        assert!(!one.waits(Known::Certain, start), "they are known");
        assert!(one.waits(Known::Nothing, later(100)), "from the first time that something would go out");
        assert!(one.waits(Known::Nothing, later(129)));
        assert!(!one.waits(Known::Nothing, later(130)));
        let mut topology = Topology::default();
        let sentence = one.complete(&mut topology, Known::Nothing, later(130)).unwrap();
        assert!(sentence.contains("has no policies"), "{sentence}");
        assert!(!one.waits(Known::Nothing, later(131)), "never again");
        assert_eq!(one.complete(&mut topology, Known::Nothing, later(131)), None, "said once");

        let mut other = carried();
        other.take(&standing(&[("topologyManagerPolicy", "none"), ("topologyManagerScope", "pod")], &[]));
        assert!(!other.waits(Known::Nothing, start), "there are some to carry");
        let mut nothing = Carried::nothing();
        assert!(!nothing.waits(Known::Nothing, start));
        assert_eq!(nothing.complete(&mut topology, Known::Nothing, start), None, "nobody is to tell");
    }

    #[test]
    fn a_young_kubelet_is_doubted_as_long_as_the_node_looks_freer_than_the_object() {
        // One of each is free.
        let standing = standing(&[], &["cpu", "example.com/nic"]);
        let account = |cpus: u64| {
            let amounts = Amounts { capacity: 4, allocatable: 4, available: cpus };
            let resources = [("cpu".to_owned(), amounts), ("new".to_owned(), amounts)].into();
            let zones = vec![topology::Zone { id: 0, resources, ..topology::Zone::default() }];
            Topology { zones, ..Topology::default() }
        };
        let start = Instant::now() + Duration::from_secs(3600);
        let bound = Duration::from_secs(30);
        let later = |seconds| start + Duration::from_secs(seconds);
        let young = || Promise::of(&standing, start, Duration::from_secs(10));
        let mut promise = young();
        let doubt = promise.doubt(&account(4), || Others::Silent, later(1), bound).unwrap();
        assert!(doubt.contains("node-0 4 cpu, not 1"), "{doubt}");
        assert!(promise.is_doubting());
        assert!(promise.doubt(&account(4), || Others::Silent, later(19), bound).is_some());
        assert_eq!(
            promise.doubt(&account(1), || Others::Silent, later(19), bound),
            None,
            "its pods are back"
        );
        assert!(!promise.is_doubting());
        assert_eq!(
            promise.doubt(&account(4), || Others::Silent, later(19), bound),
            None,
            "and it is believed from then on"
        );
        assert_eq!(young().doubt(&account(4), || Others::Silent, later(20), bound), None, "it had its time");
        let mut old = Promise::of(&standing, start, Duration::from_secs(7200));
        assert_eq!(old.doubt(&account(4), || Others::Silent, start, bound), None);
        let none = || Promise::of(&Standing::Missing, start, Duration::ZERO);
        assert_eq!(none().doubt(&account(4), || Others::Silent, start, bound), None);
        let unlisted = || Others::Miss("does not list 2 pods".to_owned());
        let doubt = young().doubt(&account(4), || Others::Agree, start, bound).unwrap();
        assert!(doubt.contains("node-0 4 cpu, not 1"), "more can be given out than before: {doubt}");
        let mut same = account(4);
        same.zones[0].resources.values_mut().for_each(|amounts| amounts.allocatable = 1);
        assert_eq!(
            young().doubt(&same, || Others::Agree, start, bound),
            None,
            "pods went while nobody looked"
        );
        let doubt = none().doubt(&account(4), unlisted, start, bound).unwrap();
        assert!(doubt.contains("does not list 2 pods"), "{doubt}");
        assert_eq!(none().doubt(&account(4), unlisted, later(30), bound), None);
    }
}
