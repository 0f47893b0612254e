//! A machine described once, as data, for unit tests, the simulation and the real kubelet alike.
//!
//! [`MachineSpec::write_tree`] writes a description out as the files of `/sys` and `/proc` in which the
//! kernel would show that hardware.

mod check;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::machine::{Id, IdSet, RecordedFiles};
use crate::quantity::Quantity;

/// A described machine: the content of a file in `tests/machines/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MachineSpec {
    /// One line about what is special.
    pub description: String,
    /// Does the kernel show NUMA nodes at all? If not, everything is on one node with the id 0.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub numa: bool,
    /// The online NUMA nodes.
    pub nodes: Vec<NodeSpec>,
    /// A row of distances for each node, as the kernel prints them, where the nodes do not tell their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<String>,
    /// Nodes that could come online; empty for those that are.
    #[serde(default, skip_serializing_if = "IdSet::is_empty")]
    pub possible: IdSet,
    /// CPUs that could be plugged in; empty for those that are present.
    #[serde(default, skip_serializing_if = "IdSet::is_empty")]
    pub possible_cpus: IdSet,
    /// Hardware threads per core. Siblings are numbered as Linux does it on most machines: with
    /// `cpus: 0-3,8-11` and two threads, 0 and 8 share a core.
    #[serde(default = "one")]
    pub threads_per_core: u16,
    /// Siblings have consecutive numbers instead: 0 and 1 share a core.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adjacent_threads: bool,
    /// The kinds of cores of a hybrid machine: `core` and `atom`, the kernel's names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub core_types: BTreeMap<String, CoreType>,
    /// What device plugins register.
    #[serde(default)]
    pub devices: Vec<DeviceSpec>,
    /// Keys of the node's `KubeletConfiguration`.
    #[serde(default)]
    pub kubelet: serde_json::Map<String, serde_json::Value>,
    /// What becomes of the hardware while the node runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later: Option<Later>,
}

impl Default for MachineSpec {
    fn default() -> Self {
        Self {
            description: String::new(),
            numa: true,
            nodes: Vec::new(),
            distances: Vec::new(),
            possible: IdSet::new(),
            possible_cpus: IdSet::new(),
            threads_per_core: 1,
            adjacent_threads: false,
            core_types: BTreeMap::new(),
            devices: Vec::new(),
            kubelet: serde_json::Map::new(),
            later: None,
        }
    }
}

/// The hardware after a change. Devices and the kubelet's configuration stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Later {
    /// One line about what happened.
    pub description: String,
    /// Every NUMA node that is online then.
    pub nodes: Vec<NodeSpec>,
    /// A row of distances for each node, where the nodes do not tell their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<String>,
}

/// Cores of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CoreType {
    /// Their CPUs, online or not.
    pub cpus: IdSet,
    /// Their hardware threads.
    #[serde(default = "one")]
    pub threads_per_core: u16,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSpec {
    /// The kernel's id.
    pub id: Id,
    /// Online CPUs.
    #[serde(default)]
    pub cpus: IdSet,
    /// CPUs that are present but switched off.
    #[serde(default, skip_serializing_if = "IdSet::is_empty")]
    pub offline_cpus: IdSet,
    /// MemTotal, huge pages included.
    #[serde(default)]
    pub memory: Quantity,
    /// Page size (`2Mi`) to number of pages.
    #[serde(default)]
    pub hugepages: BTreeMap<String, u64>,
    /// Node id to SLIT distance; empty where the kernel shows none.
    #[serde(default)]
    pub distances: BTreeMap<Id, u32>,
    /// The socket that the node is in, unless it has one to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Id>,
    /// The sockets of a node that spans several, with their CPUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<Id, IdSet>,
    /// CPUs of a lower node that `cpulist` names here as well: the kernel's fake NUMA does that.
    #[serde(default, skip_serializing_if = "IdSet::is_empty")]
    pub repeated_cpus: IdSet,
    /// What the kernel does not show of this node.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub missing: BTreeSet<Missing>,
}

/// A part of a node that the kernel may not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Missing {
    /// The whole directory: the id is in `online` only.
    Directory,
    /// The file `meminfo`.
    Meminfo,
    /// The line `MemTotal` in it.
    MemTotal,
    /// The directory `hugepages`.
    Hugepages,
}

/// One device plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceSpec {
    /// `example.com/nic`.
    pub resource: String,
    /// Its devices.
    pub devices: Vec<Device>,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// The plugin's id.
    pub id: String,
    /// The NUMA nodes it is attached to; empty for a device without topology.
    #[serde(default)]
    pub numa: Vec<Id>,
    /// The plugin calls it unhealthy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unhealthy: bool,
}

fn one() -> u16 {
    1
}

fn yes() -> bool {
    true
}

