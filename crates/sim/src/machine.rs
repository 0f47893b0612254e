//! Machines described as data, shared by the unit tests, the simulation and the real kubelet.
//!
//! [`MachineSpec::write_tree`] writes a machine as the files of `/sys` and `/proc` in which the kernel would
//! report that hardware.

mod check;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use numacast_core::machine::{CpuLocation, Id, IdSet, RecordedFiles};
use numacast_core::quantity::Quantity;
use serde::{Deserialize, Serialize};

/// A described machine: the content of a file in `tests/machines/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MachineSpec {
    /// One line about what is special about the machine.
    pub description: String,
    /// Whether the kernel reports NUMA nodes. If not, everything is on one node with the id 0.
    #[serde(default = "enabled", skip_serializing_if = "Clone::clone")]
    pub numa: bool,
    /// The online NUMA nodes.
    pub nodes: Vec<NodeSpec>,
    /// A row of distances for each node, as the kernel prints them: an alternative to `distances` of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<String>,
    /// NUMA nodes that can come online. If empty: the online ones.
    #[serde(default, skip_serializing_if = "IdSet::is_empty")]
    pub possible: IdSet,
    /// CPUs that can be plugged in. If empty: the present ones.
    #[serde(default, skip_serializing_if = "IdSet::is_empty")]
    pub possible_cpus: IdSet,
    /// Hardware threads per core. Siblings are numbered as Linux does it on most machines: with
    /// `cpus: 0-3,8-11` and two threads, 0 and 8 share a core.
    #[serde(default = "one")]
    pub threads_per_core: u16,
    /// Whether siblings have consecutive numbers instead: 0 and 1 share a core.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adjacent_threads: bool,
    /// Cores that share an L3 cache, in the order of their node's CPUs. If unset, all cores of a node share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores_per_cache: Option<u16>,
    /// The core types of a hybrid machine by the kernel's names: `core` and `atom`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub core_types: BTreeMap<String, CoreType>,
    /// The devices that device plugins register.
    #[serde(default)]
    pub devices: Vec<DeviceSpec>,
    /// Keys of the node's `KubeletConfiguration`.
    #[serde(default)]
    pub kubelet: serde_json::Map<String, serde_json::Value>,
    /// A hardware change while the node runs.
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
            cores_per_cache: None,
            core_types: BTreeMap::new(),
            devices: Vec::new(),
            kubelet: serde_json::Map::new(),
            later: None,
        }
    }
}

/// The hardware after a change. Devices and the kubelet's configuration stay the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Later {
    /// One line about the change.
    pub description: String,
    /// All NUMA nodes that are online after the change.
    pub nodes: Vec<NodeSpec>,
    /// A row of distances for each node, unless the nodes specify their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<String>,
}

/// Cores of one type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CoreType {
    /// Their CPUs, online or not.
    pub cpus: IdSet,
    /// Hardware threads per core.
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
    /// CPUs that are present but offline.
    #[serde(default, skip_serializing_if = "IdSet::is_empty")]
    pub offline_cpus: IdSet,
    /// MemTotal, huge pages included.
    #[serde(default)]
    pub memory: Quantity,
    /// Page size (`2Mi`) to number of pages.
    #[serde(default)]
    pub hugepages: BTreeMap<String, u64>,
    /// Node id to SLIT distance; empty where the kernel reports none.
    #[serde(default)]
    pub distances: BTreeMap<Id, u32>,
    /// The socket of the node's CPUs. If unset, the node has a socket of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Id>,
    /// The sockets of a node that spans several, with their CPUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<Id, IdSet>,
    /// CPUs of a lower node that `cpulist` repeats here, as the kernel's fake NUMA does.
    #[serde(default, skip_serializing_if = "IdSet::is_empty")]
    pub repeated_cpus: IdSet,
    /// The parts of this node that the kernel does not report.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub missing: BTreeSet<Missing>,
}

/// A part of a node that the kernel may not report.
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
    /// The NUMA nodes it is attached to. Hardware usually reports one; a device near a socket with several
    /// nodes lists all of them. Empty for a device without topology.
    #[serde(default)]
    pub numa: Vec<Id>,
    /// Whether the plugin reports it as unhealthy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unhealthy: bool,
}

