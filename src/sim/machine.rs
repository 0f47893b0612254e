//! A machine described once, as data, for unit tests, the simulation and the real kubelet alike.
//!
//! [`MachineSpec::write_tree`] writes a description out as the files of `/sys` and `/proc` in which the
//! kernel would show that hardware.

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::machine::{Id, IdSet};
use crate::quantity::Quantity;

/// A described machine: the content of a file in `tests/machines/`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MachineSpec {
    /// One line about what is special.
    pub description: String,
    /// The online NUMA nodes.
    pub nodes: Vec<NodeSpec>,
    /// Hardware threads per core. Siblings are numbered as Linux does it: with `cpus: 0-3,8-11` and two
    /// threads, 0 and 8 share a core.
    #[serde(default = "one")]
    pub threads_per_core: u16,
    /// What device plugins register.
    #[serde(default)]
    pub devices: Vec<DeviceSpec>,
    /// Keys of the node's `KubeletConfiguration`.
    #[serde(default)]
    pub kubelet: serde_json::Map<String, serde_json::Value>,
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
        machine.nodes.sort_by_key(|node| node.id);
        machine.check()?;
        Ok(machine)
    }

    /// Writes what the kernel would show of this machine to `root`, as `root/sys` and `root/proc`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_tree(&self, root: &Path) -> io::Result<()> {
        tree::write(self, root)
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

    fn check(&self) -> Result<(), String> {
        if self.nodes.is_empty() || self.threads_per_core == 0 {
            return Err("it has no node, or cores without threads".into());
        }
        let mut ids = BTreeSet::new();
        let mut cpus = BTreeSet::new();
        for node in &self.nodes {
            let id = node.id;
            if !ids.insert(id) {
                return Err(format!("node {id} is there twice"));
            }
            if let Some(cpu) = node.present_cpus().iter().find(|cpu| !cpus.insert(*cpu)) {
                return Err(format!("CPU {cpu} of node {id} is on another node too"));
            }
            node.check()?;
        }
        self.check_references(&ids)
    }

    /// Distances and devices name only nodes that are there.
    fn check_references(&self, ids: &BTreeSet<Id>) -> Result<(), String> {
        for node in &self.nodes {
            if !node.distances.is_empty() && !node.distances.keys().eq(ids) {
                return Err(format!("node {} has distances, but not one for each node", node.id));
            }
        }
        for DeviceSpec { resource, devices } in &self.devices {
            let mut seen = BTreeSet::new();
            for Device { id, numa, .. } in devices {
                if !seen.insert(id) {
                    return Err(format!("device {id} of {resource} is there twice"));
                }
                if !numa.iter().all(|node| ids.contains(node)) {
                    return Err(format!("device {id} of {resource} is near a node that is not there"));
                }
            }
        }
        Ok(())
    }
}

impl NodeSpec {
    /// The socket that the node is in.
    #[must_use]
    pub fn package(&self) -> Id {
        self.package.unwrap_or(self.id)
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

    fn check(&self) -> Result<(), String> {
        let id = self.id;
        for (size, pages) in self.pages() {
            if size < 1024 || size.checked_mul(pages).is_none() {
                return Err(format!("node {id} has huge pages of a size that is none"));
            }
        }
        if self.hugepage_bytes() > self.memory.ceil() {
            return Err(format!("the huge pages of node {id} are more than its memory"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every machine in the repository can be, and what numacast reads from its tree is the description.
    #[test]
    fn described_machines_read_back_from_their_trees() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines");
        let mut seen = 0;
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let spec = MachineSpec::read(&path).unwrap();
            let root = tempfile::tempdir().unwrap();
            spec.write_tree(root.path()).unwrap();
            let node = root.path().join("sys/devices/system/node");
            for NodeSpec { id, cpus, .. } in &spec.nodes {
                let cpulist = std::fs::read_to_string(node.join(format!("node{id}/cpulist"))).unwrap();
                assert_eq!(cpulist.parse::<IdSet>().unwrap(), *cpus, "{}", path.display());
                let bus = root.path().join(format!("sys/bus/node/devices/node{id}/meminfo"));
                assert!(bus.is_file(), "{}", bus.display());
            }
            seen += 1;
        }
        assert!(seen >= 2);
    }

    #[test]
    fn siblings_are_numbered_as_linux_does_it() {
        let spec = MachineSpec::from_yaml(
            "{description: one core pair, threadsPerCore: 2, nodes: [{id: 0, cpus: '0-1,4-5', memory: 1Gi}]}",
        )
        .unwrap();
        let root = tempfile::tempdir().unwrap();
        spec.write_tree(root.path()).unwrap();
        let of = |cpu: u32| {
            let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            std::fs::read_to_string(root.path().join(file)).unwrap()
        };
        assert_eq!((of(0).trim(), of(5).trim()), ("0,4", "1,5"));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (nodes, why) in [
            ("[]", "no node"),
            ("[{id: 0}, {id: 0}]", "node 0 is there twice"),
            ("[{id: 0, cpus: 0-3}, {id: 1, cpus: '3'}]", "CPU 3 of node 1"),
            ("[{id: 0, memory: 1Gi, hugepages: {1Gi: 2}}]", "more than its memory"),
            ("[{id: 0, memory: 1Gi, hugepages: {big: 2}}]", "a size that is none"),
            ("[{id: 0, distances: {1: 20}}]", "not one for each node"),
        ] {
            let error = MachineSpec::from_yaml(&format!("{{description: x, nodes: {nodes}}}")).unwrap_err();
            assert!(error.contains(why), "{nodes}: {error}");
        }
    }
}
