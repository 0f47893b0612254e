//! The CPUs that are reserved, isolated or shared.

use std::collections::BTreeMap;

use super::facts::{NodeFacts, online};
use crate::inspect::{Check, Finding, Mend, Severity};
use crate::kubelet::KubeletConfig;
use crate::machine::{Id, IdSet, Machine, NumaNode};
use numacast_core::kubelet::is_true;

static RESERVED_CPUS_MISSING: Check = Check {
    name: "ReservedCpusMissing",
    severity: Severity::Error,
    looks_for: "the CPU Manager's policy is `static`, but no CPUs are reserved",
    why: "The kubelet does not start with it.",
};
static RESERVED_CPUS_OFFLINE: Check = Check {
    name: "ReservedCpusOffline",
    severity: Severity::Error,
    looks_for: "`reservedSystemCPUs` has CPUs that are offline or that the machine does not have",
    why: "The kubelet does not start with it.",
};
static RESERVED_CPUS_TAKE_NODE: Check = Check {
    name: "ReservedCpusTakeNode",
    severity: Severity::Warning,
    looks_for: "all CPUs of a NUMA node are reserved, and those of another are not",
    why: "No container with exclusive CPUs can be aligned with that node's memory and devices.",
};
static RESERVED_CPUS_SPLIT_CORES: Check = Check {
    name: "ReservedCpusSplitCores",
    severity: Severity::Warning,
    looks_for: "with `full-pcpus-only`, only some CPUs of a core are reserved",
    why: "Nobody can get the other CPUs of that core exclusively, and zones show them as free.",
};
static CORES_UNEVEN: Check = Check {
    name: "CoresUneven",
    severity: Severity::Warning,
    looks_for: "with `full-pcpus-only`, cores have different numbers of online CPUs",
    why: "The kubelet takes the average, rounded down, for the size of every core, so it rejects pods or splits cores.",
};
static ISOLATED_CPUS_SHARED: Check = Check {
    name: "IsolatedCpusShared",
    severity: Severity::Warning,
    looks_for: "CPUs that the kernel isolates (`isolcpus`) are in the kubelet's shared pool",
    why: "The kernel moves nothing off isolated CPUs, so containers and system processes pile up on one of them.",
};

pub(super) const CHECKS: &[&Check] = &[
    &RESERVED_CPUS_MISSING,
    &RESERVED_CPUS_OFFLINE,
    &RESERVED_CPUS_TAKE_NODE,
    &RESERVED_CPUS_SPLIT_CORES,
    &CORES_UNEVEN,
    &ISOLATED_CPUS_SHARED,
];

pub(super) fn check(facts: &NodeFacts) -> Vec<Finding> {
    let Some((machine, config)) = facts.machine_and_config() else { return Vec::new() };
    let mut findings = Vec::new();
    findings.extend(offline(facts, machine, config));
    findings.extend(isolated(facts, machine, config));
    if config.cpu_manager_policy == "static" {
        findings.extend(missing(facts, machine, config));
        findings.extend(whole_nodes(facts, machine));
        findings.extend(split_cores(facts, config));
        findings.extend(uneven(facts, config));
    }
    findings
}

fn set(facts: &NodeFacts, cpus: &IdSet) -> Mend {
    facts.set(&format!("reservedSystemCPUs: \"{cpus}\""))
}

fn missing(facts: &NodeFacts, machine: &Machine, config: &KubeletConfig) -> Option<Finding> {
    let is_missing =
        config.reserved_system_cpus.is_empty() && config.reserved_cpu_count == 0 && !facts.is_proven;
    let what = "cpuManagerPolicy is static, but neither reservedSystemCPUs nor kubeReserved or systemReserved has CPUs";
    is_missing.then(|| facts.finding(&RESERVED_CPUS_MISSING, what, set(facts, &first_core(facts, machine))))
}

fn first_core(facts: &NodeFacts, machine: &Machine) -> IdSet {
    let first = online(machine).iter().next();
    first.map(|cpu| facts.core_of(cpu)).unwrap_or_default()
}

fn offline(facts: &NodeFacts, machine: &Machine, config: &KubeletConfig) -> Option<Finding> {
    let online = online(machine);
    let offline = config.reserved_system_cpus.difference(&online);
    if offline.is_empty() || online.is_empty() {
        return None;
    }
    let what = format!("reservedSystemCPUs has CPUs {offline}, and only {online} are online");
    let rest = config.reserved_system_cpus.intersection(&online);
    let mend = if rest.is_empty() { first_core(facts, machine) } else { rest };
    Some(facts.finding(&RESERVED_CPUS_OFFLINE, what, set(facts, &mend)))
}

