//! The pods of a node, and what each has exclusively, with the ids of the managers' state.

use std::collections::{BTreeMap, BTreeSet};

use super::{ObjectView, Wish};
use crate::admission::{KubeletState, Node, NodeAmounts, NodeSet};
use crate::core_v1::PlacedPod;
use crate::holders::{Holder, holders};
use crate::kubelet::{ContainerUsage, MemoryBlock, PodUsage};
use crate::machine::{Id, IdSet};

/// A pod that has not terminated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodOnNode {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Why its end would not make room.
    pub keep: Option<Keep>,
    /// The PodDisruptionBudgets that count it, by `namespace/name`.
    pub budgets: Vec<String>,
    /// What it requests of the node as a whole.
    pub requests: NodeAmounts,
    /// Exclusive CPUs.
    pub cpus: IdSet,
    /// Memory and huge pages.
    pub memory: Vec<MemoryBlock>,
    /// Resource to ids of devices.
    pub devices: BTreeMap<String, BTreeSet<String>>,
    /// What it has exclusively in zones that are not known: CPUs, bytes or devices by resource.
    pub elsewhere: BTreeMap<String, u64>,
}

/// Why a pod's end makes no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keep {
    /// A DaemonSet would start it again.
    DaemonSet,
    /// The kubelet would start it again: it comes from a manifest.
    Static,
}

impl PodOnNode {
    fn new(placed: &PlacedPod) -> Self {
        let keep = placed.owner.as_ref().and_then(|(kind, _)| match kind.as_str() {
            "DaemonSet" => Some(Keep::DaemonSet),
            "Node" => Some(Keep::Static),
            _ => None,
        });
        Self {
            namespace: placed.pod.namespace.clone(),
            name: placed.pod.name.clone(),
            priority: placed.priority,
            labels: placed.labels.clone(),
            keep,
            requests: Wish::from(placed).of_node,
            ..Self::default()
        }
    }

    /// Returns true if it has something exclusively.
    #[must_use]
    pub fn is_holder(&self) -> bool {
        !self.cpus.is_empty() || !self.memory.is_empty() || !self.devices.is_empty()
    }

    /// Returns what it has of a resource on these NUMA nodes of the machine: CPUs, bytes or devices. Memory on several
    /// nodes counts for the lowest of them.
    #[must_use]
    pub fn amount_on(&self, state: &Node, node: Id, resource: &str) -> u64 {
        if resource == "cpu" {
            let here = |cpus: &crate::admission::Cpus| cpus.topology().in_nodes(NodeSet::one(node));
            return state.cpus.as_ref().map_or(0, |cpus| here(cpus).intersection(&self.cpus).len());
        }
        if let Some(known) = state.devices.resources().get(resource) {
            let is_here =
                |id: &&String| known.devices.get(*id).is_some_and(|device| device.nodes.contains(node));
            return self.devices.get(resource).map_or(0, |ids| ids.iter().filter(is_here).count() as u64);
        }
        let is_here =
            |block: &&MemoryBlock| block.resource == resource && block.nodes.iter().next() == Some(node);
        self.memory.iter().filter(is_here).map(|block| block.bytes).fold(0, u64::saturating_add)
    }

    /// Returns what it has to the managers.
    pub(super) fn release(&self, state: &mut Node) {
        if let Some(cpus) = &mut state.cpus {
            cpus.release(&self.cpus);
        }
        if let Some(memory) = &mut state.memory {
            for block in &self.memory {
                memory.release(NodeSet::from(&block.nodes), &block.resource, block.bytes);
            }
        }
        for (resource, ids) in &self.devices {
            if let Some(resource) = state.devices.resources_mut().get_mut(resource) {
                ids.iter().for_each(|id| _ = resource.allocated.remove(id));
            }
        }
    }
}

/// Returns the pods of a node that is known from its object. What they have in known zones gets ids of the state.
pub(super) fn of_object(state: &Node, object: &ObjectView, placed: &[PlacedPod]) -> Vec<PodOnNode> {
    let mut free = Unassigned::of(state);
    let mut of_pods: BTreeMap<(String, String), Vec<Holder>> = BTreeMap::new();
    for holder in holders(&object.zones, &object.attributes, placed) {
        of_pods.entry((holder.namespace.clone(), holder.pod.clone())).or_default().push(holder);
    }
    let running = placed.iter().filter(|placed| !placed.pod.phase.is_terminal());
    running
        .map(|placed| {
            let mut pod = PodOnNode::new(placed);
            for holder in of_pods.remove(&placed.pod.full_name()).unwrap_or_default() {
                free.assign(&holder, &mut pod);
            }
            pod
        })
        .collect()
}

/// Allocated ids that no pod has got yet.
struct Unassigned {
    cpus: BTreeMap<Id, IdSet>,
    devices: BTreeMap<(Id, String), BTreeSet<String>>,
}

