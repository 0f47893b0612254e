//! The model in the words of the podresources API, in an order that means nothing, like the kubelet's.

use fastrand::Rng;

use super::model::{Block, Given, Model, Pod, Stage};
use crate::kubelet::proto::{v1, v1alpha1};
use crate::kubelet::{Allocatable, Usage};
use crate::machine::{Id, IdSet};

impl Model {
    /// The answers to `GetAllocatableResources` and `List` of a kubelet that is ready, in the agent's words.
    #[must_use]
    pub fn answers(&self, rng: &mut Rng) -> (Allocatable, Usage) {
        (allocatable(self, true, rng).into(), list(self, false, rng).into())
    }
}

/// The answer to `List`. `terminated`: kubelets before 1.34 list pods that have ended, too.
pub(super) fn list(model: &Model, terminated: bool, rng: &mut Rng) -> v1::ListPodResourcesResponse {
    let listed = model.pods.values().filter(|pod| match pod.stage {
        Stage::Announced | Stage::Active => true,
        Stage::Finished => terminated,
        Stage::Gone => false,
    });
    let mut pod_resources: Vec<v1::PodResources> = listed.map(|pod| self::pod(model, pod, rng)).collect();
    rng.shuffle(&mut pod_resources);
    v1::ListPodResourcesResponse { pod_resources }
}

/// The answer to `GetAllocatableResources`. `settled` is false for a moment after the kubelet's start, when
/// the managers of a static policy are there, but empty.
pub(super) fn allocatable(model: &Model, settled: bool, rng: &mut Rng) -> v1::AllocatableResourcesResponse {
    let settings = &model.settings;
    let cpu_ids =
        if settings.static_cpus && settled { shuffled(&model.allocatable_cpus(), rng) } else { vec![] };
    let mut memory = Vec::new();
    if settings.static_memory && settled {
        for (id, node) in &model.nodes {
            let pools = node.pools.iter().filter(|(_, pool)| pool.allocatable > 0);
            memory.extend(pools.map(|(resource, pool)| v1::ContainerMemory {
                memory_type: resource.clone(),
                size: pool.allocatable,
                topology: topology([*id]),
            }));
        }
    }
    rng.shuffle(&mut memory);
    let mut devices = Vec::new();
    for (resource, plugin) in model.plugins.iter().filter(|(_, plugin)| plugin.registered) {
        for (id, device) in plugin.devices.iter().filter(|(_, device)| device.healthy) {
            devices.extend(device_entries(resource, id, &device.nodes));
        }
    }
    rng.shuffle(&mut devices);
    v1::AllocatableResourcesResponse { devices, cpu_ids, memory }
}

/// One pod, for `List` and `Get`.
pub(super) fn pod(model: &Model, pod: &Pod, rng: &mut Rng) -> v1::PodResources {
    let empty = Given::default();
    let containers: Vec<v1::ContainerResources> = pod
        .spec
        .containers
        .iter()
        .map(|container| {
            let given = pod.given.iter().find(|given| given.container == container.name);
            self::container(model, &container.name, given.unwrap_or(&empty), rng)
        })
        .collect();
    let (cpu_ids, memory) =
        if pod.spec.pod_level { pod_level(&pod.given, rng) } else { (Vec::new(), Vec::new()) };
    v1::PodResources {
        name: pod.spec.name.clone(),
        namespace: pod.spec.namespace.clone(),
        containers,
        cpu_ids,
        memory,
    }
}

/// What all containers have together.
fn pod_level(given: &[Given], rng: &mut Rng) -> (Vec<i64>, Vec<v1::ContainerMemory>) {
    let mut cpus = IdSet::new();
    given.iter().for_each(|given| cpus.union_with(&given.cpus));
    let memory = given.iter().flat_map(|given| &given.memory).map(block).collect();
    (shuffled(&cpus, rng), memory)
}

fn container(model: &Model, name: &str, given: &Given, rng: &mut Rng) -> v1::ContainerResources {
    let mut devices = Vec::new();
    for (resource, ids) in &given.devices {
        for id in ids {
            let device = model.plugins.get(resource).and_then(|plugin| plugin.devices.get(id));
            let nodes = device.map(|device| device.nodes.clone()).unwrap_or_default();
            devices.extend(device_entries(resource, id, &nodes));
        }
    }
    rng.shuffle(&mut devices);
    let mut memory: Vec<v1::ContainerMemory> = given.memory.iter().map(block).collect();
    rng.shuffle(&mut memory);
    v1::ContainerResources {
        name: name.to_owned(),
        devices,
        cpu_ids: shuffled(&given.cpus, rng),
        memory,
        dynamic_resources: Vec::new(),
    }
}

/// One entry per device and NUMA node, with one id each.
fn device_entries(resource: &str, id: &str, nodes: &IdSet) -> Vec<v1::ContainerDevices> {
    let entry = |topology| v1::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology,
    };
    if nodes.is_empty() {
        return vec![entry(None)];
    }
    nodes.iter().map(|node| entry(topology([node]))).collect()
}

fn block(block: &Block) -> v1::ContainerMemory {
    v1::ContainerMemory {
        memory_type: block.resource.clone(),
        size: block.bytes,
        topology: topology(block.split.keys().copied()),
    }
}

fn topology(nodes: impl IntoIterator<Item = Id>) -> Option<v1::TopologyInfo> {
    let nodes = nodes.into_iter().map(|id| v1::NumaNode { id: i64::from(id) });
    Some(v1::TopologyInfo { nodes: nodes.collect() })
}

fn shuffled(ids: &IdSet, rng: &mut Rng) -> Vec<i64> {
    let mut ids: Vec<i64> = ids.iter().map(i64::from).collect();
    rng.shuffle(&mut ids);
    ids
}

/// The same answer in the words of v1alpha1: devices only.
pub(super) fn downgrade(answer: v1::ListPodResourcesResponse) -> v1alpha1::ListPodResourcesResponse {
    let devices = |device: v1::ContainerDevices| v1alpha1::ContainerDevices {
        resource_name: device.resource_name,
        device_ids: device.device_ids,
    };
    let container = |container: v1::ContainerResources| v1alpha1::ContainerResources {
        name: container.name,
        devices: container.devices.into_iter().map(devices).collect(),
    };
    let pod = |pod: v1::PodResources| v1alpha1::PodResources {
        name: pod.name,
        namespace: pod.namespace,
        containers: pod.containers.into_iter().map(container).collect(),
    };
    v1alpha1::ListPodResourcesResponse { pod_resources: answer.pod_resources.into_iter().map(pod).collect() }
}
