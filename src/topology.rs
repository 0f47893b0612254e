//! Computes a node's zones from its machine, allocatable resources and usage. Pure: no I/O, no clock, no
//! async.
//!
//! CPUs and devices are counted as sets of ids, never as differences of counts; memory and huge pages as
//! bytes per node. All output is sorted: the same input gives the same bytes, in whatever order the kubelet
//! listed it.

mod attributes;
mod cpus;
mod devices;
mod fingerprint;
mod hidden;
mod memory;
mod placement;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::kubelet::{Allocatable, ContainerUsage, KubeletConfig, ManagerState, PodUsage, Usage};
use crate::machine::{Id, IdSet, Machine};

pub use fingerprint::{Fingerprint, Method, PodSet, pod_hash};
pub use hidden::{Links, links};
pub use placement::{Placed, Placement, home, placement};
pub use rules::{Exclude, Rules};

/// The highest zone id that fits the scheduler's 64-bit masks; a zone `node-64` makes it panic.
pub const HIGHEST_ZONE: Id = 63;

/// The cost for "unknown or unreachable", and the largest cost: a SLIT entry is one byte (ACPI 6.5, 5.2.17).
/// The scheduler plugin treats zones with larger costs as zones that fit nothing (scheduler-plugins 903da7df,
/// `least_numa.go`, `findSuitableCombination`).
pub const UNKNOWN_COST: u32 = 255;

/// The largest amount that is published. The scheduler plugin multiplies available amounts by 100 in 64 bits
/// (`least_allocated.go`), and an overflowing score aborts the scheduling of every pod that this node is
/// scored for.
pub const LARGEST_AMOUNT: u64 = 9_999_999_999_999_999;

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
    pub terminal: &'a BTreeSet<(String, String)>,
    /// The resource managers' checkpoints, if they can be read.
    pub state: Option<&'a ManagerState>,
    /// The kubelet's configuration, if known.
    pub config: Option<&'a KubeletConfig>,
    /// Device resources that every zone lists even if no device is reported: their plugin may be restarting.
    pub known: &'a BTreeSet<String>,
    /// The configured exclusions and filler zones.
    pub rules: &'a Rules,
}

/// Returns the listed pods without the terminated ones (namespace, name), whose resources are released.
pub fn active_pods<'a>(
    usage: &'a Usage,
    terminal: &'a BTreeSet<(String, String)>,
) -> impl Iterator<Item = &'a PodUsage> + use<'a> {
    // Avoids copying the names if no pod has terminated.
    let ended = move |pod: &PodUsage| !terminal.is_empty() && terminal.contains(&pod.full_name());
    usage.pods.iter().filter(move |pod| !ended(pod))
}

impl<'a> Inputs<'a> {
    fn active_pods(&self) -> impl Iterator<Item = &'a PodUsage> + use<'a> {
        active_pods(self.usage, self.terminal)
    }

    /// Whether this pod's resources are subtracted; the configuration may exclude the pod.
    fn counts(&self, pod: &PodUsage) -> bool {
        !self.rules.exclude.pod(&pod.namespace, &pod.name)
    }
}

/// Everything in use: what the List reports, and what only the managers' checkpoints show.
struct InUse<'a> {
    pods: Vec<&'a PodUsage>,
    hidden: hidden::Hidden<'a>,
}

impl<'a> InUse<'a> {
    fn of(inputs: &Inputs<'a>) -> Self {
        let hidden = inputs.state.map(|state| hidden::of(inputs, state)).unwrap_or_default();
        Self { pods: inputs.active_pods().filter(|pod| inputs.counts(pod)).collect(), hidden }
    }

    /// Returns the containers with allocated resources, listed or not.
    fn containers(&self) -> impl Iterator<Item = &'a ContainerUsage> {
        let listed = self.pods.iter().flat_map(|pod| &pod.containers);
        listed.chain(self.hidden.containers.iter().copied())
    }
}

/// The computed topology of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Ascending by id.
    pub zones: Vec<Zone>,
    /// Names and values, in a fixed order; no policies while the kubelet's configuration is unknown.
    pub attributes: Vec<(String, String)>,
    /// The fingerprint of the pods that the topology accounts for; set once the scheduler's contract allows
    /// it.
    pub pods: Option<PodSet>,
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
    /// Names and values, in a fixed order.
    pub attributes: Vec<(String, String)>,
}

/// CPUs, bytes or devices of one resource in one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// What the hardware has.
    pub capacity: u64,
    /// What the kubelet can allocate.
    pub allocatable: u64,
    /// The part of `allocatable` that is not in use.
    pub available: u64,
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

/// An inconsistency in the inputs. The published amounts are safe regardless. The same inconsistency on
/// several NUMA nodes is one finding, since a machine may have dozens of nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// NUMA nodes whose ids exceed the scheduler's limit.
    UnpublishedNodes(IdSet),
    /// The kubelet reports CPUs that are in no zone.
    UnknownCpus(String),
    /// The kubelet reports much more allocatable memory than each of these nodes has.
    ImpossibleMemory {
        /// The NUMA nodes.
        nodes: IdSet,
        /// `memory` or `hugepages-<size>`.
        resource: String,
        /// The largest amount reported for one of them, in bytes.
        bytes: u64,
    },
    /// More memory is in use than a group of nodes has, or than each of several nodes has.
    OverusedMemory {
        /// The nodes.
        nodes: IdSet,
        /// `memory` or `hugepages-<size>`.
        resource: String,
    },
    /// Devices are reported on nodes that are not online, or not published.
    DevicesOnUnknownNodes {
        /// The devices' resource.
        resource: String,
        /// The NUMA nodes.
        nodes: IdSet,
    },
}

