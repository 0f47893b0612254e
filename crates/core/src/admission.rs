//! The kubelet's admission as a pure model: whether a kubelet would admit a pod, and which CPUs, memory and
//! devices it would allocate.
//!
//! It follows the Topology Manager, the static CPU Manager, the static Memory Manager and the device manager of
//! Kubernetes 1.34 to 1.37 (`pkg/kubelet/cm`), their defects included: with the same state it gives the same
//! answer. Only which of several equal devices a container gets is the kubelet's arbitrary choice, or that of a
//! plugin with `GetPreferredAllocation`. Not modelled are node ids above 63, at which kubelets panic, and unhealthy
//! devices that no pod has, which kubelets do not report.
//!
//! No I/O, no clock. The state comes from a kubelet's checkpoints, where the ids are known, or from a published
//! object, where only the amounts are.

mod cpus;
mod devices;
mod from_kubelet;
mod from_zones;
mod hints;
mod memory;
mod node_set;
mod ordinary;
mod pod;
mod refusal;

use std::collections::{BTreeMap, BTreeSet};

use self::hints::{Hint, Merger, ResourceHints};
use crate::machine::IdSet;
use crate::pod::ContainerKind;

pub use crate::quantity::NodeAmounts;
pub use cpus::{CpuOptions, CpuTopology, Cpus};
pub use devices::{Device, DeviceChoice, DeviceCounts, Devices, Resource};
pub use from_kubelet::KubeletState;
pub use from_zones::{Guess, ZoneReader, guesses};
pub use hints::Distances;
pub use memory::{Bytes, Memory, MemoryBlocks, MemoryKind, MemoryNode};
pub use node_set::NodeSet;
pub use ordinary::insufficient;
pub use pod::{ContainerRequest, PodLevelRequest, PodRequest};
pub use refusal::{Reason, Refusal};

/// The Topology Manager's policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// No alignment.
    #[default]
    None,
    /// Aligned if possible.
    BestEffort,
    /// Only on as few nodes as the request needs on an empty machine.
    Restricted,
    /// Only on one node.
    SingleNumaNode,
}

/// What is aligned together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each container by itself.
    #[default]
    Container,
    /// The whole pod.
    Pod,
}

/// The parts of the kubelet's configuration and version that decide admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the kubelet has an option or a gate for each")]
pub struct Settings {
    /// `topologyManagerPolicy`.
    pub policy: TopologyPolicy,
    /// `topologyManagerScope`.
    pub scope: Scope,
    /// The option `prefer-closest-numa-nodes`.
    pub prefer_closest: bool,
    /// The feature gate `PodLevelResourceManagers`: pod-level CPUs and memory are allocated exclusively.
    pub pod_level_managers: bool,
    /// Since 1.36 the device manager considers only nodes with devices of the resource.
    pub device_hints_skip_other_nodes: bool,
    /// The kubelet is older than those that the model follows.
    pub is_older: bool,
    /// Before 1.37 a container of a pod with pod-level resources that has no memory of its own is allocated
    /// memory all the same: no bytes, which can fail.
    pub allocates_zero_bytes: bool,
}

/// The state of a kubelet's resource managers.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The kubelet's configuration.
    pub settings: Settings,
    /// Every NUMA node.
    pub nodes: NodeSet,
    /// The nodes' distances.
    pub distances: Distances,
    /// The CPU Manager, with the policy `static`.
    pub cpus: Option<Cpus>,
    /// The Memory Manager, with the policy `Static`.
    pub memory: Option<Memory>,
    /// The device manager.
    pub devices: Devices,
}

/// What one container, or a whole pod with pod-level resources, is allocated exclusively.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The container; empty for the pod.
    pub container: String,
    /// Whether it has the CPUs and the memory together with other containers of its pod.
    pub shared: bool,
    /// CPUs.
    pub cpus: IdSet,
    /// Memory and huge pages.
    pub memory: Option<MemoryBlocks>,
    /// Devices by resource.
    pub devices: BTreeMap<String, DeviceChoice>,
}

