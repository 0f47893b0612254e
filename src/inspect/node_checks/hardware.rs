//! The hardware: what the kernel reports, and what the kubelet knows of it.

use std::collections::BTreeSet;

use super::checkpoints::start_anew;
use super::facts::{NodeFacts, online};
use crate::inspect::{Check, Finding, Mend, Severity};
use crate::kubelet::Allocatable;
use crate::machine::{HIGHEST_NODE, Id, IdSet, Machine};
use crate::topology;

static HARDWARE_UNREADABLE: Check = Check {
    name: "HardwareUnreadable",
    severity: Severity::Error,
    looks_for: "the hardware cannot be read from /sys",
    why: "Without it, there are no zones.",
};
static HARDWARE_FILE_INVALID: Check = Check {
    name: "HardwareFileInvalid",
    severity: Severity::Warning,
    looks_for: "a file in /sys is unreadable or malformed",
    why: "Zones lack what the file should tell.",
};
pub(super) static HARDWARE_CHANGED: Check = Check {
    name: "HardwareChanged",
    severity: Severity::Error,
    looks_for: "the kubelet offers CPUs or memory that /sys does not have, or does not know what /sys has",
    why: "The kubelet reads the hardware only when it starts: pods get what is gone, and never what is new.",
};
static NODES_NOT_PUBLISHED: Check = Check {
    name: "NumaNodesNotPublished",
    severity: Severity::Warning,
    looks_for: "NUMA nodes have ids above 63",
    why: "Schedulers and the kubelet's managers support ids up to 63 only, so these nodes have no zones.",
};
static NODE_WITHOUT_MEMORY: Check = Check {
    name: "NumaNodeWithoutMemory",
    severity: Severity::Warning,
    looks_for: "a NUMA node has CPUs, but no memory",
    why: "No pod can be aligned there, and what runs there uses memory that is far away.",
};
static DISTANCES_MISSING: Check = Check {
    name: "DistancesMissing",
    severity: Severity::Warning,
    looks_for: "the firmware reports no distances between NUMA nodes",
    why: "Zones have no costs, and a kubelet with prefer-closest-numa-nodes does not start.",
};
static CPUS_OFFLINE: Check = Check {
    name: "CpusOffline",
    severity: Severity::Warning,
    looks_for: "CPUs are offline, although simultaneous multithreading is not off",
    why: "Nobody can use these CPUs.",
};

pub(super) const CHECKS: &[&Check] = &[
    &HARDWARE_UNREADABLE,
    &HARDWARE_FILE_INVALID,
    &HARDWARE_CHANGED,
    &NODES_NOT_PUBLISHED,
    &NODE_WITHOUT_MEMORY,
    &DISTANCES_MISSING,
    &CPUS_OFFLINE,
];

pub(super) fn check(facts: &NodeFacts) -> Vec<Finding> {
    let machine = match &facts.machine {
        Ok(machine) => machine,
        Err(error) => {
            let mend = Mend::Do("Set `host.sys` to where the host's /sys is mounted.".to_owned());
            return vec![facts.finding(&HARDWARE_UNREADABLE, error, mend)];
        }
    };
    let mut findings = of_machine(facts, machine);
    if let Ok(allocatable) = &facts.allocatable {
        findings.extend(changed(facts, machine, allocatable));
    }
    findings
}

fn of_machine(facts: &NodeFacts, machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    let firmware = || Mend::Do("Update the firmware, or change its memory settings.".to_owned());
    for error in machine.errors.iter().filter(|error| !error.message.contains("on a lower node too")) {
        let mend = Mend::Do(format!("Look at {} on the node.", facts.paths.word(&error.file)));
        findings.push(facts.finding(&HARDWARE_FILE_INVALID, error.to_string(), mend));
    }
    let ids = |wanted: &dyn Fn(&crate::machine::NumaNode) -> bool| -> IdSet {
        machine.nodes.iter().filter(|node| wanted(node)).map(|node| node.id).collect()
    };
    let beyond = ids(&|node| node.id > topology::HIGHEST_ZONE);
    if !beyond.is_empty() {
        let mend = Mend::Do(
            "Configure the firmware so that ids are below 64, or do without these nodes.".to_owned(),
        );
        findings.push(facts.finding(
            &NODES_NOT_PUBLISHED,
            format!("NUMA nodes {beyond} are not published"),
            mend,
        ));
    }
    let bare = ids(&|node| !node.cpus.is_empty() && node.memory == 0);
    if !bare.is_empty() {
        let mend =
            Mend::Do("Put memory into these sockets, or let the firmware join them with others.".to_owned());
        findings.push(facts.finding(
            &NODE_WITHOUT_MEMORY,
            format!("NUMA nodes {bare} have CPUs, but no memory"),
            mend,
        ));
    }
    let is_used = |node: &crate::machine::NumaNode| !node.cpus.is_empty() || node.memory > 0;
    let unknown = ids(&|node| node.distances.is_empty() && is_used(node));
    if machine.nodes.len() > 1 && !unknown.is_empty() {
        findings.push(facts.finding(
            &DISTANCES_MISSING,
            format!("NUMA nodes {unknown} have no distances"),
            firmware(),
        ));
    }
    findings.extend(offline(facts));
    findings
}

