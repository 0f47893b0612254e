//! The state of a kubelet's managers from what was read of it: exact, with ids.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    CpuOptions, CpuTopology, Cpus, Devices, Memory, MemoryKind, MemoryNode, Node, NodeSet, Resource, Scope,
    Settings, TopologyPolicy,
};
use crate::kubelet::{Allocatable, Checkpoints, ContainerUsage, DeviceGroup, KubeletConfig, Usage, is_true};
use crate::machine::{CpuLocation, Id, Machine};

/// What was read of a kubelet at one instant.
#[derive(Clone, Copy, Debug)]
pub struct KubeletState<'a> {
    /// The minor version of Kubernetes 1.
    pub minor: u32,
    /// The hardware.
    pub machine: &'a Machine,
    /// Where each CPU is.
    pub cpus: &'a BTreeMap<Id, CpuLocation>,
    /// The configuration.
    pub config: &'a KubeletConfig,
    /// The allocatable resources.
    pub allocatable: &'a Allocatable,
    /// What pods are allocated.
    pub usage: &'a Usage,
    /// The managers' checkpoints. Without them what init containers have left is not known, nor how memory
    /// blocks are split.
    pub checkpoints: Option<&'a Checkpoints>,
    /// UIDs of pods in the checkpoints that have ended: the kubelet releases their resources before it admits
    /// another pod.
    pub ended: &'a BTreeSet<String>,
}

/// The oldest minor version of Kubernetes 1 that the model follows.
pub(super) const OLDEST_MINOR: u32 = 34;

impl TopologyPolicy {
    /// Returns the policy with this name in the kubelet's configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::None,
            "best-effort" => Self::BestEffort,
            "restricted" => Self::Restricted,
            "single-numa-node" => Self::SingleNumaNode,
            _ => return None,
        })
    }
}

impl CpuOptions {
    /// Returns the options with these names and values in the configuration of a kubelet of this minor version.
    #[must_use]
    pub fn of(options: &BTreeMap<String, String>, minor: u32) -> Self {
        let is_on = |name: &str| options.get(name).is_some_and(|value| is_true(value));
        Self {
            full_cores_only: is_on("full-pcpus-only"),
            distribute_across_nodes: is_on("distribute-cpus-across-numa"),
            align_by_socket: is_on("align-by-socket"),
            distribute_across_cores: is_on("distribute-cpus-across-cores"),
            strict_reservation: is_on("strict-cpu-reservation"),
            prefer_shared_cache: is_on("prefer-align-cpus-by-uncorecache"),
            distribute_by_socket: minor >= 37,
        }
    }
}

impl Settings {
    /// Returns the settings of a kubelet with this configuration and minor version.
    #[must_use]
    pub fn of(config: &KubeletConfig, minor: u32) -> Self {
        let options = &config.topology_manager_policy_options;
        Self {
            policy: TopologyPolicy::named(&config.topology_manager_policy).unwrap_or_default(),
            scope: if config.topology_manager_scope == "pod" { Scope::Pod } else { Scope::Container },
            prefer_closest: options.get("prefer-closest-numa-nodes").is_some_and(|value| is_true(value)),
            pod_level_managers: config.pod_level_resource_managers,
            device_hints_skip_other_nodes: minor >= 36,
            is_older: minor < OLDEST_MINOR,
            allocates_zero_bytes: minor < 37,
        }
    }
}

impl From<&KubeletState<'_>> for Node {
    fn from(state: &KubeletState<'_>) -> Self {
        let nodes = state.machine.nodes.iter();
        Self {
            settings: Settings::of(state.config, state.minor),
            nodes: nodes.clone().map(|node| node.id).collect(),
            distances: nodes
                .flat_map(|node| node.distances.iter().map(|(to, distance)| ((node.id, *to), *distance)))
                .collect(),
            cpus: (state.config.cpu_manager_policy == "static").then(|| state.cpus()),
            memory: (state.config.memory_manager_policy == "Static").then(|| state.memory()),
            devices: state.devices(),
        }
    }
}

