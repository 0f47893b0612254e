//! What claims hold of a node's CPUs, memory and devices, and where each device is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::inventory::Pool;
use super::slice::{Amount, Device, times_milli};
use super::{Allocated, CPU_DRIVER, Claim, ClaimInUse, MEMORY_DRIVER, NodeClaims};
use crate::machine::{Id, IdSet, Machine};
use crate::quantity::is_memory;

/// What claims hold, and the devices that they can be given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// CPUs.
    pub cpus: HeldCpus,
    /// Bytes by NUMA node and by `memory` or `hugepages-<size>`.
    pub memory: BTreeMap<(Id, String), u64>,
    /// Driver to NUMA node to number of devices: all, those that can be allocated, those of them that are not.
    pub devices: BTreeMap<String, BTreeMap<Id, [u64; 3]>>,
    /// What could not be placed, and what contradicts the hardware.
    pub findings: BTreeSet<ClaimFinding>,
}

/// CPUs that claims hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldCpus {
    /// Those whose ids are known.
    pub ids: IdSet,
    /// Numbers of others by NUMA node. CPUs that may be on any of several nodes are counted on each of them.
    pub others: BTreeMap<Id, u64>,
}

/// What one claim holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// The NUMA nodes of all of it, as far as they are known.
    pub nodes: IdSet,
    /// CPUs whose ids are known.
    pub cpus: IdSet,
    /// The number of other CPUs.
    pub other_cpus: u64,
    /// Bytes by `memory` or `hugepages-<size>`.
    pub memory: BTreeMap<String, u64>,
    /// Names of other devices by driver.
    pub devices: BTreeMap<String, BTreeSet<String>>,
}

/// A device or an amount that could not be placed, or a contradiction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimFinding {
    /// Devices of this driver are on no known NUMA node, so no zone has them.
    NotPlaced {
        /// The driver.
        driver: String,
        /// How many.
        devices: u64,
    },
    /// A driver publishes a NUMA node that the machine does not have.
    NoSuchNode {
        /// The driver.
        driver: String,
        /// The device.
        device: String,
        /// The published node.
        node: i64,
    },
    /// A driver publishes another NUMA node than the kernel.
    OtherNode {
        /// The driver.
        driver: String,
        /// The device.
        device: String,
        /// The published node.
        published: Id,
        /// The node in sysfs.
        actual: Id,
    },
    /// Which CPUs a claim has is not known, nor on which of these nodes; all of them lack as many.
    UnknownCpus {
        /// `namespace/name` of the claim.
        claim: String,
        /// The NUMA nodes.
        nodes: IdSet,
    },
    /// On which NUMA node a claim has memory is not known, so no zone lacks it.
    UnknownMemory {
        /// `namespace/name` of the claim.
        claim: String,
    },
}

impl fmt::Display for ClaimFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPlaced { driver, devices } => write!(
                f,
                "the NUMA node of {devices} device{} of the driver {driver} is not known; no zone has {}",
                if *devices == 1 { "" } else { "s" },
                if *devices == 1 { "it" } else { "them" },
            ),
            Self::NoSuchNode { driver, device, node } => write!(
                f,
                "the driver {driver} publishes NUMA node {node} for {device}, which this machine does not have"
            ),
            Self::OtherNode { driver, device, published, actual } => write!(
                f,
                "the driver {driver} publishes NUMA node {published} for {device}, but its PCI device is on node {actual}"
            ),
            Self::UnknownCpus { claim, nodes } => write!(
                f,
                "which CPUs the claim {claim} has is not known; each of the NUMA nodes {nodes} is taken to lack as many"
            ),
            Self::UnknownMemory { claim } => {
                write!(f, "on which NUMA node the claim {claim} has memory is not known; no zone lacks it")
            }
        }
    }
}

/// Computes what claims hold. `counts` tells whether a pod (namespace, name) is counted; a claim is unless none of its
/// pods is.
pub fn account(machine: &Machine, read: &NodeClaims, counts: impl Fn(&str, &str) -> bool) -> Held {
    let mut accounting = Accounting::new(machine, read);
    for (name, ClaimInUse { claim, pods }) in &read.claims {
        let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
        if pods.is_empty() || pods.iter().any(|pod| counts(namespace, pod)) {
            accounting.add_claim(name, claim);
        }
    }
    accounting.add_devices();
    accounting.held
}

