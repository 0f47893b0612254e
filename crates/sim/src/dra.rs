//! Simulated drivers of dynamic resource allocation (DRA) and a scheduler for their devices.
//!
//! [`Drivers::claimed`] is the oracle: it computes what claims have from the drivers' own state, which knows where every
//! device is, and shares no code with `numacast_core::claims`. Where the agent cannot know the truth, it expects the
//! documented rule.

mod drivers;
mod objects;
mod scheduler;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use numacast_core::machine::{Id, IdSet};
use numacast_core::quantity::hugepages_name;

use crate::kubelet::{Amounts, ClaimUse, Claimed, ClaimedDevice};
use crate::machine::MachineSpec;

pub use objects::pci_address;

const CPU_DRIVER: &str = "dra.cpu";
const MEMORY_DRIVER: &str = "dra.memory";
/// The only pool of each driver.
const POOL: &str = "worker";
/// How long the devices of an incomplete pool count.
const KEPT_FOR: Duration = Duration::from_secs(120);
/// The capacity of the counter of a device that is published in parts.
const WHOLE: u64 = 8;

/// The drivers of a node, their ResourceSlices, and the allocated claims.
#[derive(Clone, Debug)]
pub struct Drivers {
    rng: Rng,
    pools: Vec<Pool>,
    claims: BTreeMap<String, Claim>,
    claims_made: usize,
    /// Drivers that return no devices to the kubelet.
    silent: BTreeSet<String>,
    /// Whether the agent reads the CDI files.
    has_cdi: bool,
    now: Duration,
}

/// One pool, and what an agent knows of it that has received every change of its slices.
#[derive(Clone, Debug, Default)]
struct Pool {
    driver: String,
    devices: Vec<Device>,
    generation: u64,
    /// The slices in the API server: generation, number of slices of this generation, and devices.
    slices: Vec<(u64, usize, Vec<Device>)>,
    /// The last complete contents, until they no longer count.
    contents: BTreeMap<String, Device>,
    /// Other devices that are known since they are in use.
    kept: BTreeMap<String, Device>,
    incomplete_since: Option<Duration>,
}

#[derive(Clone, Debug, Default)]
struct Device {
    name: String,
    kind: Kind,
    /// The NUMA node that it is on.
    node: Id,
    publishes: Publishes,
    /// 0 for a device that is given to one claim only.
    capacity: u64,
    is_tainted: bool,
    /// The card that it is a part of, and how much of it.
    part: Option<(String, u64)>,
}

#[derive(Clone, Debug, Default)]
enum Kind {
    #[default]
    Other,
    Cpu(Id),
    /// CPUs by count out of these, of a node (`None`: of a socket, `None`: of the machine).
    Cpus {
        from: IdSet,
        socket: Option<Id>,
    },
    /// Of this resource, at this position in the listing of NUMA nodes.
    Memory(String, usize),
}

/// How a device's NUMA node is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Publishes {
    Standard,
    List,
    Dranet,
    Own,
    Pci,
    /// -1, or nothing.
    #[default]
    Nothing,
}

/// An allocated claim.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    results: Vec<Given>,
    /// Whether the API server returns it.
    is_readable: bool,
    is_prepared: bool,
}

/// A device given to a claim.
#[derive(Clone, Debug, Default)]
struct Given {
    driver: String,
    device: Device,
    amount: Option<u64>,
    is_admin: bool,
    share: Option<String>,
    /// The CPUs that the driver or the user chose.
    cpus: IdSet,
}

impl Pool {
    /// The slices of the newest generation, and whether these are all of them and valid.
    fn newest(&self) -> (Vec<&Device>, bool) {
        let newest = self.slices.iter().map(|(generation, ..)| *generation).max();
        let slices: Vec<_> = self.slices.iter().filter(|(of, ..)| Some(*of) == newest).collect();
        let devices: Vec<&Device> = slices.iter().flat_map(|(.., devices)| devices).collect();
        let names: BTreeSet<&str> = devices.iter().map(|device| &*device.name).collect();
        let is_complete = slices.first().is_some_and(|(_, count, _)| *count == slices.len());
        (devices.clone(), is_complete && names.len() == devices.len())
    }

