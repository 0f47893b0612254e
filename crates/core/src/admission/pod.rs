//! What a pod requests, as far as it decides admission.

use std::collections::BTreeMap;

use super::{Bytes, DeviceCounts, Refusal};
use crate::pod::{Container, ContainerKind, Pod};
use crate::quantity::is_huge_pages;

/// What a pod requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// Whether its QoS class is Guaranteed.
    pub guaranteed: bool,
    /// Its pod-level resources, if it has any.
    pub pod_level: Option<PodLevelRequest>,
    /// Its containers in the order of the specification, init containers first.
    pub containers: Vec<ContainerRequest>,
}

/// The pod-level resources of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLevelRequest {
    /// Millicores.
    pub cpu_milli: u64,
    /// Bytes by `memory` or `hugepages-<size>`.
    pub memory: Bytes,
}

/// What a container requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Its name.
    pub name: String,
    /// When it runs.
    pub kind: ContainerKind,
    /// Millicores.
    pub cpu_milli: u64,
    /// Bytes by `memory` or `hugepages-<size>`.
    pub memory: Bytes,
    /// Devices by extended resource.
    pub devices: DeviceCounts,
    /// Whether it requests CPU and memory and its requests equal its limits. Matters with pod-level resources
    /// only.
    pub guaranteed: bool,
}

impl From<&Pod> for PodRequest {
    fn from(pod: &Pod) -> Self {
        let pod_level = pod
            .pod_level
            .as_deref()
            .map(|level| PodLevelRequest { cpu_milli: level.cpu_milli, memory: memory(level) });
        let containers = pod.containers.iter().map(ContainerRequest::from).collect();
        Self { guaranteed: pod.qos_guaranteed, pod_level, containers }
    }
}

impl From<&Container> for ContainerRequest {
    fn from(container: &Container) -> Self {
        let devices = container.others.iter().filter(|(name, _)| !is_huge_pages(name));
        Self {
            name: container.name.to_string(),
            kind: container.kind,
            cpu_milli: container.cpu_milli,
            memory: memory(container),
            devices: devices.map(|(name, count)| (name.to_string(), *count)).collect(),
            guaranteed: container.guaranteed,
        }
    }
}

fn memory(container: &Container) -> Bytes {
    let pages = container.others.iter().filter(|(name, _)| is_huge_pages(name));
    let mut memory: Bytes = pages.map(|(name, bytes)| (name.to_string(), *bytes)).collect();
    if container.memory > 0 {
        memory.insert("memory".to_owned(), container.memory);
    }
    memory
}

impl PodRequest {
    /// Returns the most that runs at one time: the app containers and sidecars, or an init container and the
    /// sidecars before it.
    pub(super) fn peak(&self, of: impl Fn(&ContainerRequest) -> u64) -> u64 {
        let (mut running, mut peak) = (0_u64, 0_u64);
        for container in &self.containers {
            let now = running.saturating_add(of(container));
            peak = peak.max(now);
            if container.kind != ContainerKind::Init {
                running = now;
            }
        }
        peak
    }

    /// Returns the peak of each kind of memory. The kubelet leaves out a kind that no app container requests.
    pub(super) fn memory_peak(&self, of: impl Fn(&ContainerRequest) -> Bytes) -> Bytes {
        let apps = self.containers.iter().filter(|container| container.kind == ContainerKind::App);
        let kinds: Bytes = apps.flat_map(&of).collect();
        let peak = |kind: &String| self.peak(|container| of(container).get(kind).copied().unwrap_or(0));
        kinds.into_keys().map(|kind| (kind.clone(), peak(&kind))).collect()
    }

    pub(super) fn devices_peak(&self) -> DeviceCounts {
        let names: BTreeMap<&String, ()> = self
            .containers
            .iter()
            .flat_map(|container| container.devices.keys())
            .map(|name| (name, ()))
            .collect();
        let of = |name: &String| self.peak(|container| container.devices.get(name).copied().unwrap_or(0));
        names.into_keys().map(|name| (name.clone(), of(name))).collect()
    }
}

/// Refuses a pod with pod-level resources whose containers with resources of their own leave nothing for those
/// without.
pub(super) fn check_shared(
    requests: impl Iterator<Item = (ContainerKind, Bytes)>,
    total: &Bytes,
    unit: &str,
) -> Result<(), Refusal> {
    let mut running = Bytes::new();
    let mut is_shared = false;
    let exhausted = |running: &Bytes| {
        total
            .iter()
            .find(|(name, total)| running.get(*name).copied().unwrap_or(0) >= **total)
            .map(|(name, _)| name)
    };
    for (kind, request) in requests {
        match (kind, request.is_empty()) {
            (ContainerKind::Init, true) => {
                if let Some(name) = exhausted(&running) {
                    let what = if unit == "cpus" { unit } else { name };
                    return Err(Refusal::empty_shared_pool(format!(
                        "pod rejected, pod has shared init containers but no {what} available for them"
                    )));
                }
            }
            (ContainerKind::Init, false) => {}
            (_, true) => is_shared = true,
            (_, false) => {
                for (name, amount) in request {
                    let sum = running.entry(name).or_default();
                    *sum = sum.saturating_add(amount);
                }
            }
        }
    }
    match exhausted(&running).filter(|_| is_shared) {
        Some(name) => Err(Refusal::empty_shared_pool(format!(
            "pod rejected, sum of exclusive container {name} requests equals pod budget, leaving no {unit} for shared \
             containers"
        ))),
        None => Ok(()),
    }
}
