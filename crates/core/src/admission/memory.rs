//! The static Memory Manager (upstream: `memorymanager/policy_static.go`, 1.34 to 1.37).

use std::collections::BTreeMap;

use super::hints::{Hint, ResourceHints, mark_preferred};
use super::node_set::PerNode;
use super::{NodeSet, Refusal};
use crate::machine::Id;

/// Bytes by `memory` or `hugepages-<size>`.
pub type Bytes = BTreeMap<String, u64>;

/// The static Memory Manager's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    nodes: BTreeMap<Id, MemoryNode>,
}

/// The number of a node's blocks if it has some and they were not counted.
pub(super) const UNCOUNTED: u64 = u64::MAX;

/// The memory of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNode {
    /// The number of blocks on this node, or `u64::MAX` if it has some and their number is not known.
    pub blocks: u64,
    /// The nodes that share blocks with this one, itself included.
    pub group: NodeSet,
    /// By `memory` or `hugepages-<size>`.
    pub kinds: BTreeMap<String, MemoryKind>,
}

/// One kind of memory of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryKind {
    /// Bytes that can be allocated.
    pub allocatable: u64,
    /// Bytes of them that are allocated.
    pub allocated: u64,
}

impl MemoryKind {
    /// Returns the bytes that are not allocated.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.allocatable.saturating_sub(self.allocated)
    }
}

/// A container's memory: the same nodes for each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryBlocks {
    /// The nodes.
    pub nodes: NodeSet,
    /// The bytes of each kind, what the container reuses of its pod's init containers included.
    pub bytes: Bytes,
    /// What each node gives of each kind, without what is reused.
    pub split: BTreeMap<String, BTreeMap<Id, u64>>,
}

/// Memory of a pod's init containers that its later containers can use.
pub(super) type Reusable = BTreeMap<(NodeSet, String), u64>;

impl Memory {
    /// Creates the state from that of each node.
    #[must_use]
    pub const fn new(nodes: BTreeMap<Id, MemoryNode>) -> Self {
        Self { nodes }
    }

    /// Returns the nodes.
    #[must_use]
    pub const fn nodes(&self) -> &BTreeMap<Id, MemoryNode> {
        &self.nodes
    }

    /// Returns the nodes, to change their allocations.
    pub const fn nodes_mut(&mut self) -> &mut BTreeMap<Id, MemoryNode> {
        &mut self.nodes
    }

    /// Returns where a request fits, with the same hints for each of its resources. Hints of more than `most`
    /// nodes are left out.
    pub(super) fn hints(&self, request: &Bytes, reusable: &Reusable, most: u32) -> Vec<ResourceHints> {
        if request.is_empty() {
            return vec![ResourceHints { resource: "memory".to_owned(), hints: None }];
        }
        let hints = self.sets(request, reusable, most);
        // Without any hint, of whatever number of nodes, the kubelet names no resource, and that means that the
        // request fits anywhere.
        let hints = Some(hints).filter(|hints| !hints.is_empty() || self.fits_several(request));
        request
            .keys()
            .map(|resource| ResourceHints { resource: resource.clone(), hints: hints.clone() })
            .collect()
    }

    fn sets(&self, request: &Bytes, reusable: &Reusable, most: u32) -> Vec<Hint> {
        if request.is_empty() {
            return Vec::new();
        }
        let all: NodeSet = self.nodes.keys().copied().collect();
        let of = |resource: &str, of: fn(&MemoryKind) -> u64| -> PerNode {
            let kind = |(id, node): (&Id, &MemoryNode)| Some((*id, of(node.kinds.get(resource)?)));
            self.nodes.iter().filter_map(kind).collect()
        };
        let amounts = request.iter().map(|(resource, bytes)| {
            (resource, *bytes, of(resource, |kind| kind.allocatable), of(resource, MemoryKind::free))
        });
        let amounts: Vec<(&String, u64, PerNode, PerNode)> = amounts.collect();
        let mut smallest = all.len();
        let mut sets = Vec::new();
        for set in all.subsets(most) {
            if amounts.iter().any(|(_, bytes, allocatable, _)| allocatable.sum(set) < *bytes) {
                continue;
            }
            smallest = smallest.min(set.len());
            let is_free = |(resource, bytes, _, free): &(&String, u64, PerNode, PerNode)| {
                free.sum(set).saturating_add(reused(reusable, set, resource)) >= *bytes
            };
            if self.may_hold(set) && amounts.iter().all(is_free) {
                sets.push(set);
            }
        }
        mark_preferred(sets, smallest)
    }

    /// Returns true if several nodes together have enough: those without blocks, or an existing group.
    fn fits_several(&self, request: &Bytes) -> bool {
        let unused = self.nodes.iter().filter(|(_, node)| node.blocks == 0).map(|(id, _)| *id).collect();
        let groups = self.nodes.values().map(|node| node.group);
        let mut several = groups.chain([unused]).filter(|set: &NodeSet| set.len() > 1);
        several.any(|set| self.is_free(set, request, &Reusable::new()))
    }

