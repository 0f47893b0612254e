//! The state of a kubelet's managers from a published object: amounts only.

use std::collections::{BTreeMap, BTreeSet};

use super::from_kubelet::{is_true, resource};
use super::{
    ContainerRequest, CpuOptions, CpuTopology, Cpus, Devices, Distances, Memory, MemoryKind, MemoryNode,
    Node, NodeAmounts, NodeSet, PodRequest, Resource, Scope, Settings, TopologyPolicy,
};
use crate::machine::{CpuLocation, Id, IdSet};
use crate::nrt::{POLICY, SCOPE};
use crate::quantity::is_huge_pages;
use crate::topology::Zone;

/// What an object does not tell, so that "fits" is a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guess {
    /// The Topology Manager's policy is unknown.
    Policy,
    /// Only whole cores are allocated, and how the free CPUs are distributed over cores is unknown.
    WholeCores,
    /// Whether a node is in one of the Memory Manager's groups is unknown.
    MemoryGroups,
    /// A device may be on several nodes and be counted in each, or be on none and be counted nowhere.
    Devices,
    /// Whether pod-level resources are exclusive is unknown.
    PodLevel,
}

/// Returns the state that an object describes. CPUs and devices get ids of their own: each zone has as many
/// as the object counts. Devices that the Node has beyond those (`allocatable`) are in no zone, and taken for
/// available.
#[must_use]
pub fn node_of_zones(
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
        hints_of_device_nodes_only: minor >= 36,
        allocates_no_memory: minor < 37,
    };
    // A filler zone has nothing.
    let is_real = |zone: &&Zone| zone.resources.values().any(|amounts| amounts.capacity > 0);
    let zones: Vec<&Zone> = zones.iter().filter(is_real).collect();
    let distances: Distances =
        zones.iter().flat_map(|zone| zone.costs.iter().map(|(to, cost)| ((zone.id, *to), *cost))).collect();
    Node {
        settings,
        nodes: zones.iter().map(|zone| zone.id).collect(),
        distances,
        cpus: (attribute("cpuManagerPolicy") == "static").then(|| cpus(&zones, attributes, minor)),
        memory: (attribute("memoryManagerPolicy") == "Static").then(|| memory(&zones)),
        devices: devices(&zones, allocatable),
    }
}

/// Returns why it would be a guess to say that this pod fits on a node known from its object.
#[must_use]
pub fn guesses(node: &Node, attributes: &BTreeMap<String, String>, pod: &PodRequest) -> BTreeSet<Guess> {
    let mut guesses = BTreeSet::new();
    if !attributes.contains_key(POLICY) {
        guesses.insert(Guess::Policy);
    }
    let requests_cpus = pod.guaranteed && pod.containers.iter().any(|container| container.cpu_milli >= 1000);
    if node.cpus.as_ref().is_some_and(|cpus| cpus.options().full_cores_only) && requests_cpus {
        guesses.insert(Guess::WholeCores);
    }
    let several = node.nodes.len() > 1 && node.settings.policy != TopologyPolicy::SingleNumaNode;
    if node.memory.is_some() && pod.guaranteed && several {
        guesses.insert(Guess::MemoryGroups);
    }
    let with_devices = pod.containers.iter().filter(|container| !container.devices.is_empty());
    let is_uncertain = |container: &ContainerRequest| {
        let resources = container.devices.keys().filter_map(|name| node.devices.resources().get(name));
        resources.flat_map(|resource| resource.devices.values()).any(|device| device.nodes.is_empty())
    };
    let count = with_devices.clone().count();
    if count > 1 || (count == 1 && several) || with_devices.clone().any(is_uncertain) {
        guesses.insert(Guess::Devices);
    }
    if pod.pod_level.is_some() {
        guesses.insert(Guess::PodLevel);
    }
    guesses
}

fn cpus(zones: &[&Zone], attributes: &BTreeMap<String, String>, minor: u32) -> Cpus {
    let options: BTreeMap<String, String> =
        ["full-pcpus-only", "align-by-socket", "distribute-cpus-across-numa"]
            .into_iter()
            .filter_map(|option| Some((option.to_owned(), attributes.get(&cpu_option(option))?.clone())))
            .collect();
    let mut next: Id = 0;
    let (mut locations, mut reserved, mut taken) = (BTreeMap::new(), IdSet::new(), IdSet::new());
    for zone in zones {
        let Some(amounts) = zone.resources.get("cpu") else { continue };
        for position in 0..amounts.capacity {
            let location = CpuLocation { node: zone.id, socket: zone.id, core: next, cache: zone.id };
            locations.insert(next, location);
            if position >= amounts.allocatable {
                reserved.insert(next);
            } else if position >= amounts.available {
                taken.insert(next);
            }
            next = next.saturating_add(1);
        }
    }
    let topology: CpuTopology = locations.into_iter().collect();
    let mut cpus = Cpus::new(topology, reserved, CpuOptions::of(&options, minor));
    cpus.allocate(&taken);
    cpus
}

/// Returns the attribute that shows an option of the CPU Manager.
pub(crate) fn cpu_option(option: &str) -> String {
    crate::topology::camel_case("cpuManagerOption", option)
}

fn memory(zones: &[&Zone]) -> Memory {
    let node = |zone: &&Zone| {
        let kinds = zone.resources.iter().filter(|(name, _)| *name == "memory" || is_huge_pages(name));
        let kind = |(name, amounts): (&String, &crate::nrt::Amounts)| {
            let allocated = amounts.allocatable.saturating_sub(amounts.available);
            (name.clone(), MemoryKind { allocatable: amounts.allocatable, allocated })
        };
        let memory = MemoryNode { blocks: 0, group: NodeSet::one(zone.id), kinds: kinds.map(kind).collect() };
        (zone.id, memory)
    };
    Memory::new(zones.iter().map(node).collect())
}

fn devices(zones: &[&Zone], allocatable: &NodeAmounts) -> Devices {
    let mut resources: BTreeMap<String, Resource> = BTreeMap::new();
    for zone in zones {
        for (name, amounts) in zone.resources.iter().filter(|(name, _)| name.contains('/')) {
            let ids =
                (0..amounts.capacity).map(|number| (format!("{}/{number}", zone.id), NodeSet::one(zone.id)));
            let here = resource(ids);
            let all = resources.entry(name.clone()).or_default();
            all.registered = true;
            all.devices.extend(here.devices);
            let unavailable = amounts.available..amounts.capacity;
            all.allocated.extend(unavailable.map(|number| format!("{}/{number}", zone.id)));
        }
    }
    for (name, all) in &mut resources {
        let placed: u64 =
            zones.iter().filter_map(|zone| zone.resources.get(name)).map(|of| of.allocatable).sum();
        let of_node = allocatable.get(name).copied().unwrap_or(0);
        let unplaced =
            (0..of_node.saturating_sub(placed)).map(|number| (format!("-/{number}"), NodeSet::default()));
        all.devices.extend(resource(unplaced).devices);
    }
    Devices::new(resources)
}
