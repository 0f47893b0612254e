//! What a kubelet's CPU, memory and device managers know and decide, without I/O and without a clock.
//!
//! The managers are the kubelet's in their results, not in their search: they prefer one NUMA node, spread where
//! the policy lets them, and refuse otherwise. Nothing here is shared with the accounting it is the oracle of.

use std::collections::{BTreeMap, BTreeSet};

use super::pod::{ContainerSpec, PodSpec};
use super::settings::{Alignment, Settings};
use crate::machine::{Id, IdSet};
use crate::quantity::hugepages_name;
use crate::sim::machine::MachineSpec;

/// The resource name of plain memory.
pub(super) const MEMORY: &str = "memory";

/// Why the kubelet does not admit a pod: the reason and the message it puts into the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Refusal {
    /// `TopologyAffinityError`, `UnexpectedAdmissionError`, `SMTAlignmentError` or `AlreadyExists`.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// An amount of memory on the nodes of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// `memory` or `hugepages-<size>`.
    pub resource: String,
    /// The total, in bytes.
    pub bytes: u64,
    /// What each node of the group gives.
    pub split: BTreeMap<Id, u64>,
}

/// What one container was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The container's name.
    pub container: String,
    /// Exclusive CPUs.
    pub cpus: IdSet,
    /// Memory and huge pages.
    pub memory: Vec<Block>,
    /// Resource to the ids of its devices.
    pub devices: BTreeMap<String, BTreeSet<String>>,
}

/// Where a pod stands in the kubelet's eyes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Known, not admitted yet: listed with nothing.
    Announced,
    /// Admitted: listed with what it was given.
    Active,
    /// All its containers have ended, the pod object is still there.
    Finished,
    /// Gone from the API server; its resources are freed a little later.
    Gone,
}

/// One pod and what it holds.
#[derive(Clone, Debug)]
pub struct Pod {
    /// As it was asked for.
    pub spec: PodSpec,
    /// Where it stands.
    pub stage: Stage,
    /// One entry per container, in the order of the specification; empty before admission and after release.
    pub given: Vec<Given>,
}

/// One NUMA node as the managers see it.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) cpus: IdSet,
    /// Resource to the pool's size.
    pub(super) pools: BTreeMap<String, Pool>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    pub(super) total: u64,
    pub(super) reserved: u64,
    pub(super) allocatable: u64,
}

/// One device of a plugin.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) nodes: IdSet,
    pub(super) healthy: bool,
}

/// One device plugin.
#[derive(Clone, Debug, Default)]
pub(super) struct Plugin {
    pub(super) registered: bool,
    pub(super) devices: BTreeMap<String, Device>,
}

/// The managers' state.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) settings: Settings,
    pub(super) nodes: BTreeMap<Id, Node>,
    /// Cores in the order in which they are taken, each with its threads.
    cores: Vec<(Id, Vec<Id>)>,
    pub(super) reserved: IdSet,
    pub(super) plugins: BTreeMap<String, Plugin>,
    /// By uid.
    pub(super) pods: BTreeMap<String, Pod>,
    /// Nodes joined by a block that needs several of them; a lone node is its own group.
    pub(super) groups: BTreeMap<Id, BTreeSet<Id>>,
}

/// What one container or pod asks of the managers.
#[derive(Clone, Debug, Default)]
struct Demand {
    cpus: u64,
    memory: BTreeMap<String, u64>,
    devices: BTreeMap<String, u64>,
}

impl Model {
    /// The managers of a node with this hardware and these kubelet settings; every plugin is registered.
    #[must_use]
    pub fn new(spec: &MachineSpec) -> Self {
        let settings = Settings::from_keys(&spec.kubelet);
        let cores = cores(spec);
        let reserved = reserved_cpus(&settings, &cores);
        Self {
            nodes: nodes(spec, &settings),
            plugins: plugins(spec),
            cores,
            reserved,
            settings,
            pods: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }

    /// The pods by uid, in every stage.
    #[must_use]
    pub fn pods(&self) -> &BTreeMap<String, Pod> {
        &self.pods
    }

    /// The pod with this name, unless it is gone.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        self.pods
            .values()
            .find(|pod| pod.stage != Stage::Gone && pod.spec.namespace == namespace && pod.spec.name == name)
    }