    fn is_free(&self, set: NodeSet, request: &Bytes, reusable: &Reusable) -> bool {
        request.iter().all(|(resource, bytes)| {
            let kinds = set.iter().filter_map(|node| self.nodes.get(&node)?.kinds.get(resource));
            let free = kinds.map(MemoryKind::free).fold(0, u64::saturating_add);
            free.saturating_add(reused(reusable, set, resource)) >= *bytes
        })
    }

    /// Returns true if a block may be on exactly these nodes: a node of a group takes no blocks of its own, and
    /// one with blocks cannot join a group.
    fn may_hold(&self, set: NodeSet) -> bool {
        set.iter().filter_map(|id| self.nodes.get(&id)).all(|node| match set.len() {
            1 => node.group.len() <= 1,
            _ => node.blocks == 0 || node.group == set,
        })
    }

    /// Chooses the nodes of a container and allocates its memory there.
    pub(super) fn allocate(
        &mut self,
        request: &Bytes,
        hint: Hint,
        reusable: &Reusable,
    ) -> Result<MemoryBlocks, Refusal> {
        let nodes = self.choose(request, hint, reusable)?;
        let mut blocks = MemoryBlocks { nodes, bytes: request.clone(), split: BTreeMap::new() };
        for (resource, bytes) in request {
            let left = bytes.saturating_sub(reused(reusable, nodes, resource));
            blocks.split.insert(resource.clone(), self.charge(nodes, resource, left));
        }
        Ok(blocks)
    }

    fn choose(&self, request: &Bytes, hint: Hint, reusable: &Reusable) -> Result<NodeSet, Refusal> {
        let failed = |what: &str| Err(Refusal::unexpected(format!("[memorymanager] {what}")));
        let mut chosen = hint;
        if hint.nodes.is_none() {
            chosen = match self.default_hint(request, reusable, NodeSet::default()) {
                Some(default) if hint.preferred && !default.preferred => {
                    return failed("failed to find the default preferred hint");
                }
                Some(default) => default,
                None => {
                    return failed(
                        "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available",
                    );
                }
            };
        }
        let mut nodes = chosen.nodes.unwrap_or_default();
        if !self.is_free(nodes, request, &Reusable::new()) {
            nodes = match self.default_hint(request, reusable, nodes) {
                Some(wider) if chosen.preferred && !wider.preferred => {
                    return failed("failed to find the extended preferred hint");
                }
                Some(wider) => wider.nodes.unwrap_or_default(),
                None => return failed("failed to find NUMA nodes to extend the current topology hint"),
            };
        }
        if nodes.len() > 1 && !self.may_hold(nodes) {
            return failed("preferred hint violates NUMA node allocation");
        }
        Ok(nodes)
    }

    /// The best hint that includes these nodes.
    fn default_hint(&self, request: &Bytes, reusable: &Reusable, nodes: NodeSet) -> Option<Hint> {
        let hints = self.sets(request, reusable, u32::MAX).into_iter();
        let including = hints.filter(|hint| hint.nodes.is_some_and(|set| nodes.is_subset(set)));
        including.min_by_key(|hint| (!hint.preferred, hint.nodes.map(NodeSet::narrowness)))
    }

    /// Takes bytes from the nodes in ascending order, each giving what it has.
    pub fn charge(&mut self, nodes: NodeSet, resource: &str, bytes: u64) -> BTreeMap<Id, u64> {
        let mut left = bytes;
        let mut split = BTreeMap::new();
        for id in nodes.iter() {
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            node.blocks = node.blocks.saturating_add(1);
            node.group = nodes;
            let Some(kind) = node.kinds.get_mut(resource) else { continue };
            let part = left.min(kind.free());
            kind.allocated += part;
            left -= part;
            split.insert(id, part);
        }
        split
    }

    /// Returns bytes to the nodes in ascending order, to each at most what it has allocated.
    pub fn release(&mut self, nodes: NodeSet, resource: &str, bytes: u64) {
        let mut left = bytes;
        for id in nodes.iter() {
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            if let Some(kind) = node.kinds.get_mut(resource) {
                let part = left.min(kind.allocated);
                kind.allocated -= part;
                left -= part;
            }
            node.blocks = match node.blocks {
                UNCOUNTED if node.kinds.values().all(|kind| kind.allocated == 0) => 0,
                UNCOUNTED => UNCOUNTED,
                counted => counted.saturating_sub(1),
            };
            if node.blocks == 0 {
                node.group = NodeSet::one(id);
            }
        }
    }
}

fn reused(reusable: &Reusable, nodes: NodeSet, resource: &str) -> u64 {
    if reusable.is_empty() {
        return 0;
    }
    reusable.get(&(nodes, resource.to_owned())).copied().unwrap_or(0)
}

/// Updates what later containers of the pod can use after one of them was allocated `blocks`.
pub(super) fn update_reusable(reusable: &mut Reusable, blocks: &MemoryBlocks, init: bool) {
    for (resource, bytes) in &blocks.bytes {
        let key = (blocks.nodes, resource.clone());
        match reusable.get_mut(&key) {
            Some(before) if init => *before = (*before).max(*bytes),
            Some(before) => *before = before.saturating_sub(*bytes),
            None if init => {
                reusable.insert(key, *bytes);
            }
            None => {}
        }
    }
}
