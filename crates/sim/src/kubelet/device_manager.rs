//! The device manager: the devices that plugins offer, and the pods they are allocated to.

use std::collections::{BTreeMap, BTreeSet};

use numacast_core::machine::{Id, IdSet};

use super::allocation::{AllocatedDevices, Rejection, unexpected};
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

/// Devices of the pod's regular init containers: resource to devices.
pub(super) type Reusable = BTreeMap<String, AllocatedDevices>;

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

    /// Free devices of a resource with their NUMA nodes, without those in `reusable`.
    fn free(&self, resource: &str) -> Vec<(&String, &IdSet)> {
        let Some(plugin) = self.plugins.get(resource).filter(|plugin| plugin.registered) else {
            return Vec::new();
        };
        let containers = self.entries.values().flat_map(BTreeMap::values);
        let allocated: BTreeSet<&String> =
            containers.filter_map(|of| of.get(resource)).flat_map(BTreeMap::keys).collect();
        let free = plugin.devices.iter().filter(|(id, device)| device.healthy && !allocated.contains(id));
        free.map(|(id, device)| (id, &device.nodes)).collect()
    }

    /// Returns true if `node` can serve the demand: now or, with `when_empty`, with nothing allocated. A
    /// device without topology has no preference, so it counts as near every node.
    pub(super) fn fits(
        &self,
        node: Id,
        demand: &BTreeMap<String, u64>,
        reusable: &Reusable,
        when_empty: bool,
    ) -> bool {
        let near = |nodes: &IdSet| nodes.is_empty() || nodes.contains(node);
        demand.iter().all(|(resource, count)| {
            let again = reusable.get(resource).into_iter().flatten().filter(|(_, nodes)| near(nodes));
            let fresh = if when_empty {
                self.offered().filter(|(of, _, nodes)| *of == resource && near(nodes)).count()
            } else {
                self.free(resource).into_iter().filter(|(_, nodes)| near(nodes)).count()
            };
            (again.count() + fresh) as u64 >= *count
        })
    }

    /// Chooses devices: those of earlier init containers first, then near ones, then those without topology,
    /// then distant ones. With `strict`, excludes distant ones.
    pub(super) fn choose(
        &self,
        demand: &BTreeMap<String, u64>,
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
        reusable: &Reusable,
    ) -> Result<BTreeMap<String, AllocatedDevices>, Rejection> {
        let near =
            |nodes: &IdSet| affinity.is_none_or(|wanted| wanted.iter().any(|node| nodes.contains(*node)));
        let mut chosen = BTreeMap::new();
        for (resource, count) in demand.iter().filter(|(_, count)| **count > 0) {
            let mut free = self.free(resource);
            free.sort_by_key(|(_, nodes)| (!near(nodes), !nodes.is_empty()));
            if strict && affinity.is_some() {
                free.retain(|(_, nodes)| near(nodes) || nodes.is_empty());
            }
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            let again = reusable.get(resource).into_iter().flatten();
            let available = free.len();
            let devices: AllocatedDevices =
                again.chain(free).take(count).map(|(id, nodes)| (id.clone(), nodes.clone())).collect();
            if devices.len() < count {
                return Err(unexpected(format!(
                    "Allocate failed due to requested number of devices unavailable for {resource}. \
                     Requested: {count}, Available: {available}, which is unexpected"
                )));
            }
            chosen.insert(resource.clone(), devices);
        }
        Ok(chosen)
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
