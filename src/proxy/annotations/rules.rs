//! Which annotations are read, and the allocations that they make.

use std::collections::BTreeMap;
use std::hash::Hasher;

use twox_hash::XxHash64;

use super::config::{Annotations, Koordinator};
use super::error::ErrorKind;
use super::koordinator::{self, DEVICES, STATUS};
use super::node_devices::NodeDevices;
use super::pod_reader::{PodReader, Share, is_id};
use super::{MAX_ADDED_BYTES, budget, mapping, resource_names};
use crate::pod::Pod;
use crate::proxy::allocations::{Allocations, CpusAndMemory, DeviceName, DeviceTable};

/// Which annotations are read.
#[derive(Clone, Debug)]
pub struct Rules {
    annotations: Annotations,
    /// Whether the node's own devices are included for the zones.
    zones: bool,
}

impl Rules {
    /// Creates the rules; with `zones`, they include the node's own devices.
    #[must_use]
    pub fn new(annotations: &Annotations, zones: bool) -> Self {
        Self { annotations: annotations.clone(), zones }
    }

    /// Returns the same rules, but with the device's own id for its parts, for callers that count devices.
    #[must_use]
    pub fn without_shared_ids(&self) -> Self {
        let mut rules = self.clone();
        rules.annotations.koordinator.remove(&Koordinator::SharedIds);
        rules
    }

    /// Returns the keys of the annotations that are read, without duplicates, sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let own = [(Koordinator::Devices, DEVICES), (Koordinator::Cpus, STATUS)].into_iter();
        let own = own.filter(|(what, _)| self.annotations.has(*what)).map(|(_, key)| key.to_owned());
        let mapped = self.annotations.mappings.iter().map(|mapping| mapping.annotation.clone());
        let mut keys: Vec<String> = own.chain(mapped).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns what the annotations of these pods allocate on this node.
    pub fn read<'a>(&self, pods: impl Iterator<Item = &'a Pod>, node: &NodeDevices) -> Allocations {
        let mut readers: Vec<_> = running(pods).map(|pod| self.read_pod(pod, node)).collect();
        budget::enforce(&mut readers, MAX_ADDED_BYTES);
        if self.annotations.has(Koordinator::SharedIds) {
            number_parts(&mut readers);
        }
        report_allocated_twice(&mut readers);
        let all = readers.iter().flat_map(|reader| &reader.devices);
        let devices = DeviceTable::new(all.map(|device| (device.name(), device.nodes.clone())).collect());
        let allocatable = self.allocatable(node, &devices);
        let (mut pods, mut errors) = (Vec::with_capacity(readers.len()), Vec::new());
        for reader in readers {
            let (pod, pod_errors) = reader.finish(&devices);
            errors.extend(pod_errors.of(&pod.name));
            if !pod.containers.is_empty() || pod.cpus_and_memory != CpusAndMemory::default() {
                pods.push(pod);
            }
        }
        errors.sort_unstable();
        Allocations { devices, pods, allocatable, errors }
    }

    /// Reads the annotations of every format. A device that is allocated twice counts for the first.
    fn read_pod<'a>(&'a self, pod: &'a Pod, node: &'a NodeDevices) -> PodReader<'a> {
        let annotations = &self.annotations;
        let mut reader = PodReader::new(pod, annotations, node);
        if annotations.has(Koordinator::Devices)
            && let Some(text) = reader.annotation(DEVICES)
        {
            koordinator::read_devices(&mut reader, text);
        }
        for mapping in &annotations.mappings {
            if let Some(text) = reader.annotation(&mapping.annotation) {
                mapping::read(&mut reader, mapping, text);
            }
        }
        if annotations.has(Koordinator::Cpus)
            && let Some(text) = reader.annotation(STATUS)
        {
            reader.cpus_and_memory = koordinator::cpus_and_memory(text, &mut reader.errors);
        }
        reader
    }

    fn allocatable(&self, node: &NodeDevices, allocated: &DeviceTable) -> DeviceTable {
        let mut all = Vec::new();
        if !self.zones && !self.annotations.has(Koordinator::Allocatable) {
            return DeviceTable::default();
        }
        for device in node.devices().filter(|device| device.healthy) {
            let names = &self.annotations.koordinator_resources;
            let Some(name) = resource_names::resource(names, &device.kind, node.vendor()) else { continue };
            let resource = allocated.resource(name.as_bytes());
            let is_allocated = |id: &str| {
                resource.is_some_and(|resource| allocated.device(resource, id.as_bytes()).is_some())
            };
            // Either the functions or the card itself: if the card is allocated, none of its functions is
            // free.
            let is_whole = device.functions.is_empty() || is_allocated(&device.id);
            let functions = device.functions.iter().filter(|id| !is_whole || is_allocated(id));
            for id in is_whole.then_some(&device.id).into_iter().chain(functions).filter(|id| is_id(id)) {
                all.push(((name.clone(), id.clone()), node.numa_nodes(id, Some(device))));
            }
        }
        DeviceTable::new(all)
    }
}

