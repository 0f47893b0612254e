//! The device manager (upstream: `devicemanager/topology_hints.go` and `manager.go`, 1.34 to 1.37).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::hints::{Hint, ResourceHints, mark_preferred};
use super::{NodeSet, Refusal};

/// The device manager's state: extended resource to its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    resources: BTreeMap<String, Resource>,
}

/// The devices of one plugin, and which of them are allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    /// By id. Empty for a resource whose plugin has not registered. Shared by the nodes of one kind of machine.
    pub devices: Arc<BTreeMap<String, Device>>,
    /// The allocated ids.
    pub allocated: BTreeSet<String>,
    /// Whether the plugin is registered.
    pub registered: bool,
}

/// One device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its nodes; empty for a device without topology.
    pub nodes: NodeSet,
    /// Whether it can be allocated.
    pub healthy: bool,
}

/// The devices that a container is allocated of one resource: all of `certain`, and the rest from `others`, of
/// which the kubelet chooses any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The number of devices.
    pub count: u64,
    /// Devices that are allocated in any case.
    pub certain: BTreeSet<String>,
    /// Where the rest comes from.
    pub others: BTreeSet<String>,
    /// One possible choice.
    pub chosen: BTreeSet<String>,
}

impl DeviceChoice {
    /// Returns the lowest ids that can be chosen.
    #[must_use]
    pub fn ids(&self) -> BTreeSet<String> {
        let others = self.others.iter().filter(|id| !self.certain.contains(*id));
        let rest = usize::try_from(self.count).unwrap_or(usize::MAX).saturating_sub(self.certain.len());
        self.certain.iter().chain(others.take(rest)).cloned().collect()
    }

    /// Returns true if the choice can be exactly these ids.
    #[must_use]
    pub fn allows(&self, ids: &BTreeSet<String>) -> bool {
        ids.len() as u64 == self.count
            && self.certain.is_subset(ids)
            && ids.difference(&self.certain).all(|id| self.others.contains(id))
    }
}

/// Devices of a pod's init containers that its later containers can use, by resource.
pub(super) type Reusable = BTreeMap<String, BTreeSet<String>>;

/// Devices by resource.
pub type DeviceCounts = BTreeMap<String, u64>;

impl Devices {
    /// Creates the state.
    #[must_use]
    pub const fn new(resources: BTreeMap<String, Resource>) -> Self {
        Self { resources }
    }

    /// Returns the resources.
    #[must_use]
    pub const fn resources(&self) -> &BTreeMap<String, Resource> {
        &self.resources
    }

    /// Returns the resources, to change them.
    pub const fn resources_mut(&mut self) -> &mut BTreeMap<String, Resource> {
        &mut self.resources
    }

    /// Returns where the devices of a request are available. Hints of more than `most` nodes are left out.
    pub(super) fn hints(
        &self,
        request: &DeviceCounts,
        reusable: &Reusable,
        machine: Nodes,
        most: u32,
    ) -> Vec<ResourceHints> {
        let known =
            request.iter().filter_map(|(name, count)| Some((name, self.resources.get(name)?, *count)));
        let none = BTreeSet::new();
        let hints = known.map(|(name, resource, count)| ResourceHints {
            resource: name.clone(),
            hints: resource.hints(count, reusable.get(name).unwrap_or(&none), machine, most),
        });
        let hints: Vec<ResourceHints> = hints.collect();
        match hints.is_empty() {
            true => vec![ResourceHints { resource: String::new(), hints: None }],
            false => hints,
        }
    }

    /// Chooses the devices of one container and marks them as allocated.
    pub(super) fn allocate(
        &mut self,
        request: &DeviceCounts,
        hint: Hint,
        reusable: &Reusable,
        choose: &dyn Fn(&str, &DeviceChoice) -> BTreeSet<String>,
    ) -> Result<BTreeMap<String, DeviceChoice>, Refusal> {
        let mut choices = BTreeMap::new();
        let none = BTreeSet::new();
        for (name, count) in request {
            let Some(resource) = self.resources.get_mut(name) else { continue };
            let mut choice = resource.choose(name, *count, hint, reusable.get(name).unwrap_or(&none))?;
            choice.chosen = choose(name, &choice);
            resource.allocated.extend(choice.chosen.iter().cloned());
            if choice.count > 0 {
                choices.insert(name.clone(), choice);
            }
        }
        Ok(choices)
    }
}

/// The machine's nodes, and whether hints are limited to nodes with devices (since 1.36).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nodes {
    pub(super) all: NodeSet,
    pub(super) with_devices_only: bool,
}

