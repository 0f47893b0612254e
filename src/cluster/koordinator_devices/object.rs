//! The decoded part of a Koordinator `Device`.

use serde::Deserialize;

use crate::machine::{HIGHEST_NODE, Id};

/// The devices of one node that Koordinator reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawObject")]
pub struct KoordinatorDevices {
    /// The accelerators' vendor as in the label, such as `nvidia` or `huawei`; empty if not reported.
    pub vendor: Box<str>,
    /// All devices, in the reported order.
    pub devices: Box<[Device]>,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The type: `gpu`, `rdma` or `fpga`.
    pub kind: Box<str>,
    /// The id that allocations refer to.
    pub id: Box<str>,
    /// The number among devices of its type.
    pub minor: Option<i64>,
    /// Whether it may be allocated.
    pub healthy: bool,
    /// The NUMA node, if known.
    pub node: Option<Id>,
    /// The PCI address; empty if unknown.
    pub bus: Box<str>,
    /// The PCI addresses of its virtual functions.
    pub functions: Box<[Box<str>]>,
}

// Each field may be missing or null.

#[derive(Deserialize)]
struct RawObject {
    metadata: Option<RawMetadata>,
    spec: Option<RawSpec>,
}

#[derive(Deserialize)]
struct RawMetadata {
    labels: Option<RawLabels>,
}

#[derive(Deserialize)]
struct RawLabels {
    #[serde(rename = "node.koordinator.sh/gpu-vendor")]
    vendor: Option<Box<str>>,
}

#[derive(Deserialize)]
struct RawSpec {
    devices: Option<Vec<RawDevice>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDevice {
    r#type: Option<Box<str>>,
    id: Option<Box<str>>,
    minor: Option<i64>,
    health: Option<bool>,
    topology: Option<RawTopology>,
    vf_groups: Option<Vec<RawGroup>>,
}

#[derive(Deserialize)]
struct RawTopology {
    #[serde(rename = "nodeID")]
    node: Option<i64>,
    #[serde(rename = "busID")]
    bus: Option<Box<str>>,
}

#[derive(Deserialize)]
struct RawGroup {
    vfs: Option<Vec<RawFunction>>,
}

#[derive(Deserialize)]
struct RawFunction {
    #[serde(rename = "busID")]
    bus: Option<Box<str>>,
}

impl From<RawObject> for KoordinatorDevices {
    fn from(raw: RawObject) -> Self {
        let vendor = raw.metadata.and_then(|metadata| metadata.labels?.vendor).unwrap_or_default();
        let devices = raw.spec.and_then(|spec| spec.devices).into_iter().flatten();
        Self { vendor, devices: devices.map(Device::from).collect() }
    }
}

impl From<RawDevice> for Device {
    fn from(raw: RawDevice) -> Self {
        let (node, bus) = raw.topology.map_or((None, None), |topology| (topology.node, topology.bus));
        let groups = raw.vf_groups.into_iter().flatten();
        let functions = groups.flat_map(|group| group.vfs.into_iter().flatten()).filter_map(|vf| vf.bus);
        Self {
            kind: raw.r#type.unwrap_or_default(),
            id: raw.id.unwrap_or_default(),
            minor: raw.minor,
            healthy: raw.health.unwrap_or(false),
            node: node.and_then(|node| Id::try_from(node).ok()).filter(|node| *node <= HIGHEST_NODE),
            bus: bus.unwrap_or_default(),
            functions: functions.filter(|function| !function.is_empty()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_needed_part_of_a_device_is_decoded() {
        let devices: KoordinatorDevices = serde_json::from_value(json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": "w", "labels": {"node.koordinator.sh/gpu-vendor": "huawei", "x": "y"}, "annotations": {}},
            "spec": {"devices": [
                {"type": "gpu", "id": "GPU-a", "minor": 0, "moduleID": 1, "health": true, "labels": {"a": "b"},
                 "resources": {"koordinator.sh/gpu-core": "100"},
                 "topology": {"socketID": -1, "nodeID": 1, "pcieID": "pci0000:3a", "busID": "0000:3b:00.0"},
                 "conditions": [{"type": "Healthy", "status": "True"}]},
                {"type": "rdma", "id": "0000:09:00.0", "minor": 0, "health": false, "topology": {"nodeID": -1},
                 "vfGroups": [{"labels": null, "vfs": [{"minor": -1, "busID": "0000:09:00.2"}, {"minor": 0}]},
                              {"vfs": null}, {"vfs": [{"busID": "0000:09:00.3"}]}]},
                {},
            ]},
            "status": {"allocations": [{"type": "gpu", "entries": []}]},
        }))
        .unwrap();
        let gpu = Device {
            kind: "gpu".into(),
            id: "GPU-a".into(),
            minor: Some(0),
            healthy: true,
            node: Some(1),
            bus: "0000:3b:00.0".into(),
            functions: Box::default(),
        };
        let card = Device {
            kind: "rdma".into(),
            id: "0000:09:00.0".into(),
            minor: Some(0),
            functions: ["0000:09:00.2".into(), "0000:09:00.3".into()].into(),
            ..Device::default()
        };
        assert_eq!((&*devices.vendor, &*devices.devices), ("huawei", &[gpu, card, Device::default()][..]));
        for bare in [
            json!({}),
            json!({"metadata": null, "spec": null}),
            json!({"metadata": {}, "spec": {"devices": null}}),
        ] {
            let devices: KoordinatorDevices = serde_json::from_value(bare).unwrap();
            assert_eq!(devices, KoordinatorDevices::default());
        }
    }
}