impl MachineSpec {
    /// Reads a description from a YAML file.
    ///
    /// # Errors
    /// One sentence, when the file cannot be read or describes no machine.
    pub fn read(path: &Path) -> Result<Self, String> {
        let explain = |what: String| format!("cannot read the machine {}: {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| explain(error.to_string()))?;
        Self::from_yaml(&text).map_err(explain)
    }

    /// Reads a description from YAML text.
    ///
    /// # Errors
    /// When the text describes no machine that can be.
    pub fn from_yaml(text: &str) -> Result<Self, String> {
        let mut machine: Self = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        tell_distances(&mut machine.nodes, std::mem::take(&mut machine.distances))?;
        check::check(&machine)?;
        if let Some(later) = &mut machine.later {
            tell_distances(&mut later.nodes, std::mem::take(&mut later.distances))?;
        }
        if let Some(later) = machine.later() {
            check::check(&later).map_err(|error| format!("later: {error}"))?;
        }
        Ok(machine)
    }

    /// The machine after the change that its description tells of.
    #[must_use]
    pub fn later(&self) -> Option<Self> {
        let Later { description, nodes, .. } = self.later.clone()?;
        Some(Self { description, nodes, later: None, ..self.clone() })
    }

    /// Writes what the kernel would show of this machine to `root`, as `root/sys` and `root/proc`. What another
    /// machine left there changes as if the hardware had: file by file, each whole at any moment.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_tree(&self, root: &Path) -> io::Result<()> {
        tree::write(self, root)
    }

    /// The files of that tree which tell of nodes, memory and sets of CPUs, and not of single CPUs: all that
    /// numacast reads.
    #[must_use]
    pub fn files(&self) -> RecordedFiles {
        RecordedFiles { read: tree::files(self), ..RecordedFiles::default() }
    }

    /// The node with this id.
    #[must_use]
    pub fn node(&self, id: Id) -> Option<&NodeSpec> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Every online CPU.
    #[must_use]
    pub fn online_cpus(&self) -> IdSet {
        self.nodes.iter().flat_map(|node| node.cpus.iter()).collect()
    }

    /// Bytes of every huge page size; the kernel shows each on every node that has memory.
    #[must_use]
    pub fn page_sizes(&self) -> BTreeSet<u64> {
        self.nodes.iter().flat_map(|node| node.pages().into_keys()).collect()
    }

    /// The cores of a node in ascending order, each with its present CPUs.
    #[must_use]
    pub fn cores(&self, node: &NodeSpec) -> Vec<Vec<Id>> {
        let mut rest = node.present_cpus();
        let mut cores = Vec::new();
        for kind in self.core_types.values() {
            cores.extend(self.siblings(&rest.intersection(&kind.cpus), kind.threads_per_core));
            rest = rest.difference(&kind.cpus);
        }
        cores.extend(self.siblings(&rest, self.threads_per_core));
        cores.sort_unstable();
        cores
    }

    fn siblings(&self, cpus: &IdSet, threads: u16) -> Vec<Vec<Id>> {
        let cpus: Vec<Id> = cpus.iter().collect();
        let threads = usize::from(threads.max(1));
        if self.adjacent_threads {
            return cpus.chunks(threads).map(<[Id]>::to_vec).collect();
        }
        let count = cpus.len().div_ceil(threads);
        (0..count).map(|core| cpus.iter().skip(core).step_by(count).copied().collect()).collect()
    }
}

/// Sorts the nodes and gives each its row of distances, which names the nodes in ascending order.
fn tell_distances(nodes: &mut [NodeSpec], rows: Vec<String>) -> Result<(), String> {
    nodes.sort_by_key(|node| node.id);
    if rows.is_empty() {
        return Ok(());
    }
    let ids: Vec<Id> = nodes.iter().map(|node| node.id).collect();
    if rows.len() != ids.len() {
        return Err(format!("it has {} rows of distances for {} nodes", rows.len(), ids.len()));
    }
    for (node, row) in nodes.iter_mut().zip(rows) {
        let columns: Result<Vec<u32>, _> = row.split_whitespace().map(str::parse).collect();
        let columns = columns.map_err(|error| format!("the row of distances `{row}`: {error}"))?;
        if columns.len() != ids.len() || !node.distances.is_empty() {
            return Err(format!("node {} has distances, but not one for each node", node.id));
        }
        node.distances = ids.iter().copied().zip(columns).collect();
    }
    Ok(())
}

impl NodeSpec {
    /// The socket that a CPU of this node is in.
    #[must_use]
    pub fn package_of(&self, cpu: Id) -> Id {
        let socket = self.packages.iter().find(|(_, cpus)| cpus.contains(cpu));
        socket.map_or_else(|| self.package.unwrap_or(self.id), |(socket, _)| *socket)
    }

    /// CPUs that are there, switched on or off.
    #[must_use]
    pub fn present_cpus(&self) -> IdSet {
        let mut all = self.cpus.clone();
        all.union_with(&self.offline_cpus);
        all
    }

    /// Bytes of a huge page -> number of pages.
    #[must_use]
    pub fn pages(&self) -> BTreeMap<u64, u64> {
        let size = |text: &str| text.parse::<Quantity>().map_or(0, Quantity::ceil);
        self.hugepages.iter().map(|(text, pages)| (size(text), *pages)).collect()
    }

    /// Bytes in huge pages of every size.
    #[must_use]
    pub fn hugepage_bytes(&self) -> u64 {
        self.pages().into_iter().map(|(size, pages)| size * pages).sum()
    }
}

#[cfg(test)]
pub(crate) mod tests;
