//! The annotations that Koordinator's scheduler writes to the pods that it schedules.

mod json;

use super::error::ErrorKind;
use super::node_devices::DeviceLookup;
use super::pod_reader::{PodReader, RequestedDevice, Share};
use super::resource_names::{self, GPU};
use crate::machine::IdSet;

use json::JsonDevice;
pub(super) use json::cpus_and_memory;

/// The annotation with the devices.
pub(super) const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";
/// The annotation with the CPUs, and the memory by NUMA node.
pub(super) const STATUS: &str = "scheduling.koordinator.sh/resource-status";

/// Maximum number of types of a pod's devices. There are three, and each is a resource in our tables.
const MAX_TYPES: usize = 16;

pub(super) fn read_devices(reader: &mut PodReader<'_>, text: &str) {
    let types = json::devices(text, &mut reader.errors);
    let mut types = types.into_iter().filter(|(_, devices)| !devices.is_empty());
    for (kind, devices) in types.by_ref().take(MAX_TYPES) {
        read_type(reader, &kind, devices);
    }
    if types.next().is_some() {
        let text = || format!("it has devices of more than {MAX_TYPES} types");
        reader.errors.add(ErrorKind::TooMany, text);
    }
}

fn read_type(reader: &mut PodReader<'_>, kind: &str, devices: Vec<JsonDevice>) {
    let names = &reader.annotations.koordinator_resources;
    let Some(resource) = resource_names::resource(names, kind, reader.node.vendor()) else {
        return reader.errors.add_malformed(DEVICES, "a type of device that makes no valid resource name");
    };
    let devices = devices.into_iter().map(|device| requested_device(reader, kind, device));
    let devices: Vec<RequestedDevice> = devices.filter(|device| !device.ids.is_empty()).collect();
    reader.allocate(Some(kind), &resource, devices);
}

/// Returns the ids of a device: those of its virtual functions if some were allocated, else its own.
fn requested_device(reader: &mut PodReader<'_>, kind: &str, device: JsonDevice) -> RequestedDevice {
    let JsonDevice { id, minor, functions, is_part } = device;
    let ids = match (functions.is_empty(), id) {
        (false, _) => functions,
        (true, Some(id)) => vec![id],
        (true, None) => match minor.and_then(|minor| reader.node.id_of(kind, minor)) {
            Some(id) => vec![id.to_owned()],
            None => {
                reader.errors.add(ErrorKind::NoId, || match minor {
                    Some(minor) => format!(
                        "a device of type `{kind}` has no id, and the node's Device object has no id for minor {minor}"
                    ),
                    None => format!("a device of type `{kind}` has neither an id nor a minor number"),
                });
                Vec::new()
            }
        },
    };
    let ids = ids.iter().filter_map(|id| known_id(reader, kind, id)).collect();
    let share = match is_part {
        false => Share::Whole,
        true if kind == GPU => Share::AcceleratorPart,
        true => Share::Part,
    };
    RequestedDevice { ids, share }
}

/// Returns an id with the device's NUMA nodes, unless the node is known not to have the device. An unhealthy
/// device stays as long as a pod has it.
fn known_id(reader: &mut PodReader<'_>, kind: &str, id: &str) -> Option<(Box<str>, IdSet)> {
    let id = reader.checked_id(id)?;
    let device = match reader.node.find(kind, &id) {
        DeviceLookup::Unreported => None,
        DeviceLookup::Found(device) => Some(device),
        DeviceLookup::Missing => {
            let text = || format!("the node's Device has no device `{id}` of type `{kind}`");
            reader.errors.add(ErrorKind::UnknownId, text);
            return None;
        }
    };
    let nodes = reader.node.numa_nodes(&id, device);
    Some((id, nodes))
}
