//! The state and the decisions of the kubelet's CPU, memory and device managers, without I/O and without a
//! clock.
//!
//! The managers keep their state like the kubelet's, and decide with the model that numacast has of it
//! ([`numacast_core::admission`]), which is compared with real kubelets. They share no code with the
//! accounting they are the oracle for.

use std::collections::{BTreeMap, BTreeSet};

use numacast_core::machine::IdSet;

use super::allocation::{Allocation, Rejection, unexpected};
use super::cpu_manager::CpuManager;
use super::device_manager::{self, DeviceManager};
use super::memory_manager::MemoryManager;
use super::pod::{PodSpec, Role};
use super::settings::{KubeletVersion, Settings};
use crate::machine::{Device, MachineSpec};

/// The lifecycle stage of a pod in the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Known but not admitted yet: listed without resources.
    Pending,
    /// Admitted: listed with its resources.
    Active,
    /// All its containers have terminated; the pod object still exists.
    Terminated,
    /// Rejected, or deleted from the API server; its resources are released a little later.
    Removed,
}

/// How pods use a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimUse {
    /// An admitted pod names it.
    pub is_prepared: bool,
    /// The List shows it.
    pub is_listed: bool,
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

    /// Returns true if the pod has this name and is not removed.
    fn is_named(&self, namespace: &str, name: &str) -> bool {
        self.stage != Stage::Removed && self.spec.namespace == namespace && self.spec.name == name
    }
}

/// The managers' state, the current hardware and the pods.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) version: KubeletVersion,
    pub(super) settings: Settings,
    /// The current hardware; the managers know the hardware of the kubelet's start.
    pub(super) hardware: MachineSpec,
    pub(super) cpus: CpuManager,
    pub(super) memory: MemoryManager,
    pub(super) devices: DeviceManager,
    /// By uid.
    pods: BTreeMap<String, Pod>,
}

impl Model {
    /// Creates the managers for this hardware and these kubelet settings, with every plugin registered.
    #[must_use]
    pub fn new(spec: &MachineSpec) -> Self {
        Self::with_version(spec, KubeletVersion::default())
    }

    /// Like [`Model::new`], for a kubelet of this version.
    pub(super) fn with_version(spec: &MachineSpec, version: KubeletVersion) -> Self {
        let settings = Settings::from_keys(&spec.kubelet);
        Self {
            version,
            cpus: CpuManager::new(spec, &settings, version),
            memory: MemoryManager::new(spec, &settings),
            devices: DeviceManager::new(spec),
            hardware: spec.clone(),
            settings,
            pods: BTreeMap::new(),
        }
    }

    /// The pods by uid, in every stage.
    #[must_use]
    pub fn pods(&self) -> &BTreeMap<String, Pod> {
        &self.pods
    }

    /// The pod with this name, unless it is [`Stage::Removed`].
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&Pod> {
        let mut pods = self.pods.values();
        pods.find(|pod| pod.is_named(namespace, name))
    }

    /// The resources of a pod's containers in the order of the specification, regular init containers included.
    #[must_use]
    pub fn allocations(&self, uid: &str) -> Vec<Allocation> {
        let Some(pod) = self.pods.get(uid) else { return Vec::new() };
        pod.spec.containers.iter().map(|container| self.allocation(uid, &container.name)).collect()
    }

    /// The resources of one container according to the managers.
    pub(super) fn allocation(&self, uid: &str, container: &str) -> Allocation {
        let cpus = self.cpus.entries.get(uid).and_then(|of| of.get(container));
        let memory = self.memory.entries.get(uid).and_then(|of| of.get(container));
        let devices = self.devices.entries.get(uid).and_then(|of| of.get(container));
        Allocation {
            container: container.to_owned(),
            cpus: cpus.cloned().unwrap_or_default(),
            memory: memory.cloned().unwrap_or_default(),
            devices: devices.cloned().unwrap_or_default(),
        }
    }

