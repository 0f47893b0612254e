//! Where the managers place a pod's resources.

use std::collections::{BTreeMap, BTreeSet};

use numacast_core::machine::{Id, IdSet};

use super::allocation::{Block, MEMORY, Rejection, unexpected};
use super::device_manager;
use super::memory_manager::{self, Request};
use super::model::Model;
use super::pod::{ContainerSpec, PodSpec, Role};
use super::settings::Alignment;

/// The resources that a container or pod requests from the managers.
#[derive(Clone, Debug, Default)]
struct Demand {
    cpus: u64,
    memory: Request,
    devices: BTreeMap<String, u64>,
}

/// Resources of the regular init containers that later containers of the pod being admitted can reuse.
#[derive(Debug, Default)]
struct Reuse {
    cpus: IdSet,
    memory: memory_manager::Reusable,
    devices: device_manager::Reusable,
}

impl Model {
    /// Allocates the resources of a pod, or rejects it.
    pub(super) fn place(&mut self, spec: &PodSpec) -> Result<(), Rejection> {
        if spec.pod_level.is_some() && !self.settings.pod_level_managers {
            return self.place_devices_only(spec);
        }
        if let Some(total) = self.pod_demand(spec) {
            return self.place_pod_level(spec, &total);
        }
        let mut reuse = Reuse::default();
        let demands = spec.in_order().map(|of| (of, self.demand(spec, of))).collect::<Vec<_>>();
        for (_, demand) in &demands {
            self.check_whole_cores(demand.cpus)?;
        }
        let forced: Option<BTreeSet<Id>> = spec.affinity.as_ref().map(|nodes| nodes.iter().collect());
        let of_pod = match &forced {
            None if self.settings.pod_scope => self.affinity(&sum(&demands), &reuse)?,
            forced => forced.clone(),
        };
        for (container, demand) in &demands {
            let affinity = match &of_pod {
                None if !self.settings.pod_scope => self.affinity(demand, &reuse)?,
                of_pod => of_pod.clone(),
            };
            let strict = forced.is_some() || self.settings.alignment.is_strict();
            self.allocate(spec, container, demand, affinity.as_ref(), strict, &mut reuse)?;
        }
        Ok(())
    }

    /// Places the devices of a pod with pod-level resources. By default, the CPU Manager and the Memory
    /// Manager ignore such pods.
    fn place_devices_only(&mut self, spec: &PodSpec) -> Result<(), Rejection> {
        let mut reuse = Reuse::default();
        for container in spec.in_order() {
            let demand = Demand { devices: container.devices.clone(), ..Demand::default() };
            let affinity = self.affinity(&demand, &reuse)?;
            let strict = self.settings.alignment.is_strict();
            self.allocate(spec, container, &demand, affinity.as_ref(), strict, &mut reuse)?;
        }
        Ok(())
    }

    /// Allocates a container's request and records what the next containers can reuse.
    fn allocate(
        &mut self,
        spec: &PodSpec,
        container: &ContainerSpec,
        demand: &Demand,
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
        reuse: &mut Reuse,
    ) -> Result<(), Rejection> {
        let (uid, name, init) = (&spec.uid, &container.name, container.role == Role::Init);
        let devices = self.devices.choose(&demand.devices, affinity, strict, &reuse.devices)?;
        for (resource, allocated) in &devices {
            let left = reuse.devices.entry(resource.clone()).or_default();
            match init {
                true => left.extend(allocated.clone()),
                false => left.retain(|id, _| !allocated.contains_key(id)),
            }
        }
        self.devices.allocate(uid, name, devices);

        let mut pool = self.cpus.free();
        pool.union_with(&reuse.cpus);
        let cpus = self.cpus.choose(&pool, demand.cpus, affinity, strict)?;
        match init {
            true => reuse.cpus.union_with(&cpus),
            false => reuse.cpus = reuse.cpus.difference(&cpus),
        }
        self.cpus.allocate(uid, name, cpus);

        if demand.memory.is_empty() {
            return Ok(());
        }
        let set = self.memory.choose(&demand.memory, affinity, strict, &reuse.memory)?;
        self.memory.allocate(uid, name, &demand.memory, &set, &reuse.memory);
        for (resource, bytes) in &demand.memory {
            let left = reuse.memory.entry((set.clone(), resource.clone())).or_default();
            *left = if init { (*left).max(*bytes) } else { left.saturating_sub(*bytes) };
        }
        let earlier = spec.in_order().take_while(|other| other.name != *name);
        let earlier: Vec<&str> =
            earlier.filter(|other| other.role == Role::Init).map(|other| other.name.as_str()).collect();
        self.memory.shrink_init(uid, name, &earlier);
        Ok(())
    }