/// Chooses devices: container, resource, what the kubelet can choose from.
pub type Chooser<'a> = &'a dyn Fn(&str, &str, &DeviceChoice) -> BTreeSet<String>;

/// What later containers of a pod can use of what its init containers had.
#[derive(Default)]
struct Reusable {
    cpus: IdSet,
    memory: memory::Reusable,
    devices: devices::Reusable,
}

impl Node {
    /// Admits a pod: allocates what its containers request exclusively, init containers first.
    ///
    /// # Errors
    /// Why the kubelet refuses the pod. What it was allocated before that ([`Refusal::placed`]) stays allocated,
    /// as in the kubelet until the pod is removed.
    pub fn admit(&mut self, pod: &PodRequest) -> Result<Vec<Placement>, Refusal> {
        self.admit_choosing(pod, &|_, _, choice| choice.ids())
    }

    /// Like [`Node::admit`], with the kubelet's arbitrary choices: `choose` gets a container, a resource and what
    /// the kubelet can choose from, and returns the ids of the devices.
    ///
    /// # Errors
    /// As [`Node::admit`].
    pub fn admit_choosing(
        &mut self,
        pod: &PodRequest,
        choose: Chooser<'_>,
    ) -> Result<Vec<Placement>, Refusal> {
        let whole = self.settings.scope == Scope::Pod && self.settings.policy != TopologyPolicy::None;
        let hint = match whole {
            true if self.is_pod_level(pod) => return self.admit_pod_level(pod, choose),
            true => Some(self.merge(&self.pod_hints(pod), "")?),
            false => None,
        };
        self.admit_containers(pod, hint, choose)
    }

    /// Like [`Node::admit`], if the Topology Manager had chosen these nodes for all of the pod.
    ///
    /// # Errors
    /// As [`Node::admit`].
    pub fn admit_on(&mut self, pod: &PodRequest, nodes: NodeSet) -> Result<Vec<Placement>, Refusal> {
        let hint = Hint { nodes: Some(nodes), preferred: true };
        self.admit_containers(pod, Some(hint), &|_, _, choice| choice.ids())
    }

    /// Admits the containers one after another; `of_pod` is the hint for all of them, if it is decided already.
    fn admit_containers(
        &mut self,
        pod: &PodRequest,
        of_pod: Option<Hint>,
        choose: Chooser<'_>,
    ) -> Result<Vec<Placement>, Refusal> {
        let mut reusable = Reusable::default();
        let mut placements = Vec::new();
        for container in &pod.containers {
            let hint = match of_pod {
                Some(hint) => Ok(hint),
                None => self.container_hint(pod, container, &reusable),
            };
            let mut placement = Placement { container: container.name.clone(), ..Placement::default() };
            let placed = hint
                .and_then(|hint| self.allocate(pod, container, hint, &mut reusable, choose, &mut placement));
            placements.push(placement);
            if let Err(refusal) = placed {
                return Err(refusal.in_container(&container.name).after(placements));
            }
        }
        Ok(placements)
    }

    fn container_hint(
        &self,
        pod: &PodRequest,
        container: &ContainerRequest,
        reusable: &Reusable,
    ) -> Result<Hint, Refusal> {
        if self.settings.policy == TopologyPolicy::None {
            return Ok(NO_HINT);
        }
        let hints = self.all_hints(
            &container.devices,
            self.cpus_of(pod, container),
            &self.memory_of(pod, container),
            reusable,
        );
        self.merge(&hints, &container.name).map_err(|refusal| refusal.of_pod_level(self.is_pod_level(pod)))
    }

    fn is_pod_level(&self, pod: &PodRequest) -> bool {
        self.settings.pod_level_managers && pod.pod_level.is_some()
    }

    /// The largest sets of nodes for which hints are of use.
    fn most_nodes(&self) -> u32 {
        if self.settings.policy == TopologyPolicy::SingleNumaNode { 1 } else { u32::MAX }
    }

