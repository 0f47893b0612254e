//! The rules of the accounting, one by one, and its properties.

mod by_pod;
mod checkpoints;
mod claims;
mod cpus_and_memory;
mod exclusions;
mod generators;
mod groups;
mod properties;
mod zones_and_devices;

use super::*;
use crate::kubelet::{DeviceGroup, MemoryBlock};
use crate::machine::NumaNode;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn ids(text: &str) -> IdSet {
    text.parse().unwrap()
}

/// Two nodes with four CPUs and 8 GiB each, of which 512 MiB are 2 MiB pages.
fn two_nodes() -> Machine {
    let node = |id: Id, cpus: &str| NumaNode {
        id,
        cpus: ids(cpus),
        memory: 8 * GIB,
        hugepages: [(2 * MIB, 256)].into(),
        hugepages_unread: false,
        distances: [(0, if id == 0 { 10 } else { 21 }), (1, if id == 1 { 10 } else { 21 })].into(),
    };
    Machine { nodes: vec![node(0, "0-3"), node(1, "4-7")], numa: true, ..Machine::default() }
}

fn block(resource: &str, bytes: u64, nodes: &str) -> MemoryBlock {
    MemoryBlock { resource: resource.into(), bytes, nodes: ids(nodes) }
}

fn devices(resource: &str, names: &[&str], nodes: &str) -> DeviceGroup {
    DeviceGroup {
        resource: resource.into(),
        ids: names.iter().map(|name| (*name).to_owned()).collect(),
        nodes: ids(nodes),
    }
}

fn pod(name: &str, container: ContainerUsage) -> PodUsage {
    PodUsage { namespace: "ns".into(), name: name.into(), containers: vec![container], ..PodUsage::default() }
}

#[derive(Clone, Debug)]
struct Case {
    machine: Machine,
    allocatable: Allocatable,
    usage: Usage,
    terminated: BTreeSet<(String, String)>,
    checkpoints: Option<Checkpoints>,
    claims: Option<NodeClaims>,
    config: Option<KubeletConfig>,
    policies: Option<Vec<(String, String)>>,
    remembered: BTreeSet<String>,
    rules: ZoneRules,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            machine: two_nodes(),
            allocatable: Allocatable::default(),
            usage: Usage::default(),
            terminated: BTreeSet::new(),
            checkpoints: None,
            claims: None,
            config: None,
            policies: None,
            remembered: BTreeSet::new(),
            rules: ZoneRules { fillers: true, ..Default::default() },
        }
    }
}

impl Case {
    fn account(&self) -> Topology {
        account(&self.inputs())
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            machine: &self.machine,
            allocatable: &self.allocatable,
            usage: &self.usage,
            terminated: &self.terminated,
            checkpoints: self.checkpoints.as_ref(),
            claims: self.claims.as_ref(),
            config: self.config.as_ref(),
            policies: self.policies.as_deref(),
            remembered: &self.remembered,
            rules: &self.rules,
        }
    }

    /// Returns zone and capacity, allocatable and available of one resource.
    fn of(&self, resource: &str) -> Vec<(Id, [u64; 3])> {
        let zones = self.account().zones;
        let amounts = |zone: &Zone| zone.resources.get(resource).copied();
        zones
            .iter()
            .filter_map(|zone| amounts(zone).map(|a| (zone.id, [a.capacity, a.allocatable, a.available])))
            .collect()
    }
}

fn container(name: &str, cpus: &str, memory: Vec<MemoryBlock>) -> ContainerUsage {
    ContainerUsage { name: name.into(), cpus: ids(cpus), memory, ..Default::default() }
}

/// Two nodes with all CPUs allocatable and 4 GiB each, with these pods and these checkpoints.
fn case_with(pods: Vec<PodUsage>, checkpoints: Checkpoints) -> Case {
    Case {
        allocatable: Allocatable {
            cpus: ids("0-7"),
            memory: vec![block("memory", 4 * GIB, "0"), block("memory", 4 * GIB, "1")],
            devices: vec![devices("example.com/nic", &["a", "b"], "0")],
        },
        usage: Usage { pods },
        checkpoints: Some(checkpoints),
        ..Default::default()
    }
}

/// Returns what is available by zone and resource.
fn available(topology: &Topology) -> BTreeMap<(Id, String), u64> {
    let zones = topology.zones.iter();
    zones
        .flat_map(|zone| zone.resources.iter().map(|(name, a)| ((zone.id, name.clone()), a.available)))
        .collect()
}
