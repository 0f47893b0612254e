//! The device manager: the devices that plugins offer, and the pods they are allocated to.

use std::collections::{BTreeMap, BTreeSet};

use numacast_core::machine::IdSet;

use super::allocation::AllocatedDevices;
use crate::machine::{Device as DeviceSpec, MachineSpec};

/// One device of a plugin.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) nodes: IdSet,
    pub(super) healthy: bool,
}

/// One device plugin.
#[derive(Clone, Debug, Default)]
pub(super) struct Plugin {
    pub(super) registered: bool,
    pub(super) devices: BTreeMap<String, Device>,
}

/// The device manager's state.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceManager {
    pub(super) plugins: BTreeMap<String, Plugin>,
    /// Pod uid to container to resource to devices.
    pub(super) entries: BTreeMap<String, BTreeMap<String, BTreeMap<String, AllocatedDevices>>>,
}

impl DeviceManager {
    pub(super) fn new(spec: &MachineSpec) -> Self {
        let plugin = |devices: &[DeviceSpec]| Plugin { registered: true, devices: offered(devices) };
        let plugins = spec.devices.iter().map(|of| (of.resource.clone(), plugin(&of.devices)));
        Self { plugins: plugins.collect(), entries: BTreeMap::new() }
    }

    /// The healthy devices of registered plugins: resource, id and NUMA nodes.
    pub(super) fn offered(&self) -> impl Iterator<Item = (&String, &String, &IdSet)> {
        let registered = self.plugins.iter().filter(|(_, plugin)| plugin.registered);
        registered.flat_map(|(resource, plugin)| {
            let healthy = plugin.devices.iter().filter(|(_, device)| device.healthy);
            healthy.map(move |(id, device)| (resource, id, &device.nodes))
        })
    }

    /// The ids of a resource that are allocated.
    pub(super) fn allocated(&self, resource: &str) -> BTreeSet<String> {
        let containers = self.entries.values().flat_map(BTreeMap::values);
        containers.filter_map(|of| of.get(resource)).flat_map(BTreeMap::keys).cloned().collect()
    }

    pub(super) fn allocate(
        &mut self,
        uid: &str,
        container: &str,
        devices: BTreeMap<String, AllocatedDevices>,
    ) {
        if !devices.is_empty() {
            self.entries.entry(uid.to_owned()).or_default().insert(container.to_owned(), devices);
        }
    }
}

/// Converts a plugin's device list to the manager's form.
pub(super) fn offered(devices: &[DeviceSpec]) -> BTreeMap<String, Device> {
    let device = |device: &DeviceSpec| Device {
        nodes: device.numa.iter().copied().collect(),
        healthy: !device.unhealthy,
    };
    devices.iter().map(|spec| (spec.id.clone(), device(spec))).collect()
}
