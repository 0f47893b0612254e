//! The kubelet's resources and allocations, independent of the wire types.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::machine::{Id, IdSet};

/// The kubelet's allocatable resources, including those already allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Allocatable {
    /// CPUs that can be allocated exclusively; empty with the CPU Manager policy `none`.
    pub cpus: IdSet,
    /// One block per NUMA node and type; empty with the Memory Manager policy `None`.
    pub memory: Vec<MemoryBlock>,
    /// Registered and healthy devices.
    pub devices: Vec<DeviceGroup>,
}

/// The resources allocated to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Usage {
    /// Every active pod, including those without exclusive resources.
    pub pods: Vec<PodUsage>,
}

/// The resources allocated to one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodUsage {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Pod-level exclusive CPUs (kubelet 1.37); they overlap those of the containers.
    #[serde(skip_serializing_if = "IdSet::is_empty")]
    pub cpus: IdSet,
    /// Pod-level memory (kubelet 1.37); it overlaps that of the containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryBlock>,
    /// Restartable init containers and app containers.
    pub containers: Vec<ContainerUsage>,
}

impl Usage {
    /// Returns true if any pod is allocated exclusive resources.
    #[must_use]
    pub fn has_allocations(&self) -> bool {
        self.pods.iter().any(PodUsage::has_allocations)
    }
}

impl PodUsage {
    /// Returns namespace and name.
    #[must_use]
    pub fn full_name(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }

    /// Returns true if the pod is allocated exclusive resources.
    #[must_use]
    pub fn has_allocations(&self) -> bool {
        let has_any =
            |c: &ContainerUsage| !c.cpus.is_empty() || !c.memory.is_empty() || !c.devices.is_empty();
        !self.cpus.is_empty() || !self.memory.is_empty() || self.containers.iter().any(has_any)
    }

    /// Returns a hash of the pod's allocations. It ignores the order of memory blocks and devices, which the
    /// kubelet changes on each call.
    #[must_use]
    pub fn allocations_hash(&self) -> u64 {
        fn hash(item: impl Hash) -> u64 {
            let mut hasher = DefaultHasher::new();
            item.hash(&mut hasher);
            hasher.finish()
        }
        let block = |container: usize, block: &MemoryBlock| {
            let MemoryBlock { resource, bytes, nodes } = block;
            hash((container, resource, bytes, nodes))
        };
        let mut sum = hash(&self.cpus);
        let mut add = |item: u64| sum = sum.wrapping_add(item);
        self.memory.iter().for_each(|memory| add(block(0, memory)));
        for (number, container) in (1_usize..).zip(&self.containers) {
            add(hash((number, &container.cpus)));
            container.memory.iter().for_each(|memory| add(block(number, memory)));
            for DeviceGroup { resource, ids, nodes } in &container.devices {
                ids.iter().for_each(|id| add(hash((number, resource, id, nodes))));
            }
        }
        sum
    }

    /// Returns true if the pod is allocated resources that it was not in `before`. A terminated pod only
    /// releases resources.
    #[must_use]
    pub fn has_gained_since(&self, before: &Self) -> bool {
        let (now, then) = (Allocations::of(self), Allocations::of(before));
        !now.cpus.difference(&then.cpus).is_empty()
            || !now.devices.is_subset(&then.devices)
            || now.memory.iter().any(|(kind, bytes)| then.memory.get(kind).is_none_or(|then| bytes > then))
    }

    /// Returns true if the pod has at least as many CPUs and devices, and as much memory, as `other`,
    /// whichever these are.
    #[must_use]
    pub fn has_at_least(&self, other: &Self) -> bool {
        let (own, other) = (Allocations::of(self), Allocations::of(other));
        let devices =
            |all: &Allocations<'_>, kind: &str| all.devices.iter().filter(|(of, _)| *of == kind).count();
        own.cpus.len() >= other.cpus.len()
            && other.memory.iter().all(|(kind, bytes)| own.memory.get(kind).is_some_and(|own| own >= bytes))
            && other.devices.iter().all(|(kind, _)| devices(&own, kind) >= devices(&other, kind))
    }
}

#[derive(Default)]
struct Allocations<'a> {
    cpus: IdSet,
    /// Resource and id.
    devices: BTreeSet<(&'a str, &'a str)>,
    /// Bytes by memory type.
    memory: BTreeMap<&'a str, u64>,
}

