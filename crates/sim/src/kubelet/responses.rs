//! Responses of the podresources API from the model, in random order like the kubelet's.

use fastrand::Rng;
use numacast_core::kubelet::{Allocatable, Usage};
use numacast_core::machine::{Id, IdSet};

use super::allocation::{Allocation, Block};
use super::model::{Model, Pod, Stage};
use super::pod::{ClaimedDevice, ContainerSpec, Role};
use super::settings::KubeletVersion;
use crate::proto::{v1, v1alpha1};

impl Model {
    /// The responses of a ready kubelet to `GetAllocatableResources` and `List`, in the agent's types.
    #[must_use]
    pub fn responses(&self, rng: &mut Rng) -> (Allocatable, Usage) {
        (allocatable(self, true, rng).into(), list(&mut self.clone(), usize::MAX, rng).into())
    }
}

/// The response to `List`, with at most `max` pods.
pub(super) fn list(model: &mut Model, max: usize, rng: &mut Rng) -> v1::ListPodResourcesResponse {
    model.collect_devices();
    let pods = listed(model, lists_terminated(model), max);
    let mut pod_resources: Vec<v1::PodResources> =
        pods.into_iter().map(|pod| self::pod(model, pod, rng)).collect();
    rng.shuffle(&mut pod_resources);
    v1::ListPodResourcesResponse { pod_resources }
}

/// Returns true if a `List` of at most `max` pods omits resources that are allocated.
pub(super) fn omits_resources(model: &Model, max: usize) -> bool {
    let pods = listed(model, lists_terminated(model), usize::MAX);
    pods.iter().skip(max).any(|pod| pod.stage == Stage::Active)
}

fn lists_terminated(model: &Model) -> bool {
    model.version < KubeletVersion::V1_34
}

/// The oldest pods, at most `max`: a kubelet that does not know all of its pods yet never lists a pod without
/// the older ones (tests/real/order.rs).
fn listed(model: &Model, terminated: bool, max: usize) -> Vec<&Pod> {
    let is_listed = |pod: &&Pod| match pod.stage {
        Stage::Pending | Stage::Active => true,
        Stage::Terminated => terminated,
        Stage::Removed => false,
    };
    let mut pods: Vec<&Pod> = model.pods().values().filter(is_listed).collect();
    pods.sort_unstable_by_key(|pod| pod.order);
    pods.truncate(max);
    pods
}

/// The response to v1alpha1's `List`: devices only, no sidecars, terminated pods included.
pub(super) fn list_alpha(model: &mut Model, max: usize, rng: &mut Rng) -> v1alpha1::ListPodResourcesResponse {
    model.collect_devices();
    let mut pods: Vec<v1alpha1::PodResources> = listed(model, true, max)
        .into_iter()
        .map(|pod| {
            let apps = pod.spec.containers.iter().filter(|container| container.role == Role::App);
            let containers = apps.map(|container| {
                let allocation = model.allocation(&pod.spec.uid, &container.name);
                let devices =
                    devices(&allocation, rng).into_iter().map(|device| v1alpha1::ContainerDevices {
                        resource_name: device.resource_name,
                        device_ids: device.device_ids,
                    });
                v1alpha1::ContainerResources { name: container.name.clone(), devices: devices.collect() }
            });
            v1alpha1::PodResources {
                name: pod.spec.name.clone(),
                namespace: pod.spec.namespace.clone(),
                containers: containers.collect(),
            }
        })
        .collect();
    rng.shuffle(&mut pods);
    v1alpha1::ListPodResourcesResponse { pod_resources: pods }
}

/// The response to `GetAllocatableResources`. `is_ready` is false for a moment after the kubelet's start,
/// when the managers of a static policy exist but are empty.
pub(super) fn allocatable(model: &Model, is_ready: bool, rng: &mut Rng) -> v1::AllocatableResourcesResponse {
    let settings = &model.settings;
    let cpus = match model.version < KubeletVersion::V1_23 {
        true => model.cpus.free_at_start().clone(),
        false => model.cpus.allocatable(),
    };
    let cpu_ids = if settings.static_cpus && is_ready { shuffled(&cpus, rng) } else { vec![] };
    let mut memory = Vec::new();
    if settings.static_memory && is_ready && model.version >= KubeletVersion::V1_23 {
        for (id, node) in &model.memory.nodes {
            let pools = node.pools.iter().filter(|(_, pool)| pool.allocatable > 0);
            memory.extend(pools.map(|(resource, pool)| v1::ContainerMemory {
                memory_type: resource.clone(),
                size: pool.allocatable,
                topology: topology([*id]),
            }));
        }
    }
    rng.shuffle(&mut memory);
    let offered = model.devices.offered();
    let mut devices: Vec<v1::ContainerDevices> =
        offered.flat_map(|(resource, id, nodes)| device_entries(resource, id, nodes)).collect();
    rng.shuffle(&mut devices);
    v1::AllocatableResourcesResponse { devices, cpu_ids, memory }
}