    /// The demand of a pod with pod-level resources that is placed as a whole; `None` for any other pod.
    fn pod_demand(&self, spec: &PodSpec) -> Option<Demand> {
        let resources = spec.pod_level.as_ref()?;
        if !self.settings.pod_scope || !spec.guaranteed {
            return None;
        }
        let mut demand = Demand::default();
        if self.settings.static_cpus && resources.milli_cpu.is_multiple_of(1000) {
            demand.cpus = resources.milli_cpu / 1000;
        }
        if self.settings.static_memory {
            demand.memory.clone_from(&resources.hugepages);
            demand.memory.insert(MEMORY.to_owned(), resources.memory);
            demand.memory.retain(|_, bytes| *bytes > 0);
        }
        for container in spec.in_order() {
            for (resource, count) in &container.devices {
                *demand.devices.entry(resource.clone()).or_default() += count;
            }
        }
        Some(demand)
    }

    /// Allocates a pod's resources as a whole and divides them among its containers (kubelet 1.36's
    /// `AllocatePod`).
    fn place_pod_level(&mut self, spec: &PodSpec, total: &Demand) -> Result<(), Rejection> {
        let demands = spec.in_order().map(|of| (of, self.demand(spec, of))).collect::<Vec<_>>();
        check_shared_pool(total, &demands)?;
        self.check_whole_cores(total.cpus)?;
        let mut reuse = Reuse::default();
        let forced: Option<BTreeSet<Id>> = spec.affinity.as_ref().map(|nodes| nodes.iter().collect());
        let affinity = match forced.clone() {
            Some(nodes) => Some(nodes),
            None => self.affinity(total, &reuse)?,
        };
        let strict = forced.is_some() || self.settings.alignment.is_strict();
        for (container, demand) in &demands {
            let devices = Demand { devices: demand.devices.clone(), ..Demand::default() };
            self.allocate(spec, container, &devices, affinity.as_ref(), strict, &mut reuse)?;
        }
        self.divide_cpus(spec, total, &demands, affinity.as_ref(), strict)?;
        self.divide_memory(spec, total, &demands, affinity.as_ref(), strict)
    }

    fn divide_cpus(
        &mut self,
        spec: &PodSpec,
        total: &Demand,
        demands: &[(&ContainerSpec, Demand)],
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
    ) -> Result<(), Rejection> {
        if total.cpus == 0 {
            return Ok(());
        }
        let all = self.cpus.choose(&self.cpus.free(), total.cpus, affinity, strict)?;
        self.cpus.pod_entries.insert(spec.uid.clone(), all.clone());
        let mut left = all;
        let mut shared = Vec::new();
        for (container, demand) in demands {
            match container.role {
                // An init container runs on all CPUs that the sidecars before it left over.
                Role::Init if demand.cpus == 0 => {
                    self.cpus.allocate(&spec.uid, &container.name, left.clone());
                }
                _ if demand.cpus == 0 => shared.push(&container.name),
                role => {
                    let cpus = self.cpus.choose(&left, demand.cpus, None, false)?;
                    if role != Role::Init {
                        left = left.difference(&cpus);
                    }
                    self.cpus.allocate(&spec.uid, &container.name, cpus);
                }
            }
        }
        shared.into_iter().for_each(|name| self.cpus.allocate(&spec.uid, name, left.clone()));
        Ok(())
    }

