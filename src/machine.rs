//! What the hardware has: NUMA nodes, their CPUs, memory, huge pages and distances, read from sysfs.
//!
//! One bad file never hides the rest of the machine: what could not be read is left at zero and told as a
//! [`Problem`]. Everything is keyed by the real node id, never by the position in a list.

mod files;
mod id_set;
mod sysfs;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use files::{HostFiles, HostRoots, RecordedFiles, Recorder};
pub use id_set::{Id, IdSet, ParseIdSetError};
pub use sysfs::read;

/// The highest id of a NUMA node: Linux builds for at most 1,024 of them.
pub const HIGHEST_NODE: Id = 1023;

/// The hardware of one node, as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The online NUMA nodes, ascending by id.
    pub nodes: Vec<NumaNode>,
    /// Does the kernel show NUMA nodes at all? If not, there is one node with the id 0.
    pub numa: bool,
    /// The kinds of cores of a hybrid machine, by the kernel's name (`core`, `atom`), and the online CPUs of each.
    pub core_types: BTreeMap<String, IdSet>,
    /// CPUs of one core, at most; 2 where the kernel does not tell.
    pub threads_per_core: u64,
    /// What could not be read, in the order in which it was met.
    pub problems: Vec<Problem>,
}

impl Machine {
    /// The node with this id, if it is online.
    #[must_use]
    pub fn node(&self, id: Id) -> Option<&NumaNode> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().map(|at| &self.nodes[at])
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
    /// A pool's size could not be read: how much of the memory is left for others is unknown.
    pub hugepages_unread: bool,
    /// SLIT distances to the online nodes, itself included; empty when the kernel gives none.
    pub distances: BTreeMap<Id, u32>,
}

impl NumaNode {
    /// The bytes that all huge page pools of this node take out of its memory.
    #[must_use]
    pub fn hugepage_bytes(&self) -> u64 {
        self.hugepages.iter().map(|(size, pages)| size.saturating_mul(*pages)).fold(0, u64::saturating_add)
    }
}

/// A file that could not be understood, and what that means for the numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The file, as a path below the host's roots: `sys/devices/system/node/node0/cpulist`.
    pub file: String,
    /// What is wrong with it and what was assumed instead.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.what)
    }
}

/// Nothing at all is known about the hardware.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// There is neither a NUMA directory nor a list of CPUs.
    #[error("cannot read the hardware: {file}: {source}; is `host.sys` right?")]
    Unreadable {
        /// The file that would have told.
        file: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The list of nodes or CPUs makes no sense.
    #[error("cannot read the hardware: {file}: {what}")]
    Malformed {
        /// The file that should have told.
        file: String,
        /// What it holds instead.
        what: String,
    },
}