    fn observe(&mut self, used: &BTreeSet<(String, String)>, now: Duration) {
        let (devices, is_complete) = self.newest();
        let devices = devices.into_iter().map(|device| (device.name.clone(), device.clone()));
        let devices: BTreeMap<String, Device> = devices.collect();
        if is_complete {
            self.kept.append(&mut std::mem::replace(&mut self.contents, devices));
            self.incomplete_since = None;
        } else {
            self.kept.extend(devices);
            self.incomplete_since.get_or_insert(now);
        }
        if self.incomplete_since.is_some_and(|since| now - since >= KEPT_FOR) {
            self.kept.append(&mut self.contents);
        }
        let Self { driver, contents, kept, .. } = self;
        kept.retain(|name, _| used.contains(&(driver.clone(), name.clone())) && !contents.contains_key(name));
    }

    fn knows(&self, name: &str) -> bool {
        self.contents.contains_key(name) || self.kept.contains_key(name)
    }
}

impl Device {
    /// The NUMA node that the agent can find out.
    fn node(&self, hardware: &MachineSpec) -> Option<Id> {
        let node = match &self.kind {
            Kind::Memory(_, position) => return listed(hardware).get(*position).copied(),
            _ if self.publishes == Publishes::Nothing => return None,
            _ => self.node,
        };
        hardware.node(node).map(|node| node.id)
    }
}

/// The NUMA nodes in the order of their directories' names, which `dra.memory` takes for their ids.
fn listed(hardware: &MachineSpec) -> Vec<Id> {
    let mut nodes: Vec<Id> = hardware.nodes.iter().map(|node| node.id).collect();
    nodes.sort_by_key(|id| format!("node{id}"));
    nodes
}

impl Drivers {
    /// The allocated claims.
    #[must_use]
    pub const fn claims(&self) -> &BTreeMap<String, Claim> {
        &self.claims
    }

    /// Prepares the claims that pods use, as the drivers do, and returns what the agent must account for.
    pub fn claimed(&mut self, hardware: &MachineSpec, in_use: &BTreeMap<String, ClaimUse>) -> Claimed {
        self.prepare(in_use);
        let known: Vec<Claim> = in_use.iter().filter_map(|(name, of)| self.known(name, *of)).collect();
        let all = known.iter().flat_map(|claim| &claim.results);
        let used: BTreeSet<(String, String)> =
            all.map(|of| (of.driver.clone(), of.device.name.clone())).collect();
        for pool in &mut self.pools {
            pool.observe(&used, self.now);
        }
        let mut claimed = Claimed::default();
        for claim in &known {
            self.add_cpus(&mut claimed, hardware, claim);
            self.add_memory(&mut claimed, hardware, claim);
        }
        for pool in &self.pools {
            let used = |name: &str| used.contains(&(pool.driver.clone(), name.to_owned()));
            pool.add_devices(claimed.devices.entry(pool.driver.clone()).or_default(), hardware, used);
        }
        claimed
    }

    /// What the agent knows of a claim: its allocation, or else the devices in the List, without their amounts.
    fn known(&self, name: &str, of: ClaimUse) -> Option<Claim> {
        let mut claim = self.claims.get(name)?.clone();
        if claim.is_readable {
            claim.results.retain(|given| !given.is_admin);
            return Some(claim);
        }
        claim.is_prepared = false;
        claim.results.retain(|given| of.is_listed && !self.silent.contains(&given.driver));
        claim.results.iter_mut().for_each(|given| given.amount = None);
        // Of several shares of one device the List does not tell how many there are.
        let mut listed = BTreeSet::new();
        claim.results.retain(|given| given.driver != CPU_DRIVER || listed.insert(given.device.name.clone()));
        Some(claim)
    }

    fn knows(&self, given: &Given) -> bool {
        self.pools.iter().any(|pool| pool.driver == given.driver && pool.knows(&given.device.name))
    }

