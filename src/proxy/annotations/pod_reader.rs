//! What the annotations of one pod allocate. Each format has a file of its own, which passes what it parses to
//! [`PodReader::allocate`] or [`PodReader::allocate_to`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::config::Annotations;
use super::containers::{assign, max_devices};
use super::error::{ErrorKind, PodErrors};
use super::node_devices::NodeDevices;
use super::{MAX_ID_BYTES, MAX_IDS};
use crate::machine::IdSet;
use crate::pod::{Annotation, Pod};
use crate::proxy::allocations::{AllocatedDevice, CpusAndMemory, DeviceName, DeviceTable, PodAllocations};

pub(super) struct PodReader<'a> {
    pub(super) pod: &'a Pod,
    pub(super) annotations: &'a Annotations,
    pub(super) node: &'a NodeDevices,
    /// In the order of allocation.
    pub(super) devices: Vec<PodDevice>,
    seen: BTreeSet<DeviceName>,
    pub(super) cpus_and_memory: CpusAndMemory,
    pub(super) errors: PodErrors,
}

pub(super) struct PodDevice {
    pub(super) resource: Arc<str>,
    pub(super) id: Box<str>,
    pub(super) nodes: IdSet,
    /// The index of its container.
    container: usize,
    pub(super) share: Share,
    /// The number of its part, if parts have ids of their own.
    pub(super) part: Option<u64>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Share {
    #[default]
    Whole,
    Part,
    /// A part of an accelerator, which may have an id of its own.
    AcceleratorPart,
}

/// What counts as one device against requests: a device, or virtual functions of one.
#[derive(Default)]
pub(super) struct RequestedDevice {
    /// Each id with its NUMA nodes.
    pub(super) ids: Vec<(Box<str>, IdSet)>,
    pub(super) share: Share,
}

impl PodDevice {
    pub(super) fn name(&self) -> DeviceName {
        (self.resource.clone(), self.id.clone())
    }
}

impl<'a> PodReader<'a> {
    pub(super) fn new(pod: &'a Pod, annotations: &'a Annotations, node: &'a NodeDevices) -> Self {
        let (devices, seen) = (Vec::new(), BTreeSet::new());
        let (cpus_and_memory, errors) = (CpusAndMemory::default(), PodErrors::default());
        Self { pod, annotations, node, devices, seen, cpus_and_memory, errors }
    }

    pub(super) fn annotation(&mut self, key: &str) -> Option<&'a str> {
        let all = &self.pod.annotations;
        let at = all.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        match &all[at].1 {
            Annotation::Text(text) => Some(text),
            Annotation::TooLong(bytes) => {
                self.errors.add(ErrorKind::TooLong, || {
                    format!(
                        "annotation `{key}` ({bytes} bytes) was dropped: it is longer than {} KiB, or among the \
                         longest of its pod or node",
                        Annotation::MAX_BYTES >> 10
                    )
                });
                None
            }
        }
    }

    pub(super) fn checked_id(&mut self, id: &str) -> Option<Box<str>> {
        if is_id(id) {
            return Some(id.into());
        }
        self.errors.add(ErrorKind::BadId, || {
            format!("an id is empty, not printable or longer than {MAX_ID_BYTES} bytes")
        });
        None
    }

    /// Allocates devices of one resource to the containers that request it (see `assign`). Requests and
    /// limits apply to each call on its own: call it once per annotation and resource, with all its devices.
    ///
    /// `kind` is Koordinator's type of device, such as `gpu`, which containers can request by more names than
    /// `resource`; `None` for other formats.
    pub(super) fn allocate(
        &mut self,
        kind: Option<&str>,
        resource: &Arc<str>,
        devices: Vec<RequestedDevice>,
    ) {
        if devices.is_empty() {
            return;
        }
        let Some(containers) = assign(&self.pod.containers, kind, resource, devices.len()) else {
            return self
                .errors
                .add(ErrorKind::NoContainer, || format!("it has no container for its `{resource}`"));
        };
        let (all, assigned) = (devices.len(), containers.len());
        for (device, container) in devices.into_iter().zip(containers) {
            self.put(resource, container, device);
        }
        if all > assigned {
            self.errors.add(ErrorKind::TooMany, || {
                format!("an annotation allocates {all} of `{resource}`; only {assigned} are merged")
            });
        }
    }

    /// Allocates a device to the container `name`. `before` is the number of devices of this resource that
    /// the annotation has already allocated to it.
    pub(super) fn allocate_to(
        &mut self,
        name: &str,
        resource: &Arc<str>,
        device: RequestedDevice,
        before: usize,
    ) {
        let containers = &self.pod.containers;
        let Some(at) = containers.iter().position(|container| &*container.name == name) else {
            return self.errors.add(ErrorKind::NoContainer, || {
                let name = escaped(name);
                format!("an annotation allocates a device to container `{name}`, which it does not have")
            });
        };
        let max = max_devices(&containers[at], resource);
        if before < max {
            return self.put(resource, at, device);
        }
        self.errors.add(ErrorKind::TooMany, || {
            let name = escaped(name);
            format!(
                "an annotation allocates more than {max} of `{resource}` to container `{name}`; only {max} are merged"
            )
        });
    }

    fn put(&mut self, resource: &Arc<str>, container: usize, device: RequestedDevice) {
        for (id, nodes) in device.ids {
            if self.devices.len() >= MAX_IDS {
                self.errors.add(ErrorKind::TooMany, || {
                    format!("annotations allocate more than {MAX_IDS} devices to it")
                });
                continue;
            }
            // An id that occurs twice counts once.
            if self.seen.insert((resource.clone(), id.clone())) {
                let (resource, share) = (resource.clone(), device.share);
                self.devices.push(PodDevice { resource, id, nodes, container, share, part: None });
            }
        }
    }

    pub(super) fn finish(self, table: &DeviceTable) -> (PodAllocations, PodErrors) {
        let mut by_container: BTreeMap<usize, Vec<AllocatedDevice>> = BTreeMap::new();
        for PodDevice { resource, id, container, part, .. } in &self.devices {
            let resource = table.resource(resource.as_bytes());
            let device = resource.and_then(|resource| table.device(resource, id.as_bytes()));
            let device = device.map(|device| AllocatedDevice { device, part: *part });
            by_container.entry(*container).or_default().extend(device);
        }
        let name = |container: usize| self.pod.containers[container].name.clone();
        let containers = by_container.into_iter().map(|(at, devices)| (name(at), devices)).collect();
        let (name, cpus_and_memory) = (self.pod.full_name(), self.cpus_and_memory);
        (PodAllocations { name, containers, cpus_and_memory }, self.errors)
    }
}

/// Returns true if a text can be a device's id: printable ASCII without spaces, up to the maximum length.
pub(super) fn is_id(id: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

fn escaped(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}
