//! What the managers allocate to a container, and why they reject a pod.

use std::collections::BTreeMap;

use numacast_core::machine::{Id, IdSet};

/// The resource name of plain memory.
pub(super) const MEMORY: &str = "memory";

/// Why the kubelet rejects a pod or a resize: the reason and message in the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Rejection {
    /// `TopologyAffinityError`, `UnexpectedAdmissionError`, `SMTAlignmentError`, `AlreadyExists` and others.
    pub reason: &'static str,
    /// Human-readable.
    pub message: String,
}

/// An amount of memory allocated from a group of NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// `memory` or `hugepages-<size>`.
    pub resource: String,
    /// The total, in bytes.
    pub bytes: u64,
    /// The nodes, and the bytes each contributed at allocation. Afterwards only the set of nodes is
    /// significant: memory that another pod releases may be credited to any of them.
    pub split: BTreeMap<Id, u64>,
}

/// Device id to the NUMA nodes that its plugin reported when the device was allocated, which is what the
/// kubelet stores.
pub type AllocatedDevices = BTreeMap<String, IdSet>;

/// The resources allocated to one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// The container's name.
    pub container: String,
    /// Exclusive CPUs.
    pub cpus: IdSet,
    /// Memory and huge pages.
    pub memory: Vec<Block>,
    /// Resource to its devices, each with its NUMA nodes at the time of allocation.
    pub devices: BTreeMap<String, AllocatedDevices>,
}

pub(super) fn unexpected(message: String) -> Rejection {
    Rejection { reason: "UnexpectedAdmissionError", message }
}