    /// The kubelet learns of a pod: it is listed from now on, with nothing.
    ///
    /// # Errors
    /// When a pod with this name or uid is there already.
    pub fn announce(&mut self, spec: PodSpec) -> Result<(), Refusal> {
        if self.pods.contains_key(&spec.uid) || self.pod(&spec.namespace, &spec.name).is_some() {
            return Err(Refusal {
                reason: "AlreadyExists",
                message: format!("pods \"{}\" already exists", spec.name),
            });
        }
        self.pods.insert(spec.uid.clone(), Pod { spec, stage: Stage::Announced, given: Vec::new() });
        Ok(())
    }

    /// Admits an announced pod. What pods that are gone still held is freed first, as the kubelet does.
    ///
    /// # Errors
    /// The kubelet's refusal. The pod is forgotten: a refused pod leaves the List when it is terminal.
    pub fn admit(&mut self, uid: &str) -> Result<Vec<Given>, Refusal> {
        self.settle();
        let spec = match self.pods.get(uid) {
            Some(pod) if pod.stage == Stage::Announced => pod.spec.clone(),
            _ => return Err(unexpected(format!("pod {uid} is not waiting for admission"))),
        };
        let backup = self.groups.clone();
        let outcome = self.place(&spec);
        match (outcome, self.pods.get_mut(uid)) {
            (Ok(given), Some(pod)) => {
                pod.stage = Stage::Active;
                pod.given.clone_from(&given);
                Ok(given)
            }
            (Err(refusal), _) => {
                self.pods.remove(uid);
                self.groups = backup;
                Err(refusal)
            }
            (Ok(_), None) => Err(unexpected(format!("pod {uid} vanished during admission"))),
        }
    }

    /// All containers of the pod have ended. Returns its uid.
    pub fn finish(&mut self, namespace: &str, name: &str) -> Option<String> {
        self.move_to(namespace, name, Stage::Finished)
    }

    /// The pod is gone: it leaves the List now, its resources are freed by [`Model::settle`]. Returns its uid.
    pub fn remove(&mut self, namespace: &str, name: &str) -> Option<String> {
        self.move_to(namespace, name, Stage::Gone)
    }

    fn move_to(&mut self, namespace: &str, name: &str, stage: Stage) -> Option<String> {
        let pod = self.pods.values_mut().find(|pod| {
            pod.stage != Stage::Gone && pod.spec.namespace == namespace && pod.spec.name == name
        })?;
        pod.stage = stage;
        Some(pod.spec.uid.clone())
    }

    /// Frees what pods hold that are finished or gone. Did anything change?
    pub fn settle(&mut self) -> bool {
        let before = self.pods.len();
        let mut freed = false;
        self.pods.retain(|_, pod| pod.stage != Stage::Gone);
        for pod in self.pods.values_mut().filter(|pod| pod.stage == Stage::Finished) {
            freed |= !std::mem::take(&mut pod.given).is_empty();
        }
        self.forget_unused_groups();
        freed || before != self.pods.len()
    }

    /// Registers or unregisters the plugin of a resource. Is there such a plugin?
    pub fn register(&mut self, resource: &str, registered: bool) -> bool {
        self.plugins.get_mut(resource).map(|plugin| plugin.registered = registered).is_some()
    }

    /// The plugin says that a device is well or not. Is there such a device?
    pub fn set_health(&mut self, resource: &str, id: &str, healthy: bool) -> bool {
        let device = self.plugins.get_mut(resource).and_then(|plugin| plugin.devices.get_mut(id));
        device.map(|device| device.healthy = healthy).is_some()
    }

    /// The CPUs that may be exclusive; with the policy `none` as well.
    pub(super) fn allocatable_cpus(&self) -> IdSet {
        self.online_cpus().difference(&self.reserved)
    }

    pub(super) fn online_cpus(&self) -> IdSet {
        let mut cpus = IdSet::new();
        self.nodes.values().for_each(|node| cpus.union_with(&node.cpus));
        cpus
    }