impl<'a> KubeletState<'a> {
    fn cpus(&self) -> Cpus {
        let topology: CpuTopology = self.cpus.iter().map(|(id, cpu)| (*id, *cpu)).collect();
        let reserved = topology.all().difference(&self.allocatable.cpus);
        let options = CpuOptions::of(&self.config.cpu_manager_policy_options, self.minor);
        let mut cpus = Cpus::new(topology, reserved, options);
        match self.checkpoints.filter(|checkpoints| !checkpoints.shared_cpus.is_empty()) {
            Some(checkpoints) => {
                // Not derived from the entries: a kubelet may have given a CPU to two pods.
                let taken = cpus.topology().all().difference(&checkpoints.shared_cpus);
                cpus.allocate(&taken);
                let ended = checkpoints.pods.iter().filter(|(uid, _)| self.ended.contains(*uid));
                ended
                    .flat_map(|(_, containers)| containers)
                    .for_each(|container| cpus.release(&container.cpus));
            }
            None => {
                self.containers().for_each(|container| cpus.allocate(&container.cpus));
                self.usage.pods.iter().for_each(|pod| cpus.allocate(&pod.cpus));
            }
        }
        cpus
    }

    /// Returns every container with resources: those in the List, and those in the checkpoints.
    fn containers(&self) -> impl Iterator<Item = &'a ContainerUsage> {
        let listed = self.usage.pods.iter().flat_map(|pod| &pod.containers);
        let ended = self.ended;
        let entries = self.checkpoints.into_iter().flat_map(|checkpoints| &checkpoints.pods);
        listed.chain(entries.filter(|(uid, _)| !ended.contains(*uid)).flat_map(|(_, containers)| containers))
    }

    fn memory(&self) -> Memory {
        let mut nodes: BTreeMap<Id, MemoryNode> = BTreeMap::new();
        for node in &self.machine.nodes {
            let mut memory = MemoryNode { group: NodeSet::one(node.id), ..MemoryNode::default() };
            let blocks = self.allocatable.memory.iter().filter(|block| block.nodes.contains(node.id));
            for block in blocks {
                let kind = MemoryKind { allocatable: block.bytes, allocated: 0 };
                memory.kinds.insert(block.resource.clone(), kind);
            }
            nodes.insert(node.id, memory);
        }
        let mut memory = Memory::new(nodes);
        match self.checkpoints.filter(|checkpoints| !checkpoints.memory.groups.is_empty()) {
            Some(checkpoints) => charge_checkpoints(&mut memory, checkpoints, self.ended),
            None => self.charge_listed(&mut memory),
        }
        memory
    }

    fn charge_listed(&self, memory: &mut Memory) {
        for pod in &self.usage.pods {
            // Pod-level blocks contain those of the containers.
            let of_containers = pod.containers.iter().flat_map(|container| &container.memory);
            let blocks: Vec<_> =
                if pod.memory.is_empty() { of_containers.collect() } else { pod.memory.iter().collect() };
            for block in blocks {
                memory.charge(NodeSet::from(&block.nodes), &block.resource, block.bytes);
            }
        }
    }

    fn devices(&self) -> Devices {
        let mut resources: BTreeMap<String, Resource> = BTreeMap::new();
        let mut add = |group: &DeviceGroup, healthy: bool| {
            let resource = resources.entry(group.resource.clone()).or_default();
            for id in &group.ids {
                let device = Arc::make_mut(&mut resource.devices).entry(id.clone()).or_default();
                device.nodes = device.nodes.union(NodeSet::from(&group.nodes));
                device.healthy |= healthy;
                if !healthy {
                    resource.allocated.insert(id.clone());
                }
            }
            resource.registered |= healthy;
        };
        self.allocatable.devices.iter().for_each(|group| add(group, true));
        let in_use = self.containers().flat_map(|container| &container.devices);
        in_use.for_each(|group| add(group, false));
        Devices::new(resources)
    }
}

fn charge_checkpoints(memory: &mut Memory, checkpoints: &Checkpoints, ended: &BTreeSet<String>) {
    for (id, node) in memory.nodes_mut() {
        if let Some(group) = checkpoints.memory.groups.get(id) {
            node.blocks = group.blocks;
            node.group = NodeSet::from(&group.nodes);
        }
        for (resource, bytes) in checkpoints.reserved.get(id).into_iter().flatten() {
            if let Some(kind) = node.kinds.get_mut(resource) {
                kind.allocated = *bytes;
            }
        }
    }
    for uid in ended {
        for block in checkpoints.blocks_of(uid) {
            memory.release(NodeSet::from(&block.nodes), &block.resource, block.bytes);
        }
    }
}