/// Returns the pods that have not ended, sorted by name. If several share a name, the last one that is not
/// deleted counts, or else the last.
fn running<'a>(pods: impl Iterator<Item = &'a Pod>) -> impl Iterator<Item = &'a Pod> {
    let mut all: BTreeMap<(&str, &str), &Pod> = BTreeMap::new();
    for pod in pods.filter(|pod| !pod.phase.is_terminal()) {
        let known = all.entry((&pod.namespace, &pod.name)).or_insert(pod);
        if known.deleted || !pod.deleted {
            *known = pod;
        }
    }
    all.into_values()
}

/// Numbers the parts of each device. A pod keeps its number when other pods start or end.
fn number_parts(readers: &mut [PodReader<'_>]) {
    let mut parts: Vec<(DeviceName, u64, usize, usize)> = Vec::new();
    for (pod, reader) in readers.iter().enumerate() {
        let devices = reader.devices.iter().enumerate();
        for (at, device) in devices.filter(|(_, device)| device.share == Share::AcceleratorPart) {
            parts.push((device.name(), part_number(reader.pod), pod, at));
        }
    }
    parts.sort_unstable();
    let mut last: Option<(DeviceName, u64)> = None;
    for (device, mut number, pod, at) in parts {
        // Two equal numbers of 2^31 are rare: the later one takes the next.
        if let Some((_, taken)) = last.as_ref().filter(|(known, _)| *known == device) {
            number = number.max(taken + 1);
        }
        readers[pod].devices[at].part = Some(number);
        last = Some((device, number));
    }
}

pub(crate) fn part_number(pod: &Pod) -> u64 {
    let mut hasher = XxHash64::with_seed(0);
    for text in [&pod.namespace, &pod.name, &pod.uid] {
        hasher.write(text.as_bytes());
        hasher.write(&[0]);
    }
    hasher.finish() % (1 << 31)
}

/// Reports devices that two pods have, at least one of them the whole. Only the scheduler knows which is
/// right.
fn report_allocated_twice(readers: &mut [PodReader<'_>]) {
    // The pods that have a device, and how much of it each has.
    let mut all: BTreeMap<DeviceName, Vec<(usize, Share)>> = BTreeMap::new();
    for (pod, reader) in readers.iter().enumerate() {
        for device in &reader.devices {
            all.entry(device.name()).or_default().push((pod, device.share));
        }
    }
    for ((resource, id), pods) in all {
        if pods.len() < 2 || pods.iter().all(|(_, share)| *share != Share::Whole) {
            continue;
        }
        let other = readers[pods[0].0].pod.full_name();
        for (pod, _) in &pods[1..] {
            readers[*pod].errors.add(ErrorKind::AllocatedTwice, || {
                format!("`{resource}` `{id}` is also allocated to pod {}/{}, not in parts", other.0, other.1)
            });
        }
    }
}