impl<'a> Allocations<'a> {
    fn of(pod: &'a PodUsage) -> Self {
        let mut all = Self { cpus: pod.cpus.clone(), ..Self::default() };
        let blocks = pod.memory.iter().chain(pod.containers.iter().flat_map(|container| &container.memory));
        for block in blocks {
            let bytes = all.memory.entry(block.resource.as_str()).or_default();
            *bytes = bytes.saturating_add(block.bytes);
        }
        for container in &pod.containers {
            all.cpus.union_with(&container.cpus);
            for group in &container.devices {
                all.devices.extend(group.ids.iter().map(|id| (group.resource.as_str(), id.as_str())));
            }
        }
        all
    }
}

/// The resources allocated to one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ContainerUsage {
    /// The container's name.
    pub name: String,
    /// Exclusive CPUs.
    #[serde(skip_serializing_if = "IdSet::is_empty")]
    pub cpus: IdSet,
    /// Memory and huge pages, with Memory Manager `Static` and Guaranteed pods only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryBlock>,
    /// Device plugin devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceGroup>,
    /// The ResourceClaims that it refers to, as `namespace/name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
    /// The devices that drivers returned for them. They are never in [`Allocatable`]; some drivers return none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claimed: Vec<ClaimedDevice>,
}

/// An amount of one memory type on one NUMA node or on a group of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryBlock {
    /// `memory` or `hugepages-<size>`.
    pub resource: String,
    /// Bytes. With several NUMA nodes, the total of the group.
    pub bytes: u64,
    /// The NUMA nodes, ascending.
    pub nodes: IdSet,
}

/// Devices of one resource with the same NUMA affinity. The kubelet repeats a device that is on several NUMA
/// nodes, and may split a resource over any number of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceGroup {
    /// The extended resource: `example.com/nic`.
    pub resource: String,
    /// The device plugin's ids.
    pub ids: Vec<String>,
    /// The NUMA nodes; empty for a device without topology.
    #[serde(default, skip_serializing_if = "IdSet::is_empty")]
    pub nodes: IdSet,
}

/// A device allocated to a container through a resource claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimedDevice {
    /// `namespace/name` of the claim.
    pub claim: String,
    /// The driver; empty before kubelet 1.31.
    pub driver: String,
    /// The driver's pool.
    pub pool: String,
    /// The device in the pool.
    pub device: String,
    /// Set for a shared device (kubelet 1.35).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
}

/// Replaces every CPU id that no machine can have: Linux supports at most 8,192 CPUs. Not higher, since an
/// [`IdSet`] is as large as its highest id.
pub const INVALID_CPU: Id = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_only_releases_has_not_gained() {
        let pod = |cpus: &str, bytes: u64, devices: &[&str]| {
            let block = MemoryBlock { resource: "memory".into(), bytes, nodes: "0".parse().unwrap() };
            let group = DeviceGroup {
                resource: "nic".into(),
                ids: devices.iter().map(|id| (*id).to_owned()).collect(),
                nodes: IdSet::new(),
            };
            let cpus = cpus.parse().unwrap();
            let container = ContainerUsage {
                cpus,
                memory: vec![block],
                devices: vec![group],
                ..ContainerUsage::default()
            };
            PodUsage { containers: vec![container], ..PodUsage::default() }
        };
        let before = pod("1-2", 4, &["a", "b"]);
        for less in [pod("1-2", 4, &["b", "a"]), pod("2", 4, &["a"]), pod("", 3, &[]), PodUsage::default()] {
            assert!(!less.has_gained_since(&before), "{less:?}");
        }
        for more in [pod("3", 4, &[]), pod("1-3", 4, &["a"]), pod("1", 5, &[]), pod("1", 4, &["c"])] {
            assert!(more.has_gained_since(&before), "{more:?}");
        }
        let pages = MemoryBlock { resource: "hugepages-2Mi".into(), bytes: 1, nodes: "0".parse().unwrap() };
        assert!(PodUsage { memory: vec![pages], ..PodUsage::default() }.has_gained_since(&before));
        for enough in [pod("3-4", 4, &["c", "d"]), pod("1-3", 5, &["a", "b", "c"])] {
            assert!(enough.has_at_least(&before), "{enough:?}");
        }
        for less in [pod("1", 4, &["a", "b"]), pod("1-2", 3, &["a", "b"]), pod("1-2", 4, &["a"])] {
            assert!(!less.has_at_least(&before), "{less:?}");
        }
        assert!(before.has_at_least(&PodUsage::default()));
    }
}
