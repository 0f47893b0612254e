//! The correct `NodeResourceTopology` of the simulated node, computed from the managers' own state.
//!
//! Shares no code with `crates/core/src/topology`, so that no bug can be on both sides.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use numacast_core::admission::TopologyPolicy;
use numacast_core::machine::{Id, IdSet};
use numacast_core::nrt::{NodeResourceTopology, Zone};
use numacast_core::quantity::hugepages_name;

use super::allocation::{Block, MEMORY};
use super::memory_manager::MemoryManager;
use super::model::Model;
use super::settings::Settings;
use crate::machine::MachineSpec;

/// The three numbers of one resource in one zone: CPUs, bytes or devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Present in the hardware.
    pub capacity: u64,
    /// Allocatable by the kubelet.
    pub allocatable: u64,
    /// The free part of it.
    pub available: u64,
}

/// The correct zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Node id to resource to amounts. Every zone has every resource.
    pub zones: BTreeMap<Id, BTreeMap<String, Amounts>>,
    /// Groups of nodes joined by memory blocks.
    pub groups: BTreeSet<BTreeSet<Id>>,
    /// Node id to the zone's attribute `memoryGroup`, for an agent that reads the kubelet's checkpoint.
    pub memory_groups: BTreeMap<Id, String>,
    /// Whether no pod can use the memory of a group.
    pub groups_are_unusable: bool,
    /// Node id and resource of the memory whose free bytes contradict the kubelet's own blocks, so that they
    /// cannot be known without its checkpoint.
    pub contradictions: BTreeSet<(Id, String)>,
}

/// What claims have of the node, and the devices that they can have.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// CPUs whose ids are known.
    pub cpus: IdSet,
    /// Numbers of other CPUs by NUMA node.
    pub other_cpus: BTreeMap<Id, u64>,
    /// Bytes by NUMA node and resource.
    pub memory: BTreeMap<(Id, String), u64>,
    /// Driver to NUMA node to devices.
    pub devices: BTreeMap<String, BTreeMap<Id, Amounts>>,
}

/// Resource and id of a device.
pub type DeviceId<'a> = (&'a str, &'a str);

/// How available memory is compared within a group of nodes joined by a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Node by node: for an agent that reads the kubelet's checkpoint.
    PerNode,
    /// Only the group's sum: the List does not report how a block is split.
    PerGroup,
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.capacity, self.allocatable, self.available)
    }
}

/// Tolerance for changes of MemTotal, which varies by a few pages: a kubelet may have read a value that was
/// higher than today's by up to one part in 32.
const DRIFT: u64 = 32;

/// The highest node id that the scheduler supports.
const HIGHEST: Id = 63;

/// The hardware as the kernel reports it now.
struct Hardware<'a>(&'a MachineSpec);

impl Hardware<'_> {
    fn cpus(&self, node: Id) -> IdSet {
        self.0.node(node).map(|node| node.cpus.clone()).unwrap_or_default()
    }

    fn total(&self, node: Id, resource: &str) -> u64 {
        let Some(node) = self.0.node(node) else { return 0 };
        if resource == MEMORY {
            return node.memory.ceil();
        }
        let pools = node.pages().into_iter().filter(|(size, _)| hugepages_name(*size) == resource);
        pools.map(|(size, pages)| size * pages).sum()
    }

    /// The CPUs reserved by a kubelet without a CPU Manager: the configured list, or the configured number of
    /// lowest CPUs.
    fn reserved_cpus(&self, settings: &Settings) -> IdSet {
        if !settings.reserved_cpus.is_empty() {
            return settings.reserved_cpus.clone();
        }
        let count = usize::try_from(settings.reserved_cpu_count).unwrap_or(usize::MAX);
        self.0.online_cpus().iter().take(count).collect()
    }
}

impl Model {
    /// The correct zones for the current hardware and the active pods: terminated pods have no resources, and
    /// what a regular init container leaves unused is not available to other pods.
    #[must_use]
    pub fn expected(&self) -> Expected {
        self.expected_with(&Claimed::default())
    }