fn offline(facts: &NodeFacts) -> Option<Finding> {
    let offline = &facts.details.offline_cpus;
    if offline.is_empty() {
        return None;
    }
    let cpus: Vec<String> = offline.iter().map(|cpu| cpu.to_string()).collect();
    let dir = facts.paths.word("sys/devices/system/cpu");
    let mend = format!("for cpu in {}; do echo 1 > {dir}/cpu$cpu/online; done", cpus.join(" "));
    Some(facts.finding(&CPUS_OFFLINE, format!("CPUs {offline} are offline"), Mend::Run(mend)))
}

fn changed(facts: &NodeFacts, machine: &Machine, allocatable: &Allocatable) -> Option<Finding> {
    let differences: Vec<String> =
        gone(facts, machine, allocatable).into_iter().chain(added(facts, machine, allocatable)).collect();
    if differences.is_empty() {
        return None;
    }
    let what = format!("{}; or `host.sys` is not the host's /sys", differences.join(", "));
    Some(facts.finding(&HARDWARE_CHANGED, what, start_anew(facts)))
}

fn gone(facts: &NodeFacts, machine: &Machine, allocatable: &Allocatable) -> Vec<String> {
    let mut differences = Vec::new();
    let cpus = allocatable.cpus.difference(&online(machine));
    if !cpus.is_empty() {
        differences.push(format!("the kubelet offers CPUs {cpus}, which are not online"));
    }
    let nodes = memory_nodes(allocatable).difference(&machine.nodes.iter().map(|node| node.id).collect());
    if !nodes.is_empty() {
        differences.push(format!("the kubelet offers memory of NUMA node {nodes}, which does not exist"));
    }
    let impossible = |finding: &topology::Finding| match finding {
        topology::Finding::ImpossibleMemory { nodes, resource, .. } if resource == "memory" => {
            Some(nodes.clone())
        }
        _ => None,
    };
    let more: BTreeSet<IdSet> = facts.topology.iter().filter_map(impossible).collect();
    differences.extend(
        more.iter().map(|nodes| format!("the kubelet offers more memory than NUMA node {nodes} has")),
    );
    differences
}

/// What the kubelet does not know. It lists no CPUs with the policy `none`, and no memory with the policy `None`.
fn added(facts: &NodeFacts, machine: &Machine, allocatable: &Allocatable) -> Vec<String> {
    let mut differences = Vec::new();
    // The kubelet knows nothing yet of a changed configuration.
    let Some(config) = facts.config.as_ref().filter(|_| facts.changed.is_none()) else { return differences };
    let reserved = &config.reserved_system_cpus;
    if !allocatable.cpus.is_empty() && !reserved.is_empty() {
        let cpus = online(machine).difference(&allocatable.cpus).difference(reserved);
        if !cpus.is_empty() {
            differences.push(format!("the kubelet does not know CPUs {cpus}"));
        }
    }
    // The kubelet does not list a node whose memory is entirely reserved.
    let reserves =
        |id: Id| config.reserved_memory.get(&id).is_some_and(|limits| limits.contains_key("memory"));
    let known = memory_nodes(allocatable);
    let is_new = |node: &&crate::machine::NumaNode| {
        node.memory > node.hugepage_bytes() && !known.contains(node.id) && !reserves(node.id)
    };
    let nodes: IdSet = machine.nodes.iter().filter(is_new).map(|node| node.id).collect();
    if !known.is_empty() && !nodes.is_empty() {
        differences.push(format!("the kubelet does not know the memory of NUMA node {nodes}"));
    }
    differences
}

fn memory_nodes(allocatable: &Allocatable) -> IdSet {
    let blocks = allocatable.memory.iter().filter(|block| block.resource == "memory");
    blocks.flat_map(|block| block.nodes.iter()).filter(|id| *id <= HIGHEST_NODE).collect()
}