    fn divide_memory(
        &mut self,
        spec: &PodSpec,
        total: &Demand,
        demands: &[(&ContainerSpec, Demand)],
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
    ) -> Result<(), Rejection> {
        if total.memory.is_empty() {
            return Ok(());
        }
        let set = self.memory.choose(&total.memory, affinity, strict, &BTreeMap::new())?;
        let mut blocks = Vec::new();
        for (resource, bytes) in &total.memory {
            let split = self.memory.charge(&set, resource, *bytes);
            blocks.push(Block { resource: resource.clone(), bytes: *bytes, split });
        }
        self.memory.pod_entries.insert(spec.uid.clone(), blocks);
        let mut left = total.memory.clone();
        let part = |request: &Request| -> Vec<Block> {
            let split = || set.iter().map(|node| (*node, 0)).collect();
            let parts = request.iter().filter(|(_, bytes)| **bytes > 0);
            parts
                .map(|(resource, bytes)| Block { resource: resource.clone(), bytes: *bytes, split: split() })
                .collect()
        };
        let mut entries = BTreeMap::new();
        let mut shared = Vec::new();
        for (container, demand) in demands {
            match container.role {
                Role::Init if demand.memory.is_empty() => {
                    entries.insert(container.name.clone(), part(&left));
                }
                _ if demand.memory.is_empty() => shared.push(container.name.clone()),
                role => {
                    entries.insert(container.name.clone(), part(&demand.memory));
                    for (resource, bytes) in demand.memory.iter().filter(|_| role != Role::Init) {
                        let left = left.entry(resource.clone()).or_default();
                        *left = left.saturating_sub(*bytes);
                    }
                }
            }
        }
        entries.extend(shared.into_iter().map(|name| (name, part(&left))));
        self.memory.entries.insert(spec.uid.clone(), entries);
        Ok(())
    }