    fn add_cpus(&self, claimed: &mut Claimed, hardware: &MachineSpec, claim: &Claim) {
        for given in claim.results.iter().filter(|given| given.driver == CPU_DRIVER) {
            let is_known = self.knows(given);
            let with_cpus = || hardware.nodes.iter().filter(|node| !node.cpus.is_empty());
            let of_socket = |socket: Id| -> Vec<Id> {
                let has = |cpus: &IdSet| {
                    hardware
                        .cpu_locations()
                        .iter()
                        .any(|(cpu, at)| cpus.contains(*cpu) && at.socket == socket)
                };
                with_cpus().filter(|node| has(&node.cpus)).map(|node| node.id).collect()
            };
            let whole = if is_known { given.device.capacity.max(1) } else { 1 };
            let (nodes, amount) = match &given.device.kind {
                _ if self.has_cdi && claim.is_prepared => {
                    claimed.cpus.union_with(&given.cpus);
                    continue;
                }
                Kind::Cpu(cpu) if is_known => {
                    claimed.cpus.insert(*cpu);
                    continue;
                }
                // Of another device it is not believed.
                Kind::Cpus { .. } if given.is_configured() && claim.is_readable && is_known => {
                    claimed.cpus.union_with(&given.cpus);
                    continue;
                }
                Kind::Cpus { socket, .. } if is_known => {
                    let node = given.device.node(hardware).into_iter().collect();
                    let of_socket = socket.map(of_socket).unwrap_or_default();
                    (if of_socket.is_empty() { node } else { of_socket }, given.amount.unwrap_or(whole))
                }
                _ => (Vec::new(), given.amount.unwrap_or(whole)),
            };
            let nodes = if nodes.is_empty() { with_cpus().map(|node| node.id).collect() } else { nodes };
            for node in nodes {
                *claimed.other_cpus.entry(node).or_default() += amount;
            }
        }
    }

    fn add_memory(&self, claimed: &mut Claimed, hardware: &MachineSpec, claim: &Claim) {
        for given in &claim.results {
            let Kind::Memory(resource, _) = &given.device.kind else { continue };
            // Of a device that was never seen only the CDI file tells what it is.
            if self.knows(given) || (self.has_cdi && claim.is_prepared) {
                let Some(node) = given.device.node(hardware) else { continue };
                let amount = given.amount.unwrap_or(given.device.capacity);
                *claimed.memory.entry((node, resource.clone())).or_default() += amount;
            }
        }
    }
}

impl Pool {
    /// Adds the devices that are in the pool or in use; a card in parts is one device.
    fn add_devices(
        &self,
        devices: &mut BTreeMap<Id, Amounts>,
        hardware: &MachineSpec,
        used: impl Fn(&str) -> bool,
    ) {
        let mut cards: BTreeMap<&str, (Option<Id>, bool)> = BTreeMap::new();
        let mut used_cards = BTreeSet::new();
        let mut add = |node: Option<Id>, is_offered: bool, is_used: bool| {
            let Some(node) = node else { return };
            let amounts = devices.entry(node).or_default();
            amounts.capacity += 1;
            amounts.allocatable += u64::from(is_offered);
            amounts.available += u64::from(is_offered && !is_used);
        };
        let all = self.contents.values().map(|device| (device, true));
        let all = all.chain(self.kept.values().map(|device| (device, false)));
        for (device, is_there) in all.filter(|(device, _)| matches!(device.kind, Kind::Other)) {
            let (node, is_used) = (device.node(hardware), used(&device.name));
            let is_offered = is_there && !device.is_tainted;
            let Some((card, amount)) = &device.part else {
                add(node, is_offered, is_used);
                continue;
            };
            if is_used {
                used_cards.insert(&**card);
            }
            // A card counts if the pool has all of it as one device, or else a part that left the pool is in use.
            if !is_there || *amount == WHOLE {
                let entry = cards.entry(card).or_default();
                *entry = (entry.0.or(node), entry.1 || is_offered);
            }
        }
        for (card, (node, is_offered)) in cards {
            add(node, is_offered, used_cards.contains(card));
        }
    }
}
