//! The node's devices: what Koordinator reports, and the locations of PCI devices in sysfs.

use std::sync::Arc;

use super::pci::PciDevices;
use crate::cluster::{Device, KoordinatorDevices};
use crate::machine::IdSet;

/// The devices of one node. By default none are reported.
#[derive(Clone, Debug, Default)]
pub struct NodeDevices {
    devices: Option<Arc<KoordinatorDevices>>,
    /// Every id and address with the index of its device, sorted.
    index: Arc<[(Box<str>, usize)]>,
    pci: Arc<PciDevices>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum DeviceLookup<'a> {
    /// The node's devices are not reported.
    Unreported,
    /// They are reported, and it is not among them.
    Missing,
    /// It is this device, or a virtual function of it.
    Found(&'a Device),
}

impl NodeDevices {
    /// Creates a node from the reported devices, if there are any, and the lookup of PCI devices.
    #[must_use]
    pub fn new(devices: Option<Arc<KoordinatorDevices>>, pci: Arc<PciDevices>) -> Self {
        let mut index = Vec::new();
        for (at, device) in devices.iter().flat_map(|devices| devices.devices.iter()).enumerate() {
            index.extend(device.functions.iter().chain([&device.id]).map(|id| (id.clone(), at)));
        }
        index.sort_unstable();
        Self { devices, index: index.into(), pci }
    }

    #[cfg(test)]
    pub(crate) const fn is_reported(&self) -> bool {
        self.devices.is_some()
    }

    pub(super) fn vendor(&self) -> &str {
        self.devices.as_ref().map_or("", |devices| &devices.vendor)
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().flat_map(|devices| devices.devices.iter())
    }

    pub(super) fn find(&self, kind: &str, id: &str) -> DeviceLookup<'_> {
        let Some(devices) = &self.devices else { return DeviceLookup::Unreported };
        let found = self.indexes(id).map(|at| &devices.devices[at]).find(|device| &*device.kind == kind);
        found.map_or(DeviceLookup::Missing, DeviceLookup::Found)
    }

    pub(super) fn id_of(&self, kind: &str, minor: i64) -> Option<&str> {
        let is = |device: &&Device| &*device.kind == kind && device.minor == Some(minor);
        self.devices().find(is).map(|device| &*device.id).filter(|id| !id.is_empty())
    }

    /// Returns the NUMA nodes of a device, if known: as reported, else from sysfs.
    pub(super) fn numa_nodes(&self, id: &str, device: Option<&Device>) -> IdSet {
        let device = device.or_else(|| self.devices.as_ref()?.devices.get(self.indexes(id).next()?));
        let node = device.and_then(|device| device.node);
        let node = node.or_else(|| self.pci.numa_node(id));
        let node = node.or_else(|| self.pci.numa_node(&device?.bus));
        node.into_iter().collect()
    }

    fn indexes(&self, id: &str) -> impl Iterator<Item = usize> {
        let first = self.index.partition_point(|(known, _)| **known < *id);
        self.index[first..].iter().take_while(move |(known, _)| **known == *id).map(|(_, at)| *at)
    }
}