    /// The nodes that containers' exclusive resources are on.
    #[must_use]
    pub fn zones_of(&self, given: &[Given]) -> IdSet {
        let mut zones = IdSet::new();
        for given in given {
            let cpus = self.nodes.iter().filter(|(_, node)| !node.cpus.intersection(&given.cpus).is_empty());
            cpus.for_each(|(id, _)| zones.insert(*id));
            let parts = given.memory.iter().flat_map(|block| &block.split);
            parts.filter(|(_, bytes)| **bytes > 0).for_each(|(id, _)| zones.insert(*id));
            for (resource, ids) in &given.devices {
                let devices = self.plugins.get(resource).map(|plugin| &plugin.devices);
                let held = devices.into_iter().flatten().filter(|(id, _)| ids.contains(*id));
                held.for_each(|(_, device)| zones.union_with(&device.nodes));
            }
        }
        zones
    }

    /// What containers hold, whether their pod is listed or not.
    pub(super) fn given(&self) -> impl Iterator<Item = &Given> {
        self.pods.values().flat_map(|pod| &pod.given)
    }

    fn free_cpus(&self) -> IdSet {
        let mut held = IdSet::new();
        self.given().for_each(|given| held.union_with(&given.cpus));
        self.allocatable_cpus().difference(&held)
    }

    /// The bytes of `resource` on `node` that nobody holds.
    pub(super) fn free_memory(&self, node: Id, resource: &str) -> u64 {
        let pool = self.nodes.get(&node).and_then(|node| node.pools.get(resource));
        let held: u64 = self
            .given()
            .flat_map(|given| &given.memory)
            .filter(|block| block.resource == resource)
            .filter_map(|block| block.split.get(&node))
            .sum();
        pool.map_or(0, |pool| pool.allocatable.saturating_sub(held))
    }

    /// Ids of `resource` that could be given to a container now, with their nodes.
    fn free_devices(&self, resource: &str) -> Vec<(&String, &IdSet)> {
        let Some(plugin) = self.plugins.get(resource).filter(|plugin| plugin.registered) else {
            return Vec::new();
        };
        let held: BTreeSet<&String> =
            self.given().filter_map(|given| given.devices.get(resource)).flatten().collect();
        plugin
            .devices
            .iter()
            .filter(|(id, device)| device.healthy && !held.contains(id))
            .map(|(id, device)| (id, &device.nodes))
            .collect()
    }

    /// The group of a node: itself, unless a block joined it to others.
    pub(super) fn group(&self, node: Id) -> BTreeSet<Id> {
        self.groups.get(&node).cloned().unwrap_or_else(|| [node].into())
    }

    /// How many blocks lie on a node.
    pub(super) fn assignments(&self, node: Id) -> usize {
        let blocks = self.given().flat_map(|given| &given.memory);
        blocks.filter(|block| block.split.contains_key(&node)).count()
    }

    fn forget_unused_groups(&mut self) {
        let unused: Vec<Id> =
            self.groups.keys().copied().filter(|node| self.assignments(*node) == 0).collect();
        // A group lives and dies as a whole: a node of it may carry nothing while its peers do.
        let dead = |group: &BTreeSet<Id>| group.iter().all(|node| unused.contains(node));
        self.groups.retain(|_, group| !dead(group));
    }

    fn place(&mut self, spec: &PodSpec) -> Result<Vec<Given>, Refusal> {
        let demands: Vec<Demand> =
            spec.containers.iter().map(|container| self.demand(spec, container)).collect();
        for demand in &demands {
            self.check_whole_cores(demand.cpus)?;
        }
        let pod_affinity = match &spec.affinity {
            Some(nodes) => Some(nodes.iter().collect()),
            None if self.settings.pod_scope => self.affinity(&sum(&demands))?,
            None => None,
        };
        let mut given = Vec::new();
        for (container, demand) in spec.containers.iter().zip(demands) {
            let affinity = match &pod_affinity {
                Some(nodes) => Some(nodes.clone()),
                None if self.settings.pod_scope => None,
                None => self.affinity(&demand)?,
            };
            let strict = spec.affinity.is_some() || self.settings.alignment.is_strict();
            let one = self.allocate(container, &demand, affinity.as_ref(), strict, spec)?;
            given.push(one);
        }
        if let Some(pod) = self.pods.get_mut(&spec.uid) {
            pod.given.clear();
        }
        Ok(given)
    }