fn whole_nodes(facts: &NodeFacts, machine: &Machine) -> Option<Finding> {
    let reserved = facts.reserved_cpus();
    let nodes = machine.nodes.iter().filter(|node| !node.cpus.is_empty());
    let (taken, others): (Vec<&NumaNode>, Vec<&NumaNode>) =
        nodes.partition(|node| node.cpus.difference(&reserved).is_empty());
    if taken.is_empty() || others.is_empty() {
        return None;
    }
    let ids: IdSet = taken.iter().map(|node| node.id).collect();
    let what = format!("the reserved CPUs {reserved} are all CPUs of NUMA node {ids}");
    let spread = spread(facts, machine, reserved.intersection(&online(machine)).len());
    Some(facts.finding(&RESERVED_CPUS_TAKE_NODE, what, set(facts, &spread)))
}

/// Returns at least `count` CPUs: whole cores, of each NUMA node in turn.
fn spread(facts: &NodeFacts, machine: &Machine, count: u64) -> IdSet {
    let mut cores: BTreeMap<Id, Vec<IdSet>> = BTreeMap::new();
    for node in &machine.nodes {
        let core = |cpu| {
            let core = facts.core_of(cpu);
            let first = core.iter().next();
            (first, core)
        };
        let of_node: BTreeMap<_, IdSet> = node.cpus.iter().map(core).collect();
        cores.insert(node.id, of_node.into_values().collect());
    }
    let most = cores.values().map(Vec::len).max().unwrap_or(0);
    let in_turn = (0..most).flat_map(|index| cores.values().filter_map(move |cores| cores.get(index)));
    let mut cpus = IdSet::new();
    for core in in_turn {
        if cpus.len() < count {
            cpus.union_with(core);
        }
    }
    cpus
}

fn has_full_cores(config: &KubeletConfig) -> bool {
    config.cpu_manager_policy_options.get("full-pcpus-only").is_some_and(|value| is_true(value))
}

fn split_cores(facts: &NodeFacts, config: &KubeletConfig) -> Option<Finding> {
    let reserved = facts.reserved_cpus();
    let mut whole = IdSet::new();
    reserved.iter().for_each(|cpu| whole.union_with(&facts.core_of(cpu)));
    let split = whole.difference(&reserved);
    let what = format!("CPUs {reserved} are reserved, but not CPUs {split} of the same cores");
    let is_split = has_full_cores(config) && !split.is_empty();
    is_split.then(|| facts.finding(&RESERVED_CPUS_SPLIT_CORES, what, set(facts, &whole)))
}

fn uneven(facts: &NodeFacts, config: &KubeletConfig) -> Option<Finding> {
    let mut sizes: BTreeMap<Id, u64> = BTreeMap::new();
    facts.cpus.values().for_each(|location| *sizes.entry(location.core).or_default() += 1);
    let (fewest, most) = (sizes.values().min()?, sizes.values().max()?);
    if !has_full_cores(config) || fewest == most {
        return None;
    }
    let average = facts.cpus.len() / sizes.len().max(1);
    let what =
        format!("cores have {fewest} to {most} online CPUs, and the kubelet takes {average} for each core");
    let mend = "Take all CPUs of these cores online or offline, or remove full-pcpus-only from cpuManagerPolicyOptions.";
    Some(facts.finding(&CORES_UNEVEN, what, Mend::Do(mend.to_owned())))
}

fn isolated(facts: &NodeFacts, machine: &Machine, config: &KubeletConfig) -> Option<Finding> {
    let shared = match &facts.checkpoints {
        Some(checkpoints) if config.cpu_manager_policy == "static" => checkpoints.shared_cpus.clone(),
        _ => online(machine),
    };
    let isolated = facts.details.isolated_cpus.intersection(&shared);
    let what = format!("the isolated CPUs {isolated} are in the kubelet's shared pool");
    let mend = "Remove these CPUs from `isolcpus` in the kernel's command line, and boot again.";
    (!isolated.is_empty()).then(|| facts.finding(&ISOLATED_CPUS_SHARED, what, Mend::Do(mend.to_owned())))
}