    /// Merges hints for a container or, with an empty name, for the pod.
    fn merge(&self, hints: &[ResourceHints], container: &str) -> Result<Hint, Refusal> {
        let merger =
            Merger { policy: self.settings.policy, all: self.nodes, distances: self.distances_for_merging() };
        match merger.merge(hints) {
            (hint, true) => Ok(hint),
            (_, false) => Err(Refusal::misaligned(merger.blocking(hints)).in_container(container)),
        }
    }

    fn distances_for_merging(&self) -> Option<Distances> {
        let used = self.settings.prefer_closest && self.settings.policy != TopologyPolicy::SingleNumaNode;
        used.then(|| self.distances.clone())
    }

    fn pod_hints(&self, pod: &PodRequest) -> Vec<ResourceHints> {
        let cpus = pod.peak(|container| self.cpus_of(pod, container));
        let memory = pod.memory_peak(|container| self.memory_of(pod, container));
        self.all_hints(&pod.devices_peak(), cpus, &memory, &Reusable::default())
    }

    fn all_hints(
        &self,
        devices: &DeviceCounts,
        cpus: u64,
        memory: &Bytes,
        reusable: &Reusable,
    ) -> Vec<ResourceHints> {
        let most = self.most_nodes();
        let nodes = devices::Nodes {
            all: self.nodes,
            with_devices_only: self.settings.device_hints_skip_other_nodes,
        };
        let mut hints = self.devices.hints(devices, &reusable.devices, nodes, most);
        if let Some(manager) = self.cpus.as_ref().filter(|_| cpus > 0) {
            let of_cpus = manager.hints(cpus, &reusable.cpus, most);
            hints.push(ResourceHints { resource: "cpu".to_owned(), hints: Some(of_cpus) });
        }
        if let Some(manager) = self.memory.as_ref() {
            hints.extend(manager.hints(memory, &reusable.memory, most));
        }
        hints
    }

    fn allocate(
        &mut self,
        pod: &PodRequest,
        container: &ContainerRequest,
        hint: Hint,
        reusable: &mut Reusable,
        choose: Chooser<'_>,
        placement: &mut Placement,
    ) -> Result<(), Refusal> {
        let init = container.kind == ContainerKind::Init;
        self.allocate_devices(container, hint, reusable, choose, placement)?;
        let (cpus, memory) = (self.cpus_of(pod, container), self.memory_of(pod, container));
        if let Some(manager) = self.cpus.as_mut().filter(|_| cpus > 0) {
            manager.check_full_cores(cpus)?;
            placement.cpus = manager.choose(cpus, hint.nodes, &reusable.cpus)?;
            match init {
                true => reusable.cpus.union_with(&placement.cpus),
                false => reusable.cpus = reusable.cpus.difference(&placement.cpus),
            }
        }
        let allocates_none = self.settings.allocates_zero_bytes && pod.guaranteed && self.is_pod_level(pod);
        if let Some(manager) = self.memory.as_mut().filter(|_| !memory.is_empty() || allocates_none) {
            let blocks = manager.allocate(&memory, hint, &reusable.memory)?;
            memory::update_reusable(&mut reusable.memory, &blocks, init);
            placement.memory = Some(blocks);
        }
        Ok(())
    }

    fn allocate_devices(
        &mut self,
        container: &ContainerRequest,
        hint: Hint,
        reusable: &mut Reusable,
        choose: Chooser<'_>,
        placement: &mut Placement,
    ) -> Result<(), Refusal> {
        let choose = |resource: &str, choice: &DeviceChoice| choose(&container.name, resource, choice);
        placement.devices = self.devices.allocate(&container.devices, hint, &reusable.devices, &choose)?;
        for (resource, choice) in &placement.devices {
            let reused = reusable.devices.entry(resource.clone()).or_default();
            match container.kind {
                ContainerKind::Init => reused.extend(choice.chosen.iter().cloned()),
                _ => choice.chosen.iter().for_each(|id| _ = reused.remove(id)),
            }
        }
        Ok(())
    }

