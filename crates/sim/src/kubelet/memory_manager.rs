//! The static Memory Manager's state. Release and reuse
//! follow the kubelet's `pkg/kubelet/cm/memorymanager/policy_static.go` (1.36) exactly, since the split of a
//! block over its nodes depends on them.

use std::collections::{BTreeMap, BTreeSet};

use numacast_core::machine::Id;
use numacast_core::quantity::hugepages_name;

use super::allocation::{Block, MEMORY};
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

    /// Releases a block to its nodes in ascending order, each credited with at most what it has allocated, to
    /// any pod.
    pub(super) fn release(&mut self, block: &Block) {
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
        self.take_blocks(uid).iter().for_each(|block| self.release(block));
    }

    /// Removes a pod and returns the blocks to release.
    pub(super) fn take_blocks(&mut self, uid: &str) -> Vec<Block> {
        let containers = self.entries.remove(uid);
        let of_containers = || containers.into_iter().flatten().flat_map(|(_, blocks)| blocks).collect();
        self.pod_entries.remove(uid).unwrap_or_else(of_containers)
    }

    /// Returns node and resource of the memory whose allocated bytes are not those of the blocks on the node, or
    /// on the nodes that blocks join with it.
    ///
    /// Under `best-effort` a container can get a block on one node of a group, and [`MemoryManager::release`]
    /// then credits this node with bytes that another has.
    pub(super) fn contradictions(&self) -> BTreeSet<(Id, String)> {
        let blocks = self.blocks();
        let mut found = BTreeSet::new();
        for joined in self.joined() {
            let mut difference: BTreeMap<&str, i128> = BTreeMap::new();
            for (resource, pool) in joined.iter().flat_map(|id| &self.nodes[id].pools) {
                *difference.entry(resource).or_default() += i128::from(pool.used);
            }
            let here = blocks.iter().filter(|block| block.split.keys().any(|id| joined.contains(id)));
            for block in here {
                *difference.entry(&block.resource).or_default() -= i128::from(block.bytes);
            }
            for (resource, _) in difference.into_iter().filter(|(_, bytes)| *bytes != 0) {
                found.extend(joined.iter().map(|id| (*id, resource.to_owned())));
            }
        }
        found
    }

    /// Returns every node once, together with those that it shares blocks with or that the kubelet has in a
    /// group with it: a block on one node takes its node out of a group that other blocks still join.
    pub(super) fn joined(&self) -> Vec<BTreeSet<Id>> {
        let blocks = self.blocks().into_iter().map(|block| block.split.keys().copied().collect());
        let cells = self.nodes.values().map(|node| node.cells.clone());
        let mut sets: Vec<BTreeSet<Id>> = Vec::new();
        for nodes in cells.chain(blocks) {
            let nodes: BTreeSet<Id> = nodes;
            let (touched, mut others): (Vec<_>, Vec<_>) =
                sets.into_iter().partition(|set| !set.is_disjoint(&nodes));
            others.push(touched.into_iter().flatten().chain(nodes).collect());
            sets = others;
        }
        sets
    }

    /// All blocks; those of a pod with pod-level resources are the pod's.
    fn blocks(&self) -> Vec<&Block> {
        let is_own = |uid: &String| !self.pod_entries.contains_key(uid);
        let of_containers =
            self.entries.iter().filter(|(uid, _)| is_own(uid)).flat_map(|(_, of)| of.values());
        of_containers.chain(self.pod_entries.values()).flatten().collect()
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