/// Numbers of devices by their nodes: a machine has many devices, but few different sets.
struct ByNodes(Vec<(NodeSet, u64)>);

impl ByNodes {
    fn of(devices: impl Iterator<Item = NodeSet>) -> Self {
        let mut counts: BTreeMap<NodeSet, u64> = BTreeMap::new();
        devices.for_each(|nodes| *counts.entry(nodes).or_default() += 1);
        Self(counts.into_iter().collect())
    }

    /// Returns the number of devices on any of these nodes.
    fn on(&self, set: NodeSet) -> u64 {
        self.0.iter().filter(|(nodes, _)| nodes.intersects(set)).map(|(_, count)| *count).sum()
    }
}

impl Resource {
    fn has_topology(&self) -> bool {
        self.devices.values().any(|device| !device.nodes.is_empty())
    }

    fn available(&self) -> impl Iterator<Item = (&String, &Device)> {
        let healthy = self.devices.iter().filter(|(_, device)| device.healthy);
        healthy.filter(|(id, _)| !self.allocated.contains(*id))
    }

    fn hints(&self, count: u64, reusable: &BTreeSet<String>, machine: Nodes, most: u32) -> Option<Vec<Hint>> {
        if !self.has_topology() {
            return None;
        }
        // What can be reused is allocated.
        if self.available().count() as u64 + (reusable.len() as u64) < count {
            return Some(Vec::new());
        }
        let nodes = self.nodes(machine);
        let all = ByNodes::of(self.devices.values().map(|device| device.nodes));
        let available = ByNodes::of(self.available().map(|(_, device)| device.nodes));
        let reused = reusable.iter().filter_map(|id| self.devices.get(id)).map(|device| device.nodes);
        let reused: Vec<NodeSet> = reused.filter(|nodes| !nodes.is_empty()).collect();
        let mut smallest = nodes.len();
        let mut sets = Vec::new();
        for set in nodes.subsets(most) {
            if all.on(set) >= count {
                smallest = smallest.min(set.len());
            }
            let includes_reused = reused.iter().all(|nodes| nodes.intersects(set));
            if includes_reused && available.on(set) + reused.len() as u64 >= count {
                sets.push(set);
            }
        }
        Some(mark_preferred(sets, smallest))
    }

    fn nodes(&self, machine: Nodes) -> NodeSet {
        let with_devices =
            self.devices.values().fold(NodeSet::default(), |set, device| set.union(device.nodes));
        let with_devices = with_devices.intersection(machine.all);
        if machine.with_devices_only && !with_devices.is_empty() { with_devices } else { machine.all }
    }

    fn choose(
        &self,
        name: &str,
        count: u64,
        hint: Hint,
        reusable: &BTreeSet<String>,
    ) -> Result<DeviceChoice, Refusal> {
        let failed = |what: String| Err(Refusal::unexpected(what));
        if !self.registered {
            return failed(format!("cannot allocate unregistered device {name}"));
        }
        if !self.devices.values().any(|device| device.healthy) {
            return failed(format!("no healthy devices present; cannot allocate unhealthy devices {name}"));
        }
        let reused = reusable.len() as u64;
        if reused >= count {
            let others = if count == 0 { BTreeSet::new() } else { reusable.clone() };
            return Ok(DeviceChoice { count, others, ..DeviceChoice::default() });
        }
        let needed = count - reused;
        let found = self.available().count() as u64;
        if found < needed {
            return failed(format!(
                "requested number of devices unavailable for {name}. Requested: {needed}, Available: {found}"
            ));
        }
        let mut choice = DeviceChoice { count, certain: reusable.clone(), ..DeviceChoice::default() };
        for tier in self.tiers(hint) {
            let left = count - choice.certain.len() as u64;
            if (tier.len() as u64) > left {
                choice.others = tier.into_iter().filter(|_| left > 0).cloned().collect();
                break;
            }
            choice.certain.extend(tier.into_iter().cloned());
        }
        Ok(choice)
    }

    /// The available devices on the hint's nodes, then those on other nodes, then those without topology.
    fn tiers(&self, hint: Hint) -> [Vec<&String>; 3] {
        let mut tiers: [Vec<&String>; 3] = Default::default();
        let aligned = hint.nodes.filter(|_| self.has_topology());
        for (id, device) in self.available() {
            let tier = match aligned {
                None => 2,
                Some(_) if device.nodes.is_empty() => 2,
                Some(nodes) if device.nodes.intersects(nodes) => 0,
                Some(_) => 1,
            };
            tiers[tier].push(id);
        }
        tiers
    }
}