impl Finding {
    /// Returns the resource concerned, if any.
    fn resource(&self) -> Option<&str> {
        match self {
            Self::UnpublishedNodes(_) => None,
            Self::UnknownCpus(_) => Some("cpu"),
            Self::ImpossibleMemory { resource, .. }
            | Self::OverusedMemory { resource, .. }
            | Self::DevicesOnUnknownNodes { resource, .. } => Some(resource),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnpublishedNodes(nodes) => {
                let are = if nodes.len() == 1 { "is" } else { "are" };
                write!(
                    f,
                    "{} {are} not published: the scheduler holds ids 0 to {HIGHEST_ZONE} only",
                    named(nodes)
                )
            }
            Self::UnknownCpus(cpus) => {
                write!(f, "the kubelet names CPUs {cpus}, which are in no zone; they are left out")
            }
            Self::ImpossibleMemory { nodes, resource, bytes } if nodes.len() == 1 => write!(
                f,
                "the kubelet offers {bytes} bytes of {resource} on {}, more than it has; clamped",
                named(nodes)
            ),
            Self::ImpossibleMemory { nodes, resource, bytes } => write!(
                f,
                "the kubelet offers up to {bytes} bytes of {resource} on each of {}, more than they have; clamped",
                named(nodes)
            ),
            Self::OverusedMemory { nodes, resource } => {
                let they = if nodes.len() == 1 { "it" } else { "they" };
                write!(f, "more {resource} is in use on {} than {they} can have", named(nodes))
            }
            Self::DevicesOnUnknownNodes { resource, nodes } => {
                let have = if nodes.len() == 1 { "has" } else { "have" };
                write!(
                    f,
                    "devices of {resource} are on {}, which {have} no zone; left out there",
                    named(nodes)
                )
            }
        }
    }
}

/// Formats node ids: `NUMA node 1`, `NUMA nodes 1-3`.
fn named(nodes: &IdSet) -> String {
    format!("NUMA node{} {nodes}", if nodes.len() == 1 { "" } else { "s" })
}

/// Computes the topology.
#[must_use]
pub fn account(inputs: &Inputs<'_>) -> Topology {
    let mut findings = BTreeSet::new();
    let ids = zone_ids(inputs, &mut findings);
    let mut ledger = Ledger::new(&ids, &inputs.rules.exclude.resources);
    let in_use = InUse::of(inputs);
    cpus::account(inputs, &in_use, &mut ledger, &mut findings);
    memory::account(inputs, &in_use, &mut ledger, &mut findings);
    devices::account(inputs, &in_use, &mut ledger, &mut findings);
    let costs = |id| ids.iter().map(|peer| (peer, cost(inputs.machine, id, peer))).collect();
    let zone = |(id, resources)| Zone { id, costs: costs(id), resources, attributes: Vec::new() };
    let zones = ledger.zones.into_iter().map(zone).collect();
    findings.retain(|finding| {
        finding.resource().is_none_or(|resource| !inputs.rules.exclude.resources.contains(resource))
    });
    let attributes = attributes::of(inputs.config, inputs.machine);
    Topology { zones, attributes, pods: None, findings }
}

/// Returns the zones to publish: the online nodes whose ids the scheduler can handle, and fillers for the
/// gaps.
fn zone_ids(inputs: &Inputs<'_>, findings: &mut BTreeSet<Finding>) -> IdSet {
    let (held, beyond): (Vec<Id>, Vec<Id>) =
        inputs.machine.nodes.iter().map(|node| node.id).partition(|id| *id <= HIGHEST_ZONE);
    if !beyond.is_empty() {
        findings.insert(Finding::UnpublishedNodes(beyond.into_iter().collect()));
    }
    match held.last() {
        Some(last) if inputs.rules.fillers => (0..=*last).collect(),
        _ => held.into_iter().collect(),
    }
}

fn cost(machine: &Machine, from: Id, to: Id) -> u32 {
    let told = machine.node(from).and_then(|node| node.distances.get(&to).copied());
    let silent = if from == to && machine.node(from).is_some() { SELF_COST } else { UNKNOWN_COST };
    told.unwrap_or(silent).min(UNKNOWN_COST)
}

/// The zones under construction.
struct Ledger<'a> {
    zones: BTreeMap<Id, BTreeMap<String, Amounts>>,
    /// Resources that are never listed.
    excluded: &'a BTreeSet<String>,
}

impl<'a> Ledger<'a> {
    fn new(ids: &IdSet, excluded: &'a BTreeSet<String>) -> Self {
        Self { zones: ids.iter().map(|id| (id, BTreeMap::new())).collect(), excluded }
    }

    /// Adds `resource` to every zone with the amounts that `amounts` returns, unless it is excluded.
    fn enter(&mut self, resource: &str, mut amounts: impl FnMut(Id) -> Amounts) {
        if self.excluded.contains(resource) {
            return;
        }
        for (id, resources) in &mut self.zones {
            resources.insert(resource.to_owned(), amounts(*id).bounded());
        }
    }

    /// Whether every zone lists `resource`.
    fn lists(&self, resource: &str) -> bool {
        self.zones.values().all(|resources| resources.contains_key(resource))
    }

    /// Returns the zones that match `wanted` as a bit mask: their ids are at most 63.
    fn mask(&self, wanted: impl Fn(Id) -> bool) -> u64 {
        self.zones.keys().filter(|id| wanted(**id)).map(|id| 1_u64 << id).sum()
    }
}

#[cfg(test)]
mod tests;