    /// Returns what a container or, with an empty name, the whole pod requests exclusively: CPUs, bytes or devices.
    #[must_use]
    pub fn requests_of(&self, pod: &PodRequest, container: &str) -> Bytes {
        let named = pod.containers.iter().find(|one| one.name == container).filter(|_| !container.is_empty());
        let (cpus, mut requests, devices) = match named {
            Some(one) => (self.cpus_of(pod, one), self.memory_of(pod, one), one.devices.clone()),
            None if self.is_pod_level(pod) => {
                let (cpus, memory) = self.pod_level_of(pod);
                (cpus, memory, pod.devices_peak())
            }
            None => (
                pod.peak(|one| self.cpus_of(pod, one)),
                pod.memory_peak(|one| self.memory_of(pod, one)),
                pod.devices_peak(),
            ),
        };
        requests.extend((cpus > 0).then(|| ("cpu".to_owned(), cpus)));
        requests.extend(devices.into_iter().filter(|(_, count)| *count > 0));
        requests
    }

    /// Returns the exclusive CPUs of a container.
    fn cpus_of(&self, pod: &PodRequest, container: &ContainerRequest) -> u64 {
        let whole = container.cpu_milli.is_multiple_of(1000);
        match self.cpus.is_some() && whole && self.is_managed(pod, container) {
            true => container.cpu_milli / 1000,
            false => 0,
        }
    }

    fn memory_of(&self, pod: &PodRequest, container: &ContainerRequest) -> Bytes {
        match self.memory.is_some() && self.is_managed(pod, container) {
            true => container.memory.clone(),
            false => Bytes::new(),
        }
    }

    /// Returns true if the container's CPUs and memory can be exclusive.
    fn is_managed(&self, pod: &PodRequest, container: &ContainerRequest) -> bool {
        let pod_level = pod.pod_level.is_none() || self.settings.pod_level_managers && container.guaranteed;
        pod.guaranteed && pod_level
    }

    /// Admits a pod with pod-level resources as a whole: it is allocated CPUs and memory once, which its
    /// containers share or divide.
    fn admit_pod_level(&mut self, pod: &PodRequest, choose: Chooser<'_>) -> Result<Vec<Placement>, Refusal> {
        let (cpus, memory) = self.pod_level_of(pod);
        let shared_cpus = self.check_shared_cpus(pod, cpus);
        let shared_memory = self.check_shared_memory(pod, &memory);
        let mut hints = self.all_hints(&pod.devices_peak(), cpus, &memory, &Reusable::default());
        for hint in &mut hints {
            let is_invalid = match hint.resource.as_str() {
                "cpu" => shared_cpus.is_err(),
                name => memory.contains_key(name) && shared_memory.is_err(),
            };
            if is_invalid {
                hint.hints = Some(Vec::new());
            }
        }
        let hint = self.merge(&hints, "").map_err(|refusal| refusal.of_pod_level(true))?;
        let mut of_pod = Placement::default();
        if let Some(manager) = self.cpus.as_mut().filter(|_| cpus > 0) {
            shared_cpus?;
            manager.check_full_cores(cpus)?;
            of_pod.cpus = manager.choose(cpus, hint.nodes, &IdSet::new())?;
        }
        let after_cpus = |refusal: Refusal| refusal.after(vec![of_pod.clone()]);
        let mut placements = self.divide_cpus(pod, &of_pod.cpus).map_err(after_cpus)?;
        if let Some(manager) = self.memory.as_mut().filter(|_| pod.guaranteed) {
            shared_memory.map_err(after_cpus)?;
            let blocks = manager.allocate(&memory, hint, &memory::Reusable::new());
            of_pod.memory = Some(blocks.map_err(|refusal| refusal.after(vec![of_pod.clone()]))?);
        }
        self.divide_memory(pod, &of_pod, &mut placements);
        // The kubelet does so when it starts the containers.
        let mut reusable = Reusable::default();
        for (container, placement) in pod.containers.iter().zip(&mut placements) {
            let placed = self.allocate_devices(container, hint, &mut reusable, choose, placement);
            placed.map_err(|refusal| refusal.in_container(&container.name).after(vec![of_pod.clone()]))?;
        }
        Ok(std::iter::once(of_pod).chain(placements).collect())
    }