    /// As [`Model::expected`], without what claims have.
    #[must_use]
    pub fn expected_with(&self, claimed: &Claimed) -> Expected {
        let memory = self.memory_after_release();
        let mut used = IdSet::new();
        self.active().for_each(|uid| used.union_with(&self.cpus.allocated_to(uid)));
        used.union_with(&claimed.cpus);
        let mut zones: BTreeMap<Id, BTreeMap<String, Amounts>> = BTreeMap::new();
        let mut names: BTreeSet<String> = [MEMORY.to_owned()].into();
        names.extend(self.hardware.page_sizes().into_iter().map(hugepages_name));
        names.extend(memory.nodes.values().flat_map(|node| node.pools.keys().cloned()));
        for node in self.hardware.nodes.iter().filter(|node| node.id <= HIGHEST) {
            let mut amounts: BTreeMap<String, Amounts> = BTreeMap::new();
            for name in &names {
                let mut of = self.memory_amounts(&memory, node.id, name);
                let bytes = claimed.memory.get(&(node.id, name.clone())).copied();
                of.available = of.available.saturating_sub(bytes.unwrap_or_default());
                amounts.insert(name.clone(), of);
            }
            let mut of = self.cpu_amounts(node.id, &used);
            let others = claimed.other_cpus.get(&node.id).copied();
            of.available = of.available.saturating_sub(others.unwrap_or_default());
            amounts.insert("cpu".to_owned(), of);
            zones.insert(node.id, amounts);
        }
        for (resource, of_zone) in self.device_amounts().iter().chain(&claimed.devices) {
            for (id, amounts) in &mut zones {
                let of = of_zone.get(id).copied().unwrap_or_default();
                amounts.insert(resource.clone(), of);
            }
        }
        let memory_groups = self.memory_groups(&memory, &zones);
        let contradictions = memory.contradictions();
        let groups = memory.joined().into_iter().filter(|nodes| nodes.len() > 1);
        let groups_are_unusable = self.settings.policy == TopologyPolicy::SingleNumaNode;
        Expected { zones, groups: groups.collect(), memory_groups, groups_are_unusable, contradictions }
    }