    /// The claims that pods name which are not terminal.
    #[must_use]
    pub fn claims_in_use(&self) -> BTreeMap<String, ClaimUse> {
        let mut claims: BTreeMap<String, ClaimUse> = BTreeMap::new();
        for pod in self.pods.values().filter(|pod| matches!(pod.stage, Stage::Pending | Stage::Active)) {
            for container in &pod.spec.containers {
                for claimed in &container.claims {
                    let of = claims.entry(claimed.claim.clone()).or_default();
                    of.is_prepared |= pod.is_active();
                    of.is_listed |= pod.is_active() && container.role != Role::Init;
                }
            }
        }
        claims
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
    pub fn add(&mut self, spec: PodSpec) -> Result<(), Rejection> {
        if self.pods.get(&spec.uid).is_some_and(|pod| pod.stage == Stage::Removed) {
            self.release_stale();
        }
        if self.pods.contains_key(&spec.uid) || self.pod(&spec.namespace, &spec.name).is_some() {
            return Err(Rejection {
                reason: "AlreadyExists",
                message: format!("pods \"{}\" already exists", spec.name),
            });
        }
        let order = self.pods.values().map(|pod| pod.order + 1).max().unwrap_or_default();
        self.pods.insert(spec.uid.clone(), Pod { spec, stage: Stage::Pending, order });
        Ok(())
    }

    /// Admits a pending pod. Like the kubelet, first releases the resources of removed pods.
    ///
    /// # Errors
    /// The kubelet's rejection. The pod is terminal and leaves the List; resources allocated to its first
    /// containers before another was rejected stay allocated until the next release.
    pub fn admit(&mut self, uid: &str) -> Result<Vec<Allocation>, Rejection> {
        self.release_stale();
        let spec = match self.pods.get(uid) {
            Some(pod) if pod.stage == Stage::Pending => pod.spec.clone(),
            _ => return Err(unexpected(format!("pod {uid} is not waiting for admission"))),
        };
        let outcome = self.place(&spec);
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.stage = if outcome.is_ok() { Stage::Active } else { Stage::Removed };
        }
        if outcome.is_err() {
            self.drop_removed();
        }
        outcome.map(|()| self.allocations(uid))
    }

    /// Marks a pod's regular init containers as terminated: the Memory Manager releases what they still have;
    /// the other managers keep it until the pod is removed. Returns false if there is no such pod.
    pub fn terminate_init_containers(&mut self, namespace: &str, name: &str) -> bool {
        let Some(pod) = self.pod(namespace, name) else { return false };
        let spec = pod.spec.clone();
        let init = spec.containers.iter().filter(|container| container.role == Role::Init);
        init.for_each(|container| self.memory.remove_container(&spec.uid, &container.name));
        true
    }

    /// Marks all containers of a pod as terminated. Returns the pod's uid.
    pub fn terminate(&mut self, namespace: &str, name: &str) -> Option<String> {
        self.move_to(namespace, name, Stage::Terminated)
    }

    /// Removes a pod from the List; its resources are released later. Returns the pod's uid.
    pub fn remove(&mut self, namespace: &str, name: &str) -> Option<String> {
        self.move_to(namespace, name, Stage::Removed)
    }

