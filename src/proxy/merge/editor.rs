//! Edits a response: only the containers that get something change, and the lengths of the messages around
//! them; the rest is copied as it is, once.

use std::collections::BTreeSet;
use std::ops::Range;

use prost::bytes::Bytes;

use super::message::{
    Submessage, field, has_numbers, mark_devices, put_devices, put_topology, read_claim, submessages,
};
use super::{ListedPods, Merged, Omitted, Version};
use crate::proxy::allocations::{AllocatedDevice, Allocations, Device, PodAllocations, is_same_device};
use crate::util::wire::{Value, WireError, fields_in, put_bytes, put_head, put_number, put_varint};

pub(super) struct ResponseEditor<'a> {
    allocations: &'a Allocations,
    bytes: &'a Bytes,
    version: Version,
    /// By allocated device: whether the kubelet lists it.
    is_listed: Vec<bool>,
    edits: Vec<Edit>,
    /// All new bytes.
    new: Vec<u8>,
    pods: usize,
    devices: usize,
    omitted: Omitted,
}

/// Replaces the bytes in `replaced`.
struct Edit {
    replaced: Range<usize>,
    /// The range in the new bytes.
    by: Range<usize>,
}

#[derive(Default)]
struct ListedPod<'a> {
    containers: Vec<ListedContainer<'a>>,
    /// The allocated resources that the kubelet itself allocated to it.
    resources: BTreeSet<usize>,
    /// The CDI names of claimed devices: `vendor.com/class=device`.
    claimed: Vec<&'a [u8]>,
    has_cpus: bool,
    has_memory: bool,
}

struct ListedContainer<'a> {
    name: &'a [u8],
    message: Submessage,
    /// The index of the pod's part that contains it.
    part: usize,
}

impl<'a> ResponseEditor<'a> {
    pub(super) fn new(allocations: &'a Allocations, bytes: &'a Bytes, version: Version) -> Self {
        Self {
            allocations,
            bytes,
            version,
            is_listed: vec![false; allocations.devices.devices.len()],
            edits: Vec::new(),
            new: Vec::new(),
            pods: 0,
            devices: 0,
            omitted: Omitted::default(),
        }
    }

