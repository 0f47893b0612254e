//! Memory and huge pages: bytes per node, with blocks that span several nodes split.

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
    let mut used = used(in_use);
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
        subtract(&mut pools, &resource, used, inputs.checkpoints, findings);
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

fn used<'a>(in_use: &InUse<'a>) -> BTreeMap<&'a str, Groups<'a>> {
    let mut used: BTreeMap<&str, Groups<'a>> = BTreeMap::new();
    for block in blocks_in_use(in_use) {
        let groups = used.entry(&block.resource).or_default();
        let group = groups.entry(block.nodes.iter().collect()).or_insert((&block.nodes, 0));
        group.1 = group.1.saturating_add(block.bytes);
    }
    used
}

/// Subtracts the memory in use. Blocks of one node first, so that the split of the others sees what is left.
fn subtract(
    pools: &mut BTreeMap<Id, Amounts>,
    resource: &str,
    used: Groups<'_>,
    checkpoints: Option<&Checkpoints>,
    findings: &mut BTreeSet<Finding>,
) {
    let (single, several): (Vec<_>, Vec<_>) = used.into_iter().partition(|(nodes, _)| nodes.len() == 1);
    let mut overused = |nodes: IdSet| {
        findings.insert(Finding::OverusedMemory { nodes, resource: resource.to_owned() });
    };
    let mut overused_alone = IdSet::new();
    for (nodes, (set, bytes)) in single {
        if subtract_ascending(pools, &nodes, bytes) > 0 {
            overused_alone.union_with(set);
        }
    }
    if !overused_alone.is_empty() {
        overused(overused_alone);
    }
    // A block without nodes has no affinity and is subtracted from no zone.
    let several: Vec<_> = several.into_iter().filter(|(nodes, _)| !nodes.is_empty()).collect();
    let mut shares = if several.is_empty() { BTreeMap::new() } else { shares(checkpoints, resource) };
    for (nodes, (set, bytes)) in several {
        let bytes = subtract_shares(pools, &nodes, bytes, &mut shares);
        if subtract_ascending(pools, &nodes, bytes) > 0 {
            overused(set.clone());
        }
    }
}

/// Returns the bytes of a resource that each node contributes to blocks on several nodes, according to the
/// Memory Manager's checkpoint. How such a block is split depends on what was free when it was allocated, so
/// only the checkpoint shows it. Its own blocks of one node are not part of it, whether or not their pod is
/// still listed: with the policy `best-effort`, kubelets allocate them on the nodes of a group too.
fn shares(checkpoints: Option<&Checkpoints>, resource: &str) -> BTreeMap<Id, u64> {
    let Some(checkpoints) = checkpoints else { return BTreeMap::new() };
    let nodes = checkpoints.reserved.iter();
    let mut shares: BTreeMap<Id, u64> =
        nodes.filter_map(|(node, reserved)| Some((*node, *reserved.get(resource)?))).collect();
    let blocks = checkpoints.memory_blocks();
    for block in blocks.filter(|block| block.resource == resource && block.nodes.len() == 1) {
        if let Some(share) = block.nodes.iter().next().and_then(|node| shares.get_mut(&node)) {
            *share = share.saturating_sub(block.bytes);
        }
    }
    shares
}

/// Subtracts `bytes` from the nodes, from each at most what it contributes according to the checkpoint, and
/// returns the rest. The total comes from the List, since the checkpoint may be older or newer. A checkpoint
/// with more than the List still contains terminated pods; the Memory Manager releases memory on the lowest
/// nodes first, so what remains in use is on the highest.
fn subtract_shares(
    pools: &mut BTreeMap<Id, Amounts>,
    nodes: &[Id],
    mut bytes: u64,
    shares: &mut BTreeMap<Id, u64>,
) -> u64 {
    for node in nodes.iter().rev() {
        let (Some(pool), Some(share)) = (pools.get_mut(node), shares.get_mut(node)) else { continue };
        let part = bytes.min(pool.available).min(*share);
        pool.available -= part;
        *share -= part;
        bytes -= part;
    }
    bytes
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
fn blocks(pod: &PodUsage) -> impl Iterator<Item = &MemoryBlock> {
    let own = &pod.memory;
    let containers = pod.containers.iter().filter(|_| own.is_empty());
    own.iter().chain(containers.flat_map(|container| &container.memory))
}
