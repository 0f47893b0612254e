//! What claims hold of a node's CPUs, memory and devices, and where each device is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::mem::{Discriminant, discriminant};

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
    /// Every driver, with the number of its devices on no known NUMA node.
    pub unplaced: BTreeMap<String, u64>,
    /// What contradicts the hardware, and claims that could not be placed.
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

/// A contradiction, of which each driver has one for one of its devices, or a claim that could not be placed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimFinding {
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
    /// A driver publishes a PCI address at which the machine has no device.
    NoSuchPciDevice {
        /// The driver.
        driver: String,
        /// The device.
        device: String,
        /// The PCI address.
        address: String,
    },
    /// The driver `dra.cpu` publishes CPUs while the CPU Manager gives out CPUs too.
    TwoCpuManagers,
    /// Which CPUs a claim has is not known, nor on which of these nodes; all of them lack as many.
    UnknownCpus {
        /// `namespace/name` of the claim.
        claim: String,
        /// The NUMA nodes.
        nodes: IdSet,
    },
    /// On which NUMA node a claim has memory, or a part of it, is not known, so no zone lacks that.
    UnknownMemory {
        /// `namespace/name` of the claim.
        claim: String,
    },
}

impl fmt::Display for ClaimFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchNode { driver, device, node } => write!(
                f,
                "the driver {driver} publishes NUMA node {node} for {device}, which this machine does not have"
            ),
            Self::OtherNode { driver, device, published, actual } => write!(
                f,
                "the driver {driver} publishes NUMA node {published} for {device}, but its PCI device is on node {actual}"
            ),
            Self::NoSuchPciDevice { driver, device, address } => write!(
                f,
                "the driver {driver} publishes the PCI address {address} for {device}, at which this machine has no device"
            ),
            Self::TwoCpuManagers => write!(
                f,
                "the driver dra.cpu and the CPU Manager may give out the same CPUs: set `cpuManagerPolicy: none`"
            ),
            Self::UnknownCpus { claim, nodes } => write!(
                f,
                "which CPUs the claim {claim} has is not known; each of the NUMA nodes {nodes} is taken to lack as many"
            ),
            Self::UnknownMemory { claim } => {
                write!(
                    f,
                    "on which NUMA node the claim {claim} has all of its memory is not known; no zone lacks it"
                )
            }
        }
    }
}

/// Computes what claims hold. `counts` tells whether a pod (namespace, name) is counted; a claim is unless none of its
/// pods is.
pub fn account(machine: &Machine, read: &NodeClaims, counts: impl Fn(&str, &str) -> bool) -> Held {
    let mut accounting = Accounting::new(machine, read);
    for (name, ClaimInUse { claim, pods, .. }) in &read.claims {
        let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
        if pods.is_empty() || pods.iter().any(|pod| counts(namespace, pod)) {
            accounting.add_claim(name, claim);
        }
    }
    accounting.add_devices();
    accounting.held.findings.extend(accounting.contradictions.into_values());
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

/// Returns each claim's namespace, its pods, and what it holds.
pub(crate) fn held_by_claim<'a>(
    machine: &'a Machine,
    read: &'a NodeClaims,
) -> impl Iterator<Item = (&'a str, &'a BTreeSet<String>, Held)> {
    read.claims.iter().map(|(name, of)| {
        let mut accounting = Accounting::new(machine, read);
        accounting.add_claim(name, &of.claim);
        (name.split_once('/').map_or("", |(namespace, _)| namespace), &of.pods, accounting.held)
    })
}