    fn demand(&self, pod: &PodSpec, container: &ContainerSpec) -> Demand {
        // In a pod with pod-level resources, only containers with CPU and memory requests get exclusive
        // resources.
        let fixed = pod.pod_level.is_none() || (container.milli_cpu > 0 && container.memory > 0);
        let exclusive =
            self.settings.static_cpus && pod.guaranteed && fixed && container.milli_cpu.is_multiple_of(1000);
        let mut memory = BTreeMap::new();
        if self.settings.static_memory && pod.guaranteed && fixed {
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

    fn check_whole_cores(&self, cpus: u64) -> Result<(), Rejection> {
        let threads = self.cpus.threads();
        if !self.settings.full_cores || cpus.is_multiple_of(threads) {
            return Ok(());
        }
        Err(Rejection {
            reason: "SMTAlignmentError",
            message: format!(
                "SMT Alignment Error: requested {cpus} cpus not multiple cpus per core = {threads}"
            ),
        })
    }

    /// The Topology Manager's hint: the NUMA nodes to allocate from, or `None` for no preference.
    fn affinity(&self, demand: &Demand, reuse: &Reuse) -> Result<Option<BTreeSet<Id>>, Rejection> {
        let alignment = self.settings.alignment;
        if alignment == Alignment::None || demand.is_empty() {
            return Ok(None);
        }
        let mut cpus = self.cpus.free();
        cpus.union_with(&reuse.cpus);
        if let Some(node) = self.memory.nodes.keys().find(|node| self.fits_on(**node, demand, &cpus, reuse)) {
            return Ok(Some([*node].into()));
        }
        let could_fit = || self.memory.nodes.keys().any(|node| self.could_fit_on(*node, demand));
        match alignment {
            Alignment::SingleNode => Err(misaligned()),
            Alignment::Restricted if could_fit() => Err(misaligned()),
            _ => Ok(None),
        }
    }

    /// Returns true if the demand fits on one node now, with `cpus` free.
    fn fits_on(&self, node: Id, demand: &Demand, cpus: &IdSet, reuse: &Reuse) -> bool {
        self.cpus.of_node(node).intersection(cpus).len() >= demand.cpus
            && self.memory.fits(&[node].into(), &demand.memory, &reuse.memory)
            && self.devices.fits(node, &demand.devices, &reuse.devices, false)
    }

    /// Returns true if the demand would fit on one node with nothing allocated.
    fn could_fit_on(&self, node: Id, demand: &Demand) -> bool {
        self.cpus.of_node(node).intersection(&self.cpus.allocatable()).len() >= demand.cpus
            && self.memory.could_fit(&[node].into(), &demand.memory)
            && self.devices.fits(node, &demand.devices, &BTreeMap::new(), true)
    }
}

impl Demand {
    fn is_empty(&self) -> bool {
        self.cpus == 0 && self.memory.is_empty() && self.devices.values().all(|count| *count == 0)
    }

    fn add(&mut self, other: &Self) {
        self.cpus += other.cpus;
        for (resource, bytes) in &other.memory {
            *self.memory.entry(resource.clone()).or_default() += bytes;
        }
        for (resource, count) in &other.devices {
            *self.devices.entry(resource.clone()).or_default() += count;
        }
    }

    fn raise_to(&mut self, other: &Self) {
        self.cpus = self.cpus.max(other.cpus);
        for (resource, bytes) in &other.memory {
            let mine = self.memory.entry(resource.clone()).or_default();
            *mine = (*mine).max(*bytes);
        }
        for (resource, count) in &other.devices {
            let mine = self.devices.entry(resource.clone()).or_default();
            *mine = (*mine).max(*count);
        }
    }
}

/// The maximum that a pod needs at a time: its sidecars and apps together, or a regular init container and the
/// sidecars before it.
fn sum(demands: &[(&ContainerSpec, Demand)]) -> Demand {
    let (mut running, mut max) = (Demand::default(), Demand::default());
    for (container, demand) in demands {
        let mut now = running.clone();
        now.add(demand);
        max.raise_to(&now);
        if container.role != Role::Init {
            running = now;
        }
    }
    max
}

/// Rejects a pod whose exclusive requests leave nothing for its containers without requests.
fn check_shared_pool(total: &Demand, demands: &[(&ContainerSpec, Demand)]) -> Result<(), Rejection> {
    let empty = |resource: &str| Rejection {
        reason: "EmptyPodSharedPoolError",
        message: format!(
            "pod rejected, sum of exclusive container {resource} requests equals pod budget, leaving nothing \
             for shared containers"
        ),
    };
    let lasting = || demands.iter().filter(|(container, _)| container.role != Role::Init);
    let cpus: u64 = lasting().map(|(_, demand)| demand.cpus).sum();
    let shares_cpus = demands.iter().any(|(_, demand)| demand.cpus == 0);
    if total.cpus > 0 && (cpus > total.cpus || (shares_cpus && cpus == total.cpus)) {
        return Err(empty("cpu"));
    }
    let shares_memory = demands.iter().any(|(_, demand)| demand.memory.is_empty());
    for (resource, bytes) in &total.memory {
        let taken: u64 = lasting().filter_map(|(_, demand)| demand.memory.get(resource)).sum();
        if taken > *bytes || (shares_memory && taken == *bytes) {
            return Err(empty(resource));
        }
    }
    let beyond = |(_, demand): &(&ContainerSpec, Demand)| {
        demand.cpus > total.cpus
            || demand
                .memory
                .iter()
                .any(|(resource, bytes)| total.memory.get(resource).is_none_or(|of_pod| of_pod < bytes))
    };
    match demands.iter().any(beyond) {
        true => Err(unexpected("a container requests more than its pod".into())),
        false => Ok(()),
    }
}

fn misaligned() -> Rejection {
    Rejection {
        reason: "TopologyAffinityError",
        message: "Resources cannot be allocated with Topology locality".into(),
    }
}
