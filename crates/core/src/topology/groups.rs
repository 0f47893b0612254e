//! The Memory Manager's groups of NUMA nodes.
//!
//! A block on several nodes makes them a group, until their last block ends (upstream: `Cells` in
//! `memorymanager/state`). A hint for one node never names a node of a group, and one for several names either a
//! whole group or nodes without blocks (`memorymanager/policy_static.go`, `calculateHints`). So much of a group may be
//! free and yet be of no use to a pod (kubernetes #113035, KAI-Scheduler #2013). How zones tell that depends on the
//! policy:
//!
//! - With `single-numa-node` no pod can have memory of a group, so none of it is available. The scheduler plugin's
//!   filter reads nothing else, and only with this policy. A kubelet with this policy makes no groups, and rejects the
//!   pods of groups when it starts: they are there only where the published policy is not the kubelet's
//!   (`kubelet.configOverrides`), which aligns pods in the scheduler alone.
//! - With the other policies some pods can: with `restricted` those that need as many nodes, such as one that needs
//!   huge pages of two nodes where another made a group of them with memory; with `best-effort` and `none` any that
//!   does not fit elsewhere; and with `best-effort` kubelets even allocate memory of one node of a group, if other
//!   resources decide for that node. Available memory is what is free, then, as a consumer that adds up zones
//!   (KAI-Scheduler, LeastNUMANodes) expects, and each zone has its group as an attribute.
//!
//! The attribute changes only when memory is allocated or released, which changes the object anyway: it costs no writes
//! of its own.

use std::collections::BTreeMap;

use super::memory::blocks_in_use;
use super::{InUse, Inputs};
use crate::kubelet::Checkpoints;
use crate::machine::{Id, IdSet};
use crate::nrt::MEMORY_GROUP;

/// Returns the group of each zone's node that has this attribute: of every node in a group, and if `is_single` is
/// false and the checkpoint is known, of every other node its own id.
///
/// Without the checkpoint, as with the chart's default mounts, groups are known from the List. It does not contain
/// init containers, whose block may be on more nodes than those of the containers after them; nor the order of
/// blocks, of which the last one on a node decides.
pub(super) fn of(inputs: &Inputs<'_>, in_use: &InUse<'_>, is_single: bool) -> BTreeMap<Id, IdSet> {
    let mut groups: BTreeMap<Id, IdSet> = BTreeMap::new();
    for block in blocks_in_use(in_use).filter(|block| block.nodes.len() > 1) {
        for node in block.nodes.iter() {
            groups.entry(node).or_default().union_with(&block.nodes);
        }
    }
    if let Some(checkpoints) = inputs.checkpoints {
        correct(&mut groups, checkpoints);
    }
    groups.retain(|node, group| inputs.machine.node(*node).is_some() && (!is_single || group.len() > 1));
    if inputs.machine.nodes.len() > 1 { groups } else { BTreeMap::new() }
}

/// Replaces what follows from the List by what the checkpoint has. It may still contain groups of pods that have
/// ended, and be older than the List.
fn correct(groups: &mut BTreeMap<Id, IdSet>, checkpoints: &Checkpoints) {
    for (node, state) in checkpoints.memory.groups.iter().filter(|(node, state)| state.nodes.contains(**node))
    {
        let Some(listed) = groups.get_mut(node) else {
            groups.insert(*node, IdSet::from_iter([*node]));
            continue;
        };
        if checkpoints.memory_blocks().any(|block| block.nodes == *listed) {
            listed.clone_from(&state.nodes);
        }
    }
}

/// Returns the nodes whose memory no pod can have, of the result of [`of`].
pub(super) fn unusable(groups: &BTreeMap<Id, IdSet>, is_single: bool) -> IdSet {
    groups.keys().copied().filter(|_| is_single).collect()
}

/// Returns name and value of the zone's attribute.
pub(super) fn attribute(group: &IdSet) -> (String, String) {
    (MEMORY_GROUP.to_owned(), group.to_string())
}