    /// The devices that are allocated to active pods.
    #[must_use]
    pub fn allocated_devices(&self) -> BTreeSet<DeviceId<'_>> {
        self.allocated().into_keys().collect()
    }

    /// The devices that are allocated to active pods, with the NUMA nodes that their plugin reported then.
    fn allocated(&self) -> BTreeMap<DeviceId<'_>, &IdSet> {
        let entries = self.active().filter_map(|uid| self.devices.entries.get(uid));
        let of_containers = entries.flat_map(BTreeMap::values).flatten();
        of_containers
            .flat_map(|(resource, devices)| {
                devices.iter().map(move |(id, nodes)| ((&**resource, &**id), nodes))
            })
            .collect()
    }

    /// The healthy devices of registered plugins.
    #[must_use]
    pub fn offered_devices(&self) -> BTreeSet<DeviceId<'_>> {
        self.devices.offered().map(|(resource, id, _)| (&**resource, &**id)).collect()
    }

    /// The Memory Manager's state after releasing the memory of pods that are not active. The kubelet releases
    /// them in random order; blocks on many nodes first leave the least free memory.
    fn memory_after_release(&self) -> MemoryManager {
        let mut memory = self.memory.clone();
        let gone: Vec<String> = memory.uids().into_iter().filter(|uid| !self.is_active(uid)).collect();
        let mut blocks: Vec<Block> = gone.iter().flat_map(|uid| memory.take_blocks(uid)).collect();
        blocks.sort_by_key(|block| {
            let nodes: Vec<Id> = block.split.keys().copied().collect();
            (Reverse(nodes.len()), nodes)
        });
        blocks.iter().for_each(|block| memory.release(block));
        memory
    }

    /// With `single-numa-node` only zones in a group have the attribute: no pod can use their memory.
    fn memory_groups<T>(&self, memory: &MemoryManager, zones: &BTreeMap<Id, T>) -> BTreeMap<Id, String> {
        if !self.settings.static_memory || self.hardware.nodes.len() < 2 {
            return BTreeMap::new();
        }
        let only_groups = self.settings.policy == TopologyPolicy::SingleNumaNode;
        let nodes = memory.nodes.iter().filter(|(id, _)| zones.contains_key(id));
        let shown = nodes.filter(|(_, node)| !only_groups || node.cells.len() > 1);
        shown.map(|(id, node)| (*id, node.cells.iter().copied().collect::<IdSet>().to_string())).collect()
    }

    fn cpu_amounts(&self, node: Id, used: &IdSet) -> Amounts {
        let hardware = Hardware(&self.hardware);
        let online = hardware.cpus(node);
        let allocatable = match self.settings.static_cpus {
            true => online.intersection(&self.cpus.allocatable()),
            false => online.difference(&hardware.reserved_cpus(&self.settings)),
        };
        Amounts {
            capacity: online.len(),
            allocatable: allocatable.len(),
            available: allocatable.difference(used).len(),
        }
    }

    fn memory_amounts(&self, memory: &MemoryManager, node: Id, resource: &str) -> Amounts {
        let hardware = Hardware(&self.hardware);
        let total = hardware.total(node, resource);
        if !self.settings.static_memory {
            // Without the static policy, the kubelet reserves no huge pages.
            let allocatable = if resource == MEMORY {
                let pages = self.hardware.node(node).map_or(0, |node| node.hugepage_bytes());
                total.saturating_sub(pages).saturating_sub(self.settings.reserved(node, MEMORY))
            } else {
                total
            };
            return Amounts { capacity: total, allocatable, available: allocatable };
        }
        let Some(pool) = memory.pool(node, resource) else {
            return Amounts { capacity: total, ..Amounts::default() };
        };
        let installed = hardware.total(node, MEMORY);
        debug_assert!(pool.allocatable <= installed + installed / DRIFT, "more than a drift");
        let capacity = total.max(pool.allocatable);
        let is_unusable = self.settings.policy == TopologyPolicy::SingleNumaNode
            && memory.nodes.get(&node).is_some_and(|node| node.cells.len() > 1);
        let available = if is_unusable { 0 } else { pool.free() };
        Amounts { capacity, allocatable: pool.allocatable, available }
    }

    /// Resource to node to devices. Offered devices count on the nodes that their plugin reports now.
    /// Allocated devices that are no longer offered, or now on other nodes, count as capacity on the nodes of
    /// their allocation.
    fn device_amounts(&self) -> BTreeMap<String, BTreeMap<Id, Amounts>> {
        let allocated = self.allocated();
        let plugins = self.devices.plugins.keys().map(String::as_str);
        let names = plugins.chain(allocated.keys().map(|(resource, _)| *resource));
        let mut all: BTreeMap<String, BTreeMap<Id, Amounts>> =
            names.map(|name| (name.to_owned(), BTreeMap::new())).collect();
        let mut counted: BTreeSet<(&str, &str, Id)> = BTreeSet::new();
        for (resource, id, nodes) in self.devices.offered() {
            let free = !allocated.contains_key(&(&**resource, &**id));
            for node in nodes.iter() {
                counted.insert((&**resource, &**id, node));
                let amounts = all.entry(resource.to_owned()).or_default().entry(node).or_default();
                amounts.capacity += 1;
                amounts.allocatable += 1;
                amounts.available += u64::from(free);
            }
        }
        for ((resource, id), nodes) in allocated {
            for node in nodes.iter().filter(|node| !counted.contains(&(resource, id, *node))) {
                all.entry(resource.to_owned()).or_default().entry(node).or_default().capacity += 1;
            }
        }
        all
    }
}

impl Expected {
    /// The differences between an object and the expected zones, one sentence each; empty if it is correct.
    ///
    /// The object may omit a resource that no zone has, and may have additional empty zones (fillers).
    #[must_use]
    pub fn differences(&self, object: &NodeResourceTopology, split: Split) -> Vec<String> {
        let (published, mut differences) = published(object);
        let zones: BTreeSet<Id> = self.zones.keys().chain(published.keys()).copied().collect();
        for zone in zones {
            let nothing = BTreeMap::new();
            let expected = self.zones.get(&zone).unwrap_or(&nothing);
            let found = published.get(&zone).unwrap_or(&nothing);
            if !published.contains_key(&zone) {
                differences.push(format!("node-{zone} is missing"));
                continue;
            }
            let names: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
            for name in names {
                let expected = expected.get(name).copied().unwrap_or_default();
                let found = found.get(name).copied();
                if !self.is_equal(zone, name, expected, found, split) {
                    let found = found.map_or_else(|| "nothing".to_owned(), |found| found.to_string());
                    differences.push(format!("node-{zone} {name}: {found} instead of {expected}"));
                }
            }
        }
        differences.extend(self.attribute_differences(object, split));
        if split == Split::PerGroup {
            differences.extend(self.group_differences(&published));
        }
        differences
    }

