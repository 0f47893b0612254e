//! What a true `NodeResourceTopology` says about the simulated node, from the managers' own state.
//!
//! This shares no code with `src/topology`, so that a mistake cannot be on both sides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::model::{Given, MEMORY, Model, Stage};
use crate::machine::{Id, IdSet};
use crate::nrt::NodeResourceTopology;

/// The three numbers of one resource in one zone: CPUs, bytes or devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// What the hardware has.
    pub capacity: u64,
    /// What the kubelet may hand out.
    pub allocatable: u64,
    /// What of it is free.
    pub available: u64,
}

/// The truth about every zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Node id to resource to numbers. Every zone has every resource.
    pub zones: BTreeMap<Id, BTreeMap<String, Amounts>>,
    /// Nodes that memory blocks join.
    pub groups: BTreeSet<BTreeSet<Id>>,
}

/// How free memory is compared inside a group of nodes that a block joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Node by node: the observer reads the kubelet's state file.
    PerNode,
    /// The group's sum only: the List does not tell how a block is split.
    PerGroup,
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.capacity, self.allocatable, self.available)
    }
}

impl Model {
    /// The truth, as of the pods that are in the List now.
    #[must_use]
    pub fn expected(&self) -> Expected {
        let mut names: BTreeSet<String> = ["cpu".to_owned(), MEMORY.to_owned()].into();
        names.extend(self.nodes.values().flat_map(|node| node.pools.keys().cloned()));
        names.extend(self.plugins.keys().cloned());
        let zone = |id: Id| {
            let amounts = names.iter().map(|name| (name.clone(), self.amounts(id, name)));
            amounts.collect::<BTreeMap<_, _>>()
        };
        let joined = self.groups.values().filter(|group| group.len() > 1);
        Expected {
            zones: self.nodes.keys().map(|id| (*id, zone(*id))).collect(),
            groups: joined.cloned().collect(),
        }
    }

    fn amounts(&self, node: Id, resource: &str) -> Amounts {
        match resource {
            "cpu" => self.cpu_amounts(node),
            _ if self.plugins.contains_key(resource) => self.device_amounts(node, resource),
            _ => self.memory_amounts(node, resource),
        }
    }

    /// What listed pods hold.
    fn in_use(&self) -> impl Iterator<Item = &Given> {
        let listed = self.pods.values().filter(|pod| pod.stage == Stage::Active);
        listed.flat_map(|pod| &pod.given)
    }

    fn cpu_amounts(&self, node: Id) -> Amounts {
        let Some(zone) = self.nodes.get(&node) else { return Amounts::default() };
        let mut used = IdSet::new();
        self.in_use().for_each(|given| used.union_with(&given.cpus));
        let allocatable = zone.cpus.difference(&self.reserved);
        Amounts {
            capacity: zone.cpus.len(),
            allocatable: allocatable.len(),
            available: allocatable.difference(&used).len(),
        }
    }

    fn memory_amounts(&self, node: Id, resource: &str) -> Amounts {
        let pool = self.nodes.get(&node).and_then(|zone| zone.pools.get(resource));
        let Some(pool) = pool else { return Amounts::default() };
        // Without a Memory Manager nobody reserves huge pages.
        let reserving = self.settings.static_memory || resource == MEMORY;
        let allocatable = if reserving { pool.allocatable } else { pool.total };
        let used: u64 = self
            .in_use()
            .flat_map(|given| &given.memory)
            .filter(|block| block.resource == resource)
            .filter_map(|block| block.split.get(&node))
            .sum();
        Amounts { capacity: pool.total, allocatable, available: allocatable.saturating_sub(used) }
    }

