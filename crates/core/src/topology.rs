//! Computes a node's zones from its machine, allocatable resources and usage. Pure: no I/O, no clock, no
//! async.
//!
//! CPUs and devices are counted as sets of ids, never as differences of counts; memory and huge pages as
//! bytes per node. All output is sorted: the same input gives the same bytes, in whatever order the kubelet
//! listed it.

mod attributes;
mod by_pod;
mod claimed;
mod cpus;
mod devices;
mod finding;
mod groups;
mod memory;
mod rules;
mod unlisted;

use std::collections::{BTreeMap, BTreeSet};

use crate::claims::{self, Held, NodeClaims};
use crate::kubelet::{Allocatable, Checkpoints, ContainerUsage, KubeletConfig, PodUsage, Usage};
use crate::machine::{Id, IdSet, Machine};
use crate::nrt::{MEMORY_GROUP, POLICY, SINGLE_NUMA_NODE};

pub use crate::nrt::Amounts;
pub(crate) use attributes::camel_case;
pub use attributes::is_policy_attribute;
pub use by_pod::{PodAmounts, amounts_by_pod};
pub use finding::Finding;
pub use rules::{NodeExclusions, ZoneRules};
pub use unlisted::{UidMatches, match_uids};

/// The highest zone id that fits the scheduler's 64-bit masks; a zone `node-64` makes it panic.
pub const HIGHEST_ZONE: Id = 63;

/// The cost for "unknown or unreachable", and the largest cost: a SLIT entry is one byte (ACPI 6.5, 5.2.17).
/// The scheduler plugin treats zones with larger costs as zones that fit nothing (scheduler-plugins 903da7df,
/// `least_numa.go`, `findSuitableCombination`).
const UNKNOWN_COST: u32 = 255;

/// The largest amount that is published. The scheduler plugin multiplies available amounts by 100 in 64 bits
/// (`least_allocated.go`), and an overflowing score aborts the scheduling of every pod that this node is
/// scored for.
const LARGEST_AMOUNT: u64 = 9_999_999_999_999_999;

/// The distance of a node to itself if the kernel reports none.
const SELF_COST: u32 = 10;

/// The inputs of the computation, all read at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The node's hardware.
    pub machine: &'a Machine,
    /// What the kubelet can allocate.
    pub allocatable: &'a Allocatable,
    /// What the kubelet has allocated.
    pub usage: &'a Usage,
    /// Terminated pods (namespace, name). Kubelets before 1.34 still list them, but their resources are
    /// released.
    pub terminated: &'a BTreeSet<(String, String)>,
    /// The resource managers' checkpoints, if they can be read.
    pub checkpoints: Option<&'a Checkpoints>,
    /// The node's ResourceClaims and devices, if they are read.
    pub claims: Option<&'a NodeClaims>,
    /// The kubelet's configuration, if known.
    pub config: Option<&'a KubeletConfig>,
    /// Policy attributes that replace those of `config`: names and values.
    pub policies: Option<&'a [(String, String)]>,
    /// Device resources that every zone lists even if no device is reported: their plugin may be restarting.
    pub remembered: &'a BTreeSet<String>,
    /// The configured exclusions and filler zones.
    pub rules: &'a ZoneRules,
}

/// Returns the listed pods without the terminated ones (namespace, name), whose resources are released.
pub fn active_pods<'a>(
    usage: &'a Usage,
    terminated: &'a BTreeSet<(String, String)>,
) -> impl Iterator<Item = &'a PodUsage> + use<'a> {
    // Avoids copying the names if no pod has terminated.
    let has_terminated =
        move |pod: &PodUsage| !terminated.is_empty() && terminated.contains(&pod.full_name());
    usage.pods.iter().filter(move |pod| !has_terminated(pod))
}

impl<'a> Inputs<'a> {
    fn active_pods(&self) -> impl Iterator<Item = &'a PodUsage> + use<'a> {
        active_pods(self.usage, self.terminated)
    }

    fn counts(&self, pod: &PodUsage) -> bool {
        !self.rules.exclude.pod(&pod.namespace, &pod.name)
    }
}

struct InUse<'a> {
    pods: Vec<&'a PodUsage>,
    unlisted: unlisted::Unlisted<'a>,
    claims: Held,
}

impl<'a> InUse<'a> {
    fn of(inputs: &Inputs<'a>) -> Self {
        let unlisted = inputs.checkpoints.map(|checkpoints| unlisted::of(inputs, checkpoints));
        Self {
            pods: inputs.active_pods().filter(|pod| inputs.counts(pod)).collect(),
            unlisted: unlisted.unwrap_or_default(),
            claims: inputs.claims.map(|claims| held(inputs, claims)).unwrap_or_default(),
        }
    }

    fn containers(&self) -> impl Iterator<Item = &'a ContainerUsage> {
        let listed = self.pods.iter().flat_map(|pod| &pod.containers);
        listed.chain(self.unlisted.containers.iter().copied())
    }
}

fn held(inputs: &Inputs<'_>, claims: &NodeClaims) -> Held {
    claims::account(inputs.machine, claims, |namespace, pod| !inputs.rules.exclude.pod(namespace, pod))
}