/// Returns what each claim holds.
pub fn holdings<'a>(machine: &Machine, read: &'a NodeClaims) -> Vec<(&'a str, &'a ClaimInUse, Holding)> {
    let of_claim = |(name, of): (&'a String, &'a ClaimInUse)| {
        let mut accounting = Accounting::new(machine, read);
        accounting.add_claim(name, &of.claim);
        (name.as_str(), of, accounting.holding())
    };
    read.claims.iter().map(of_claim).collect()
}

struct Accounting<'a> {
    machine: &'a Machine,
    read: &'a NodeClaims,
    held: Held,
    /// The number of CPUs whose ids are not known.
    other_cpus: u64,
    /// Devices that claims hold, apart from CPUs and memory: driver, pool and name.
    used: BTreeSet<(&'a str, &'a str, &'a str)>,
}

impl<'a> Accounting<'a> {
    fn new(machine: &'a Machine, read: &'a NodeClaims) -> Self {
        Self { machine, read, held: Held::default(), other_cpus: 0, used: BTreeSet::new() }
    }

    /// Returns what the only claim that was added holds.
    fn holding(mut self) -> Holding {
        let mut devices: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut nodes = self.machine.nodes_of(&self.held.cpus.ids);
        self.held.cpus.others.keys().for_each(|node| nodes.insert(*node));
        for (driver, pool, name) in std::mem::take(&mut self.used) {
            let device = self.read.inventory.device(driver, pool, name);
            let node = device.and_then(|device| self.located(driver, name, device));
            node.into_iter().for_each(|node| nodes.insert(node));
            devices.entry(driver.to_owned()).or_default().insert(name.to_owned());
        }
        let mut memory: BTreeMap<String, u64> = BTreeMap::new();
        for ((node, resource), bytes) in self.held.memory {
            nodes.insert(node);
            let sum = memory.entry(resource).or_default();
            *sum = sum.saturating_add(bytes);
        }
        Holding { nodes, cpus: self.held.cpus.ids, other_cpus: self.other_cpus, memory, devices }
    }

    fn add_claim(&mut self, name: &str, claim: &'a Claim) {
        // One file of a claim has all its CPUs.
        let cdi = self.read.cdi.cpus.get(&claim.uid);
        if let Some(cpus) = cdi {
            self.held.cpus.ids.union_with(cpus);
        }
        // Of these devices the claim does not tell which memory they are.
        let (mut is_gone, mut kinds) = (false, BTreeSet::new());
        for allocated in &claim.devices {
            let Allocated { driver, pool, device: name, .. } = allocated;
            let device = self.read.inventory.device(driver, pool, name);
            if device.is_none() && driver == MEMORY_DRIVER {
                is_gone = true;
                continue;
            }
            let amounts = amounts(allocated, device);
            if amounts.is_empty() {
                self.used.insert((driver, pool, name));
                continue;
            }
            for (resource, amount) in amounts {
                match resource.as_str() {
                    "cpu" if cdi.is_some() && allocated.driver == CPU_DRIVER => {}
                    "cpu" => self.add_cpus(name, claim, allocated, device, amount),
                    _ => {
                        self.add_memory(name, claim, allocated, device, &resource, amount);
                        kinds.insert(resource);
                    }
                }
            }
        }
        if is_gone {
            self.add_written_memory(name, claim, &kinds);
        }
    }

    /// Adds the memory that the driver wrote for a claim, apart from these kinds.
    fn add_written_memory(&mut self, name: &str, claim: &Claim, counted: &BTreeSet<String>) {
        let written = self.read.cdi.memory.get(&claim.uid).into_iter().flatten();
        let rest: Vec<_> = written.filter(|(resource, _)| !counted.contains(*resource)).collect();
        if rest.is_empty() {
            self.held.findings.insert(ClaimFinding::UnknownMemory { claim: name.to_owned() });
        }
        for (resource, (position, bytes)) in rest {
            self.add_bytes(name, self.node_at(*position), resource, *bytes);
        }
    }

    fn add_bytes(&mut self, claim: &str, node: Option<Id>, resource: &str, bytes: u64) {
        let Some(node) = node else {
            self.held.findings.insert(ClaimFinding::UnknownMemory { claim: claim.to_owned() });
            return;
        };
        let held = self.held.memory.entry((node, resource.to_owned())).or_default();
        *held = held.saturating_add(bytes);
    }

