//! `reservedMemory`, which the Memory Manager's policy `Static` compares with the node's other reservations.

use std::collections::BTreeMap;

use super::facts::NodeFacts;
use crate::inspect::{Check, Finding, Mend, Severity};
use crate::kubelet::KubeletConfig;
use crate::machine::{Id, IdSet, Machine, NumaNode};

const NO_START: &str = "The kubelet does not start with it.";

static RESERVED_MEMORY_NODE: Check = Check {
    name: "ReservedMemoryNode",
    severity: Severity::Error,
    looks_for: "`reservedMemory` names a NUMA node that the machine does not have",
    why: NO_START,
};
static RESERVED_MEMORY_SUM: Check = Check {
    name: "ReservedMemorySum",
    severity: Severity::Error,
    looks_for: "`reservedMemory` is not kubeReserved, systemReserved and the hard eviction threshold together",
    why: NO_START,
};
static RESERVED_MEMORY_EXCEEDS: Check = Check {
    name: "ReservedMemoryExceeds",
    severity: Severity::Error,
    looks_for: "`reservedMemory` is more than a NUMA node has beside its huge pages",
    why: "The kubelet's amount of allocatable memory underflows, so that it admits pods without end to that node.",
};

pub(super) const CHECKS: &[&Check] = &[&RESERVED_MEMORY_NODE, &RESERVED_MEMORY_SUM, &RESERVED_MEMORY_EXCEEDS];

pub(super) fn check(facts: &NodeFacts) -> Vec<Finding> {
    let Some((machine, config)) = facts.machine_and_config() else { return Vec::new() };
    if config.memory_manager_policy != "Static" {
        return Vec::new();
    }
    // The kubelet checks the nodes first.
    let unknown: IdSet =
        config.reserved_memory.keys().filter(|id| machine.node(**id).is_none()).copied().collect();
    if !unknown.is_empty() {
        let has: IdSet = machine.nodes.iter().map(|node| node.id).collect();
        let what = format!("reservedMemory names NUMA node {unknown}, and the machine has {has}");
        return vec![facts.finding(&RESERVED_MEMORY_NODE, what, mend(facts, machine, config))];
    }
    let mut findings = Vec::new();
    if !facts.is_proven {
        findings.extend(sum(facts, machine, config));
    }
    findings.extend(machine.nodes.iter().filter_map(|node| exceeds(facts, machine, config, node)));
    findings
}

fn sum(facts: &NodeFacts, machine: &Machine, config: &KubeletConfig) -> Option<Finding> {
    let expected = config.memory_reservation(facts.details.mem_total?)?;
    let of_nodes = config.reserved_memory.values();
    let reserved = of_nodes
        .clone()
        .filter_map(|limits| limits.get("memory"))
        .fold(0_u64, |sum, one| sum.saturating_add(*one));
    // Upstream `parseResourceList`: kubeReserved and systemReserved cannot have huge pages.
    let pages =
        of_nodes.flat_map(BTreeMap::iter).find(|(resource, bytes)| *resource != "memory" && **bytes > 0);
    let what = match pages {
        _ if expected == 0 && reserved == 0 => {
            "memoryManagerPolicy is Static, but no memory is reserved".to_owned()
        }
        Some((resource, _)) => format!(
            "reservedMemory has {resource}, which kubeReserved and systemReserved cannot have, so the sums differ"
        ),
        None if reserved != expected => format!(
            "reservedMemory is {} in all, but kubeReserved, systemReserved and evictionHard reserve {}",
            bytes(reserved),
            bytes(expected)
        ),
        None => return None,
    };
    let mend = match expected {
        0 => facts.set("systemReserved: {memory: 1Gi}"),
        _ => mend(facts, machine, config),
    };
    Some(facts.finding(&RESERVED_MEMORY_SUM, what, mend))
}

fn exceeds(facts: &NodeFacts, machine: &Machine, config: &KubeletConfig, node: &NumaNode) -> Option<Finding> {
    let reserved = *config.reserved_memory.get(&node.id)?.get("memory")?;
    let has = free(node);
    let what = format!(
        "reservedMemory is {} on NUMA node {}, which has {} beside its huge pages",
        bytes(reserved),
        node.id,
        bytes(has)
    );
    (reserved > has).then(|| facts.finding(&RESERVED_MEMORY_EXCEEDS, what, mend(facts, machine, config)))
}

fn free(node: &NumaNode) -> u64 {
    node.memory.saturating_sub(node.hugepage_bytes())
}

/// Returns how to set `reservedMemory` so that a kubelet starts with it, as like the present one as possible.
fn mend(facts: &NodeFacts, machine: &Machine, config: &KubeletConfig) -> Mend {
    let expected = facts.details.mem_total.and_then(|mem_total| config.memory_reservation(mem_total));
    let Some(expected) = expected.filter(|bytes| *bytes > 0) else {
        return Mend::Do("Correct reservedMemory, and restart the kubelet.".to_owned());
    };
    let entry =
        |(id, amount): (Id, u64)| format!("{{numaNode: {id}, limits: {{memory: \"{}\"}}}}", bytes(amount));
    let entries: Vec<String> = reservation(machine, config, expected).into_iter().map(entry).collect();
    facts.set(&format!("reservedMemory: [{}]", entries.join(", ")))
}

/// Distributes `expected` bytes: first what is reserved now, then the rest in the order of the nodes. No node gives
/// more than half of its memory if there is another way.
fn reservation(machine: &Machine, config: &KubeletConfig, expected: u64) -> BTreeMap<Id, u64> {
    let present = |node: &NumaNode| config.reserved_memory.get(&node.id)?.get("memory").copied();
    let (mut rest, mut amounts) = (expected, BTreeMap::<Id, u64>::new());
    let mut take = |node: &NumaNode, wanted: u64, limit: u64| {
        let amount = amounts.entry(node.id).or_default();
        let more = wanted.min(limit.saturating_sub(*amount)).min(rest);
        *amount += more;
        rest -= more;
    };
    machine.nodes.iter().for_each(|node| take(node, present(node).unwrap_or(0), free(node) / 2));
    machine.nodes.iter().for_each(|node| take(node, u64::MAX, free(node) / 2));
    machine.nodes.iter().for_each(|node| take(node, u64::MAX, free(node)));
    amounts.retain(|_, amount| *amount > 0);
    amounts
}

/// Returns an amount in the largest unit that divides it.
pub(super) fn bytes(amount: u64) -> String {
    let units = [("Gi", 30), ("Mi", 20), ("Ki", 10)];
    match units.iter().find(|(_, shift)| amount > 0 && amount.trailing_zeros() >= *shift) {
        Some((unit, shift)) => format!("{}{unit}", amount >> shift),
        None => amount.to_string(),
    }
}