/// The computed topology of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Ascending by id.
    pub zones: Vec<Zone>,
    /// Names and values, in a fixed order; no policies while the kubelet's configuration is unknown.
    pub attributes: Vec<(String, String)>,
    /// Every DRA driver, with the number of its devices that are in no zone, since their NUMA node is not known.
    pub unplaced_devices: BTreeMap<String, u64>,
    /// Inconsistencies in the inputs, for the logs; sorted.
    pub findings: BTreeSet<Finding>,
}

/// The resources of one NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// The NUMA node's id.
    pub id: Id,
    /// Distance to every zone, itself included, ascending by id.
    pub costs: BTreeMap<Id, u32>,
    /// Resource name to amounts. Every zone lists the same names.
    pub resources: BTreeMap<String, Amounts>,
    /// Attributes. A computed topology has no placement yet.
    pub attributes: BTreeMap<String, String>,
}

impl Zone {
    /// Returns the nodes of the Memory Manager's group that the zone is in, its own id if it is in none; `None` if that
    /// is not known.
    #[must_use]
    pub fn memory_group(&self) -> Option<IdSet> {
        let group: IdSet = self.attributes.get(MEMORY_GROUP)?.parse().ok()?;
        group.contains(self.id).then_some(group)
    }
}

/// Returns the zones with resources, without those that only fill gaps between their ids.
#[must_use]
pub fn real_zones(zones: &[Zone]) -> Vec<&Zone> {
    zones.iter().filter(|zone| zone.resources.values().any(|amounts| amounts.capacity > 0)).collect()
}

impl Amounts {
    fn bounded(self) -> Self {
        Self {
            capacity: self.capacity.min(LARGEST_AMOUNT),
            allocatable: self.allocatable.min(LARGEST_AMOUNT),
            available: self.available.min(LARGEST_AMOUNT),
        }
    }
}

/// Computes the topology.
#[must_use]
pub fn account(inputs: &Inputs<'_>) -> Topology {
    let mut findings = BTreeSet::new();
    let ids = zone_ids(inputs, &mut findings);
    let mut builder = ZoneBuilder::new(&ids, &inputs.rules.exclude.resources);
    let in_use = InUse::of(inputs);
    let attributes = attributes::of(inputs);
    let is_single = attributes.iter().any(|(name, value)| name == POLICY && value == SINGLE_NUMA_NODE);
    let groups = groups::of(inputs, &in_use, is_single);
    cpus::account(inputs, &in_use, &mut builder, &mut findings);
    memory::account(inputs, &in_use, &groups::unusable(&groups, is_single), &mut builder, &mut findings);
    devices::account(inputs, &in_use, &mut builder, &mut findings);
    claimed::account(&in_use, &mut builder, &mut findings);
    let costs = |id| ids.iter().map(|peer| (peer, cost(inputs.machine, id, peer))).collect();
    let zone = |(id, resources)| Zone {
        id,
        costs: costs(id),
        resources,
        attributes: groups
            .get(&id)
            .map(groups::attribute)
            .into_iter()
            .chain(attributes::of_zone(inputs, id))
            .collect(),
    };
    let zones = builder.zones.into_iter().map(zone).collect();
    findings.retain(|finding| {
        finding.resource().is_none_or(|resource| !inputs.rules.exclude.resources.contains(resource))
    });
    Topology { zones, attributes, unplaced_devices: in_use.claims.unplaced, findings }
}

/// Returns the zones to publish: the online nodes whose ids the scheduler can handle, and fillers for the
/// gaps.
fn zone_ids(inputs: &Inputs<'_>, findings: &mut BTreeSet<Finding>) -> IdSet {
    let (supported, beyond): (Vec<Id>, Vec<Id>) =
        inputs.machine.nodes.iter().map(|node| node.id).partition(|id| *id <= HIGHEST_ZONE);
    if !beyond.is_empty() {
        findings.insert(Finding::UnpublishedNodes(beyond.into_iter().collect()));
    }
    match supported.last() {
        Some(last) if inputs.rules.fillers => (0..=*last).collect(),
        _ => supported.into_iter().collect(),
    }
}

fn cost(machine: &Machine, from: Id, to: Id) -> u32 {
    let node = machine.node(from);
    let reported = node.and_then(|node| node.distances.get(&to).copied());
    let default = if from == to && node.is_some() { SELF_COST } else { UNKNOWN_COST };
    reported.unwrap_or(default).min(UNKNOWN_COST)
}

struct ZoneBuilder<'a> {
    zones: BTreeMap<Id, BTreeMap<String, Amounts>>,
    /// Resources that are never listed.
    excluded: &'a BTreeSet<String>,
}

impl<'a> ZoneBuilder<'a> {
    fn new(ids: &IdSet, excluded: &'a BTreeSet<String>) -> Self {
        Self { zones: ids.iter().map(|id| (id, BTreeMap::new())).collect(), excluded }
    }

    /// Adds `resource` to every zone with the amounts that `amounts` returns, unless it is excluded.
    fn add(&mut self, resource: &str, mut amounts: impl FnMut(Id) -> Amounts) {
        if self.excluded.contains(resource) {
            return;
        }
        for (id, resources) in &mut self.zones {
            resources.insert(resource.to_owned(), amounts(*id).bounded());
        }
    }

    fn lists(&self, resource: &str) -> bool {
        self.zones.values().all(|resources| resources.contains_key(resource))
    }

    fn mask(&self, wanted: impl Fn(Id) -> bool) -> u64 {
        self.zones.keys().filter(|id| wanted(**id)).map(|id| 1_u64 << id).sum()
    }
}

#[cfg(test)]
mod tests;