    /// Gives one container what it asks for and remembers it in the pod, so that the next one sees it.
    fn allocate(
        &mut self,
        container: &ContainerSpec,
        demand: &Demand,
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
        spec: &PodSpec,
    ) -> Result<Given, Refusal> {
        let given = Given {
            container: container.name.clone(),
            cpus: self.take_cpus(demand.cpus, affinity, strict)?,
            memory: self.take_memory(&demand.memory, affinity, strict)?,
            devices: self.take_devices(&demand.devices, affinity, strict)?,
        };
        for block in given.memory.iter().filter(|block| block.split.len() > 1) {
            let group: BTreeSet<Id> = block.split.keys().copied().collect();
            self.groups.extend(group.iter().map(|node| (*node, group.clone())));
        }
        if let Some(pod) = self.pods.get_mut(&spec.uid) {
            pod.given.push(given.clone());
        }
        Ok(given)
    }

    fn demand(&self, pod: &PodSpec, container: &ContainerSpec) -> Demand {
        let exclusive =
            self.settings.static_cpus && pod.guaranteed && container.milli_cpu.is_multiple_of(1000);
        let pinned = self.settings.static_memory && pod.guaranteed;
        let mut memory = BTreeMap::new();
        if pinned {
            memory.extend(container.hugepages.iter().map(|(size, bytes)| (size.clone(), *bytes)));
            memory.insert(MEMORY.to_owned(), container.memory);
            memory.retain(|_, bytes| *bytes > 0);
        }
        Demand {
            cpus: if exclusive { container.milli_cpu / 1000 } else { 0 },
            memory,
            devices: container.devices.clone(),
        }
    }

    fn check_whole_cores(&self, cpus: u64) -> Result<(), Refusal> {
        let threads = self.cores.iter().map(|(_, threads)| threads.len()).max().unwrap_or(1) as u64;
        if !self.settings.full_cores || cpus.is_multiple_of(threads) {
            return Ok(());
        }
        Err(Refusal {
            reason: "SMTAlignmentError",
            message: format!(
                "SMT Alignment Error: requested {cpus} cpus not multiple cpus per core = {threads}"
            ),
        })
    }

    /// The Topology Manager: the nodes that everything shall come from, or nothing in particular.
    fn affinity(&self, demand: &Demand) -> Result<Option<BTreeSet<Id>>, Refusal> {
        let alignment = self.settings.alignment;
        if alignment == Alignment::None || demand.is_nothing() {
            return Ok(None);
        }
        if let Some(node) = self.nodes.keys().find(|node| self.fits_on(**node, demand, false)) {
            return Ok(Some([*node].into()));
        }
        let could_fit = || self.nodes.keys().any(|node| self.fits_on(*node, demand, true));
        match alignment {
            Alignment::SingleNode => Err(misaligned()),
            Alignment::Restricted if could_fit() => Err(misaligned()),
            _ => Ok(None),
        }
    }

    /// Does the demand fit on one node: now, or (`when_empty`) if nobody held anything?
    fn fits_on(&self, node: Id, demand: &Demand, when_empty: bool) -> bool {
        let set: BTreeSet<Id> = [node].into();
        let emptied;
        let model = if when_empty {
            emptied = self.emptied();
            &emptied
        } else {
            self
        };
        let cpus = model.nodes.get(&node).map(|n| n.cpus.intersection(&model.free_cpus()).len());
        cpus.unwrap_or(0) >= demand.cpus
            && model.memory_fits(&set, &demand.memory)
            && demand.devices.iter().all(|(resource, count)| {
                let near = model.free_devices(resource).into_iter();
                // A device without topology has no opinion, so it is as good as a near one.
                near.filter(|(_, nodes)| nodes.is_empty() || nodes.contains(node)).count() as u64 >= *count
            })
    }

    fn emptied(&self) -> Self {
        Self { pods: BTreeMap::new(), groups: BTreeMap::new(), ..self.clone() }
    }

    /// May blocks of these sizes lie on exactly these nodes?
    fn memory_fits(&self, set: &BTreeSet<Id>, demand: &BTreeMap<String, u64>) -> bool {
        let free = |resource: &str| set.iter().map(|node| self.free_memory(*node, resource)).sum::<u64>();
        demand.is_empty()
            || (set.iter().all(|node| self.may_join(*node, set))
                && demand.iter().all(|(resource, bytes)| free(resource) >= *bytes))
    }

