//! A machine described once, as data, for unit tests, the simulation and the real kubelet alike.

use std::collections::BTreeMap;

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
    /// Hardware threads per core; siblings have neighbouring ids.
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
    /// MemTotal.
    #[serde(default)]
    pub memory: Quantity,
    /// Page size (`2Mi`) to number of pages.
    #[serde(default)]
    pub hugepages: BTreeMap<String, u64>,
    /// Node id to SLIT distance.
    #[serde(default)]
    pub distances: BTreeMap<Id, u32>,
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
}

fn one() -> u16 {
    1
}
