//! Huge pages, which the kubelet counts only when it starts.

use std::collections::BTreeMap;

use super::checkpoints::start_anew;
use super::facts::NodeFacts;
use super::memory::bytes;
use crate::inspect::{Check, Finding, Mend, Severity};
use crate::kubelet::{Allocatable, KubeletConfig};
use crate::machine::{Id, IdSet, Machine, NumaNode};
use crate::quantity::{hugepages_name, is_huge_pages};

pub(super) static HUGE_PAGES_CHANGED: Check = Check {
    name: "HugePagesChanged",
    severity: Severity::Error,
    looks_for: "a NUMA node has other huge pages than when the kubelet started",
    why: "The kubelet admits pods for pages that are gone, never for new ones, and with its checkpoint it does not \
          start again.",
};
static HUGE_PAGES_ON_ONE_NODE: Check = Check {
    name: "HugePagesOnOneNode",
    severity: Severity::Warning,
    looks_for: "all huge pages of a size are on one of several NUMA nodes",
    why: "Pods with huge pages can be aligned with that node only.",
};
static HUGE_PAGES_SURPLUS: Check = Check {
    name: "HugePagesSurplus",
    severity: Severity::Warning,
    looks_for: "a NUMA node has more huge pages than its pool, by overcommitment",
    why: "The kernel frees these pages at any time, but a kubelet that starts meanwhile counts them.",
};

pub(super) const CHECKS: &[&Check] = &[&HUGE_PAGES_CHANGED, &HUGE_PAGES_ON_ONE_NODE, &HUGE_PAGES_SURPLUS];

pub(super) fn check(facts: &NodeFacts) -> Vec<Finding> {
    let Ok(machine) = &facts.machine else { return Vec::new() };
    let mut findings = on_one_node(facts, machine);
    findings.extend(surplus(facts));
    if let (Ok(allocatable), Some(config)) = (&facts.allocatable, &facts.config) {
        findings.extend(changed(facts, machine, allocatable, config));
    }
    findings
}

/// With the Memory Manager's policy `None`, the kubelet lists no huge pages.
fn changed(
    facts: &NodeFacts,
    machine: &Machine,
    allocatable: &Allocatable,
    config: &KubeletConfig,
) -> Option<Finding> {
    if allocatable.memory.is_empty() || facts.changed.is_some() {
        return None;
    }
    let mut known: BTreeMap<(Id, &str), u64> = BTreeMap::new();
    for block in allocatable.memory.iter().filter(|block| is_huge_pages(&block.resource)) {
        for node in block.nodes.iter() {
            let sum = known.entry((node, block.resource.as_str())).or_default();
            *sum = sum.saturating_add(block.bytes);
        }
    }
    let differs = |node: &NumaNode| {
        node.hugepages.iter().find_map(|(size, pages)| {
            let (resource, has) = (hugepages_name(*size), size.saturating_mul(*pages));
            let reserved =
                config.reserved_memory.get(&node.id).and_then(|limits| limits.get(&resource)).copied();
            let counted = known.get(&(node.id, resource.as_str())).copied().unwrap_or(0);
            let counted = counted.saturating_add(reserved.unwrap_or(0));
            (counted != has).then(|| {
                format!(
                    "NUMA node {} has {} of {resource}, and the kubelet knows of {}",
                    node.id,
                    bytes(has),
                    bytes(counted)
                )
            })
        })
    };
    let what = machine.nodes.iter().find_map(differs)?;
    Some(facts.finding(&HUGE_PAGES_CHANGED, what, start_anew(facts)))
}

fn on_one_node(facts: &NodeFacts, machine: &Machine) -> Vec<Finding> {
    // Memory of another kind (CXL, HBM, GPUs) has no CPUs.
    let nodes: Vec<&NumaNode> =
        machine.nodes.iter().filter(|node| !node.cpus.is_empty() && !node.hugepages.is_empty()).collect();
    let mut pools: BTreeMap<u64, Vec<(Id, u64)>> = BTreeMap::new();
    for node in &nodes {
        for (size, pages) in &node.hugepages {
            pools.entry(*size).or_default().push((node.id, *pages));
        }
    }
    let uneven = pools.into_iter().filter(|(_, pools)| is_on_one(pools));
    uneven
        .map(|(size, pools)| {
            let node = pools.iter().find(|(_, pages)| *pages > 0).map_or(0, |(node, _)| *node);
            let what = format!("all pages of {} are on NUMA node {node}", hugepages_name(size));
            facts.finding(&HUGE_PAGES_ON_ONE_NODE, what, spread(facts, size, &pools))
        })
        .collect()
}

fn is_on_one(pools: &[(Id, u64)]) -> bool {
    let total: u64 = pools.iter().map(|(_, pages)| *pages).fold(0, u64::saturating_add);
    let owners = pools.iter().filter(|(_, pages)| *pages > 0).count();
    // A single page cannot be spread.
    pools.len() > 1 && owners == 1 && total >= pools.len() as u64
}

fn spread(facts: &NodeFacts, size: u64, pools: &[(Id, u64)]) -> Mend {
    let total: u64 = pools.iter().map(|(_, pages)| *pages).fold(0, u64::saturating_add);
    let (each, more) = (total / pools.len() as u64, total % pools.len() as u64);
    let kib = size / 1024;
    let write = |(index, (node, _)): (usize, &(Id, u64))| {
        let pages = each + u64::from((index as u64) < more);
        let file = format!("sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages");
        format!("echo {pages} > {}", facts.paths.word(&file))
    };
    // The node that has them gives them back first.
    let mut order: Vec<(usize, &(Id, u64))> = pools.iter().enumerate().collect();
    order.sort_by_key(|(_, (_, pages))| std::cmp::Reverse(*pages));
    Mend::Run(order.into_iter().map(write).collect::<Vec<_>>().join(" && "))
}

fn surplus(facts: &NodeFacts) -> Vec<Finding> {
    let mut sizes: BTreeMap<u64, Vec<(Id, u64)>> = BTreeMap::new();
    for ((node, size), pages) in &facts.details.surplus_pages {
        sizes.entry(*size).or_default().push((*node, *pages));
    }
    let of_size = |(size, nodes): (u64, Vec<(Id, u64)>)| {
        let pages: u64 = nodes.iter().map(|(_, pages)| *pages).fold(0, u64::saturating_add);
        let ids: IdSet = nodes.iter().map(|(node, _)| *node).collect();
        let what = format!("{pages} pages of {} on NUMA node {ids} are above the pool", hugepages_name(size));
        let file = format!("sys/kernel/mm/hugepages/hugepages-{}kB/nr_overcommit_hugepages", size / 1024);
        let mend = Mend::Run(format!("echo 0 > {}", facts.paths.word(&file)));
        facts.finding(&HUGE_PAGES_SURPLUS, what, mend)
    };
    sizes.into_iter().map(of_size).collect()
}
