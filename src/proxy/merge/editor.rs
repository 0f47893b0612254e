//! Edits a response: only the pods and containers that get something change, and the lengths of the messages
//! around them; the rest is copied as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use prost::bytes::Bytes;

use super::message::{field, has_numbers, mark_devices, put_devices, put_topology, read_claim, submessages};
use super::{ListedPods, Merged, Omitted, PodResourcesVersion};
use crate::proxy::allocations::{
    AllocatedDevice, Allocations, CpusAndMemory, Device, PodAllocations, is_same_device,
};
use crate::util::wire::{Field, Value, WireError, fields_in, put_bytes, put_number, put_varint};

/// By how many bytes the headers of a container and its pod can grow together.
const LONGER_HEADERS: usize = 20;

/// Messages are identified by where their content starts.
pub(super) struct ResponseEditor<'a> {
    allocations: &'a Allocations,
    bytes: &'a Bytes,
    version: PodResourcesVersion,
    /// By allocated device: whether the kubelet lists it.
    is_listed: Vec<bool>,
    /// The fields to append to a message.
    appended: BTreeMap<usize, Vec<u8>>,
    devices: usize,
    omitted: Omitted,
}

#[derive(Default)]
struct ListedPod<'a> {
    /// Names and messages.
    containers: Vec<(&'a [u8], Range<usize>)>,
    /// The allocated resources that the kubelet itself allocated to it.
    resources: BTreeSet<usize>,
    /// The CDI names of claimed devices: `vendor.com/class=device`.
    claimed: Vec<&'a [u8]>,
    has_cpus: bool,
    has_memory: bool,
}

impl<'a> ResponseEditor<'a> {
    pub(super) fn new(allocations: &'a Allocations, bytes: &'a Bytes, version: PodResourcesVersion) -> Self {
        Self {
            allocations,
            bytes,
            version,
            is_listed: vec![false; allocations.devices.devices.len()],
            appended: BTreeMap::new(),
            devices: 0,
            omitted: Omitted::default(),
        }
    }

    pub(super) fn mark_listed(&mut self, pods: &[Range<usize>]) -> Result<(), WireError> {
        let table = &self.allocations.devices;
        for pod in pods {
            for container in submessages(self.bytes, pod.clone(), field::CONTAINERS) {
                for devices in submessages(self.bytes, container?, field::DEVICES) {
                    mark_devices(table, self.bytes, &devices?, &mut self.is_listed)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a pod's allocations to it. Returns true if the response has any of their containers.
    pub(super) fn edit(&mut self, pod: &PodAllocations, parts: &[Range<usize>]) -> Result<bool, WireError> {
        let listed = self.read(parts)?;
        let mut found = pod.containers.is_empty();
        for (name, devices) in &pod.containers {
            let container = listed.containers.iter().find(|(known, _)| *known == name.as_bytes());
            let Some((_, container)) = container else {
                self.omitted.no_container += devices.len();
                continue;
            };
            found = true;
            let devices = self.choose(&listed, devices);
            self.devices += devices.len();
            let mut new = Vec::new();
            put_devices(&mut new, &self.allocations.devices, &devices, field::DEVICES, self.version);
            self.append(container, new);
        }
        if let (PodResourcesVersion::V1, Some(last)) = (self.version, parts.last()) {
            self.append(last, missing_cpus_and_memory(&pod.cpus_and_memory, &listed));
        }
        Ok(found)
    }

    fn read(&mut self, parts: &[Range<usize>]) -> Result<ListedPod<'a>, WireError> {
        let mut pod = ListedPod::default();
        for part in parts {
            for field in fields_in(self.bytes, part.clone()) {
                let field = field?;
                match (field.number, field.value) {
                    (field::CONTAINERS, Value::Bytes(container)) => {
                        self.read_container(container, &mut pod)?
                    }
                    (field::POD_CPUS, value) => pod.has_cpus |= has_numbers(&value),
                    (field::POD_MEMORY, _) => pod.has_memory = true,
                    _ => {}
                }
            }
        }
        Ok(pod)
    }

    fn read_container(&mut self, message: Range<usize>, pod: &mut ListedPod<'a>) -> Result<(), WireError> {
        let bytes: &'a [u8] = self.bytes;
        let table = &self.allocations.devices;
        let mut name: &[u8] = &[];
        for field in fields_in(bytes, message.clone()) {
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
        pod.containers.push((name, message));
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

    fn append(&mut self, message: &Range<usize>, fields: Vec<u8>) {
        if !fields.is_empty() {
            self.appended.entry(message.start).or_default().extend(fields);
        }
    }

    /// Copies a message with what is appended to it, and to messages in the fields `path`. The headers of
    /// those change, even if they were longer than necessary.
    fn copy(&self, message: Range<usize>, path: &[u32], out: &mut Vec<u8>) -> Result<(), WireError> {
        for field in fields_in(self.bytes, message.clone()) {
            let Field { number, record, value } = field?;
            match (path, value) {
                ([next, rest @ ..], Value::Bytes(content))
                    if number == *next
                        && self.appended.range(content.start..=content.end).next().is_some() =>
                {
                    let mut new = Vec::with_capacity(content.len());
                    self.copy(content, rest, &mut new)?;
                    put_bytes(out, number, &new);
                }
                _ => out.extend_from_slice(&self.bytes[record]),
            }
        }
        out.extend(self.appended.get(&message.start).into_iter().flatten());
        Ok(())
    }

    pub(super) fn finish(self, listed: ListedPods) -> Result<Merged, WireError> {
        let Self { bytes, devices, omitted, .. } = self;
        if self.appended.is_empty() {
            return Ok(Merged { omitted, ..Merged::unchanged(bytes, listed) });
        }
        let new: usize = self.appended.values().map(|fields| fields.len() + LONGER_HEADERS).sum();
        let mut all = Vec::with_capacity(bytes.len() + new);
        self.copy(0..bytes.len(), &[field::PODS, field::CONTAINERS], &mut all)?;
        Ok(Merged { bytes: all.into(), devices, omitted, listed })
    }
}

/// Encodes the CPUs and the memory of a pod where the kubelet reports none.
fn missing_cpus_and_memory(allocated: &CpusAndMemory, listed: &ListedPod<'_>) -> Vec<u8> {
    let mut new = Vec::new();
    if !listed.has_cpus && !allocated.cpus.is_empty() {
        let mut packed = Vec::new();
        allocated.cpus.iter().for_each(|cpu| put_varint(&mut packed, cpu.into()));
        put_bytes(&mut new, field::POD_CPUS, &packed);
    }
    for (kind, size, node) in allocated.memory.iter().filter(|_| !listed.has_memory) {
        let mut block = Vec::new();
        put_bytes(&mut block, field::MEMORY_TYPE, kind.as_bytes());
        put_number(&mut block, field::SIZE, *size);
        put_topology(&mut block, &[*node].into_iter().collect());
        put_bytes(&mut new, field::POD_MEMORY, &block);
    }
    new
}

/// Returns true if this is the CDI name of the device, `<resource>=<id>`, or one id is a part of the other.
fn is_cdi_name(name: &[u8], resource: &str, id: &str) -> bool {
    let rest = name.strip_prefix(resource.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
    rest.is_some_and(|rest| is_same_device(rest, id.as_bytes()))
}
