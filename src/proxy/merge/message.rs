//! The messages of the podresources API, as far as they are read and written here.

use std::ops::Range;

use super::PodResourcesVersion;
use crate::machine::IdSet;
use crate::proxy::allocations::{AllocatedDevice, Device, DeviceTable};
use crate::util::wire::{Field, Value, WireError, fields_in, put_bytes, put_number};

/// The field numbers, the same in both API versions (v1alpha1 has fewer of the fields). Fields that are not
/// listed are not needed.
pub(super) mod field {
    pub(in super::super) const PODS: u32 = 1;
    pub(in super::super) const POD_NAME: u32 = 1;
    pub(in super::super) const POD_NAMESPACE: u32 = 2;
    pub(in super::super) const CONTAINERS: u32 = 3;
    pub(in super::super) const POD_CPUS: u32 = 4;
    pub(in super::super) const POD_MEMORY: u32 = 5;
    pub(in super::super) const CONTAINER_NAME: u32 = 1;
    pub(in super::super) const DEVICES: u32 = 2;
    pub(in super::super) const CPUS: u32 = 3;
    pub(in super::super) const MEMORY: u32 = 4;
    pub(in super::super) const CLAIMS: u32 = 5;
    pub(in super::super) const RESOURCE: u32 = 1;
    pub(in super::super) const IDS: u32 = 2;
    pub(in super::super) const TOPOLOGY: u32 = 3;
    pub(in super::super) const NODES: u32 = 1;
    pub(in super::super) const NODE_ID: u32 = 1;
    pub(in super::super) const MEMORY_TYPE: u32 = 1;
    pub(in super::super) const SIZE: u32 = 2;
    pub(in super::super) const CLAIM_RESOURCES: u32 = 4;
    pub(in super::super) const CDI_DEVICES: u32 = 1;
    pub(in super::super) const CDI_NAME: u32 = 1;
    pub(in super::super) const ALLOCATABLE_DEVICES: u32 = 1;
}

/// Returns the messages in the fields `number` of a message, without their headers.
pub(super) fn submessages(
    bytes: &[u8],
    message: Range<usize>,
    number: u32,
) -> impl Iterator<Item = Result<Range<usize>, WireError>> + '_ {
    fields_in(bytes, message).filter_map(move |field| match field {
        Ok(Field { number: found, value: Value::Bytes(content), .. }) if found == number => Some(Ok(content)),
        // A record with another wire type than the field's is an unknown field.
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

/// Returns the namespace and name of a pod. The last of each counts.
pub(super) fn pod_name(
    bytes: &[u8],
    parts: &[Range<usize>],
) -> Result<(Range<usize>, Range<usize>), WireError> {
    let (mut namespace, mut name) = (0..0, 0..0);
    for part in parts {
        for field in fields_in(bytes, part.clone()) {
            let field = field?;
            match (field.number, field.value) {
                (field::POD_NAME, Value::Bytes(text)) => name = text,
                (field::POD_NAMESPACE, Value::Bytes(text)) => namespace = text,
                _ => {}
            }
        }
    }
    Ok((namespace, name))
}

/// Marks the table's devices that a `ContainerDevices` has. Returns the index of its resource, if it has any
/// id.
pub(super) fn mark_devices(
    table: &DeviceTable,
    bytes: &[u8],
    message: &Range<usize>,
    marks: &mut [bool],
) -> Result<Option<usize>, WireError> {
    let (mut name, mut has_id): (&[u8], bool) = (&[], false);
    for field in fields_in(bytes, message.clone()) {
        let field = field?;
        match (field.number, field.value) {
            (field::RESOURCE, Value::Bytes(text)) => name = &bytes[text],
            (field::IDS, Value::Bytes(_)) => has_id = true,
            _ => {}
        }
    }
    let Some(resource) = table.resource(name).filter(|_| has_id) else { return Ok(None) };
    for id in submessages(bytes, message.clone(), field::IDS) {
        table.mark(resource, &bytes[id?], marks);
    }
    Ok(Some(resource))
}

pub(super) fn read_claim<'a>(
    bytes: &'a [u8],
    claim: Range<usize>,
    names: &mut Vec<&'a [u8]>,
) -> Result<(), WireError> {
    for resource in submessages(bytes, claim, field::CLAIM_RESOURCES) {
        for device in submessages(bytes, resource?, field::CDI_DEVICES) {
            for name in submessages(bytes, device?, field::CDI_NAME) {
                names.push(&bytes[name?]);
            }
        }
    }
    Ok(())
}

/// Returns true if the field has any numbers, one by one or packed.
pub(super) fn has_numbers(value: &Value) -> bool {
    !matches!(value, Value::Bytes(packed) if packed.is_empty())
}

/// Writes devices as the kubelet does: successive devices with the same resource and the same NUMA nodes
/// share a message.
pub(super) fn put_devices(
    out: &mut Vec<u8>,
    table: &DeviceTable,
    devices: &[AllocatedDevice],
    number: u32,
    version: PodResourcesVersion,
) {
    let of = |device: &AllocatedDevice| &table.devices[device.device];
    let is_same_group = |a: &AllocatedDevice, b: &AllocatedDevice| {
        (of(a).resource, &of(a).nodes) == (of(b).resource, &of(b).nodes)
    };
    for group in devices.chunk_by(is_same_group) {
        let Device { resource, nodes, .. } = of(&group[0]);
        let mut message = Vec::new();
        put_bytes(&mut message, field::RESOURCE, table.resources[*resource].as_bytes());
        for device in group {
            let id = &of(device).id;
            match device.part {
                None => put_bytes(&mut message, field::IDS, id.as_bytes()),
                Some(part) => put_bytes(&mut message, field::IDS, format!("{id}::{part}").as_bytes()),
            }
        }
        if version == PodResourcesVersion::V1 {
            put_topology(&mut message, nodes);
        }
        put_bytes(out, number, &message);
    }
}

pub(super) fn put_topology(out: &mut Vec<u8>, nodes: &IdSet) {
    if nodes.is_empty() {
        return;
    }
    let mut topology = Vec::new();
    for node in nodes.iter() {
        let mut message = Vec::new();
        // As all encoders do: 0 is left out.
        if node > 0 {
            put_number(&mut message, field::NODE_ID, node.into());
        }
        put_bytes(&mut topology, field::NODES, &message);
    }
    put_bytes(out, field::TOPOLOGY, &topology);
}