struct Accounting<'a> {
    machine: &'a Machine,
    read: &'a NodeClaims,
    held: Held,
    /// The number of CPUs whose ids are not known.
    other_cpus: u64,
    /// Devices that claims hold, apart from CPUs and memory: driver, pool and name.
    used: BTreeSet<(&'a str, &'a str, &'a str)>,
    /// By driver and kind: drivers that contradict the hardware may have thousands of devices.
    contradictions: HashMap<(&'a str, Discriminant<ClaimFinding>), ClaimFinding>,
}

/// The most drivers whose devices are shown.
const MOST_DRIVERS: usize = 64;

impl<'a> Accounting<'a> {
    fn new(machine: &'a Machine, read: &'a NodeClaims) -> Self {
        Self {
            machine,
            read,
            held: Held::default(),
            other_cpus: 0,
            used: BTreeSet::new(),
            contradictions: HashMap::new(),
        }
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
        let inventory = &self.read.inventory;
        let device = |of: &Allocated| inventory.device(&of.driver, &of.pool, &of.device);
        let of_driver = claim.devices.iter().filter(|of| of.driver == CPU_DRIVER);
        let cpus =
            of_driver.filter_map(|of| amounts(of, device(of)).remove("cpu")).fold(0, u64::saturating_add);
        // One file of a claim has all its CPUs. With fewer it is not that of this allocation.
        let file = self.read.cdi.cpus.get(&claim.uid).filter(|of| of.len() >= cpus);
        if let Some(cpus) = file {
            self.held.cpus.ids.union_with(cpus);
        }
        let (mut kinds, mut gone) = (BTreeSet::new(), None::<u64>);
        for of in &claim.devices {
            let device = device(of);
            if device.is_none() && of.driver == MEMORY_DRIVER {
                let bytes = of.consumed_of(["dra.memory/size", "size"]).unwrap_or_default();
                gone = Some(gone.unwrap_or_default().saturating_add(bytes));
                continue;
            }
            let amounts = amounts(of, device);
            if amounts.is_empty() {
                self.used.insert((&of.driver, &of.pool, &of.device));
            }
            for (resource, amount) in amounts {
                match resource.as_str() {
                    "cpu" if file.is_some() && of.driver == CPU_DRIVER => {}
                    "cpu" => self.add_cpus(name, claim, of, device, amount),
                    _ => {
                        self.add_memory(name, claim, of, device, &resource, amount);
                        kinds.insert(resource);
                    }
                }
            }
        }
        if let Some(bytes) = gone {
            self.add_written_memory(name, claim, &kinds, bytes);
        }
    }

    /// Adds the memory of devices that no slice has any more, of which the claim does not tell the kind: what the driver
    /// wrote for the claim, apart from the kinds that are counted. It overwrites what it wrote for a device of the same
    /// kind.
    fn add_written_memory(&mut self, name: &str, claim: &Claim, counted: &BTreeSet<String>, bytes: u64) {
        let written = self.read.cdi.memory.get(&claim.uid).into_iter().flatten();
        let rest: Vec<_> = written.filter(|(resource, _)| !counted.contains(*resource)).collect();
        let found = rest.iter().map(|(_, (_, bytes))| *bytes).fold(0, u64::saturating_add);
        if rest.is_empty() || found < bytes {
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
        allocated: &'a Allocated,
        device: Option<&Device>,
        amount: u64,
    ) {
        if let Some(cpu) = device.and_then(|device| device.cpu) {
            self.held.cpus.ids.insert(cpu);
            return;
        }
        // Only then the driver gives the CPUs that the claim asks for (dra-driver-cpu, `dra_hooks.go`).
        let is_whole_machine = device.is_some_and(|device| device.numa.is_none() && device.socket.is_none());
        let asked = claim.cpus_of(&allocated.request).filter(|cpus| is_whole_machine && cpus.len() == amount);
        if let Some(cpus) = asked.filter(|_| allocated.driver == CPU_DRIVER) {
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
        allocated: &'a Allocated,
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
    fn node_of(&mut self, allocated: &'a Allocated, device: Option<&Device>) -> Option<Id> {
        let device = device?;
        self.located(&allocated.driver, &allocated.device, device)
    }

    fn located(&mut self, driver: &'a str, name: &str, device: &Device) -> Option<Id> {
        let actual = device.pci.as_ref().and_then(|pci| self.actual(driver, name, pci));
        let Some(published) = device.numa else { return actual };
        let node = match driver == MEMORY_DRIVER {
            true => self.node_at(published),
            false => Id::try_from(published).ok().filter(|node| self.machine.node(*node).is_some()),
        };
        let Some(node) = node else {
            let (of, device) = (driver.to_owned(), name.to_owned());
            self.contradiction(driver, ClaimFinding::NoSuchNode { driver: of, device, node: published });
            return actual;
        };
        if let Some(actual) = actual.filter(|actual| *actual != node) {
            let (of, device) = (driver.to_owned(), name.to_owned());
            let finding = ClaimFinding::OtherNode { driver: of, device, published: node, actual };
            self.contradiction(driver, finding);
        }
        Some(node)
    }

    /// Returns the NUMA node that the kernel has for a PCI device.
    fn actual(&mut self, driver: &'a str, name: &str, address: &str) -> Option<Id> {
        if let Some(node) = self.read.pci.get(address) {
            return node.filter(|node| self.machine.node(*node).is_some());
        }
        if self.read.absent_pci.contains(address) {
            let (of, device, address) = (driver.to_owned(), name.to_owned(), address.to_owned());
            self.contradiction(driver, ClaimFinding::NoSuchPciDevice { driver: of, device, address });
        }
        None
    }

    /// Adds a contradiction if it is the driver's first of this kind.
    fn contradiction(&mut self, driver: &'a str, finding: ClaimFinding) {
        self.contradictions.entry((driver, discriminant(&finding))).or_insert(finding);
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
            placed.0.entry(driver).or_default();
            let sets = self.sets(driver, pool_name, pool);
            let is_counted = |device: &Device| {
                !device.stands_for.is_empty() || device.consumes.keys().any(|set| sets[set.as_str()].exists)
            };
            for (name, device) in pool.devices.iter().filter(|(_, device)| !is_counted(device)) {
                let is_used = self.used.contains(&(driver, pool_name, name));
                // Without a device that is all of what they share, it is not known how many there are.
                let is_part = !device.consumes.is_empty();
                let node = if is_part { None } else { self.located(driver, name, device) };
                placed.add(driver, node, !device.is_tainted, is_used);
            }
            for set in sets.into_values().filter(|set| set.exists) {
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
        for (driver, Devices { by_node, mut unplaced }) in placed.0 {
            if !by_node.is_empty() && self.held.devices.len() < MOST_DRIVERS {
                self.held.devices.insert(driver.to_owned(), by_node);
            } else {
                unplaced += by_node.values().map(|[all, ..]| all).sum::<u64>();
            }
            self.held.unplaced.insert(driver.to_owned(), unplaced);
        }
    }

    /// Returns the devices in parts, by counter set.
    fn sets(&mut self, driver: &'a str, pool_name: &'a str, pool: &'a Pool) -> BTreeMap<&'a str, Set> {
        let mut sets: BTreeMap<&str, Set> = BTreeMap::new();
        for (name, device) in pool.devices.iter().filter(|(_, device)| device.stands_for.is_empty()) {
            let used = self.used.contains(&(driver, pool_name, name));
            for set in device.consumes.keys() {
                let entry = sets.entry(set).or_default();
                entry.used |= used;
                if is_whole(pool, device, set) {
                    entry.exists = true;
                    entry.node = entry.node.or_else(|| self.located(driver, name, device));
                    entry.offered |= !device.is_tainted;
                }
            }
        }
        let is_used = |name: &String| self.used.contains(&(driver, pool_name, name.as_str()));
        let gone: Vec<_> = pool.others.iter().filter(|(name, _)| is_used(name)).collect();
        for (name, device) in gone {
            let node = self.located(driver, name, device);
            let of_part = || device.consumes.keys().map(String::as_str);
            of_part().for_each(|set| sets.entry(set).or_default().used = true);
            // The part left its pool while it is in use: its device is still there, though not whole.
            if let Some(first) = of_part().next().filter(|_| of_part().all(|set| !sets[set].exists)) {
                let entry = sets.entry(first).or_default();
                (entry.exists, entry.node) = (true, node);
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

impl Allocated {
    /// Returns what it consumes of the capacity that has one of these names.
    fn consumed_of(&self, names: [&str; 2]) -> Option<u64> {
        names.iter().find_map(|name| self.consumed.get(*name)).copied()
    }
}

/// Returns what an allocated device takes of `cpu` and memory; nothing if it is a device of its own.
fn amounts(allocated: &Allocated, device: Option<&Device>) -> BTreeMap<String, u64> {
    let Some(device) = device else {
        // A device that no slice has any more: the claim tells what it consumes.
        let cpus = || allocated.consumed_of(["dra.cpu/cpu", "cpu"]).unwrap_or(1);
        return match allocated.driver.as_str() {
            CPU_DRIVER => [("cpu".to_owned(), cpus())].into(),
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