    fn device_amounts(&self, node: Id, resource: &str) -> Amounts {
        let Some(plugin) = self.plugins.get(resource) else { return Amounts::default() };
        let used: BTreeSet<&String> =
            self.in_use().filter_map(|given| given.devices.get(resource)).flatten().collect();
        let mut amounts = Amounts::default();
        for (id, device) in plugin.devices.iter().filter(|(_, device)| device.nodes.contains(node)) {
            let in_use = used.contains(id);
            let offered = plugin.registered && device.healthy;
            amounts.capacity += u64::from(offered || in_use);
            amounts.allocatable += u64::from(offered);
            amounts.available += u64::from(offered && !in_use);
        }
        amounts
    }
}

impl Expected {
    /// What an object says differently, one sentence each; empty when it is true.
    ///
    /// A resource that no zone has may be left out, and zones without anything may be added (fillers).
    #[must_use]
    pub fn differences(&self, object: &NodeResourceTopology, split: Split) -> Vec<String> {
        let said = said(object);
        let mut differences = Vec::new();
        let zones: BTreeSet<Id> = self.zones.keys().chain(said.keys()).copied().collect();
        for zone in zones {
            let nothing = BTreeMap::new();
            let truth = self.zones.get(&zone).unwrap_or(&nothing);
            let claim = said.get(&zone).unwrap_or(&nothing);
            if !said.contains_key(&zone) {
                differences.push(format!("node-{zone} is missing"));
                continue;
            }
            let names: BTreeSet<&String> = truth.keys().chain(claim.keys()).collect();
            for name in names {
                let expected = truth.get(name).copied().unwrap_or_default();
                let found = claim.get(name).copied();
                if !self.agrees(zone, name, expected, found, split) {
                    let found = found.map_or_else(|| "nothing".to_owned(), |found| found.to_string());
                    differences.push(format!("node-{zone} {name}: {found} instead of {expected}"));
                }
            }
        }
        if split == Split::PerGroup {
            differences.extend(self.group_differences(&said));
        }
        differences
    }

    fn agrees(&self, zone: Id, name: &str, expected: Amounts, found: Option<Amounts>, split: Split) -> bool {
        let Some(found) = found else { return self.nobody_has(name) };
        let summed = split == Split::PerGroup && self.is_joined(zone) && is_memory(name);
        if summed {
            (found.capacity, found.allocatable) == (expected.capacity, expected.allocatable)
        } else {
            found == expected
        }
    }

    fn nobody_has(&self, name: &str) -> bool {
        self.zones.values().all(|zone| zone.get(name).is_none_or(|amounts| amounts.capacity == 0))
    }

    fn is_joined(&self, zone: Id) -> bool {
        self.groups.iter().any(|group| group.contains(&zone))
    }

    fn group_differences(&self, said: &BTreeMap<Id, BTreeMap<String, Amounts>>) -> Vec<String> {
        let sum = |zones: &BTreeMap<Id, BTreeMap<String, Amounts>>, group: &BTreeSet<Id>, name: &str| {
            let of = |node: &Id| zones.get(node).and_then(|zone| zone.get(name));
            group.iter().filter_map(of).map(|amounts| amounts.available).sum::<u64>()
        };
        let names: BTreeSet<&String> =
            self.zones.values().flat_map(BTreeMap::keys).filter(|name| is_memory(name)).collect();
        let mut differences = Vec::new();
        for group in &self.groups {
            for name in &names {
                let (expected, found) = (sum(&self.zones, group, name), sum(said, group, name));
                if expected != found {
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

fn said(object: &NodeResourceTopology) -> BTreeMap<Id, BTreeMap<String, Amounts>> {
    let id = |name: &str| name.strip_prefix("node-").and_then(|id| id.parse::<Id>().ok());
    let mut zones = BTreeMap::new();
    for zone in &object.spec.zones {
        let Some(id) = id(&zone.name) else { continue };
        let resources = zone.resources.iter().flatten().map(|resource| {
            let amounts = Amounts {
                capacity: resource.capacity.ceil(),
                allocatable: resource.allocatable.ceil(),
                available: resource.available.ceil(),
            };
            (resource.name.clone(), amounts)
        });
        zones.insert(id, resources.collect());
    }
    zones
}
