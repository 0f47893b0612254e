//! The static Memory Manager: its state, its groups of nodes and its choice of nodes. Release and reuse
//! follow the kubelet's `pkg/kubelet/cm/memorymanager/policy_static.go` (1.36) exactly, since the split of a
//! block over its nodes depends on them.

use std::collections::{BTreeMap, BTreeSet};

use numacast_core::machine::Id;
use numacast_core::quantity::hugepages_name;

use super::allocation::{Block, MEMORY, Rejection, unexpected};
use super::settings::Settings;
use crate::machine::{MachineSpec, NodeSpec};

/// The Memory Manager's state. All of it dates from the kubelet's start, except for the allocations.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryManager {
    pub(super) nodes: BTreeMap<Id, NodeMemory>,
    /// Pod uid to container to its blocks.
    pub(super) entries: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
    /// Pod uid to the blocks of a pod with pod-level resources.
    pub(super) pod_entries: BTreeMap<String, Vec<Block>>,
}

/// One NUMA node in the `machineState`.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeMemory {
    /// Number of blocks on this node.
    pub(super) assignments: usize,
    /// The nodes that share blocks with this one, itself included.
    pub(super) cells: BTreeSet<Id>,
    pub(super) pools: BTreeMap<String, Pool>,
}

/// One type of memory on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) total: u64,
    /// Reserved for the system.
    pub(super) reserved: u64,
    pub(super) allocatable: u64,
    /// Allocated.
    pub(super) used: u64,
}

impl Pool {
    pub(super) fn free(&self) -> u64 {
        self.allocatable.saturating_sub(self.used)
    }
}

/// A container's request: resource to bytes.
pub(super) type Request = BTreeMap<String, u64>;

/// Memory of the regular init containers that later containers of the pod being admitted can reuse: nodes and
/// resource to bytes.
pub(super) type Reusable = BTreeMap<(BTreeSet<Id>, String), u64>;

impl MemoryManager {
    pub(super) fn new(spec: &MachineSpec, settings: &Settings) -> Self {
        let one = |node: &NodeSpec| NodeMemory {
            assignments: 0,
            cells: [node.id].into(),
            pools: pools(spec, node, settings),
        };
        Self { nodes: spec.nodes.iter().map(|node| (node.id, one(node))).collect(), ..Self::default() }
    }

    pub(super) fn pool(&self, node: Id, resource: &str) -> Option<&Pool> {
        self.nodes.get(&node)?.pools.get(resource)
    }

    fn free(&self, set: &BTreeSet<Id>, resource: &str) -> u64 {
        set.iter().filter_map(|node| self.pool(*node, resource)).map(Pool::free).sum()
    }

    /// Returns true if these nodes could serve the request with nothing allocated.
    pub(super) fn could_fit(&self, set: &BTreeSet<Id>, request: &Request) -> bool {
        request.iter().all(|(resource, bytes)| {
            let pools = set.iter().filter_map(|node| self.pool(*node, resource));
            pools.map(|pool| pool.allocatable).sum::<u64>() >= *bytes
        })
    }

    /// Returns true if the request can be allocated on exactly these nodes now.
    pub(super) fn fits(&self, set: &BTreeSet<Id>, request: &Request, reusable: &Reusable) -> bool {
        let enough = |resource: &String, bytes: u64| {
            let reused = reusable.get(&(set.clone(), resource.clone())).copied().unwrap_or(0);
            self.free(set, resource) + reused >= bytes
        };
        request.is_empty()
            || (set.iter().all(|node| self.may_join(*node, set))
                && request.iter().all(|(resource, bytes)| enough(resource, *bytes)))
    }

    /// Returns true if a block on `set` can include `node`. A node with blocks cannot change its group.
    fn may_join(&self, node: Id, set: &BTreeSet<Id>) -> bool {
        self.nodes.get(&node).is_some_and(|node| {
            let is_ungrouped = node.cells.len() == 1;
            if set.len() == 1 { is_ungrouped } else { node.assignments == 0 || node.cells == *set }
        })
    }