    /// Returns the exclusive CPUs and memory of a pod with pod-level resources.
    fn pod_level_of(&self, pod: &PodRequest) -> (u64, Bytes) {
        let Some(level) = pod.pod_level.as_ref().filter(|_| pod.guaranteed) else { return (0, Bytes::new()) };
        let whole = self.cpus.is_some() && level.cpu_milli.is_multiple_of(1000);
        let memory = if self.memory.is_some() { level.memory.clone() } else { Bytes::new() };
        (if whole { level.cpu_milli / 1000 } else { 0 }, memory)
    }

    /// Divides the pod's CPUs: each container gets those of its own or what the others leave.
    fn divide_cpus(&self, pod: &PodRequest, all: &IdSet) -> Result<Vec<Placement>, Refusal> {
        let mut left = all.clone();
        let mut placements = Vec::new();
        for container in &pod.containers {
            let mut placement = Placement { container: container.name.clone(), ..Placement::default() };
            let count = self.cpus_of(pod, container);
            match self.cpus.as_ref().filter(|_| count > 0 && !all.is_empty()) {
                Some(manager) => placement.cpus = manager.take(&left, count)?,
                None => placement.shared = true,
            }
            match container.kind {
                ContainerKind::Init if placement.shared => placement.cpus.clone_from(&left),
                ContainerKind::Init => {}
                _ => left = left.difference(&placement.cpus),
            }
            placements.push(placement);
        }
        let lasting = pod.containers.iter().map(|container| container.kind != ContainerKind::Init);
        let shared =
            placements.iter_mut().zip(lasting).filter(|(placement, lasting)| placement.shared && *lasting);
        shared.for_each(|(placement, _)| placement.cpus.clone_from(&left));
        Ok(placements)
    }

    /// Divides the pod's memory likewise.
    fn divide_memory(&self, pod: &PodRequest, of_pod: &Placement, placements: &mut [Placement]) {
        let Some(all) = &of_pod.memory else { return };
        let part = |bytes: &Bytes| {
            let bytes = bytes.iter().filter(|(_, bytes)| **bytes > 0);
            let bytes = bytes.map(|(kind, bytes)| (kind.clone(), *bytes)).collect();
            Some(MemoryBlocks { nodes: all.nodes, bytes, split: BTreeMap::new() })
        };
        let mut left = all.bytes.clone();
        let mut sharing = Vec::new();
        for (container, placement) in pod.containers.iter().zip(placements) {
            let own = self.memory_of(pod, container);
            match (own.is_empty(), container.kind) {
                (true, ContainerKind::Init) => placement.memory = part(&left),
                (true, _) => sharing.push(placement),
                (false, kind) => {
                    placement.memory = part(&own);
                    for (name, bytes) in own.into_iter().filter(|_| kind != ContainerKind::Init) {
                        let left = left.entry(name).or_default();
                        *left = left.saturating_sub(bytes);
                    }
                }
            }
        }
        sharing.into_iter().for_each(|placement| placement.memory = part(&left));
    }

    /// Refuses a pod whose containers with CPUs of their own leave none for the others.
    fn check_shared_cpus(&self, pod: &PodRequest, total: u64) -> Result<(), Refusal> {
        let requests = pod.containers.iter().map(|container| {
            let cpus = self.cpus_of(pod, container);
            let request = (cpus > 0).then(|| Bytes::from([("cpu".to_owned(), cpus)]));
            (container.kind, request.unwrap_or_default())
        });
        pod::check_shared(requests, &Bytes::from([("cpu".to_owned(), total)]), "cpus")
    }

    fn check_shared_memory(&self, pod: &PodRequest, total: &Bytes) -> Result<(), Refusal> {
        let requests =
            pod.containers.iter().map(|container| (container.kind, self.memory_of(pod, container)));
        pod::check_shared(requests, total, "memory")
    }
}

/// What the Topology Manager's policy `none` tells the managers.
const NO_HINT: Hint = Hint { nodes: None, preferred: false };

#[cfg(test)]
pub(crate) mod tests;
