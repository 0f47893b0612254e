//! The checkpoints of the kubelet's managers: whether a kubelet starts with them.

use std::path::Path;

use super::facts::{NodeFacts, is_denied, online};
use super::memory::bytes;
use crate::inspect::{Check, Finding, Mend, Severity};
use crate::kubelet::{Checkpoints, KubeletConfig};
use crate::machine::{Id, IdSet, Machine, NumaNode};
use crate::quantity::hugepages_name;
use numacast_core::kubelet::is_true;

const NO_START: &str = "The kubelet does not start until the file is deleted, which is for a drained node: running pods \
                        may get other CPUs and memory.";

static CHECKPOINT_INVALID: Check = Check {
    name: "CheckpointInvalid",
    severity: Severity::Error,
    looks_for: "the checkpoint of the CPU Manager or the Memory Manager cannot be parsed",
    why: NO_START,
};
static DEVICE_CHECKPOINT_INVALID: Check = Check {
    name: "DeviceCheckpointInvalid",
    severity: Severity::Warning,
    looks_for: "the device manager's checkpoint cannot be parsed",
    why: "A kubelet that restarts forgets which devices running pods have, and gives them to other pods.",
};
static CHECKPOINT_OF_OTHER_POLICY: Check = Check {
    name: "CheckpointOfOtherPolicy",
    severity: Severity::Error,
    looks_for: "a manager's checkpoint was written with another policy than the configured one",
    why: NO_START,
};
pub(super) static CPU_CHECKPOINT_OUTDATED: Check = Check {
    name: "CpuCheckpointOutdated",
    severity: Severity::Error,
    looks_for: "the CPU Manager's checkpoint has other CPUs than the machine, or not the reserved ones",
    why: NO_START,
};
pub(super) static MEMORY_CHECKPOINT_OUTDATED: Check = Check {
    name: "MemoryCheckpointOutdated",
    severity: Severity::Error,
    looks_for: "the Memory Manager's checkpoint has other memory, huge pages or reservations than the node",
    why: NO_START,
};

pub(super) const CHECKS: &[&Check] = &[
    &CHECKPOINT_INVALID,
    &DEVICE_CHECKPOINT_INVALID,
    &CHECKPOINT_OF_OTHER_POLICY,
    &CPU_CHECKPOINT_OUTDATED,
    &MEMORY_CHECKPOINT_OUTDATED,
];

pub(super) fn check(facts: &NodeFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts
        .checkpoint_errors
        .iter()
        .filter(|error| !is_denied(error))
        .map(|error| invalid(facts, error))
        .collect();
    let Some(checkpoints) = &facts.checkpoints else { return findings };
    if let Some(config) = &facts.config {
        findings.extend(other_policy(facts, checkpoints, config));
    }
    if let Some((machine, config)) = facts.machine_and_config() {
        findings.extend(cpus(facts, checkpoints, machine, config));
        findings.extend(memory(facts, checkpoints, machine, config));
    }
    findings
}

fn invalid(facts: &NodeFacts, error: &str) -> Finding {
    let paths = &facts.paths;
    let managers = [paths.cpu_checkpoint(), paths.memory_checkpoint()];
    let is_of = |path: &Path| path.file_name().is_some_and(|name| error.contains(&*name.to_string_lossy()));
    match managers.iter().find(|path| is_of(path)) {
        Some(path) => facts.finding(&CHECKPOINT_INVALID, error, facts.start_without(&[path])),
        None => {
            let mend = facts.start_without(&[&paths.device_checkpoint()]);
            facts.finding(&DEVICE_CHECKPOINT_INVALID, error, mend)
        }
    }
}

fn other_policy(facts: &NodeFacts, checkpoints: &Checkpoints, config: &KubeletConfig) -> Vec<Finding> {
    let policies = &checkpoints.policies;
    let managers = [
        ("CPU", "cpuManagerPolicy", &policies.cpu, &config.cpu_manager_policy, facts.paths.cpu_checkpoint()),
        (
            "Memory",
            "memoryManagerPolicy",
            &policies.memory,
            &config.memory_manager_policy,
            facts.paths.memory_checkpoint(),
        ),
    ];
    let differs = managers.into_iter().filter(|(_, _, written, configured, _)| {
        !written.is_empty() && !configured.is_empty() && written != configured
    });
    differs
        .map(|(manager, key, written, configured, path)| {
            let what = format!(
                "{key} is {configured}, but the {manager} Manager's checkpoint {} was written with {written}",
                path.display()
            );
            facts.finding(&CHECKPOINT_OF_OTHER_POLICY, what, facts.start_without(&[&path]))
        })
        .collect()
}