    pub(super) fn mark_listed(&mut self, pod: &[Submessage]) -> Result<(), WireError> {
        let bytes: &[u8] = self.bytes;
        for part in pod {
            for container in submessages(bytes, part.content.clone(), field::CONTAINERS) {
                for devices in submessages(bytes, container?.content, field::DEVICES) {
                    let table = &self.allocations.devices;
                    mark_devices(table, bytes, &devices?.content, &mut self.is_listed)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a pod's allocations to it. Returns true if the response has any of their containers.
    pub(super) fn edit(&mut self, pod: &PodAllocations, parts: &[Submessage]) -> Result<bool, WireError> {
        let listed = self.read(parts)?;
        // By how many bytes each part grows; `None` if it stays as it is.
        let mut grown: Vec<Option<isize>> = vec![None; parts.len()];
        let mut grow = |part: usize, by: Option<isize>| {
            grown[part] = by.map(|by| grown[part].unwrap_or(0).saturating_add(by)).or(grown[part]);
        };
        let mut found = pod.containers.is_empty();
        for (name, devices) in &pod.containers {
            let container = listed.containers.iter().find(|container| container.name == name.as_bytes());
            let Some(container) = container else {
                self.omitted.no_container += devices.len();
                continue;
            };
            found = true;
            let devices = self.choose(&listed, devices);
            grow(container.part, self.add_devices(&container.message, &devices));
        }
        if let (Version::V1, Some((last, part))) = (self.version, parts.iter().enumerate().next_back()) {
            grow(last, self.add_cpus_and_memory(pod, &listed, part));
        }
        self.pods += usize::from(grown.iter().any(Option::is_some));
        for (part, grown) in parts.iter().zip(grown) {
            if let Some(grown) = grown {
                self.lengthen(part, field::PODS, grown);
            }
        }
        Ok(found)
    }

    fn read(&mut self, parts: &[Submessage]) -> Result<ListedPod<'a>, WireError> {
        let bytes: &'a [u8] = self.bytes;
        let mut pod = ListedPod::default();
        for (index, part) in parts.iter().enumerate() {
            for field in fields_in(bytes, part.content.clone()) {
                let field = field?;
                match (field.number, field.value) {
                    (field::CONTAINERS, Value::Bytes(content)) => {
                        let message = Submessage { record: field.record, content };
                        self.read_container(message, index, &mut pod)?;
                    }
                    (field::POD_CPUS, value) => pod.has_cpus |= has_numbers(&value),
                    (field::POD_MEMORY, _) => pod.has_memory = true,
                    _ => {}
                }
            }
        }
        Ok(pod)
    }

    fn read_container(
        &mut self,
        message: Submessage,
        part: usize,
        pod: &mut ListedPod<'a>,
    ) -> Result<(), WireError> {
        let bytes: &'a [u8] = self.bytes;
        let table = &self.allocations.devices;
        let mut name: &[u8] = &[];
        for field in fields_in(bytes, message.content.clone()) {
            let field = field?;
            match (field.number, field.value) {
                (field::CONTAINER_NAME, Value::Bytes(text)) => name = &bytes[text],
                (field::DEVICES, Value::Bytes(devices)) => {
                    pod.resources.extend(mark_devices(table, bytes, &devices, &mut self.is_listed)?);
                }
                (field::CPUS, value) => pod.has_cpus |= has_numbers(&value),
                (field::MEMORY, _) => pod.has_memory = true,
                (field::CLAIMS, Value::Bytes(claim)) => read_claim(bytes, claim, &mut pod.claimed)?,
                _ => {}
            }
        }
        pod.containers.push(ListedContainer { name, message, part });
        Ok(())
    }

    fn choose(&mut self, pod: &ListedPod<'_>, devices: &[AllocatedDevice]) -> Vec<AllocatedDevice> {
        let table = &self.allocations.devices;
        let mut chosen = Vec::with_capacity(devices.len());
        for allocated in devices {
            let Device { resource, id, .. } = &table.devices[allocated.device];
            if pod.resources.contains(resource) {
                self.omitted.allocated += 1;
            } else if self.is_listed[allocated.device] {
                self.omitted.listed += 1;
            } else if pod.claimed.iter().any(|name| is_cdi_name(name, &table.resources[*resource], id)) {
                self.omitted.claimed += 1;
            } else {
                chosen.push(*allocated);
            }
        }
        chosen
    }

    /// Appends devices to a container. Returns by how many bytes the container's record grows, if there are
    /// any.
    fn add_devices(&mut self, container: &Submessage, devices: &[AllocatedDevice]) -> Option<isize> {
        let start = self.new.len();
        put_devices(&mut self.new, &self.allocations.devices, devices, field::DEVICES, self.version);
        self.devices += devices.len();
        let grown = self.insert(container.content.end, start)?;
        Some(self.lengthen(container, field::CONTAINERS, grown))
    }

    /// Appends the CPUs and the memory of a pod where the kubelet reports none. Returns by how many bytes the
    /// pod grows.
    fn add_cpus_and_memory(
        &mut self,
        pod: &PodAllocations,
        listed: &ListedPod<'_>,
        part: &Submessage,
    ) -> Option<isize> {
        let start = self.new.len();
        let allocated = &pod.cpus_and_memory;
        if !listed.has_cpus && !allocated.cpus.is_empty() {
            let mut packed = Vec::new();
            allocated.cpus.iter().for_each(|cpu| put_varint(&mut packed, cpu.into()));
            put_bytes(&mut self.new, field::POD_CPUS, &packed);
        }
        for (kind, size, node) in allocated.memory.iter().filter(|_| !listed.has_memory) {
            let mut block = Vec::new();
            put_bytes(&mut block, field::MEMORY_TYPE, kind.as_bytes());
            put_number(&mut block, field::SIZE, *size);
            put_topology(&mut block, &[*node].into_iter().collect());
            put_bytes(&mut self.new, field::POD_MEMORY, &block);
        }
        self.insert(part.content.end, start)
    }

    /// Inserts everything new since `start` at this position. Returns the number of bytes.
    fn insert(&mut self, at: usize, start: usize) -> Option<isize> {
        let by = start..self.new.len();
        let added = isize::try_from(by.len()).ok().filter(|added| *added > 0)?;
        self.edits.push(Edit { replaced: at..at, by });
        Some(added)
    }

    /// Writes the header of a message that has grown. Returns by how much its record grows: the old header
    /// may have been longer than necessary.
    fn lengthen(&mut self, message: &Submessage, number: u32, grown: isize) -> isize {
        let start = self.new.len();
        put_head(&mut self.new, number, message.content.len().saturating_add_signed(grown));
        let replaced = message.record.start..message.content.start;
        let by = start..self.new.len();
        let longer = by.len() as isize - replaced.len() as isize;
        self.edits.push(Edit { replaced, by });
        grown.saturating_add(longer)
    }

    pub(super) fn finish(mut self, listed: ListedPods) -> Merged {
        let Self { pods, devices, omitted, .. } = self;
        if self.edits.is_empty() {
            return Merged { omitted, ..Merged::unchanged(self.bytes, listed) };
        }
        self.edits.sort_by_key(|edit| (edit.replaced.start, edit.replaced.end));
        let mut all = Vec::with_capacity(self.bytes.len() + self.new.len());
        let mut copied = 0;
        for Edit { replaced, by } in self.edits {
            all.extend_from_slice(&self.bytes[copied..replaced.start]);
            all.extend_from_slice(&self.new[by]);
            copied = replaced.end;
        }
        all.extend_from_slice(&self.bytes[copied..]);
        Merged { bytes: all.into(), pods, devices, omitted, listed }
    }
}

/// Returns true if this is the CDI name of the device, `<resource>=<id>`, or one id is a part of the other.
fn is_cdi_name(name: &[u8], resource: &str, id: &str) -> bool {
    let rest = name.strip_prefix(resource.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
    rest.is_some_and(|rest| is_same_device(rest, id.as_bytes()))
}
