//! The state and the decisions of the kubelet's CPU, memory and device managers, without I/O and without a
//! clock.
//!
//! The managers keep their state like the kubelet's, but search for placements more simply: they prefer one
//! NUMA node, spread over several if the policy allows it, and reject the pod otherwise. They share no code
//! with the accounting they are the oracle for.

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

/// Why the kubelet rejects a pod or a resize: the reason and message in the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Refusal {
    /// `TopologyAffinityError`, `UnexpectedAdmissionError`, `SMTAlignmentError`, `AlreadyExists` and others.
    pub reason: &'static str,
    /// Human-readable.
    pub message: String,
}

/// An amount of memory allocated from a group of NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// `memory` or `hugepages-<size>`.
    pub resource: String,
    /// The total, in bytes.
    pub bytes: u64,
    /// The nodes, and the bytes each contributed at allocation. Afterwards only the set of nodes is
    /// significant: memory that another pod releases may be credited to any of them.
    pub split: BTreeMap<Id, u64>,
}

/// The resources allocated to one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The container's name.
    pub container: String,
    /// Exclusive CPUs.
    pub cpus: IdSet,
    /// Memory and huge pages.
    pub memory: Vec<Block>,
    /// Resource to its devices, each with its NUMA nodes at the time of allocation.
    pub devices: BTreeMap<String, HeldDevices>,
}

/// The lifecycle stage of a pod in the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Known but not admitted yet: listed without resources.
    Announced,
    /// Admitted: listed with its resources.
    Active,
    /// All its containers have terminated; the pod object still exists.
    Finished,
    /// Rejected, or deleted from the API server; its resources are released a little later.
    Gone,
}

/// One pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The specification.
    pub spec: PodSpec,
    /// The lifecycle stage.
    pub stage: Stage,
    /// Increases from pod to pod in the order in which the kubelet received them.
    pub(super) order: u64,
}

impl Pod {
    fn is_active(&self) -> bool {
        self.stage == Stage::Active
    }
}

/// The managers' state, the current hardware and the pods.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) age: Age,
    pub(super) settings: Settings,
    /// The current hardware; the managers know the hardware of the kubelet's start.
    pub(super) hardware: MachineSpec,
    pub(super) cpus: CpuManager,
    pub(super) memory: MemoryManager,
    pub(super) devices: DeviceManager,
    /// By uid.
    pods: BTreeMap<String, Pod>,
}

/// The resources that a container or pod requests from the managers.
#[derive(Clone, Debug, Default)]
struct Demand {
    cpus: u64,
    memory: Request,
    devices: BTreeMap<String, u64>,
}

/// Resources of the plain init containers that later containers of the pod being admitted can reuse.
#[derive(Debug, Default)]
struct Reuse {
    cpus: IdSet,
    memory: memory_manager::Reusable,
    devices: device_manager::Reusable,
}

impl Model {
    /// Creates the managers for this hardware and these kubelet settings, with every plugin registered.
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

    /// Like [`Model::new`], for a kubelet of this age.
    pub(super) fn aged(spec: &MachineSpec, age: Age) -> Self {
        Self { age, ..Self::new(spec) }
    }

    /// The pods by uid, in every stage.
    #[must_use]
    pub fn pods(&self) -> &BTreeMap<String, Pod> {
        &self.pods
    }

