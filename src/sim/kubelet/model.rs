//! What a kubelet's CPU, memory and device managers know and decide, without I/O and without a clock.
//!
//! The managers are the kubelet's in their books, not in their search: they prefer one NUMA node, spread where
//! the policy lets them, and refuse otherwise. Nothing here is shared with the accounting it is the oracle of.

use std::collections::{BTreeMap, BTreeSet};

use super::cpu_manager::CpuManager;
use super::device_manager::{self, DeviceManager, HeldDevices};
use super::faults::Age;
use super::memory_manager::{self, MemoryManager, Request};
use super::pod::{ContainerSpec, PodSpec, Role};
use super::settings::{Alignment, Settings};
use crate::machine::{Id, IdSet};
use crate::sim::machine::{Device, MachineSpec};

/// The resource name of plain memory.
pub(super) const MEMORY: &str = "memory";

/// Why the kubelet does not admit or resize a pod: the reason and the message it puts into the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Refusal {
    /// `TopologyAffinityError`, `UnexpectedAdmissionError`, `SMTAlignmentError`, `AlreadyExists` and others.
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
    /// The nodes, and what each gave when the block was handed out. Later only the nodes count: what another
    /// pod gives back may be booked on any of them.
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
    /// Resource to its devices, each with the nodes it was near when it was given away.
    pub devices: BTreeMap<String, HeldDevices>,
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
    /// Refused, or gone from the API server; what it holds is freed a little later.
    Gone,
}

/// One pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// As it was asked for.
    pub spec: PodSpec,
    /// Where it stands.
    pub stage: Stage,
}

impl Pod {
    fn is_active(&self) -> bool {
        self.stage == Stage::Active
    }
}

/// The managers' state, the hardware as it is now, and the pods.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) age: Age,
    pub(super) settings: Settings,
    /// The hardware as it is now; the managers know it as it was when the kubelet started.
    pub(super) hardware: MachineSpec,
    pub(super) cpus: CpuManager,
    pub(super) memory: MemoryManager,
    pub(super) devices: DeviceManager,
    /// By uid.
    pods: BTreeMap<String, Pod>,
}

/// What one container or pod asks of the managers.
#[derive(Clone, Debug, Default)]
struct Demand {
    cpus: u64,
    memory: Request,
    devices: BTreeMap<String, u64>,
}

/// What plain init containers of the pod that is being admitted left to use again.
#[derive(Debug, Default)]
struct Reuse {
    cpus: IdSet,
    memory: memory_manager::Reusable,
    devices: device_manager::Reusable,
}

impl Model {
    /// The managers of a node with this hardware and these kubelet settings; every plugin is registered.
    #[must_use]
    pub fn new(spec: &MachineSpec) -> Self {
        let settings = Settings::from_keys(&spec.kubelet);
        Self {
            age: Age::default(),
            cpus: CpuManager::new(spec, &settings),
            memory: MemoryManager::new(spec, &settings),
            devices: DeviceManager::new(spec),
            hardware: spec.clone(),
            settings,
            pods: BTreeMap::new(),
        }
    }