impl Unassigned {
    fn of(state: &Node) -> Self {
        let mut devices: BTreeMap<(Id, String), BTreeSet<String>> = BTreeMap::new();
        for (name, resource) in state.devices.resources() {
            for id in &resource.allocated {
                let nodes = resource.devices.get(id).map(|device| device.nodes).unwrap_or_default();
                for node in nodes.iter() {
                    devices.entry((node, name.clone())).or_default().insert(id.clone());
                }
            }
        }
        let allocated = state.cpus.as_ref().map(|cpus| (cpus, cpus.allocated()));
        let of_node = |id: Id| {
            let (cpus, allocated) = allocated.as_ref()?;
            Some((id, cpus.topology().in_nodes(NodeSet::one(id)).intersection(allocated)))
        };
        Self { cpus: state.nodes.iter().filter_map(of_node).collect(), devices }
    }

    fn assign(&mut self, holder: &Holder, pod: &mut PodOnNode) {
        let zones = holder.zones.as_ref().filter(|zones| zones.len() == 1);
        let Some(zone) = zones.and_then(|zones| zones.iter().next()) else {
            let amounts =
                holder.memory.iter().chain(&holder.devices).map(|(name, amount)| (name.clone(), *amount));
            for (name, amount) in amounts.chain((holder.cpus > 0).then(|| ("cpu".to_owned(), holder.cpus))) {
                let sum = pod.elsewhere.entry(name).or_default();
                *sum = sum.saturating_add(amount);
            }
            return;
        };
        if let Some(cpus) = self.cpus.get_mut(&zone) {
            let count = usize::try_from(holder.cpus).unwrap_or(usize::MAX);
            let taken: IdSet = cpus.iter().take(count).collect();
            *cpus = cpus.difference(&taken);
            pod.cpus.union_with(&taken);
        }
        for (resource, bytes) in &holder.memory {
            let nodes = IdSet::from_iter([zone]);
            pod.memory.push(MemoryBlock { resource: resource.clone(), bytes: *bytes, nodes });
        }
        for (resource, count) in &holder.devices {
            let Some(ids) = self.devices.get_mut(&(zone, resource.clone())) else { continue };
            let taken: Vec<String> =
                ids.iter().take(usize::try_from(*count).unwrap_or(usize::MAX)).cloned().collect();
            taken.iter().for_each(|id| _ = ids.remove(id));
            pod.devices.entry(resource.clone()).or_default().extend(taken);
        }
    }
}

/// Returns the pods that a kubelet lists. Without those of the API server their requests are not known.
pub(super) fn of_kubelet(state: &KubeletState<'_>, placed: Option<&[PlacedPod]>) -> Vec<PodOnNode> {
    let names = state.checkpoints.iter().flat_map(|checkpoints| &checkpoints.names);
    let mut uids: BTreeMap<(String, String), &str> =
        names.map(|(uid, name)| (name.clone(), uid.as_str())).collect();
    let mut pods: BTreeMap<(String, String), PodOnNode> = BTreeMap::new();
    for placed in placed.into_iter().flatten().filter(|placed| !placed.pod.phase.is_terminal()) {
        let pod = PodOnNode::new(placed);
        // The kubelet knows a static pod by another UID.
        if pod.keep != Some(Keep::Static) {
            uids.insert(placed.pod.full_name(), placed.pod.uid.as_str());
        }
        pods.insert(placed.pod.full_name(), pod);
    }
    for usage in &state.usage.pods {
        let unknown = || PodOnNode {
            namespace: usage.namespace.clone(),
            name: usage.name.clone(),
            ..PodOnNode::default()
        };
        let pod = pods.entry(usage.full_name()).or_insert_with(unknown);
        add_listed(usage, pod);
        let uid = uids.get(&usage.full_name()).copied().unwrap_or_default();
        let Some(checkpoints) = state.checkpoints else { continue };
        // With what init containers have left.
        for container in checkpoints.pods.get(uid).into_iter().flatten() {
            add_container(container, pod);
        }
        let blocks = checkpoints.blocks_of(uid);
        if !blocks.is_empty() {
            pod.memory = blocks.into_iter().cloned().collect();
        }
    }
    pods.into_values().collect()
}

fn add_listed(usage: &PodUsage, pod: &mut PodOnNode) {
    pod.cpus.union_with(&usage.cpus);
    usage.containers.iter().for_each(|container| add_container(container, pod));
    let of_containers = usage.containers.iter().flat_map(|container| &container.memory);
    // Blocks of the pod contain those of its containers.
    pod.memory =
        if usage.memory.is_empty() { of_containers.cloned().collect() } else { usage.memory.clone() };
}

fn add_container(container: &ContainerUsage, pod: &mut PodOnNode) {
    pod.cpus.union_with(&container.cpus);
    for group in &container.devices {
        pod.devices.entry(group.resource.clone()).or_default().extend(group.ids.iter().cloned());
    }
}