    /// A node that carries blocks stays in its group.
    fn may_join(&self, node: Id, set: &BTreeSet<Id>) -> bool {
        self.group(node) == *set || (self.assignments(node) == 0 && !self.groups.contains_key(&node))
    }

    fn take_cpus(&self, count: u64, affinity: Option<&BTreeSet<Id>>, strict: bool) -> Result<IdSet, Refusal> {
        let free = self.free_cpus();
        let near = |node: Id| affinity.is_none_or(|nodes| nodes.contains(&node));
        let mut order = self.cpu_order(&free, near);
        if !strict || affinity.is_none() {
            order.extend(self.cpu_order(&free, |node| !near(node)));
        }
        if (order.len() as u64) < count {
            return Err(unexpected(format!(
                "Allocate failed due to not enough cpus available to satisfy request: requested={count}, \
                 available={}, which is unexpected",
                order.len()
            )));
        }
        Ok(order.into_iter().take(usize::try_from(count).unwrap_or(usize::MAX)).collect())
    }

    /// Free CPUs of some nodes in the order in which they are handed out: whole cores first, then what is left
    /// of broken ones.
    fn cpu_order(&self, free: &IdSet, wanted: impl Fn(Id) -> bool) -> Vec<Id> {
        let (mut whole, mut single) = (Vec::new(), Vec::new());
        for (_, threads) in self.cores.iter().filter(|(node, _)| wanted(*node)) {
            let all_free = threads.iter().all(|cpu| free.contains(*cpu));
            let target = if all_free { &mut whole } else { &mut single };
            target.extend(threads.iter().copied().filter(|cpu| free.contains(*cpu)));
        }
        if !self.settings.full_cores {
            whole.extend(single);
        }
        whole
    }

    fn take_memory(
        &self,
        demand: &BTreeMap<String, u64>,
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
    ) -> Result<Vec<Block>, Refusal> {
        if demand.is_empty() {
            return Ok(Vec::new());
        }
        let set = match affinity {
            Some(nodes) if self.memory_fits(nodes, demand) => Some(nodes.clone()),
            Some(_) if strict => None,
            _ => self.memory_set(demand),
        };
        let Some(set) = set else {
            return Err(unexpected(
                "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA \
                 nodes with enough memory is available, which is unexpected"
                    .into(),
            ));
        };
        Ok(demand.iter().map(|(resource, bytes)| self.block(resource, *bytes, &set)).collect())
    }

    /// The smallest set of nodes that the Memory Manager finds by itself: one node, a group that exists, or the
    /// lowest free nodes together.
    fn memory_set(&self, demand: &BTreeMap<String, u64>) -> Option<BTreeSet<Id>> {
        let singles = self.nodes.keys().map(|node| [*node].into());
        let groups = self.groups.values().cloned();
        if let Some(set) = singles.chain(groups).find(|set| self.memory_fits(set, demand)) {
            return Some(set);
        }
        let mut set = BTreeSet::new();
        let unbound = self.nodes.keys().filter(|node| {
            self.assignments(**node) == 0
                && !self.groups.contains_key(node)
                && self.nodes[node].pools.values().any(|pool| pool.allocatable > 0)
        });
        for node in unbound {
            set.insert(*node);
            if self.memory_fits(&set, demand) {
                return Some(set);
            }
        }
        None
    }

    fn block(&self, resource: &str, bytes: u64, set: &BTreeSet<Id>) -> Block {
        let mut left = bytes;
        let split = set.iter().map(|node| {
            let part = left.min(self.free_memory(*node, resource));
            left -= part;
            (*node, part)
        });
        Block { resource: resource.to_owned(), bytes, split: split.collect() }
    }