    /// The same for a kubelet as old as this.
    pub(super) fn aged(spec: &MachineSpec, age: Age) -> Self {
        Self { age, ..Self::new(spec) }
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

    /// What the containers of a pod hold, in the order of the specification, plain init containers included.
    #[must_use]
    pub fn given(&self, uid: &str) -> Vec<Given> {
        let Some(pod) = self.pods.get(uid) else { return Vec::new() };
        pod.spec.containers.iter().map(|container| self.held_by(uid, &container.name)).collect()
    }

    /// What one container holds according to the managers' books.
    pub(super) fn held_by(&self, uid: &str, container: &str) -> Given {
        let cpus = self.cpus.entries.get(uid).and_then(|of| of.get(container));
        let memory = self.memory.entries.get(uid).and_then(|of| of.get(container));
        let devices = self.devices.entries.get(uid).and_then(|of| of.get(container));
        Given {
            container: container.to_owned(),
            cpus: cpus.cloned().unwrap_or_default(),
            memory: memory.cloned().unwrap_or_default(),
            devices: devices.cloned().unwrap_or_default(),
        }
    }

    /// Uids of the pods that are in the List with what they hold.
    pub(super) fn active(&self) -> impl Iterator<Item = &String> {
        self.pods.iter().filter(|(_, pod)| pod.stage == Stage::Active).map(|(uid, _)| uid)
    }

    pub(super) fn is_active(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(Pod::is_active)
    }

    /// The kubelet learns of a pod: it is listed from now on, with nothing.
    ///
    /// # Errors
    /// When a pod with this name or uid is there already.
    pub fn announce(&mut self, spec: PodSpec) -> Result<(), Refusal> {
        if self.pods.get(&spec.uid).is_some_and(|pod| pod.stage == Stage::Gone) {
            self.settle();
        }
        if self.pods.contains_key(&spec.uid) || self.pod(&spec.namespace, &spec.name).is_some() {
            return Err(Refusal {
                reason: "AlreadyExists",
                message: format!("pods \"{}\" already exists", spec.name),
            });
        }
        self.pods.insert(spec.uid.clone(), Pod { spec, stage: Stage::Announced });
        Ok(())
    }

    /// Admits an announced pod. What pods that are gone still held is freed first, as the kubelet does.
    ///
    /// # Errors
    /// The kubelet's refusal. The pod leaves the List, since it is terminal; what some of its containers were given
    /// before another was refused stays in the books until the next release.
    pub fn admit(&mut self, uid: &str) -> Result<Vec<Given>, Refusal> {
        self.settle();
        let spec = match self.pods.get(uid) {
            Some(pod) if pod.stage == Stage::Announced => pod.spec.clone(),
            _ => return Err(unexpected(format!("pod {uid} is not waiting for admission"))),
        };
        let outcome = self.place(&spec);
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.stage = if outcome.is_ok() { Stage::Active } else { Stage::Gone };
        }
        if outcome.is_err() {
            self.forget_gone();
        }
        outcome.map(|()| self.given(uid))
    }

    /// The plain init containers of a pod have ended and its other containers run: the Memory Manager frees what is left
    /// of the former; the other managers keep it until the pod is gone. Is there such a pod?
    pub fn end_init(&mut self, namespace: &str, name: &str) -> bool {
        let Some(pod) = self.pod(namespace, name) else { return false };
        let spec = pod.spec.clone();
        let init = spec.containers.iter().filter(|container| container.role == Role::Init);
        init.for_each(|container| self.memory.remove_container(&spec.uid, &container.name));
        true
    }

    /// All containers of the pod have ended. Returns its uid.
    pub fn finish(&mut self, namespace: &str, name: &str) -> Option<String> {
        self.move_to(namespace, name, Stage::Finished)
    }

    /// The pod is gone: it leaves the List now, what it holds is freed later. Returns its uid.
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

    /// An in-place resize of one container: thousandths of a CPU and bytes of memory.
    ///
    /// # Errors
    /// What the kubelet calls infeasible (its `pkg/kubelet/allocation/handlers.go`, 1.33 to 1.37): more or less of what is
    /// exclusive.
    pub fn resize(
        &mut self,
        namespace: &str,
        name: &str,
        container: &str,
        milli_cpu: u64,
        memory: u64,
    ) -> Result<(), Refusal> {
        let pod = self.pod(namespace, name).filter(|pod| pod.stage == Stage::Active);
        let spec = pod.map(|pod| pod.spec.clone());
        let spec = spec.ok_or_else(|| infeasible(format!("there is no running pod {namespace}/{name}")))?;
        let at = spec.containers.iter().position(|of| of.name == container && of.role != Role::Init);
        let at = at.ok_or_else(|| infeasible(format!("{name} has no container {container} to resize")))?;
        let old = &spec.containers[at];
        if spec.guaranteed && self.settings.static_memory && old.memory != memory {
            return Err(infeasible(
                "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"".into(),
            ));
        }
        if spec.guaranteed && self.settings.static_cpus && old.milli_cpu != milli_cpu {
            return Err(infeasible(
                "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"".into(),
            ));
        }
        if let Some(pod) = self.pods.get_mut(&spec.uid) {
            (pod.spec.containers[at].milli_cpu, pod.spec.containers[at].memory) = (milli_cpu, memory);
        }
        Ok(())
    }

    /// The CPU Manager's period has passed: it frees what pods hold that are finished or gone. The Memory Manager and
    /// the device manager do that at the next admission only. Did anything change?
    pub fn reconcile(&mut self) -> bool {
        let holders = self.cpus.entries.keys().chain(self.cpus.pod_entries.keys());
        let stale: BTreeSet<String> = holders.filter(|uid| !self.is_active(uid)).cloned().collect();
        for uid in &stale {
            self.cpus.remove(uid);
        }
        self.forget_gone();
        !stale.is_empty()
    }

