//! Memory and huge pages: bytes per node, with blocks that span several nodes split.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{Amounts, Finding, InUse, Inputs, ZoneBuilder};
use crate::kubelet::{Checkpoints, MemoryBlock, PodUsage};
use crate::machine::{Id, IdSet, NumaNode};
use crate::quantity::hugepages_name;

const MEMORY: &str = "memory";

/// MemTotal changes by a few pages from boot to boot, and the kubelet keeps the value from its start. A value
/// up to 1/32 above the current MemTotal is accepted; a larger one is treated as an integer underflow in the
/// kubelet.
const MAX_DRIFT_DIVISOR: u64 = 32;

/// `unusable`: the nodes of which no pod can have memory that is free.
pub(super) fn account(
    inputs: &Inputs<'_>,
    in_use: &InUse<'_>,
    unusable: &IdSet,
    builder: &mut ZoneBuilder<'_>,
    findings: &mut BTreeSet<Finding>,
) {
    let offered = offered(&inputs.allocatable.memory);
    let mut used = by_resource(blocks_in_use(in_use));
    let mut recorded = by_resource(inputs.checkpoints.into_iter().flat_map(Checkpoints::memory_blocks));
    for resource in resources(inputs) {
        let mut pools = BTreeMap::new();
        let (mut impossible, mut largest) = (IdSet::new(), 0);
        for node in &inputs.machine.nodes {
            let (pool, excessive) = pool(inputs, node, &resource, &offered);
            pools.insert(node.id, pool);
            if let Some(bytes) = excessive {
                impossible.insert(node.id);
                largest = bytes.max(largest);
            }
        }
        if !impossible.is_empty() {
            let resource = resource.clone();
            findings.insert(Finding::ImpossibleMemory { nodes: impossible, resource, bytes: largest });
        }
        let used = used.remove(resource.as_str()).unwrap_or_default();
        let blocks = recorded.remove(resource.as_str()).unwrap_or_default();
        let recorded = inputs.checkpoints.and_then(|of| Recorded::new(blocks, &of.reserved, &resource));
        subtract(&mut pools, &resource, used, &recorded.unwrap_or_default(), findings);
        for (id, pool) in pools.iter_mut().filter(|_| !in_use.claims.memory.is_empty()) {
            let claimed = in_use.claims.memory.get(&(*id, resource.clone())).copied().unwrap_or(0);
            pool.available = pool.available.saturating_sub(claimed);
        }
        builder.add(&resource, |id| {
            let amounts = pools.get(&id).copied().unwrap_or_default();
            if unusable.contains(id) { Amounts { available: 0, ..amounts } } else { amounts }
        });
    }
}

/// Returns `memory` and every page size known to the kernel or the kubelet.
fn resources(inputs: &Inputs<'_>) -> BTreeSet<String> {
    let sizes = inputs.machine.nodes.iter().flat_map(|node| node.hugepages.keys());
    let offered = inputs.allocatable.memory.iter().map(|block| block.resource.clone());
    sizes.map(|size| hugepages_name(*size)).chain(offered).chain([MEMORY.to_owned()]).collect()
}

/// Sums the allocatable bytes by resource and node. The kubelet reports one block per node and type.
fn offered(blocks: &[MemoryBlock]) -> BTreeMap<(&str, Id), u64> {
    let mut offered: BTreeMap<(&str, Id), u64> = BTreeMap::new();
    for block in blocks {
        for node in block.nodes.iter() {
            let sum = offered.entry((block.resource.as_str(), node)).or_default();
            *sum = sum.saturating_add(block.bytes);
        }
    }
    offered
}