    /// The pod with this name, unless it is [`Stage::Gone`].
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        self.pods
            .values()
            .find(|pod| pod.stage != Stage::Gone && pod.spec.namespace == namespace && pod.spec.name == name)
    }

    /// The resources of a pod's containers in the order of the specification, plain init containers included.
    #[must_use]
    pub fn given(&self, uid: &str) -> Vec<Given> {
        let Some(pod) = self.pods.get(uid) else { return Vec::new() };
        pod.spec.containers.iter().map(|container| self.held_by(uid, &container.name)).collect()
    }

    /// The resources of one container according to the managers.
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

    /// Uids of the active pods, which the List reports with their resources.
    pub(super) fn active(&self) -> impl Iterator<Item = &String> {
        self.pods.iter().filter(|(_, pod)| pod.stage == Stage::Active).map(|(uid, _)| uid)
    }

    pub(super) fn is_active(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(Pod::is_active)
    }

    /// Adds a pod. From now on it is listed, without resources.
    ///
    /// # Errors
    /// When a pod with this name or uid exists.
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
        let order = self.pods.values().map(|pod| pod.order + 1).max().unwrap_or_default();
        self.pods.insert(spec.uid.clone(), Pod { spec, stage: Stage::Announced, order });
        Ok(())
    }

    /// Admits an announced pod. Like the kubelet, first releases the resources of pods that are gone.
    ///
    /// # Errors
    /// The kubelet's rejection. The pod is terminal and leaves the List; resources allocated to its first
    /// containers before another was rejected stay allocated until the next release.
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

    /// Marks a pod's plain init containers as terminated: the Memory Manager releases what they still have;
    /// the other managers keep it until the pod is gone. Returns false if there is no such pod.
    pub fn end_init(&mut self, namespace: &str, name: &str) -> bool {
        let Some(pod) = self.pod(namespace, name) else { return false };
        let spec = pod.spec.clone();
        let init = spec.containers.iter().filter(|container| container.role == Role::Init);
        init.for_each(|container| self.memory.remove_container(&spec.uid, &container.name));
        true
    }

    /// Marks all containers of a pod as terminated. Returns the pod's uid.
    pub fn finish(&mut self, namespace: &str, name: &str) -> Option<String> {
        self.move_to(namespace, name, Stage::Finished)
    }

    /// Removes a pod from the List; its resources are released later. Returns the pod's uid.
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

    /// Resizes one container in place, to this many millicores and bytes of memory.
    ///
    /// # Errors
    /// Resizes that the kubelet considers infeasible (its `pkg/kubelet/allocation/handlers.go`, 1.33 to
    /// 1.37): any change of exclusive resources.
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

    /// Runs the CPU Manager's periodic reconciliation, which releases the CPUs of pods that are finished or
    /// gone. The Memory Manager and the device manager do so only at the next admission. Returns true if
    /// anything changed.
    pub fn reconcile(&mut self) -> bool {
        let holders = self.cpus.entries.keys().chain(self.cpus.pod_entries.keys());
        let stale: BTreeSet<String> = holders.filter(|uid| !self.is_active(uid)).cloned().collect();
        for uid in &stale {
            self.cpus.remove(uid);
        }
        self.forget_gone();
        !stale.is_empty()
    }

    /// Releases all resources of pods that are finished or gone, as each admission does first.
    pub fn settle(&mut self) {
        self.reconcile();
        let holders = self.memory.holders();
        for uid in holders.into_iter().filter(|uid| !self.pods.get(uid).is_some_and(Pod::is_active)) {
            self.memory.remove(&uid);
        }
        self.collect_devices();
        self.forget_gone();
    }

    /// Releases the devices of pods that are not active. Each List does this too.
    pub(super) fn collect_devices(&mut self) {
        let pods = &self.pods;
        let active = |uid: &String| pods.get(uid).is_some_and(Pod::is_active);
        self.devices.entries.retain(|uid, _| active(uid));
    }

    /// Forgets the pods that are gone and have no resources left.
    fn forget_gone(&mut self) {
        let Self { cpus, memory, pods, .. } = self;
        let holds = |uid: &String| {
            let of_cpus = cpus.entries.contains_key(uid) || cpus.pod_entries.contains_key(uid);
            of_cpus || memory.entries.contains_key(uid) || memory.pod_entries.contains_key(uid)
        };
        pods.retain(|uid, pod| pod.stage != Stage::Gone || holds(uid));
    }

    /// Restarts the kubelet: the managers keep their state, plugins have to register again.
    pub(super) fn restart(&mut self) {
        self.cpus.restart();
        self.devices.plugins.values_mut().for_each(|plugin| plugin.registered = false);
    }

    /// Starts a new kubelet on the current hardware, without checkpoints and without pods.
    pub(super) fn reset(&mut self) {
        let plugins = std::mem::take(&mut self.devices.plugins);
        *self = Self { age: self.age, ..Self::new(&self.hardware) };
        self.devices.plugins = plugins;
        self.restart();
    }

    /// Changes the hardware while the kubelet runs; its managers do not notice.
    pub(super) fn set_hardware(&mut self, hardware: &MachineSpec) {
        self.hardware = MachineSpec { kubelet: self.hardware.kubelet.clone(), ..hardware.clone() };
    }

    /// Registers or unregisters a resource's plugin. Returns false if there is no such plugin.
    pub fn register(&mut self, resource: &str, registered: bool) -> bool {
        let plugin = self.devices.plugins.get_mut(resource);
        plugin.map(|plugin| plugin.registered = registered).is_some()
    }

    /// Registers a plugin with these devices. Devices it offered earlier and no longer does are gone,
    /// allocated or not.
    pub fn offer(&mut self, resource: &str, devices: &[Device]) {
        let plugin = self.devices.plugins.entry(resource.to_owned()).or_default();
        plugin.registered = true;
        plugin.devices = device_manager::offered(devices);
    }

    /// Sets the health of a device, as its plugin does. Returns false if there is no such device.
    pub fn set_health(&mut self, resource: &str, id: &str, healthy: bool) -> bool {
        let device = self.devices.plugins.get_mut(resource).and_then(|plugin| plugin.devices.get_mut(id));
        device.map(|device| device.healthy = healthy).is_some()
    }

    /// A copy of the model in which all other pods than these (namespace, name) are gone.
    pub(super) fn restricted_to(&self, told: &BTreeSet<(String, String)>) -> Self {
        let mut model = self.clone();
        for pod in model.pods.values_mut() {
            if !told.contains(&(pod.spec.namespace.clone(), pod.spec.name.clone())) {
                pod.stage = Stage::Gone;
            }
        }
        model
    }

    /// A copy of the model with the device plugins of another one.
    #[must_use]
    pub fn offering(&self, other: &Self) -> Self {
        let mut model = self.clone();
        model.devices.plugins.clone_from(&other.devices.plugins);
        model
    }

    /// The NUMA nodes that exclusive resources of containers are on.
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

    /// Places the devices of a pod with pod-level resources. By default, the CPU Manager and the Memory
    /// Manager ignore such pods.
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

    /// Allocates a container's request and records what the next containers can reuse.
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
                // An init container runs on all CPUs that the sidecars before it left over.
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

    /// The Topology Manager's hint: the NUMA nodes to allocate from, or `None` for no preference.
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

/// The most a pod needs at a time: its sidecars and apps together, or a plain init container and the sidecars
/// before it.
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

/// Rejects a pod whose exclusive requests leave nothing for its containers without requests.
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
