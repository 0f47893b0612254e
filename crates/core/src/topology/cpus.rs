//! CPUs: sets of ids per zone.

use std::collections::BTreeSet;

use super::{Amounts, Finding, InUse, Inputs, ZoneBuilder};
use crate::claims::{CPU_DRIVER, ClaimFinding, NodeClaims};
use crate::kubelet::{INVALID_CPU, KubeletConfig};
use crate::machine::{IdSet, Machine};

pub(super) fn account(
    inputs: &Inputs<'_>,
    in_use: &InUse<'_>,
    builder: &mut ZoneBuilder<'_>,
    findings: &mut BTreeSet<Finding>,
) {
    let (online, offered) = (online(inputs.machine), offered(inputs));
    let mut used = used(in_use);
    let mut listed = offered.clone();
    listed.union_with(&used);
    let unknown = listed.difference(&online);
    if !unknown.is_empty() {
        let beyond = if unknown.contains(INVALID_CPU) { " and above" } else { "" };
        findings.insert(Finding::UnknownCpus(format!("{unknown}{beyond}")));
    }
    let has_driver = |claims: &NodeClaims| claims.inventory.drivers().any(|driver| driver == CPU_DRIVER);
    if !is_derived(inputs) && inputs.claims.is_some_and(has_driver) {
        findings.insert(Finding::Claims(ClaimFinding::TwoCpuManagers));
    }
    let claimed = &in_use.claims.cpus;
    let twice = used.intersection(&claimed.ids);
    if !twice.is_empty() {
        findings.insert(Finding::CpusAllocatedTwice(twice));
    }
    used.union_with(&claimed.ids);
    builder.add("cpu", |id| {
        let Some(node) = inputs.machine.node(id) else { return Amounts::default() };
        let offered = offered.intersection(&node.cpus);
        Amounts {
            capacity: node.cpus.len(),
            allocatable: offered.len(),
            available: offered
                .difference(&used)
                .len()
                .saturating_sub(claimed.others.get(&id).copied().unwrap_or(0)),
        }
    });
}

/// Returns the CPUs that can be allocated.
pub(super) fn offered(inputs: &Inputs<'_>) -> IdSet {
    let allocatable = &inputs.allocatable.cpus;
    if !allocatable.is_empty() || !is_derived(inputs) {
        return allocatable.clone();
    }
    let online = online(inputs.machine);
    online.difference(&reserved(inputs.config, &online))
}

/// The kubelet lists no CPUs at all under the CPU Manager policy `none`. Under `static` it lists none only before it has
/// started: then it offers none.
fn is_derived(inputs: &Inputs<'_>) -> bool {
    inputs.config.is_none_or(|config| config.cpu_manager_policy != "static")
}

fn online(machine: &Machine) -> IdSet {
    let mut all = IdSet::new();
    for node in &machine.nodes {
        all.union_with(&node.cpus);
    }
    all
}

/// Returns the CPUs to treat as reserved for the system. Given only a number, these are the lowest ids: under
/// the policy `none` the kubelet reserves no particular CPUs.
fn reserved(config: Option<&KubeletConfig>, online: &IdSet) -> IdSet {
    let Some(config) = config else { return IdSet::new() };
    if !config.reserved_system_cpus.is_empty() {
        return config.reserved_system_cpus.clone();
    }
    let count = usize::try_from(config.reserved_cpu_count).unwrap_or(usize::MAX);
    online.iter().take(count).collect()
}

/// Returns the online CPUs that are reserved for the system: those that are configured, else with the policy `static`
/// those that the kubelet has chosen. Empty if only their number is known.
pub(super) fn known_reserved(inputs: &Inputs<'_>, config: &KubeletConfig) -> IdSet {
    let online = online(inputs.machine);
    if !config.reserved_system_cpus.is_empty() {
        return config.reserved_system_cpus.intersection(&online);
    }
    let chosen = Some(&inputs.allocatable.cpus).filter(|cpus| !cpus.is_empty());
    chosen.map(|allocatable| online.difference(allocatable)).unwrap_or_default()
}

/// Returns the exclusive CPUs of all pods. Pod-level sets overlap those of the containers: a union, never a
/// sum.
fn used(in_use: &InUse<'_>) -> IdSet {
    let mut used = in_use.unlisted.cpus.clone();
    in_use.pods.iter().for_each(|pod| used.union_with(&pod.cpus));
    in_use.containers().for_each(|container| used.union_with(&container.cpus));
    used
}
