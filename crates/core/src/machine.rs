//! The hardware: NUMA nodes, their CPUs, memory, huge pages and distances, read from sysfs.
//!
//! One bad file never hides the rest of the machine: what cannot be read stays zero and is reported as a
//! [`FileError`]. Everything is keyed by the real node id, never by list position.

mod cpus;
mod details;
mod files;
mod id_set;
mod layout;
pub mod pci;
mod sysfs;

use std::collections::BTreeMap;

pub use cpus::{CpuLocation, read_cpus};
pub use details::Details;
pub use files::{HostFiles, HostRoots, RecordedFiles, Recorder};
pub use id_set::{Id, IdSet, ParseIdSetError};
pub use layout::CpuLayout;
pub use sysfs::{read, read_after};

const CPUS: &str = "sys/devices/system/cpu";
/// Caches of this level are shared by several cores.
const SHARED_LEVEL: u64 = 3;

/// The highest id of a NUMA node: Linux supports at most 1,024 of them.
pub const HIGHEST_NODE: Id = 1023;

/// The hardware of one node, as reported by the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The online NUMA nodes, ascending by id.
    pub nodes: Vec<NumaNode>,
    /// Whether the kernel reports NUMA nodes. If not, there is one node with the id 0.
    pub numa: bool,
    /// The online CPUs of each kind of core of a hybrid machine, by the kernel's name (`core`, `atom`).
    pub core_types: BTreeMap<String, IdSet>,
    /// The maximum number of CPUs per core; 2 if the kernel does not report it.
    pub threads_per_core: u64,
    /// Where the CPUs of each node are, for nodes with CPUs.
    pub layout: BTreeMap<Id, CpuLayout>,
    /// What was unreadable, malformed or inconsistent, in reading order.
    pub errors: Vec<FileError>,
}

impl Machine {
    /// Returns the node with this id, if it is online.
    #[must_use]
    pub fn node(&self, id: Id) -> Option<&NumaNode> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().map(|at| &self.nodes[at])
    }

    /// Returns the ids of the nodes with any of these CPUs.
    #[must_use]
    pub fn nodes_of(&self, cpus: &IdSet) -> IdSet {
        self.nodes.iter().filter(|node| node.cpus.intersects(cpus)).map(|node| node.id).collect()
    }
}

/// One online NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's id.
    pub id: Id,
    /// Its online CPUs; empty for a memory-only node.
    pub cpus: IdSet,
    /// MemTotal in bytes, huge pages included; 0 for a node without memory.
    pub memory: u64,
    /// Page size in bytes to the number of pages in the pool.
    pub hugepages: BTreeMap<u64, u64>,
    /// Whether a pool's size could not be read, so that the rest of the memory is unknown.
    pub hugepages_unread: bool,
    /// SLIT distances to the online nodes, itself included; empty when the kernel gives none.
    pub distances: BTreeMap<Id, u32>,
}

impl NumaNode {
    /// Returns the bytes that all huge page pools take out of this node's memory.
    #[must_use]
    pub fn hugepage_bytes(&self) -> u64 {
        self.hugepages.iter().map(|(size, pages)| size.saturating_mul(*pages)).fold(0, u64::saturating_add)
    }
}

/// A file that is unreadable, malformed or inconsistent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {message}")]
pub struct FileError {
    /// The file, as a path below the host's roots: `sys/devices/system/node/node0/cpulist`.
    pub file: String,
    /// What is wrong with it and what was assumed instead.
    pub message: String,
}

/// Why the hardware cannot be read at all: the NUMA directory or, without one, the list of CPUs is
/// unreadable.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the hardware: {0}")]
pub struct MachineError(FileError);