fn one() -> u16 {
    1
}

fn enabled() -> bool {
    true
}

impl MachineSpec {
    /// Reads a machine from a YAML file.
    ///
    /// # Errors
    /// One sentence, when the file cannot be read or does not describe a valid machine.
    pub fn read(path: &Path) -> Result<Self, String> {
        let explain = |what: String| format!("cannot read the machine {}: {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| explain(error.to_string()))?;
        Self::from_yaml(&text).map_err(explain)
    }

    /// Reads the machines of a directory, sorted by name.
    ///
    /// # Errors
    /// One sentence, when a file cannot be read or does not describe a valid machine.
    pub fn read_all(dir: &Path) -> Result<Vec<(String, Self)>, String> {
        let explain = |error: io::Error| format!("cannot read {}: {error}", dir.display());
        let entries = std::fs::read_dir(dir).map_err(explain)?;
        let files: BTreeSet<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        files.iter().map(|path| Ok((name(path), Self::read(path)?))).collect()
    }

    /// Parses a machine from YAML text.
    ///
    /// # Errors
    /// When the text does not describe a valid machine.
    pub fn from_yaml(text: &str) -> Result<Self, String> {
        let mut machine: Self = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        assign_distances(&mut machine.nodes, std::mem::take(&mut machine.distances))?;
        check::check(&machine)?;
        if let Some(later) = &mut machine.later {
            assign_distances(&mut later.nodes, std::mem::take(&mut later.distances))?;
        }
        if let Some(later) = machine.later() {
            check::check(&later).map_err(|error| format!("later: {error}"))?;
        }
        Ok(machine)
    }

    /// The machine after the hardware change, if it has one.
    #[must_use]
    pub fn later(&self) -> Option<Self> {
        let Later { description, nodes, .. } = self.later.clone()?;
        Some(Self { description, nodes, later: None, ..self.clone() })
    }

    /// Writes the files in which the kernel would report this machine to `root/sys` and `root/proc`. The
    /// files of an earlier machine change as if the hardware did: each file is replaced atomically.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_tree(&self, root: &Path) -> io::Result<()> {
        tree::write(self, root)
    }

    /// The files of that tree about nodes, memory and sets of CPUs, without those about single CPUs: all that
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

    /// All online CPUs.
    #[must_use]
    pub fn online_cpus(&self) -> IdSet {
        self.nodes.iter().flat_map(|node| node.cpus.iter()).collect()
    }

    /// All huge page sizes in bytes; the kernel reports each of them on every node with memory.
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

    /// Where each online CPU is, as the kubelet finds it.
    #[must_use]
    pub fn cpu_locations(&self) -> BTreeMap<Id, CpuLocation> {
        tree::cpu_locations(self)
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

/// Sorts the nodes and sets the distances of each from its row, whose columns are the nodes in ascending
/// order.
fn assign_distances(nodes: &mut [NodeSpec], rows: Vec<String>) -> Result<(), String> {
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
    /// The socket of a CPU of this node.
    #[must_use]
    pub fn package_of(&self, cpu: Id) -> Id {
        let package = self.packages.iter().find(|(_, cpus)| cpus.contains(cpu));
        package.map_or_else(|| self.package.unwrap_or(self.id), |(package, _)| *package)
    }

    /// CPUs that are present, online or offline.
    #[must_use]
    pub fn present_cpus(&self) -> IdSet {
        let mut all = self.cpus.clone();
        all.union_with(&self.offline_cpus);
        all
    }

    /// Huge page size in bytes to number of pages.
    #[must_use]
    pub fn pages(&self) -> BTreeMap<u64, u64> {
        let size = |text: &str| text.parse::<Quantity>().map_or(0, Quantity::ceil);
        self.hugepages.iter().map(|(text, pages)| (size(text), *pages)).collect()
    }

    /// Bytes in huge pages of all sizes.
    #[must_use]
    pub fn hugepage_bytes(&self) -> u64 {
        self.pages().into_iter().map(|(size, pages)| size * pages).sum()
    }
}

#[cfg(test)]
mod tests;