/// Returns the memory of one node, and the allocatable bytes that the kubelet reports if they are impossible.
fn pool(
    inputs: &Inputs<'_>,
    node: &NumaNode,
    resource: &str,
    offered: &BTreeMap<(&str, Id), u64>,
) -> (Amounts, Option<u64>) {
    let hardware = capacity(node, resource);
    let derived = derived(inputs, node, resource, hardware);
    let is_unmanaged = inputs.config.is_none_or(|config| config.memory_manager_policy != "Static");
    let (allocatable, impossible) = if inputs.allocatable.memory.is_empty() && is_unmanaged {
        (derived, None) // Memory Manager `None`
    } else {
        // The kubelet omits entries that are 0.
        let bytes = offered.get(&(resource, node.id)).copied().unwrap_or(0);
        let is_impossible = bytes > node.memory.saturating_add(node.memory / MAX_DRIFT_DIVISOR);
        if is_impossible { (derived, Some(bytes)) } else { (bytes, None) }
    };
    (Amounts { capacity: hardware.max(allocatable), allocatable, available: allocatable }, impossible)
}

fn capacity(node: &NumaNode, resource: &str) -> u64 {
    if resource == MEMORY {
        return node.memory;
    }
    let pools = node.hugepages.iter().filter(|(size, _)| hugepages_name(**size) == resource);
    pools.map(|(size, pages)| size.saturating_mul(*pages)).sum()
}

/// Returns what the kubelet would report: the hardware minus its reservation, and for memory minus the huge
/// pages.
fn derived(inputs: &Inputs<'_>, node: &NumaNode, resource: &str, hardware: u64) -> u64 {
    // It is unknown how much memory the huge pages take, so nothing is allocatable.
    if resource == MEMORY && node.hugepages_unread {
        return 0;
    }
    let reservations = inputs.config.and_then(|config| config.reserved_memory.get(&node.id));
    let reserved = reservations.and_then(|amounts| amounts.get(resource)).copied().unwrap_or(0);
    let hugepages = if resource == MEMORY { node.hugepage_bytes() } else { 0 };
    hardware.saturating_sub(hugepages).saturating_sub(reserved)
}

/// Returns the blocks of pods that count.
pub(super) fn blocks_in_use<'a>(in_use: &InUse<'a>) -> impl Iterator<Item = &'a MemoryBlock> {
    let listed = in_use.pods.iter().flat_map(|pod| blocks(pod));
    listed.chain(in_use.unlisted.memory.iter().copied())
}

type Groups<'a> = BTreeMap<Vec<Id>, (&'a IdSet, u64)>;

fn by_resource<'a>(blocks: impl Iterator<Item = &'a MemoryBlock>) -> BTreeMap<&'a str, Groups<'a>> {
    let mut groups: BTreeMap<&str, Groups<'a>> = BTreeMap::new();
    for block in blocks {
        add_block(groups.entry(&block.resource).or_default(), block);
    }
    groups
}

/// A block without nodes has no affinity, and is in no zone.
fn add_block<'a>(groups: &mut Groups<'a>, block: &'a MemoryBlock) {
    if !block.nodes.is_empty() {
        let group = groups.entry(block.nodes.iter().collect()).or_insert((&block.nodes, 0));
        group.1 = group.1.saturating_add(block.bytes);
    }
}

/// Subtracts the memory in use: what the Memory Manager's checkpoint has, without the pods that are no longer
/// listed, then what is listed and not in the checkpoint, since that may be older than the List. Blocks of one
/// node come first, so that the split of the others sees what is left.
fn subtract(
    pools: &mut BTreeMap<Id, Amounts>,
    resource: &str,
    used: Groups<'_>,
    recorded: &Recorded<'_>,
    findings: &mut BTreeSet<Finding>,
) {
    let mut overused = |nodes: IdSet| {
        findings.insert(Finding::OverusedMemory { nodes, resource: resource.to_owned() });
    };
    let mut overused_alone = IdSet::new();
    for (node, bytes) in recorded.after_release(&used) {
        if subtract_ascending(pools, &[node], bytes) > 0 {
            overused_alone.insert(node);
        }
    }
    let (single, several): (Vec<_>, Vec<_>) = used.into_iter().partition(|(nodes, _)| nodes.len() == 1);
    for (nodes, (set, bytes)) in single {
        if subtract_ascending(pools, &nodes, bytes.saturating_sub(recorded.bytes(&nodes))) > 0 {
            overused_alone.union_with(set);
        }
    }
    if !overused_alone.is_empty() {
        overused(overused_alone);
    }
    for (nodes, (set, bytes)) in several {
        if subtract_ascending(pools, &nodes, bytes.saturating_sub(recorded.bytes(&nodes))) > 0 {
            overused(set.clone());
        }
    }
}