    /// Frees everything that pods hold that are finished or gone, as each admission does first.
    pub fn settle(&mut self) {
        self.reconcile();
        let holders = self.memory.holders();
        for uid in holders.into_iter().filter(|uid| !self.pods.get(uid).is_some_and(Pod::is_active)) {
            self.memory.remove(&uid);
        }
        self.collect_devices();
        self.forget_gone();
    }

    /// What each List does first as well: nobody holds devices any more but active pods.
    pub(super) fn collect_devices(&mut self) {
        let pods = &self.pods;
        let active = |uid: &String| pods.get(uid).is_some_and(Pod::is_active);
        self.devices.entries.retain(|uid, _| active(uid));
    }

    /// Pods that are gone and hold nothing more.
    fn forget_gone(&mut self) {
        let Self { cpus, memory, pods, .. } = self;
        let holds = |uid: &String| {
            let of_cpus = cpus.entries.contains_key(uid) || cpus.pod_entries.contains_key(uid);
            of_cpus || memory.entries.contains_key(uid) || memory.pod_entries.contains_key(uid)
        };
        pods.retain(|uid, pod| pod.stage != Stage::Gone || holds(uid));
    }

    /// The process ends and another one starts: the managers keep their books, plugins have to register again.
    pub(super) fn restart(&mut self) {
        self.cpus.restart();
        self.devices.plugins.values_mut().for_each(|plugin| plugin.registered = false);
    }

    /// Another kubelet starts on the hardware as it is now, without books and without pods.
    pub(super) fn reset(&mut self) {
        let plugins = std::mem::take(&mut self.devices.plugins);
        *self = Self { age: self.age, ..Self::new(&self.hardware) };
        self.devices.plugins = plugins;
        self.restart();
    }

    /// The hardware changes while the kubelet runs: its managers do not notice.
    pub(super) fn set_hardware(&mut self, hardware: &MachineSpec) {
        self.hardware = MachineSpec { kubelet: self.hardware.kubelet.clone(), ..hardware.clone() };
    }

    /// Registers or unregisters the plugin of a resource. Is there such a plugin?
    pub fn register(&mut self, resource: &str, registered: bool) -> bool {
        let plugin = self.devices.plugins.get_mut(resource);
        plugin.map(|plugin| plugin.registered = registered).is_some()
    }

    /// A plugin registers with these devices from now on; what it had offered before and is not among them is gone,
    /// whoever holds it.
    pub fn offer(&mut self, resource: &str, devices: &[Device]) {
        let plugin = self.devices.plugins.entry(resource.to_owned()).or_default();
        plugin.registered = true;
        plugin.devices = device_manager::offered(devices);
    }

    /// The plugin says that a device is well or not. Is there such a device?
    pub fn set_health(&mut self, resource: &str, id: &str, healthy: bool) -> bool {
        let device = self.devices.plugins.get_mut(resource).and_then(|plugin| plugin.devices.get_mut(id));
        device.map(|device| device.healthy = healthy).is_some()
    }

    /// The same as if there were no pods but these (namespace, name).
    pub(super) fn restricted_to(&self, told: &BTreeSet<(String, String)>) -> Self {
        let mut model = self.clone();
        for pod in model.pods.values_mut() {
            if !told.contains(&(pod.spec.namespace.clone(), pod.spec.name.clone())) {
                pod.stage = Stage::Gone;
            }
        }
        model
    }

    /// The same with the device plugins of another moment.
    #[must_use]
    pub fn offering(&self, other: &Self) -> Self {
        let mut model = self.clone();
        model.devices.plugins.clone_from(&other.devices.plugins);
        model
    }

    /// The nodes that containers' exclusive resources are on.
    #[must_use]
    pub fn zones_of(&self, given: &[Given]) -> IdSet {
        let mut zones = IdSet::new();
        for given in given {
            let nodes = self.memory.nodes.keys();
            let cpus = nodes.filter(|id| self.cpus.of_node(**id).intersects(&given.cpus));
            cpus.for_each(|id| zones.insert(*id));
            let parts = given.memory.iter().flat_map(|block| &block.split);
            parts.filter(|(_, bytes)| **bytes > 0).for_each(|(id, _)| zones.insert(*id));
            given.devices.values().flatten().for_each(|(_, nodes)| zones.union_with(nodes));
        }
        zones
    }