    fn add_cpus(
        &mut self,
        name: &str,
        claim: &Claim,
        allocated: &Allocated,
        device: Option<&Device>,
        amount: u64,
    ) {
        if let Some(cpu) = device.and_then(|device| device.cpu) {
            self.held.cpus.ids.insert(cpu);
            return;
        }
        if let Some(cpus) = claim.cpus_of(&allocated.request).filter(|_| allocated.driver == CPU_DRIVER) {
            self.held.cpus.ids.union_with(cpus);
            return;
        }
        let machine = self.machine;
        let with_cpus = machine.nodes.iter().filter(|node| !node.cpus.is_empty()).map(|node| node.id);
        let of_socket: IdSet = device.and_then(|device| device.socket).map_or_else(IdSet::new, |socket| {
            let layout = machine.layout.iter().filter(|(_, layout)| layout.sockets.contains(&socket));
            layout.map(|(node, _)| *node).collect()
        });
        let nodes = match self.node_of(allocated, device) {
            Some(node) => IdSet::from_iter([node]),
            None if of_socket.is_empty() => with_cpus.collect(),
            None => of_socket,
        };
        self.other_cpus = self.other_cpus.saturating_add(amount);
        for node in nodes.iter() {
            let others = self.held.cpus.others.entry(node).or_default();
            *others = others.saturating_add(amount);
        }
        if nodes.len() > 1 {
            self.held.findings.insert(ClaimFinding::UnknownCpus { claim: name.to_owned(), nodes });
        }
    }

    fn add_memory(
        &mut self,
        name: &str,
        claim: &Claim,
        allocated: &Allocated,
        device: Option<&Device>,
        resource: &str,
        amount: u64,
    ) {
        let written = self.read.cdi.memory.get(&claim.uid).and_then(|of| of.get(resource));
        let node = self.node_of(allocated, device);
        let node = node.or_else(|| self.node_at(written?.0));
        self.add_bytes(name, node, resource, amount);
    }

    /// Returns the NUMA node of a device: what the driver publishes, else what the kernel says of its PCI address.
    fn node_of(&mut self, allocated: &Allocated, device: Option<&Device>) -> Option<Id> {
        let device = device?;
        self.located(&allocated.driver, &allocated.device, device)
    }

    fn located(&mut self, driver: &str, name: &str, device: &Device) -> Option<Id> {
        let actual = device.pci.as_ref().and_then(|pci| self.read.pci.get(pci).copied().flatten());
        let actual = actual.filter(|node| self.machine.node(*node).is_some());
        let Some(published) = device.numa else { return actual };
        let node = match driver == MEMORY_DRIVER {
            true => self.node_at(published),
            false => Id::try_from(published).ok().filter(|node| self.machine.node(*node).is_some()),
        };
        let (driver, device) = (|| driver.to_owned(), || name.to_owned());
        let Some(node) = node else {
            let finding = ClaimFinding::NoSuchNode { driver: driver(), device: device(), node: published };
            self.held.findings.insert(finding);
            return actual;
        };
        if let Some(actual) = actual.filter(|actual| *actual != node) {
            let (driver, device) = (driver(), device());
            let finding = ClaimFinding::OtherNode { driver, device, published: node, actual };
            self.held.findings.insert(finding);
        }
        Some(node)
    }

    /// Returns the node at a position in the directory listing sorted by name, which `dra.memory` publishes instead of
    /// the id: `node0`, `node1`, `node10`, `node2`.
    fn node_at(&self, position: i64) -> Option<Id> {
        let mut nodes: Vec<(String, Id)> =
            self.machine.nodes.iter().map(|node| (node.id.to_string(), node.id)).collect();
        nodes.sort();
        nodes.get(usize::try_from(position).ok()?).map(|(_, id)| *id)
    }

