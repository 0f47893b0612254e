//! Places a pod with the model of the kubelet's admission, and records what its containers are allocated.

use std::collections::BTreeMap;
use std::sync::Arc;

use numacast_core::admission::{
    ContainerRequest, Device, Devices, Memory, MemoryBlocks, MemoryKind, MemoryNode, Node, NodeSet,
    Placement, PodLevelRequest, PodRequest, Refusal, Resource,
};
use numacast_core::pod::ContainerKind;

use super::allocation::{AllocatedDevices, Block, MEMORY, Rejection};
use super::model::Model;
use super::pod::{ContainerSpec, PodSpec, Role};

impl Model {
    /// Allocates the resources of a pod, or rejects it.
    pub(super) fn place(&mut self, spec: &PodSpec) -> Result<(), Rejection> {
        let mut node = self.admission_node();
        let request = PodRequest::from(spec);
        let outcome = match &spec.affinity {
            Some(nodes) => node.admit_on(&request, nodes.iter().collect()),
            None => node.admit(&request),
        };
        let (placements, rejected) = match outcome {
            Ok(placements) => (placements, Ok(())),
            Err(refusal) => (refusal.placed.clone(), Err(Rejection::from(refusal))),
        };
        if let Some(memory) = &node.memory {
            self.memory.take_over(memory);
        }
        placements.into_iter().for_each(|placement| self.record(spec, placement));
        rejected
    }

    /// The state of the managers.
    fn admission_node(&self) -> Node {
        let hardware = &self.cpus.hardware;
        Node {
            settings: self.settings.admission(self.version),
            nodes: hardware.nodes.iter().map(|node| node.id).collect(),
            distances: hardware
                .nodes
                .iter()
                .flat_map(|node| node.distances.iter().map(|(to, distance)| ((node.id, *to), *distance)))
                .collect(),
            cpus: self.settings.static_cpus.then(|| self.cpus.state()),
            memory: self.settings.static_memory.then(|| self.memory.state()),
            devices: self.devices.state(),
        }
    }

    fn record(&mut self, spec: &PodSpec, placement: Placement) {
        let Placement { container, cpus, memory, devices, .. } = placement;
        let allocated = devices.into_iter().map(|(resource, choice)| {
            let plugin = self.devices.plugins.get(&resource);
            let nodes =
                |id: &String| plugin.and_then(|plugin| plugin.devices.get(id)).map(|of| of.nodes.clone());
            let devices = choice.chosen.iter().map(|id| (id.clone(), nodes(id).unwrap_or_default()));
            (resource, devices.collect::<AllocatedDevices>())
        });
        let allocated: BTreeMap<String, AllocatedDevices> = allocated.collect();
        self.devices.allocate(&spec.uid, &container, allocated);
        let blocks = memory.map(|memory| blocks(&memory)).unwrap_or_default();
        if container.is_empty() {
            if !cpus.is_empty() {
                self.cpus.pod_entries.insert(spec.uid.clone(), cpus);
            }
            if !blocks.is_empty() {
                self.memory.pod_entries.insert(spec.uid.clone(), blocks);
            }
            return;
        }
        self.cpus.allocate(&spec.uid, &container, cpus);
        if blocks.is_empty() {
            return;
        }
        self.memory.entries.entry(spec.uid.clone()).or_default().insert(container.clone(), blocks);
        let earlier = spec.in_order().take_while(|other| other.name != container);
        let earlier: Vec<&str> =
            earlier.filter(|other| other.role == Role::Init).map(|other| other.name.as_str()).collect();
        if !self.memory.pod_entries.contains_key(&spec.uid) {
            self.memory.shrink_init(&spec.uid, &container, &earlier);
        }
    }
}

/// No record exists of the nodes that the reused part of a block is on.
fn blocks(memory: &MemoryBlocks) -> Vec<Block> {
    let block = |(resource, bytes): (&String, &u64)| {
        let mut split = memory.split.get(resource).cloned().unwrap_or_default();
        memory.nodes.iter().for_each(|node| _ = split.entry(node).or_insert(0));
        Block { resource: resource.clone(), bytes: *bytes, split }
    };
    memory.bytes.iter().map(block).collect()
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self { reason: refusal.reason.name(), message: refusal.message }
    }
}

impl From<&PodSpec> for PodRequest {
    fn from(spec: &PodSpec) -> Self {
        let pod_level = spec.pod_level.as_ref().map(|level| PodLevelRequest {
            cpu_milli: level.milli_cpu,
            memory: bytes(level.memory, &level.hugepages),
        });
        let containers = spec.in_order().map(ContainerRequest::from).collect();
        Self { guaranteed: spec.guaranteed, pod_level, containers }
    }
}

impl From<&ContainerSpec> for ContainerRequest {
    fn from(spec: &ContainerSpec) -> Self {
        Self {
            name: spec.name.clone(),
            kind: match spec.role {
                Role::App => ContainerKind::App,
                Role::Sidecar => ContainerKind::Sidecar,
                Role::Init => ContainerKind::Init,
            },
            cpu_milli: spec.milli_cpu,
            memory: bytes(spec.memory, &spec.hugepages),
            devices: spec.devices.clone(),
            guaranteed: spec.milli_cpu > 0 && spec.memory > 0,
        }
    }
}

fn bytes(memory: u64, hugepages: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut bytes = hugepages.clone();
    bytes.insert(MEMORY.to_owned(), memory);
    bytes.retain(|_, bytes| *bytes > 0);
    bytes
}

impl super::memory_manager::MemoryManager {
    fn state(&self) -> Memory {
        let node = |(id, node): (&_, &super::memory_manager::NodeMemory)| {
            let kinds = node.pools.iter().map(|(resource, pool)| {
                (resource.clone(), MemoryKind { allocatable: pool.allocatable, allocated: pool.used })
            });
            let memory = MemoryNode {
                blocks: node.assignments as u64,
                group: node.cells.iter().copied().collect(),
                kinds: kinds.collect(),
            };
            (*id, memory)
        };
        Memory::new(self.nodes.iter().map(node).collect())
    }

    fn take_over(&mut self, memory: &Memory) {
        for (id, state) in memory.nodes() {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            node.assignments = usize::try_from(state.blocks).unwrap_or(usize::MAX);
            node.cells = state.group.iter().collect();
            for (resource, kind) in &state.kinds {
                if let Some(pool) = node.pools.get_mut(resource) {
                    pool.used = kind.allocated;
                }
            }
        }
    }
}

impl super::device_manager::DeviceManager {
    fn state(&self) -> Devices {
        let resource = |(name, plugin): (&String, &super::device_manager::Plugin)| {
            let devices = plugin.devices.iter().map(|(id, device)| {
                (
                    id.clone(),
                    Device { nodes: device.nodes.iter().collect::<NodeSet>(), healthy: device.healthy },
                )
            });
            let resource = Resource {
                devices: Arc::new(devices.collect()),
                allocated: self.allocated(name),
                registered: plugin.registered,
            };
            (name.clone(), resource)
        };
        Devices::new(self.plugins.iter().map(resource).collect())
    }
}