/// One pod, for `List` and `Get`.
pub(super) fn pod(model: &Model, pod: &Pod, rng: &mut Rng) -> v1::PodResources {
    let sidecars = model.version >= KubeletVersion::V1_29;
    let listed = |role: Role| role == Role::App || (role == Role::Sidecar && sidecars);
    let containers = pod.spec.in_order().filter(|container| listed(container.role));
    let containers = containers.map(|container| self::container(model, pod, container, rng)).collect();
    let (cpu_ids, memory) = match model.version {
        KubeletVersion::V1_37 => pod_level(model, pod, rng),
        _ => (Vec::new(), Vec::new()),
    };
    v1::PodResources {
        name: pod.spec.name.clone(),
        namespace: pod.spec.namespace.clone(),
        containers,
        cpu_ids,
        memory,
    }
}

/// The pod-level allocation of a pod that was placed as a whole.
fn pod_level(model: &Model, pod: &Pod, rng: &mut Rng) -> (Vec<i64>, Vec<v1::ContainerMemory>) {
    let cpus = model.cpus.pod_entries.get(&pod.spec.uid);
    let blocks = model.memory.pod_entries.get(&pod.spec.uid);
    let mut memory: Vec<v1::ContainerMemory> = blocks.into_iter().flatten().map(block).collect();
    rng.shuffle(&mut memory);
    (cpus.map(|cpus| shuffled(cpus, rng)).unwrap_or_default(), memory)
}

fn container(model: &Model, pod: &Pod, spec: &ContainerSpec, rng: &mut Rng) -> v1::ContainerResources {
    let mut allocation = model.allocation(&pod.spec.uid, &spec.name);
    let uid = &pod.spec.uid;
    let is_pod_level = model.cpus.pod_entries.contains_key(uid) || model.memory.pod_entries.contains_key(uid);
    // From 1.37 on, a container that uses its pod's shared resources does not report them.
    if is_pod_level && model.version >= KubeletVersion::V1_37 && (spec.milli_cpu == 0 || spec.memory == 0) {
        allocation = Allocation { devices: allocation.devices, ..Allocation::default() };
    }
    let mut memory: Vec<v1::ContainerMemory> = allocation.memory.iter().map(block).collect();
    rng.shuffle(&mut memory);
    let dynamic_resources = match model.version >= KubeletVersion::V1_34 && pod.stage == Stage::Active {
        true => claims(&pod.spec.namespace, &spec.claims, model.version >= KubeletVersion::V1_35),
        false => Vec::new(),
    };
    v1::ContainerResources {
        name: spec.name.clone(),
        devices: devices(&allocation, rng),
        cpu_ids: shuffled(&allocation.cpus, rng),
        memory: if model.version >= KubeletVersion::V1_23 { memory } else { Vec::new() },
        dynamic_resources,
    }
}

/// One entry per claim. Within a claim, each device of a driver also repeats the CDI device names of the
/// earlier ones, as in the kubelet.
fn claims(namespace: &str, claimed: &[ClaimedDevice], has_share_ids: bool) -> Vec<v1::DynamicResource> {
    let mut resources: Vec<v1::DynamicResource> = Vec::new();
    for device in claimed {
        let at = resources.iter().position(|resource| resource.claim_name == device.claim);
        let at = at.unwrap_or_else(|| {
            resources.push(v1::DynamicResource {
                claim_name: device.claim.clone(),
                claim_namespace: namespace.to_owned(),
                claim_resources: Vec::new(),
            });
            resources.len() - 1
        });
        if device.device.is_empty() {
            continue;
        }
        let earlier = &resources[at].claim_resources;
        let same_driver = earlier.iter().rfind(|earlier| earlier.driver_name == device.driver);
        let mut cdi_devices = same_driver.map(|earlier| earlier.cdi_devices.clone()).unwrap_or_default();
        cdi_devices.push(v1::CdiDevice { name: format!("{}/claim={}", device.driver, device.device) });
        resources[at].claim_resources.push(v1::ClaimResource {
            cdi_devices,
            driver_name: device.driver.clone(),
            pool_name: device.pool.clone(),
            device_name: device.device.clone(),
            share_id: device.share.clone().filter(|_| has_share_ids),
        });
    }
    resources
}

fn devices(allocation: &Allocation, rng: &mut Rng) -> Vec<v1::ContainerDevices> {
    let mut devices = Vec::new();
    for (resource, allocated) in &allocation.devices {
        devices.extend(allocated.iter().flat_map(|(id, nodes)| device_entries(resource, id, nodes)));
    }
    rng.shuffle(&mut devices);
    devices
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
