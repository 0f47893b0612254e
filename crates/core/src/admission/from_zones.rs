//! The state of a kubelet's managers from a published object: amounts only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::from_kubelet::OLDEST_MINOR;
use super::memory::UNCOUNTED;
use super::{
    ContainerRequest, CpuOptions, CpuTopology, Cpus, Device, Devices, Distances, Memory, MemoryKind,
    MemoryNode, Node, NodeAmounts, NodeSet, PodRequest, Resource, Scope, Settings, TopologyPolicy,
};
use crate::kubelet::is_true;
use crate::machine::{CpuLocation, Id, IdSet};
use crate::nrt::{Amounts, POLICY, SCOPE};
use crate::pod::ContainerKind;
use crate::quantity::is_memory;
use crate::topology::{Zone, real_zones};

/// What is not known of a node, so that "fits" is a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guess {
    /// A policy of the kubelet's managers is not in the object, or the zones lack what it manages.
    Policies,
    /// Which CPUs are free decides whether it fits: only whole cores are allocated, or the first containers may
    /// get CPUs of several nodes.
    Cpus,
    /// Which groups the Memory Manager has made of nodes is not known of every zone (`memoryGroup`). The publisher may be
    /// another one, or may not read the kubelet's checkpoint: then groups of init containers are not known, nor on
    /// which nodes of a group memory of one node was allocated last.
    MemoryGroups,
    /// A device may be on several nodes and be counted in each, or be on none and be counted nowhere.
    Devices,
    /// Whether pod-level resources are exclusive is unknown.
    PodLevel,
    /// The kubelet is older than those that the model follows.
    Version,
    /// The object counts more than a machine can have, and not all of it was considered.
    TooLarge,
}

/// The most CPUs that Linux supports.
const MOST_CPUS: u64 = 8192;
/// The most devices of one resource in one zone that are considered.
const MOST_DEVICES: u64 = 4096;
/// The most devices of all resources and zones that are considered.
const MOST_DEVICES_OF_NODE: u64 = 1 << 16;
/// The most kinds of machines whose devices are shared.
const MOST_KINDS: usize = 256;
/// The most NUMA nodes that a kubelet can have.
const MOST_ZONES: Id = 64;

/// Reads objects. Nodes of one kind of machine share its CPU topology and its devices.
#[derive(Clone, Debug, Default)]
pub struct ZoneReader {
    /// By id and CPUs of each zone.
    topologies: BTreeMap<Vec<(Id, Id)>, Arc<CpuTopology>>,
    devices: BTreeMap<DevicesOfZones, Arc<BTreeMap<String, Device>>>,
}

/// Numbers of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct DevicesOfZones {
    /// By zone.
    placed: Vec<(Id, u64)>,
    /// In no zone.
    unplaced: u64,
}

impl ZoneReader {
    /// Returns the state that an object describes. CPUs and devices get ids of their own: each zone has as many
    /// as the object counts. Devices that the Node has beyond those (`allocatable`) are in no zone, and taken for
    /// available.
    pub fn node(
        &mut self,
        zones: &[Zone],
        attributes: &BTreeMap<String, String>,
        allocatable: &NodeAmounts,
        minor: u32,
    ) -> Node {
        let attribute = |name: &str| attributes.get(name).map(String::as_str).unwrap_or_default();
        let is_on = |name: &str| is_true(attribute(name));
        let settings = Settings {
            policy: TopologyPolicy::named(attribute(POLICY)).unwrap_or_default(),
            scope: if attribute(SCOPE) == "pod" { Scope::Pod } else { Scope::Container },
            prefer_closest: is_on("topologyManagerOptionPreferClosestNumaNodes"),
            pod_level_managers: false,
            device_hints_skip_other_nodes: minor >= 36,
            is_older: minor < OLDEST_MINOR,
            allocates_zero_bytes: minor < 37,
        };
        let zones: Vec<&Zone> = real_zones(zones).into_iter().filter(|zone| zone.id < MOST_ZONES).collect();
        let distances: Distances = zones
            .iter()
            .flat_map(|zone| zone.costs.iter().map(|(to, cost)| ((zone.id, *to), *cost)))
            .collect();
        Node {
            settings,
            nodes: zones.iter().map(|zone| zone.id).collect(),
            distances,
            cpus: (attribute("cpuManagerPolicy") == "static").then(|| self.cpus(&zones, attributes, minor)),
            memory: (attribute("memoryManagerPolicy") == "Static").then(|| memory(&zones)),
            devices: self.devices(&zones, allocatable),
        }
    }