    /// The smallest set of nodes that the Memory Manager finds by itself: one node, an existing group, or
    /// several nodes without blocks, those with the most free memory first. (The kubelet tries every
    /// combination; this does not.)
    fn default_set(&self, request: &Request, reusable: &Reusable) -> Option<BTreeSet<Id>> {
        let singles = self.nodes.keys().map(|node| BTreeSet::from([*node]));
        let groups: BTreeSet<&BTreeSet<Id>> =
            self.nodes.values().map(|node| &node.cells).filter(|cells| cells.len() > 1).collect();
        let mut candidates = singles.chain(groups.into_iter().cloned());
        if let Some(set) = candidates.find(|set| self.fits(set, request, reusable)) {
            return Some(set);
        }
        let wanted = request.keys().next()?;
        let mut free: Vec<(u64, Id)> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.assignments == 0)
            .map(|(id, node)| (node.pools.get(wanted).map_or(0, Pool::free), *id))
            .collect();
        free.sort_by_key(|(free, id)| (std::cmp::Reverse(*free), *id));
        let mut set = BTreeSet::new();
        for (_, node) in free.into_iter().filter(|(free, _)| *free > 0) {
            set.insert(node);
            if set.len() > 1 && self.fits(&set, request, reusable) {
                return Some(set);
            }
        }
        None
    }

    /// Chooses the nodes that serve a request.
    pub(super) fn choose(
        &self,
        request: &Request,
        affinity: Option<&BTreeSet<Id>>,
        strict: bool,
        reusable: &Reusable,
    ) -> Result<BTreeSet<Id>, Rejection> {
        let set = match affinity {
            Some(nodes) if self.fits(nodes, request, reusable) => Some(nodes.clone()),
            Some(_) if strict => None,
            _ => self.default_set(request, reusable),
        };
        set.ok_or_else(|| {
            unexpected(
                "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA \
                 nodes with enough memory is available, which is unexpected"
                    .into(),
            )
        })
    }

    /// Allocates a block from its nodes in ascending order, each contributing all it has free until the block
    /// is complete.
    pub(super) fn charge(&mut self, set: &BTreeSet<Id>, resource: &str, bytes: u64) -> BTreeMap<Id, u64> {
        let mut left = bytes;
        let mut split = BTreeMap::new();
        for id in set {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            node.assignments += 1;
            node.cells.clone_from(set);
            let Some(pool) = node.pools.get_mut(resource) else { continue };
            let part = left.min(pool.free());
            pool.used += part;
            left -= part;
            split.insert(*id, part);
        }
        split
    }

    /// Releases a block to its nodes in ascending order, each credited with at most what it has allocated, to
    /// any pod.
    fn release(&mut self, block: &Block) {
        let mut left = block.bytes;
        for id in block.split.keys() {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            node.assignments = node.assignments.saturating_sub(1);
            if node.assignments == 0 {
                node.cells = [*id].into();
            }
            let Some(pool) = node.pools.get_mut(&block.resource) else { continue };
            let part = left.min(pool.used);
            pool.used -= part;
            left -= part;
        }
    }

    /// Allocates a container's memory on `set`, reusing what earlier init containers of its pod had there.
    pub(super) fn allocate(
        &mut self,
        uid: &str,
        container: &str,
        request: &Request,
        set: &BTreeSet<Id>,
        reusable: &Reusable,
    ) {
        let mut blocks = Vec::new();
        for (resource, bytes) in request {
            let reused = reusable.get(&(set.clone(), resource.clone())).copied().unwrap_or(0);
            let mut split = self.charge(set, resource, bytes.saturating_sub(reused));
            // No record exists of the nodes that the reused part is on; from here on only the set of nodes
            // matters.
            for node in set {
                split.entry(*node).or_insert(0);
            }
            blocks.push(Block { resource: resource.clone(), bytes: *bytes, split });
        }
        self.entries.entry(uid.to_owned()).or_default().insert(container.to_owned(), blocks);
    }

    /// Shrinks the entries of earlier init containers by what `container` reuses.
    pub(super) fn shrink_init(&mut self, uid: &str, container: &str, earlier: &[&str]) {
        let Some(of_pod) = self.entries.get_mut(uid) else { return };
        for block in of_pod.get(container).cloned().unwrap_or_default() {
            let mut left = block.bytes;
            for init in earlier {
                let blocks = of_pod.get_mut(*init).into_iter().flatten();
                let alike = |other: &&mut Block| {
                    other.resource == block.resource && other.split.keys().eq(block.split.keys())
                };
                for other in blocks.filter(alike) {
                    let part = left.min(other.bytes);
                    other.bytes -= part;
                    left -= part;
                }
            }
        }
    }

    /// Releases the memory of one container.
    pub(super) fn remove_container(&mut self, uid: &str, container: &str) {
        let blocks = self.entries.get_mut(uid).and_then(|of_pod| of_pod.remove(container));
        if !self.pod_entries.contains_key(uid) {
            blocks.into_iter().flatten().for_each(|block| self.release(&block));
        }
    }

    /// Releases all memory of a pod.
    pub(super) fn remove(&mut self, uid: &str) {
        let containers = self.entries.remove(uid);
        if let Some(blocks) = self.pod_entries.remove(uid) {
            return blocks.iter().for_each(|block| self.release(block));
        }
        containers
            .into_iter()
            .flatten()
            .flat_map(|(_, blocks)| blocks)
            .for_each(|block| self.release(&block));
    }

    /// Uids of the pods with allocated memory.
    pub(super) fn uids(&self) -> BTreeSet<String> {
        self.entries.keys().chain(self.pod_entries.keys()).cloned().collect()
    }
}

fn pools(spec: &MachineSpec, node: &NodeSpec, settings: &Settings) -> BTreeMap<String, Pool> {
    let pages = node.pages();
    let pool = |resource: &str, total: u64, usable: u64| {
        let reserved = settings.reserved(node.id, resource);
        Pool { total, reserved, allocatable: usable.saturating_sub(reserved), used: 0 }
    };
    let mut pools: BTreeMap<String, Pool> = BTreeMap::new();
    for size in spec.page_sizes() {
        let resource = hugepages_name(size);
        let total = pages.get(&size).copied().unwrap_or(0) * size;
        pools.insert(resource.clone(), pool(&resource, total, total));
    }
    let total = node.memory.ceil();
    let in_pages: u64 = pools.values().map(|pool| pool.total).sum();
    pools.insert(MEMORY.to_owned(), pool(MEMORY, total, total.saturating_sub(in_pages)));
    pools
}