    /// Without the checkpoint, groups of init containers are not known, nor that a node is in none.
    fn attribute_differences(&self, object: &NodeResourceTopology, split: Split) -> Vec<String> {
        let zones = object.spec.zones.iter().filter_map(|zone| Some((zone_id(&zone.name)?, zone)));
        let difference = |(id, zone): (Id, &Zone)| {
            let attributes = zone.attributes.iter().flatten();
            let found = attributes.filter(|it| it.name == "memoryGroup").map(|it| it.value.as_str()).next();
            let expected = self.memory_groups.get(&id).map(String::as_str);
            let is_right = match (split, found) {
                (Split::PerGroup, None) => true,
                (Split::PerGroup, Some(_)) if !self.is_joined(id) => true,
                _ => found == expected,
            };
            (!is_right).then(|| format!("node-{id} memoryGroup: {found:?} instead of {expected:?}"))
        };
        zones.filter_map(difference).collect()
    }

    fn is_equal(
        &self,
        zone: Id,
        name: &str,
        expected: Amounts,
        found: Option<Amounts>,
        split: Split,
    ) -> bool {
        let Some(found) = found else { return self.is_absent(name) };
        let is_listed = split == Split::PerGroup && is_memory(name);
        let is_unknown = self.contradictions.contains(&(zone, name.to_owned()));
        if is_listed && (self.is_joined(zone) || is_unknown) {
            (found.capacity, found.allocatable) == (expected.capacity, expected.allocatable)
        } else {
            found == expected
        }
    }

    /// Returns true if no zone has the resource.
    fn is_absent(&self, name: &str) -> bool {
        self.zones.values().all(|zone| zone.get(name).is_none_or(|amounts| amounts.capacity == 0))
    }

    fn is_joined(&self, zone: Id) -> bool {
        self.groups.iter().any(|group| group.contains(&zone))
    }

    fn group_differences(&self, published: &BTreeMap<Id, BTreeMap<String, Amounts>>) -> Vec<String> {
        let sum = |zones: &BTreeMap<Id, BTreeMap<String, Amounts>>, group: &BTreeSet<Id>, name: &str| {
            let of = |node: &Id| zones.get(node).and_then(|zone| zone.get(name));
            group.iter().filter_map(of).map(|amounts| amounts.available).sum::<u64>()
        };
        let names: BTreeSet<&String> =
            self.zones.values().flat_map(BTreeMap::keys).filter(|name| is_memory(name)).collect();
        let mut differences = Vec::new();
        for group in &self.groups {
            for name in &names {
                let (expected, found) = (sum(&self.zones, group, name), sum(published, group, name));
                // The List does not tell that a block of one node has taken its node out of the group.
                let is_unusable = self.groups_are_unusable && found == 0;
                let is_unknown =
                    group.iter().any(|node| self.contradictions.contains(&(*node, (*name).clone())));
                if expected != found && !is_unusable && !is_unknown {
                    differences.push(format!(
                        "nodes {group:?} together {name}: {found} available instead of {expected}"
                    ));
                }
            }
        }
        differences
    }
}

fn is_memory(name: &str) -> bool {
    name == MEMORY || name.starts_with("hugepages-")
}

fn zone_id(name: &str) -> Option<Id> {
    name.strip_prefix("node-")?.parse().ok()
}

/// The zones of an object by id, and a sentence for each name that is unknown or repeated.
fn published(object: &NodeResourceTopology) -> (BTreeMap<Id, BTreeMap<String, Amounts>>, Vec<String>) {
    let (mut zones, mut problems) = (BTreeMap::new(), Vec::new());
    for zone in &object.spec.zones {
        let Some(id) = zone_id(&zone.name) else {
            problems.push(format!("{:?} is not the name of a zone", zone.name));
            continue;
        };
        let mut resources = BTreeMap::new();
        for resource in zone.resources.iter().flatten() {
            let amounts = Amounts {
                capacity: resource.capacity.ceil(),
                allocatable: resource.allocatable.ceil(),
                available: resource.available.ceil(),
            };
            if resources.insert(resource.name.clone(), amounts).is_some() {
                problems.push(format!("{} {} is repeated", zone.name, resource.name));
            }
        }
        if zones.insert(id, resources).is_some() {
            problems.push(format!("{} is repeated", zone.name));
        }
    }
    (zones, problems)
}
