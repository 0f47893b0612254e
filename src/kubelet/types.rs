//! What the kubelet says, in our words.

use serde::{Deserialize, Serialize};

use crate::machine::{Id, IdSet};

/// What the kubelet may hand out, including what it has handed out already.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Allocatable {
    /// The CPUs that can be exclusive; empty with the CPU manager policy `none`.
    pub cpus: IdSet,
    /// One block per node and type; empty with the Memory Manager policy `None`.
    pub memory: Vec<MemoryBlock>,
    /// Registered and healthy devices.
    pub devices: Vec<DeviceGroup>,
}

/// What the kubelet has handed out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Usage {
    /// Every active pod, those without exclusive resources too.
    pub pods: Vec<PodUsage>,
}

/// What one pod holds.
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

impl PodUsage {
    /// Does the pod hold anything that nobody else can have meanwhile?
    #[must_use]
    pub fn holds_anything(&self) -> bool {
        let holds = |c: &ContainerUsage| !c.cpus.is_empty() || !c.memory.is_empty() || !c.devices.is_empty();
        !self.cpus.is_empty() || !self.memory.is_empty() || self.containers.iter().any(holds)
    }
}

/// What one container holds.
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
    /// Devices behind dynamic resource allocation. They are never in [`Allocatable`], so no zone has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claimed: Vec<ClaimedDevice>,
}

/// An amount of one type of memory on one node or on a group of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryBlock {
    /// `memory` or `hugepages-<size>`.
    pub resource: String,
    /// Bytes. With several nodes, the total of the group.
    pub bytes: u64,
    /// The nodes, ascending.
    pub nodes: IdSet,
}

/// Devices of one resource with the same NUMA affinity. The kubelet repeats a device that is on several
/// nodes, and may split a resource over any number of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceGroup {
    /// The extended resource: `example.com/nic`.
    pub resource: String,
    /// The device plugin's ids.
    pub ids: Vec<String>,
    /// The nodes; empty for a device without topology.
    #[serde(default, skip_serializing_if = "IdSet::is_empty")]
    pub nodes: IdSet,
}

/// A device that a resource claim gave to a container.
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

/// Stands for every CPU id that no machine can have: Linux builds for at most 8,192 CPUs. No higher one, since a set is
/// as large as its highest id.
pub const NO_CPU: Id = 8192;