    /// Adds every device that is in a slice or in use.
    fn add_devices(&mut self) {
        let inventory = &self.read.inventory;
        let mut placed = Placed::default();
        for (driver, pool_name, pool) in inventory.pools() {
            for (name, device) in &pool.devices {
                let is_used = self.used.contains(&(driver, pool_name, name));
                if device.stands_for.is_empty() && device.consumes.is_empty() {
                    let node = self.located(driver, name, device);
                    placed.add(driver, node, !device.is_tainted, is_used);
                }
            }
            for set in self.sets(driver, pool_name, pool).into_values().filter(|set| set.exists) {
                placed.add(driver, set.node, set.offered, set.used);
            }
        }
        for (driver, pool, name) in std::mem::take(&mut self.used) {
            if inventory.is_offered(driver, pool, name) {
                continue;
            }
            let device = inventory.device(driver, pool, name);
            if device.is_none_or(|device| device.consumes.is_empty()) {
                let node = device.and_then(|device| self.located(driver, name, device));
                placed.add(driver, node, false, true);
            }
        }
        for (driver, Devices { by_node, unplaced }) in placed.0 {
            let driver = driver.to_owned();
            if unplaced > 0 {
                let finding = ClaimFinding::NotPlaced { driver: driver.clone(), devices: unplaced };
                self.held.findings.insert(finding);
            }
            if !by_node.is_empty() {
                self.held.devices.insert(driver, by_node);
            }
        }
    }

    /// Returns the devices in parts, by counter set.
    fn sets(&mut self, driver: &'a str, pool_name: &'a str, pool: &'a Pool) -> BTreeMap<&'a str, Set> {
        let mut sets: BTreeMap<&str, Set> = BTreeMap::new();
        let listed = pool.devices.iter().filter(|(_, device)| device.stands_for.is_empty());
        let gone = pool.others.iter().map(|(name, device)| (name, device, false));
        for (name, device, is_listed) in listed.map(|(name, device)| (name, device, true)).chain(gone) {
            let used = self.used.contains(&(driver, pool_name, name));
            for set in device.consumes.keys().filter(|_| is_listed || used) {
                let entry = sets.entry(set).or_default();
                entry.used |= used;
                // Of a part that left its pool while it is in use, the device is still there.
                if is_listed && !is_whole(pool, device, set) {
                    continue;
                }
                entry.exists = true;
                entry.node = entry.node.or_else(|| self.located(driver, name, device));
                entry.offered |= is_listed && !device.is_tainted;
            }
        }
        sets
    }
}

/// The devices of each driver.
#[derive(Default)]
struct Placed<'a>(BTreeMap<&'a str, Devices>);

#[derive(Default)]
struct Devices {
    /// All, those that can be allocated, those of them that are not.
    by_node: BTreeMap<Id, [u64; 3]>,
    unplaced: u64,
}

impl<'a> Placed<'a> {
    fn add(&mut self, driver: &'a str, node: Option<Id>, offered: bool, used: bool) {
        let devices = self.0.entry(driver).or_default();
        let Some(node) = node else {
            devices.unplaced += 1;
            return;
        };
        let counts = [true, offered, offered && !used];
        let amounts = devices.by_node.entry(node).or_default();
        amounts.iter_mut().zip(counts).for_each(|(amount, counts)| *amount += u64::from(counts));
    }
}

/// What shares a counter set: one device in whatever parts.
#[derive(Default)]
struct Set {
    /// Whether a device consumes all of it.
    exists: bool,
    node: Option<Id>,
    offered: bool,
    used: bool,
}

fn is_whole(pool: &Pool, device: &Device, set: &str) -> bool {
    let (Some(all), Some(consumed)) = (pool.counters.get(set), device.consumes.get(set)) else {
        return false;
    };
    all.iter().all(|(counter, amount)| consumed.get(counter) == Some(amount))
}

/// Returns what an allocated device takes of `cpu` and memory; nothing if it is a device of its own.
fn amounts(allocated: &Allocated, device: Option<&Device>) -> BTreeMap<String, u64> {
    let Some(device) = device else {
        // A device that no slice has any more: the claim tells what it consumes.
        let consumed =
            |names: [&str; 2]| names.iter().find_map(|name| allocated.consumed.get(*name)).copied();
        return match allocated.driver.as_str() {
            CPU_DRIVER => [("cpu".to_owned(), consumed(["dra.cpu/cpu", "cpu"]).unwrap_or(1))].into(),
            _ => BTreeMap::new(),
        };
    };
    let amount = |amount: &Amount| match amount {
        Amount::Fixed(amount) => *amount,
        Amount::Consumed { capacity, milli, whole } => {
            allocated.consumed.get(capacity).map_or(*whole, |consumed| times_milli(*consumed, *milli))
        }
    };
    let known = device.stands_for.iter().filter(|(resource, _)| *resource == "cpu" || is_memory(resource));
    known.map(|(resource, of)| (resource.clone(), amount(of))).collect()
}