    fn place(&mut self, spec: &PodSpec) -> Result<(), Refusal> {
        if spec.pod_level.is_some() && !self.settings.pod_level_managers {
            return self.place_devices_only(spec);
        }
        if let Some(whole) = self.pod_demand(spec) {
            return self.place_whole(spec, &whole);
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

    /// The CPU Manager and the Memory Manager pass over pods with resources of their own, unless told otherwise.
    fn place_devices_only(&mut self, spec: &PodSpec) -> Result<(), Refusal> {
        let mut reuse = Reuse::default();
        for container in spec.in_order() {
            let demand = Demand { devices: container.devices.clone(), ..Demand::default() };
            let affinity = self.affinity(&demand, &reuse)?;
            let strict = self.settings.alignment.is_strict();
            self.allocate(spec, container, &demand, affinity.as_ref(), strict, &mut reuse)?;
        }
        Ok(())
    }

    /// Gives one container what it asks for and notes what the next ones may use again.
    fn allocate(
        &mut self,
        spec: &PodSpec,
        container: &ContainerSpec,
        demand: &Demand,
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
        reuse: &mut Reuse,
    ) -> Result<(), Refusal> {
        let (uid, name, init) = (&spec.uid, &container.name, container.role == Role::Init);
        let devices = self.devices.choose(&demand.devices, affinity, strict, &reuse.devices)?;
        for (resource, held) in &devices {
            let left = reuse.devices.entry(resource.clone()).or_default();
            match init {
                true => left.extend(held.clone()),
                false => left.retain(|id, _| !held.contains_key(id)),
            }
        }
        self.devices.give(uid, name, devices);

        let mut pool = self.cpus.free();
        pool.union_with(&reuse.cpus);
        let cpus = self.cpus.choose(&pool, demand.cpus, affinity, strict)?;
        match init {
            true => reuse.cpus.union_with(&cpus),
            false => reuse.cpus = reuse.cpus.difference(&cpus),
        }
        self.cpus.give(uid, name, cpus);

        if demand.memory.is_empty() {
            return Ok(());
        }
        let set = self.memory.choose(&demand.memory, affinity, strict, &reuse.memory)?;
        self.memory.give(uid, name, &demand.memory, &set, &reuse.memory);
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

    /// What a pod asks for that has resources of its own and is placed as a whole.
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

    /// Gives a pod its whole allocation and divides it among the containers (kubelet 1.36's `AllocatePod`).
    fn place_whole(&mut self, spec: &PodSpec, whole: &Demand) -> Result<(), Refusal> {
        let demands = spec.in_order().map(|of| (of, self.demand(spec, of))).collect::<Vec<_>>();
        check_shared_pool(whole, &demands)?;
        self.check_whole_cores(whole.cpus)?;
        let mut reuse = Reuse::default();
        let forced: Option<BTreeSet<Id>> = spec.affinity.as_ref().map(|nodes| nodes.iter().collect());
        let affinity = match forced.clone() {
            Some(nodes) => Some(nodes),
            None => self.affinity(whole, &reuse)?,
        };
        let strict = forced.is_some() || self.settings.alignment.is_strict();
        for (container, demand) in &demands {
            let devices = Demand { devices: demand.devices.clone(), ..Demand::default() };
            self.allocate(spec, container, &devices, affinity.as_ref(), strict, &mut reuse)?;
        }
        self.divide_cpus(spec, whole, &demands, affinity.as_ref(), strict)?;
        self.divide_memory(spec, whole, &demands, affinity.as_ref(), strict)
    }

    fn divide_cpus(
        &mut self,
        spec: &PodSpec,
        whole: &Demand,
        demands: &[(&ContainerSpec, Demand)],
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
    ) -> Result<(), Refusal> {
        if whole.cpus == 0 {
            return Ok(());
        }
        let all = self.cpus.choose(&self.cpus.free(), whole.cpus, affinity, strict)?;
        self.cpus.pod_entries.insert(spec.uid.clone(), all.clone());
        let mut left = all;
        let mut shared = Vec::new();
        for (container, demand) in demands {
            match container.role {
                // An init container runs on all that sidecars before it did not take.
                Role::Init if demand.cpus == 0 => self.cpus.give(&spec.uid, &container.name, left.clone()),
                _ if demand.cpus == 0 => shared.push(&container.name),
                role => {
                    let cpus = self.cpus.choose(&left, demand.cpus, None, false)?;
                    if role != Role::Init {
                        left = left.difference(&cpus);
                    }
                    self.cpus.give(&spec.uid, &container.name, cpus);
                }
            }
        }
        shared.into_iter().for_each(|name| self.cpus.give(&spec.uid, name, left.clone()));
        Ok(())
    }

    fn divide_memory(
        &mut self,
        spec: &PodSpec,
        whole: &Demand,
        demands: &[(&ContainerSpec, Demand)],
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
    ) -> Result<(), Refusal> {
        if whole.memory.is_empty() {
            return Ok(());
        }
        let set = self.memory.choose(&whole.memory, affinity, strict, &BTreeMap::new())?;
        let mut blocks = Vec::new();
        for (resource, bytes) in &whole.memory {
            let split = self.memory.charge(&set, resource, *bytes);
            blocks.push(Block { resource: resource.clone(), bytes: *bytes, split });
        }
        self.memory.pod_entries.insert(spec.uid.clone(), blocks);
        let mut left = whole.memory.clone();
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
        // In a pod with resources of its own only containers whose own CPU and memory are fixed get anything.
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

    fn check_whole_cores(&self, cpus: u64) -> Result<(), Refusal> {
        let threads = self.cpus.threads();
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
    fn affinity(&self, demand: &Demand, reuse: &Reuse) -> Result<Option<BTreeSet<Id>>, Refusal> {
        let alignment = self.settings.alignment;
        if alignment == Alignment::None || demand.is_nothing() {
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

    /// Does the demand fit on one node now, with `cpus` free?
    fn fits_on(&self, node: Id, demand: &Demand, cpus: &IdSet, reuse: &Reuse) -> bool {
        self.cpus.of_node(node).intersection(cpus).len() >= demand.cpus
            && self.memory.fits(&[node].into(), &demand.memory, &reuse.memory)
            && self.devices.fits(node, &demand.devices, &reuse.devices, false)
    }

    /// Would the demand fit on one node if nobody held anything?
    fn could_fit_on(&self, node: Id, demand: &Demand) -> bool {
        self.cpus.of_node(node).intersection(&self.cpus.allocatable()).len() >= demand.cpus
            && self.memory.could_fit(&[node].into(), &demand.memory)
            && self.devices.fits(node, &demand.devices, &BTreeMap::new(), true)
    }
}

impl Demand {
    fn is_nothing(&self) -> bool {
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

/// What a pod needs at once: its sidecars and apps together, or a plain init container beside the sidecars before it.
fn sum(demands: &[(&ContainerSpec, Demand)]) -> Demand {
    let (mut running, mut most) = (Demand::default(), Demand::default());
    for (container, demand) in demands {
        let mut now = running.clone();
        now.add(demand);
        most.raise_to(&now);
        if container.role != Role::Init {
            running = now;
        }
    }
    most
}

/// A container without resources of its own needs something that the others leave it.
fn check_shared_pool(whole: &Demand, demands: &[(&ContainerSpec, Demand)]) -> Result<(), Refusal> {
    let empty = |resource: &str| Refusal {
        reason: "EmptyPodSharedPoolError",
        message: format!(
            "pod rejected, sum of exclusive container {resource} requests equals pod budget, leaving nothing \
             for shared containers"
        ),
    };
    let lasting = || demands.iter().filter(|(container, _)| container.role != Role::Init);
    let cpus: u64 = lasting().map(|(_, demand)| demand.cpus).sum();
    let shares_cpus = demands.iter().any(|(_, demand)| demand.cpus == 0);
    if whole.cpus > 0 && (cpus > whole.cpus || (shares_cpus && cpus == whole.cpus)) {
        return Err(empty("cpu"));
    }
    let shares_memory = demands.iter().any(|(_, demand)| demand.memory.is_empty());
    for (resource, bytes) in &whole.memory {
        let taken: u64 = lasting().filter_map(|(_, demand)| demand.memory.get(resource)).sum();
        if taken > *bytes || (shares_memory && taken == *bytes) {
            return Err(empty(resource));
        }
    }
    let beyond = |(_, demand): &(&ContainerSpec, Demand)| {
        demand.cpus > whole.cpus
            || demand
                .memory
                .iter()
                .any(|(resource, bytes)| whole.memory.get(resource).is_none_or(|has| has < bytes))
    };
    match demands.iter().any(beyond) {
        true => Err(unexpected("a container asks for more than its pod".into())),
        false => Ok(()),
    }
}

fn misaligned() -> Refusal {
    Refusal {
        reason: "TopologyAffinityError",
        message: "Resources cannot be allocated with Topology locality".into(),
    }
}

pub(super) fn unexpected(message: String) -> Refusal {
    Refusal { reason: "UnexpectedAdmissionError", message }
}

fn infeasible(message: String) -> Refusal {
    Refusal { reason: "Infeasible", message }
}