    fn cpus(&mut self, zones: &[&Zone], attributes: &BTreeMap<String, String>, minor: u32) -> Cpus {
        let options: BTreeMap<String, String> =
            ["full-pcpus-only", "align-by-socket", "distribute-cpus-across-numa"]
                .into_iter()
                .filter_map(|option| Some((option.to_owned(), attributes.get(&cpu_option(option))?.clone())))
                .collect();
        let mut next: Id = 0;
        let (mut counts, mut reserved, mut taken) = (Vec::new(), IdSet::new(), IdSet::new());
        for zone in zones {
            let Some(amounts) = zone.resources.get("cpu") else { continue };
            // Bounded by MOST_CPUS, which fits.
            let id_after =
                |count: u64| next + Id::try_from(count.min(MOST_CPUS - u64::from(next))).unwrap_or(0);
            let end = id_after(amounts.capacity);
            let reserved_from = id_after(amounts.allocatable).min(end);
            let taken_from = id_after(amounts.available).min(reserved_from);
            reserved.extend(reserved_from..end);
            taken.extend(taken_from..reserved_from);
            counts.push((zone.id, end - next));
            next = end;
        }
        let topology = self.topologies.entry(counts).or_insert_with_key(|counts| Arc::new(topology(counts)));
        let mut cpus = Cpus::new(Arc::clone(topology), reserved, CpuOptions::of(&options, minor));
        cpus.allocate(&taken);
        cpus
    }

    fn devices(&mut self, zones: &[&Zone], allocatable: &NodeAmounts) -> Devices {
        let names: BTreeSet<&String> =
            zones.iter().flat_map(|zone| zone.resources.keys()).filter(|name| name.contains('/')).collect();
        let mut room = MOST_DEVICES_OF_NODE;
        let resources = names.into_iter().map(|name| {
            let of_node = allocatable.get(name).copied().unwrap_or(0);
            (name.clone(), self.resource(zones, name, of_node, &mut room))
        });
        Devices::new(resources.collect())
    }

    /// Returns the devices of one resource. `room` is how many more devices may be counted.
    fn resource(&mut self, zones: &[&Zone], name: &str, of_node: u64, room: &mut u64) -> Resource {
        let mut considered = |count: u64| {
            let count = count.min(MOST_DEVICES).min(*room);
            *room -= count;
            count
        };
        let (mut counts, mut allocated, mut placed) = (DevicesOfZones::default(), BTreeSet::new(), 0_u64);
        for zone in zones {
            let Some(amounts) = zone.resources.get(name) else { continue };
            let count = considered(amounts.capacity);
            counts.placed.push((zone.id, count));
            allocated.extend((amounts.available..count).map(|number| id_of_device(zone.id, number)));
            placed = placed.saturating_add(amounts.allocatable);
        }
        counts.unplaced = considered(of_node.saturating_sub(placed));
        if self.devices.len() == MOST_KINDS && !self.devices.contains_key(&counts) {
            self.devices.clear();
        }
        let devices = self.devices.entry(counts).or_insert_with_key(|counts| Arc::new(counts.all()));
        Resource { devices: Arc::clone(devices), allocated, registered: true }
    }
}

/// Returns why it would be a guess to say that this pod fits on a node known from its object.
#[must_use]
pub fn guesses(
    node: &Node,
    zones: &[Zone],
    attributes: &BTreeMap<String, String>,
    pod: &PodRequest,
) -> BTreeSet<Guess> {
    let mut guesses = BTreeSet::new();
    let mut guess_if = |condition: bool, guess| _ = condition.then(|| guesses.insert(guess));
    guess_if(!are_policies_known(node, zones, attributes), Guess::Policies);
    let single = node.settings.policy == TopologyPolicy::SingleNumaNode;
    let several = node.nodes.len() > 1 && !single;
    let exclusive = |container: &&ContainerRequest| {
        pod.guaranteed && container.cpu_milli >= 1000 && container.cpu_milli.is_multiple_of(1000)
    };
    let with_cpus = pod.containers.iter().filter(exclusive).count();
    let reuses = pod.containers.iter().any(|container| container.kind == ContainerKind::Init);
    let ids_decide = with_cpus > 1 && node.nodes.len() > 1 && (several || reuses);
    let options = node.cpus.as_ref().map(Cpus::options).unwrap_or_default();
    let special = options.full_cores_only || (several && options.align_by_socket);
    guess_if(with_cpus > 0 && (special || ids_decide), Guess::Cpus);
    let has_unknown_group = || {
        let mut real = zones.iter().filter(|zone| node.nodes.contains(zone.id));
        real.any(|zone| zone.memory_group().is_none())
    };
    guess_if(node.memory.is_some() && pod.guaranteed && several && has_unknown_group(), Guess::MemoryGroups);
    let with_devices = pod.containers.iter().filter(|container| !container.devices.is_empty());
    let is_unplaced = |container: &ContainerRequest| {
        let resources = container.devices.keys().filter_map(|name| node.devices.resources().get(name));
        resources.flat_map(|resource| resource.devices.values()).any(|device| device.nodes.is_empty())
    };
    let count = with_devices.clone().count();
    let devices = count > 1 || (count == 1 && several) || with_devices.clone().any(is_unplaced);
    guess_if(devices, Guess::Devices);
    guess_if(pod.pod_level.is_some(), Guess::PodLevel);
    guess_if(node.settings.is_older, Guess::Version);
    let counts = zones.iter().flat_map(|zone| &zone.resources);
    let mut devices = counts.clone().filter(|(name, _)| name.contains('/'));
    let cpus = counts.filter(|(name, _)| *name == "cpu").map(|(_, amounts)| amounts.capacity);
    let all = devices.clone().map(|(_, amounts)| amounts.capacity).fold(0, u64::saturating_add);
    let too_many = all > MOST_DEVICES_OF_NODE || devices.any(|(_, amounts)| amounts.capacity > MOST_DEVICES);
    guess_if(too_many || cpus.fold(0, u64::saturating_add) > MOST_CPUS, Guess::TooLarge);
    guesses
}

