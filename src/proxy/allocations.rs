//! What annotations allocate to the pods of a node: computed when pods or devices change, not for every
//! response.

use std::sync::Arc;

use super::annotations::AnnotationError;
use crate::machine::{Id, IdSet};
use crate::pod::PodName;

/// What annotations allocate to the pods of a node, and the node's own devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    /// The devices of all pods.
    pub(super) devices: DeviceTable,
    /// Sorted by namespace and name; pods without allocations are left out.
    pub(super) pods: Vec<PodAllocations>,
    /// The node's devices, if they are merged.
    pub(super) allocatable: DeviceTable,
    /// Sorted.
    pub(super) errors: Vec<AnnotationError>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceTable {
    /// Sorted.
    pub(super) resources: Vec<Arc<str>>,
    /// Sorted.
    pub(super) devices: Vec<Device>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Device {
    /// The index of its resource.
    pub(super) resource: usize,
    pub(super) id: Box<str>,
    pub(super) nodes: IdSet,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodAllocations {
    pub(super) name: PodName,
    /// Containers in the order of the specification, each with its devices in the order of their allocation.
    pub(super) containers: Vec<(Box<str>, Vec<AllocatedDevice>)>,
    pub(super) cpus_and_memory: CpusAndMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AllocatedDevice {
    /// Its index in the table.
    pub(super) device: usize,
    /// The number of its part, if parts have ids of their own. Whether another pod has the device is decided
    /// by the device's own id.
    pub(super) part: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CpusAndMemory {
    pub(super) cpus: IdSet,
    /// `memory` or huge pages, bytes, NUMA node.
    pub(super) memory: Vec<(Box<str>, u64, Id)>,
}

pub(super) type DeviceName = (Arc<str>, Box<str>);

impl Allocations {
    /// Returns the errors in annotations, sorted.
    #[must_use]
    pub fn errors(&self) -> &[AnnotationError] {
        &self.errors
    }

    pub(super) fn new_errors<'a>(&'a self, earlier: &'a Self) -> impl Iterator<Item = &'a AnnotationError> {
        self.errors.iter().filter(|error| earlier.errors.binary_search(error).is_err())
    }

    #[cfg(test)]
    pub(super) const fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub(super) fn pod(&self, namespace: &[u8], name: &[u8]) -> Option<usize> {
        let key =
            |pod: &PodAllocations| (pod.name.0.as_bytes(), pod.name.1.as_bytes()).cmp(&(namespace, name));
        self.pods.binary_search_by(key).ok()
    }
}

impl DeviceTable {
    /// Returns a table of these devices. If one occurs twice, its first location counts.
    pub(super) fn new(all: Vec<(DeviceName, IdSet)>) -> Self {
        let mut resources: Vec<Arc<str>> = all.iter().map(|((resource, _), _)| resource.clone()).collect();
        resources.sort_unstable();
        resources.dedup();
        let at = |name: &Arc<str>| resources.partition_point(|known| known < name);
        let device = |((resource, id), nodes)| Device { resource: at(&resource), id, nodes };
        let mut devices: Vec<Device> = all.into_iter().map(device).collect();
        devices.sort_by(|a, b| (a.resource, &a.id).cmp(&(b.resource, &b.id)));
        devices.dedup_by(|b, a| (a.resource, &a.id) == (b.resource, &b.id));
        Self { resources, devices }
    }

    pub(super) fn resource(&self, name: &[u8]) -> Option<usize> {
        self.resources.binary_search_by(|known| known.as_bytes().cmp(name)).ok()
    }

    pub(super) fn device(&self, resource: usize, id: &[u8]) -> Option<usize> {
        let key = |device: &Device| (device.resource, device.id.as_bytes()).cmp(&(resource, id));
        self.devices.binary_search_by(key).ok()
    }

    /// Marks the devices that an id of a response refers to: that device, the device that it is a part of,
    /// and its parts.
    pub(super) fn mark(&self, resource: usize, id: &[u8], marks: &mut [bool]) {
        for id in [Some(id), whole(id)].into_iter().flatten() {
            if let Some(device) = self.device(resource, id) {
                marks[device] = true;
            }
        }
        let before = |device: &Device| {
            let ids = || device.id.bytes().cmp(id.iter().chain(b"::").copied());
            device.resource.cmp(&resource).then_with(ids).is_lt()
        };
        let first = self.devices.partition_point(before);
        for (device, mark) in self.devices[first..].iter().zip(&mut marks[first..]) {
            let rest = device.id.as_bytes().strip_prefix(id).filter(|_| device.resource == resource);
            if !rest.is_some_and(|rest| rest.starts_with(b"::")) {
                break;
            }
            *mark |= whole(device.id.as_bytes()) == Some(id);
        }
    }
}

/// Returns the id of the device that an id names a part of: `GPU-a` of `GPU-a::3`.
fn whole(id: &[u8]) -> Option<&[u8]> {
    let at = id.windows(2).rposition(|pair| pair == b"::")?;
    let (whole, part) = (&id[..at], &id[at + 2..]);
    (!whole.is_empty() && !part.is_empty() && part.iter().all(u8::is_ascii_digit)).then_some(whole)
}

pub(super) fn is_same_device(one: &[u8], other: &[u8]) -> bool {
    one == other || whole(one) == Some(other) || whole(other) == Some(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_and_the_whole_are_one_device_and_two_parts_are_not() {
        let same = |one: &str, other: &str| {
            let (one, other) = (one.as_bytes(), other.as_bytes());
            assert_eq!(is_same_device(one, other), is_same_device(other, one));
            is_same_device(one, other)
        };
        assert!(same("GPU-a", "GPU-a") && same("GPU-a", "GPU-a::0"));
        assert!(!same("GPU-a::0", "GPU-a::1") && !same("GPU-a", "GPU-b::0") && !same("GPU-a", "GPU-a::x"));
    }
}