/// One resource in the Memory Manager's checkpoint. How a block on several nodes is split depends on what was
/// free when it was allocated, and what was released since, so only the checkpoint shows it.
#[derive(Default)]
struct Recorded<'a> {
    blocks: Groups<'a>,
    /// Bytes in use per node.
    nodes: BTreeMap<Id, u64>,
}

impl<'a> Recorded<'a> {
    /// Returns `None` if the blocks add up to more than the nodes have in use. They may add up to less: see
    /// [`Self::after_release`].
    fn new(
        blocks: Groups<'a>,
        reserved: &BTreeMap<Id, BTreeMap<String, u64>>,
        resource: &str,
    ) -> Option<Self> {
        let of_node =
            |(node, reserved): (&Id, &BTreeMap<String, u64>)| Some((*node, *reserved.get(resource)?));
        let nodes: BTreeMap<Id, u64> = reserved.iter().filter_map(of_node).collect();
        let in_blocks: u128 = blocks.values().map(|(_, bytes)| u128::from(*bytes)).sum();
        let in_nodes: u128 = nodes.values().map(|bytes| u128::from(*bytes)).sum();
        (in_blocks <= in_nodes).then_some(Self { blocks, nodes })
    }

    fn bytes(&self, nodes: &[Id]) -> u64 {
        self.blocks.get(nodes).map_or(0, |(_, bytes)| *bytes)
    }

    /// Returns the bytes in use per node once the blocks that are not in `used` are released. The kubelet
    /// releases a block on its lowest nodes first, whichever pod holds the memory there (`releaseMemory` in
    /// `pkg/kubelet/cm/memorymanager/policy_static.go`), and admits pods by what is left. If a block on one
    /// node is released after one on several, some memory may stay in use. The kubelet releases pods in random
    /// order, so this expects the least free memory.
    fn after_release(&self, used: &Groups<'_>) -> BTreeMap<Id, u64> {
        let mut left = self.nodes.clone();
        let mut blocks: Vec<_> = self.blocks.iter().collect();
        blocks.sort_by_key(|(nodes, _)| Reverse(nodes.len()));
        for (nodes, (_, bytes)) in blocks {
            let mut gone = bytes.saturating_sub(used.get(nodes).map_or(0, |(_, bytes)| *bytes));
            for node in nodes {
                let Some(of_node) = left.get_mut(node) else { continue };
                let part = gone.min(*of_node);
                *of_node -= part;
                gone -= part;
            }
        }
        left
    }
}

/// Subtracts `bytes` from the nodes in ascending order, from each at most what is available, and returns the
/// rest.
fn subtract_ascending(pools: &mut BTreeMap<Id, Amounts>, nodes: &[Id], mut bytes: u64) -> u64 {
    for node in nodes {
        let Some(pool) = pools.get_mut(node) else { continue };
        let part = bytes.min(pool.available);
        pool.available -= part;
        bytes -= part;
    }
    bytes
}

/// Returns the blocks of a pod: its pod-level list if it has one (kubelet 1.37), else those of its
/// containers.
pub(super) fn blocks(pod: &PodUsage) -> impl Iterator<Item = &MemoryBlock> {
    let own = &pod.memory;
    let containers = pod.containers.iter().filter(|_| own.is_empty());
    own.iter().chain(containers.flat_map(|container| &container.memory))
}