    fn take_devices(
        &self,
        demand: &BTreeMap<String, u64>,
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
    ) -> Result<BTreeMap<String, BTreeSet<String>>, Refusal> {
        let mut taken = BTreeMap::new();
        for (resource, count) in demand.iter().filter(|(_, count)| **count > 0) {
            let near =
                |nodes: &IdSet| affinity.is_none_or(|wanted| wanted.iter().any(|node| nodes.contains(*node)));
            let mut free = self.free_devices(resource);
            // Near ones first, then those without topology, then far ones: the kubelet's order.
            free.sort_by_key(|(_, nodes)| (!near(nodes), !nodes.is_empty()));
            if strict && affinity.is_some() {
                free.retain(|(_, nodes)| near(nodes) || nodes.is_empty());
            }
            if (free.len() as u64) < *count {
                return Err(unexpected(format!(
                    "Allocate failed due to requested number of devices unavailable for {resource}. \
                     Requested: {count}, Available: {}, which is unexpected",
                    free.len()
                )));
            }
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            let ids = free.into_iter().take(count).map(|(id, _)| id.clone()).collect();
            taken.insert(resource.clone(), ids);
        }
        Ok(taken)
    }
}

impl Demand {
    fn is_nothing(&self) -> bool {
        self.cpus == 0 && self.memory.is_empty() && self.devices.values().all(|count| *count == 0)
    }
}

fn sum(demands: &[Demand]) -> Demand {
    let mut total = Demand::default();
    for demand in demands {
        total.cpus += demand.cpus;
        for (resource, bytes) in &demand.memory {
            *total.memory.entry(resource.clone()).or_default() += bytes;
        }
        for (resource, count) in &demand.devices {
            *total.devices.entry(resource.clone()).or_default() += count;
        }
    }
    total
}

fn misaligned() -> Refusal {
    Refusal {
        reason: "TopologyAffinityError",
        message: "Resources cannot be allocated with Topology locality".into(),
    }
}

fn unexpected(message: String) -> Refusal {
    Refusal { reason: "UnexpectedAdmissionError", message }
}

fn nodes(spec: &MachineSpec, settings: &Settings) -> BTreeMap<Id, Node> {
    let one = |node: &crate::sim::machine::NodeSpec| {
        let pages = node.pages();
        let hugepages = spec.page_sizes().into_iter().map(|size| {
            let resource = hugepages_name(size);
            let total = pages.get(&size).copied().unwrap_or(0) * size;
            let reserved = settings.reserved(node.id, &resource);
            (resource, Pool { total, reserved, allocatable: total.saturating_sub(reserved) })
        });
        let mem_total = node.memory.ceil();
        let reserved = settings.reserved(node.id, MEMORY);
        let mut pools: BTreeMap<String, Pool> = hugepages.collect();
        let in_pages: u64 = pools.values().map(|pool| pool.total).sum();
        let allocatable = mem_total.saturating_sub(in_pages).saturating_sub(reserved);
        pools.insert(MEMORY.to_owned(), Pool { total: mem_total, reserved, allocatable });
        Node { cpus: node.cpus.clone(), pools }
    };
    spec.nodes.iter().map(|node| (node.id, one(node))).collect()
}

fn plugins(spec: &MachineSpec) -> BTreeMap<String, Plugin> {
    let device = |device: &crate::sim::machine::Device| Device {
        nodes: device.numa.iter().copied().collect(),
        healthy: !device.unhealthy,
    };
    spec.devices
        .iter()
        .map(|plugin| {
            let devices = plugin.devices.iter().map(|d| (d.id.clone(), device(d))).collect();
            (plugin.resource.clone(), Plugin { registered: true, devices })
        })
        .collect()
}

/// The cores of every node in ascending order, each with its online CPUs.
fn cores(spec: &MachineSpec) -> Vec<(Id, Vec<Id>)> {
    let mut cores = Vec::new();
    for node in &spec.nodes {
        for mut threads in spec.cores(node) {
            threads.retain(|cpu| node.cpus.contains(*cpu));
            cores.push((node.id, threads));
        }
    }
    cores.retain(|(_, threads)| !threads.is_empty());
    cores
}

/// The list that the configuration names, else as many as it reserves, from the lowest core on.
fn reserved_cpus(settings: &Settings, cores: &[(Id, Vec<Id>)]) -> IdSet {
    if !settings.reserved_cpus.is_empty() {
        return settings.reserved_cpus.clone();
    }
    let count = usize::try_from(settings.reserved_cpu_count).unwrap_or(usize::MAX);
    cores.iter().flat_map(|(_, threads)| threads).take(count).copied().collect()
}