/// Returns true if the object has every policy, and its zones what the managers manage.
fn are_policies_known(node: &Node, zones: &[Zone], attributes: &BTreeMap<String, String>) -> bool {
    let is_one_of = |name: &str, known: &[&str]| {
        attributes.get(name).is_some_and(|value| known.contains(&value.as_str()))
    };
    let lists = |resource: &str| zones.iter().any(|zone| zone.resources.contains_key(resource));
    attributes.get(POLICY).is_some_and(|policy| TopologyPolicy::named(policy).is_some())
        && is_one_of(SCOPE, &["container", "pod"])
        && is_one_of("cpuManagerPolicy", &["none", "static"])
        && is_one_of("memoryManagerPolicy", &["None", "Static"])
        && !node.nodes.is_empty()
        && (node.cpus.is_none() || lists("cpu"))
        && (node.memory.is_none() || lists("memory"))
}

/// Returns the topology of a machine with this many CPUs in each zone, each of them a core.
fn topology(counts: &[(Id, Id)]) -> CpuTopology {
    let zones = counts.iter().flat_map(|(zone, count)| std::iter::repeat_n(*zone, usize::from(*count)));
    let location = |(cpu, zone)| (cpu, CpuLocation { node: zone, socket: zone, core: cpu, cache: zone });
    (0..).zip(zones).map(location).collect()
}

/// Returns the attribute that shows an option of the CPU Manager.
pub(crate) fn cpu_option(option: &str) -> String {
    crate::topology::camel_case("cpuManagerOption", option)
}

fn memory(zones: &[&Zone]) -> Memory {
    let node = |zone: &&Zone| {
        let kinds = zone.resources.iter().filter(|(name, _)| is_memory(name));
        let kind = |(name, amounts): (&String, &Amounts)| {
            let allocated = amounts.allocatable.saturating_sub(amounts.available);
            (name.clone(), MemoryKind { allocatable: amounts.allocatable, allocated })
        };
        let kinds: BTreeMap<String, MemoryKind> = kinds.map(kind).collect();
        let known = zone.memory_group();
        let group = known.as_ref().map_or(NodeSet::one(zone.id), NodeSet::from);
        let has_blocks = group.len() > 1 || kinds.values().any(|kind| kind.allocated > 0);
        // Without a known group any number of nodes may still be free to become one.
        let blocks = if known.is_some() && has_blocks { UNCOUNTED } else { 0 };
        (zone.id, MemoryNode { blocks, group, kinds })
    };
    Memory::new(zones.iter().map(node).collect())
}

impl DevicesOfZones {
    fn all(&self) -> BTreeMap<String, Device> {
        let placed = self.placed.iter().flat_map(|(zone, count)| {
            (0..*count).map(move |number| (id_of_device(*zone, number), NodeSet::one(*zone)))
        });
        let unplaced = (0..self.unplaced).map(|number| (format!("-/{number}"), NodeSet::default()));
        let device = |(id, nodes)| (id, Device { nodes, healthy: true });
        placed.chain(unplaced).map(device).collect()
    }
}

fn id_of_device(zone: Id, number: u64) -> String {
    format!("{zone}/{number}")
}