/// As the kubelet's `validateState` in `pkg/kubelet/cm/cpumanager/policy_static.go`.
fn cpus(
    facts: &NodeFacts,
    checkpoints: &Checkpoints,
    machine: &Machine,
    config: &KubeletConfig,
) -> Option<Finding> {
    let shared = &checkpoints.shared_cpus;
    if config.cpu_manager_policy != "static" || checkpoints.policies.cpu != "static" || shared.is_empty() {
        return None;
    }
    let options = &config.cpu_manager_policy_options;
    let is_strict = options.get("strict-cpu-reservation").is_some_and(|value| is_true(value));
    let reserved = &config.reserved_system_cpus;
    let what = match is_strict {
        true if reserved.is_empty() => return None,
        true => differing_cpus(checkpoints, &online(machine).difference(reserved)).or_else(|| {
            let both = reserved.intersection(shared);
            (!both.is_empty()).then(|| {
                format!("CPUs {both} are reserved strictly, and in the shared pool of the checkpoint")
            })
        }),
        false => differing_cpus(checkpoints, &online(machine)).or_else(|| {
            let allocated = reserved.intersection(&online(machine)).difference(shared);
            (!allocated.is_empty())
                .then(|| format!("CPUs {allocated} are reserved, and allocated to pods in the checkpoint"))
        }),
    }?;
    let path = facts.paths.cpu_checkpoint();
    let what = format!("the CPU Manager's checkpoint {} is outdated: {what}", path.display());
    Some(facts.finding(&CPU_CHECKPOINT_OUTDATED, what, facts.start_without(&[&path])))
}

fn differing_cpus(checkpoints: &Checkpoints, expected: &IdSet) -> Option<String> {
    let mut known = checkpoints.shared_cpus.clone();
    let containers = checkpoints.pods.values().flatten();
    containers.for_each(|container| known.union_with(&container.cpus));
    (known != *expected).then(|| format!("it has CPUs {known}, and the node has {expected}"))
}

/// As the kubelet's `areMachineStatesEqual` in `pkg/kubelet/cm/memorymanager/policy_static.go`.
fn memory(
    facts: &NodeFacts,
    checkpoints: &Checkpoints,
    machine: &Machine,
    config: &KubeletConfig,
) -> Option<Finding> {
    let groups = &checkpoints.memory.groups;
    if config.memory_manager_policy != "Static"
        || checkpoints.policies.memory != "Static"
        || groups.is_empty()
    {
        return None;
    }
    let gone =
        groups.keys().find(|id| machine.node(**id).is_none()).map(|id| format!("NUMA node {id} is gone"));
    let added = machine.nodes.iter().find(|node| node.memory > 0 && !groups.contains_key(&node.id));
    let added = added.map(|node| format!("NUMA node {} is new", node.id));
    let differs = || machine.nodes.iter().find_map(|node| differing_memory(facts, checkpoints, config, node));
    let what = gone.or(added).or_else(differs)?;
    let path = facts.paths.memory_checkpoint();
    let what = format!("the Memory Manager's checkpoint {} is outdated: {what}", path.display());
    Some(facts.finding(&MEMORY_CHECKPOINT_OUTDATED, what, facts.start_without(&[&path])))
}

fn differing_memory(
    facts: &NodeFacts,
    checkpoints: &Checkpoints,
    config: &KubeletConfig,
    node: &NumaNode,
) -> Option<String> {
    // Of a running kubelet, `HugePagesChanged` tells.
    let pages = node.hugepages.iter().filter(|_| facts.allocatable.is_err());
    let pages = pages.map(|(size, pages)| (hugepages_name(*size), size.saturating_mul(*pages)));
    let amounts = [("memory".to_owned(), node.memory)].into_iter().chain(pages);
    let totals = &checkpoints.memory.groups.get(&node.id)?.totals;
    amounts.filter_map(|(resource, has)| Some((totals.get(&resource)?, resource, has))).find_map(
        |(total, resource, has)| {
            let configured = reserved(config, node.id, &resource);
            if total.total != has {
                return Some(format!(
                    "it has {} of {resource} on NUMA node {}, and the node has {}",
                    bytes(total.total),
                    node.id,
                    bytes(has)
                ));
            }
            (total.reserved != configured).then(|| {
                format!(
                    "it reserves {} of {resource} on NUMA node {}, and reservedMemory {}",
                    bytes(total.reserved),
                    node.id,
                    bytes(configured)
                )
            })
        },
    )
}

fn reserved(config: &KubeletConfig, node: Id, resource: &str) -> u64 {
    config.reserved_memory.get(&node).and_then(|limits| limits.get(resource)).copied().unwrap_or(0)
}

/// Returns how to start the kubelet with the hardware as it is now.
pub(super) fn start_anew(facts: &NodeFacts) -> Mend {
    facts.start_without(&[&facts.paths.cpu_checkpoint(), &facts.paths.memory_checkpoint()])
}