    fn move_to(&mut self, namespace: &str, name: &str, stage: Stage) -> Option<String> {
        let pod = self.pods.values_mut().find(|pod| pod.is_named(namespace, name))?;
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
    ) -> Result<(), Rejection> {
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

    /// Runs the CPU Manager's periodic reconciliation, which releases the CPUs of terminated and removed
    /// pods. The Memory Manager and the device manager do so only at the next admission. Returns true if
    /// anything changed.
    pub fn reconcile(&mut self) -> bool {
        let uids = self.cpus.entries.keys().chain(self.cpus.pod_entries.keys());
        let stale: BTreeSet<String> = uids.filter(|uid| !self.is_active(uid)).cloned().collect();
        for uid in &stale {
            self.cpus.remove(uid);
        }
        self.drop_removed();
        !stale.is_empty()
    }

    /// Releases all resources of terminated and removed pods, as each admission does first.
    pub fn release_stale(&mut self) {
        self.reconcile();
        let uids = self.memory.uids();
        for uid in uids.into_iter().filter(|uid| !self.pods.get(uid).is_some_and(Pod::is_active)) {
            self.memory.remove(&uid);
        }
        self.collect_devices();
        self.drop_removed();
    }

    /// Releases the devices of pods that are not active. Each List does this too.
    pub(super) fn collect_devices(&mut self) {
        let pods = &self.pods;
        let active = |uid: &String| pods.get(uid).is_some_and(Pod::is_active);
        self.devices.entries.retain(|uid, _| active(uid));
    }

    /// Drops the removed pods that have no resources left.
    fn drop_removed(&mut self) {
        let Self { cpus, memory, pods, .. } = self;
        let has_resources = |uid: &String| {
            let of_cpus = cpus.entries.contains_key(uid) || cpus.pod_entries.contains_key(uid);
            of_cpus || memory.entries.contains_key(uid) || memory.pod_entries.contains_key(uid)
        };
        pods.retain(|uid, pod| pod.stage != Stage::Removed || has_resources(uid));
    }

    /// Restarts the kubelet: the managers keep their state, plugins have to register again.
    pub(super) fn restart(&mut self) {
        self.cpus.restart();
        self.devices.plugins.values_mut().for_each(|plugin| plugin.registered = false);
    }

    /// Starts a new kubelet on the current hardware, without checkpoints and without pods.
    pub(super) fn reset(&mut self) {
        let plugins = std::mem::take(&mut self.devices.plugins);
        *self = Self::with_version(&self.hardware.clone(), self.version);
        self.devices.plugins = plugins;
        self.restart();
    }

    /// Changes the hardware while the kubelet runs; its managers do not detect it.
    pub(super) fn set_hardware(&mut self, hardware: &MachineSpec) {
        self.hardware = MachineSpec { kubelet: self.hardware.kubelet.clone(), ..hardware.clone() };
    }

    /// Registers or unregisters a resource's plugin. Returns false if there is no such plugin.
    pub fn register(&mut self, resource: &str, registered: bool) -> bool {
        let plugin = self.devices.plugins.get_mut(resource);
        plugin.map(|plugin| plugin.registered = registered).is_some()
    }

    /// Registers a plugin with these devices. Devices that it no longer offers do not exist any more,
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

    /// A copy of the model in which all other pods than these (namespace, name) are removed.
    pub(super) fn restricted_to(&self, listed: &BTreeSet<(String, String)>) -> Self {
        let mut model = self.clone();
        for pod in model.pods.values_mut() {
            if !listed.contains(&(pod.spec.namespace.clone(), pod.spec.name.clone())) {
                pod.stage = Stage::Removed;
            }
        }
        model
    }

    /// A copy of the model with the device plugins of another one.
    #[must_use]
    pub fn with_plugins_of(&self, other: &Self) -> Self {
        let mut model = self.clone();
        model.devices.plugins.clone_from(&other.devices.plugins);
        model
    }

    /// The NUMA nodes that exclusive resources of containers are on.
    #[must_use]
    pub fn zones_of(&self, allocations: &[Allocation]) -> IdSet {
        let mut zones = IdSet::new();
        for allocation in allocations {
            let nodes = self.memory.nodes.keys();
            let cpus = nodes.filter(|id| self.cpus.of_node(**id).intersects(&allocation.cpus));
            cpus.for_each(|id| zones.insert(*id));
            let parts = allocation.memory.iter().flat_map(|block| &block.split);
            parts.filter(|(_, bytes)| **bytes > 0).for_each(|(id, _)| zones.insert(*id));
            allocation.devices.values().flatten().for_each(|(_, nodes)| zones.union_with(nodes));
        }
        zones
    }
}

fn infeasible(message: String) -> Rejection {
    Rejection { reason: "Infeasible", message }
}
