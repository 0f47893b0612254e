//! Kubelet configurations that make no sense for NUMA: as the objects tell them, and as kubelets tell them if asked.

use std::collections::BTreeMap;

use numacast_core::kubelet::parse_configz;

use super::facts::Facts;
use super::objects::place;
use crate::cluster::{NodeDetails, PublishedObject};
use crate::inspect::{Check, Finding, Mend, Severity};
use crate::kubelet::KubeletConfig;
use crate::nrt::{POLICY, SCOPE};

pub(in crate::inspect) static CPU_MANAGER_NOT_STATIC: Check = Check {
    name: "CpuManagerNotStatic",
    severity: Severity::Warning,
    looks_for: "the Topology Manager's policy is restricted or single-numa-node, but the CPU Manager's is not static",
    why: "No container gets CPUs of its own, so CPUs are not aligned with devices and memory.",
};
pub(in crate::inspect) static MEMORY_MANAGER_NOT_STATIC: Check = Check {
    name: "MemoryManagerNotStatic",
    severity: Severity::Warning,
    looks_for: "the Topology Manager's policy is restricted or single-numa-node, but the Memory Manager's is not Static",
    why: "Memory is not aligned, and the zones' memory and huge pages stay available whatever is allocated.",
};
pub(super) static OPTION_WITHOUT_EFFECT: Check = Check {
    name: "OptionWithoutEffect",
    severity: Severity::Warning,
    looks_for: "an option of the Topology Manager or the CPU Manager has no effect with the policy",
    why: "The kubelet does not do what the option promises.",
};
pub(super) static POOL_DIFFERS: Check = Check {
    name: "PoolDiffers",
    severity: Severity::Warning,
    looks_for: "Nodes of one pool have different policies",
    why: "Where a pod fits depends on the node that it happens to get.",
};
pub(super) static POLICIES_STALE: Check = Check {
    name: "PoliciesStale",
    severity: Severity::Error,
    looks_for: "the policies of an object are not those of the kubelet (with --kubelets)",
    why: "Schedulers place pods by another policy than the kubelet's.",
};
pub(super) static RESERVED_MEMORY: Check = Check {
    name: "ReservedMemory",
    severity: Severity::Warning,
    looks_for: "reservedMemory is not the sum of kubeReserved, systemReserved and the eviction threshold (with --kubelets)",
    why: "A kubelet with the Memory Manager's policy Static does not start.",
};

pub(super) const CHECKS: &[&Check] = &[
    &CPU_MANAGER_NOT_STATIC,
    &MEMORY_MANAGER_NOT_STATIC,
    &OPTION_WITHOUT_EFFECT,
    &POOL_DIFFERS,
    &POLICIES_STALE,
    &RESERVED_MEMORY,
];

const CPU_POLICY: &str = "cpuManagerPolicy";
const MEMORY_POLICY: &str = "memoryManagerPolicy";

/// Labels that name the pool of a Node, and what its Nodes share.
const POOL_LABELS: [&str; 7] = [
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
    "oke.oraclecloud.com/pool.name",
    "numacast.io/pool",
    "node.kubernetes.io/instance-type",
];
/// How many Nodes a finding names.
const NAMED: usize = 3;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    let ours = || facts.objects.iter().flatten().filter(|object| object.meta.writers.ours);
    for object in ours() {
        found.extend(of_attributes(object));
    }
    found.extend(of_pools(facts, ours()));
    for (node, configz) in &facts.kubelets {
        let object = ours().find(|object| object.meta.name == *node);
        let details = facts.nodes.as_ref().and_then(|nodes| nodes.get(node));
        let mem_total = details.and_then(|node| node.capacity.get("memory")).copied();
        found.extend(of_configz(node, configz, mem_total, object));
    }
    found
}

fn configure(what: &str) -> Mend {
    Mend::Do(format!("{what} in the kubelet's configuration, drain the node, and restart the kubelet."))
}

fn of_attributes(object: &PublishedObject) -> Vec<Finding> {
    let mut found = Vec::new();
    let of = |name: &str| object.attributes.get(name).map(String::as_str);
    let Some(policy) = of(POLICY) else { return found };
    let place = place(object);
    let is_strict = ["restricted", "single-numa-node"].contains(&policy);
    if let Some(cpus) = of(CPU_POLICY).filter(|cpus| is_strict && *cpus != "static") {
        let what = format!("the Topology Manager's policy is {policy}, and the CPU Manager's {cpus}");
        let mend = configure("Set cpuManagerPolicy to static, with reserved CPUs,");
        found.push(CPU_MANAGER_NOT_STATIC.finding(&place, what, mend));
    }
    if let Some(memory) = of(MEMORY_POLICY).filter(|memory| is_strict && *memory != "Static") {
        let what = format!("the Topology Manager's policy is {policy}, and the Memory Manager's {memory}");
        let mend = configure("Set memoryManagerPolicy to Static, with reservedMemory,");
        found.push(MEMORY_MANAGER_NOT_STATIC.finding(&place, what, mend));
    }
    for (option, what) in without_effect(policy, &of) {
        found.push(OPTION_WITHOUT_EFFECT.finding(&place, what, configure(&format!("Remove {option}"))));
    }
    found
}

/// Returns options that are on and have no effect with the policy.
fn without_effect<'a>(policy: &str, of: &dyn Fn(&str) -> Option<&'a str>) -> Vec<(&'static str, String)> {
    let is_on = |name: &str| of(name).is_some_and(numacast_core::kubelet::is_true);
    let mut found = Vec::new();
    let one_node = "every container or pod gets one NUMA node";
    if is_on("topologyManagerOptionPreferClosestNumaNodes") && ["none", "single-numa-node"].contains(&policy)
    {
        let reason = if policy == "none" { "nothing is aligned" } else { one_node };
        let option = "prefer-closest-numa-nodes";
        found.push((option, format!("{option} has no effect: the policy is {policy}, and {reason}")));
    }
    if is_on("cpuManagerOptionDistributeCpusAcrossNuma") && policy == "single-numa-node" {
        let option = "distribute-cpus-across-numa";
        found.push((option, format!("{option} has no effect: the policy is {policy}, and {one_node}")));
    }
    found
}

/// Returns the policies of an object, without what belongs to one node.
fn policies(object: &PublishedObject) -> BTreeMap<&str, &str> {
    let is_policy = |name: &str| {
        name.starts_with("topologyManager") || name.starts_with("cpuManager") || name == MEMORY_POLICY
    };
    let all = object.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    all.filter(|(name, _)| is_policy(name)).collect()
}

fn pool_of(node: &NodeDetails) -> Option<String> {
    let labels = POOL_LABELS.iter().filter_map(|label| Some((*label, node.slim.labels.get(*label)?)));
    let pairs: Vec<String> = labels.map(|(label, value)| format!("{label}={value}")).collect();
    (!pairs.is_empty()).then(|| pairs.join(","))
}

fn of_pools<'a>(facts: &Facts, objects: impl Iterator<Item = &'a PublishedObject>) -> Vec<Finding> {
    let mut pools: BTreeMap<String, Vec<&PublishedObject>> = BTreeMap::new();
    for object in objects.filter(|object| object.attributes.contains_key(POLICY)) {
        let node = facts.nodes.as_ref().and_then(|nodes| nodes.get(&object.meta.name));
        if let Some(pool) = node.and_then(pool_of) {
            pools.entry(pool).or_default().push(object);
        }
    }
    let mut found = Vec::new();
    for (pool, objects) in pools {
        let names: std::collections::BTreeSet<&str> =
            objects.iter().flat_map(|object| policies(object).into_keys()).collect();
        for name in names {
            found.extend(difference(&pool, name, &objects));
        }
    }
    found
}

/// Returns a finding if the objects of a pool differ in an attribute.
fn difference(pool: &str, name: &str, objects: &[&PublishedObject]) -> Option<Finding> {
    let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for object in objects {
        let value = object.attributes.get(name).map_or("not set", String::as_str);
        values.entry(value).or_default().push(&object.meta.name);
    }
    if values.len() < 2 {
        return None;
    }
    let mut values: Vec<(&str, Vec<&str>)> = values.into_iter().collect();
    values.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
    let named = |(value, nodes): &(&str, Vec<&str>)| {
        let some = nodes.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        let dots = if nodes.len() > NAMED { ", ..." } else { "" };
        format!("{value} on {} ({some}{dots})", nodes.len())
    };
    let what =
        format!("{name} is {}", values.iter().take(NAMED).map(named).collect::<Vec<_>>().join(", and "));
    Some(POOL_DIFFERS.finding(format!("Nodes with {pool}"), what, configure("Set the same")))
}

fn of_configz(
    node: &str,
    configz: &[u8],
    mem_total: Option<u64>,
    object: Option<&PublishedObject>,
) -> Vec<Finding> {
    let Ok((config, _)) = parse_configz(configz) else { return Vec::new() };
    let mut found = Vec::new();
    if let Some(object) = object {
        let pairs = [
            (POLICY, &config.topology_manager_policy),
            (SCOPE, &config.topology_manager_scope),
            (CPU_POLICY, &config.cpu_manager_policy),
            (MEMORY_POLICY, &config.memory_manager_policy),
        ];
        let differs = |(name, actual): &(&str, &String)| {
            let published = object.attributes.get(*name)?;
            (published != *actual).then(|| format!("{name} is {published}, and the kubelet's is {actual}"))
        };
        if let Some(what) = pairs.iter().find_map(differs) {
            let mend =
                "See kubelet.configSource in docs/configuration.md: the agent reads another configuration."
                    .to_owned();
            found.push(POLICIES_STALE.finding(place(object), what, Mend::Do(mend)));
        }
    }
    if let Some(what) = reserved_memory(&config, mem_total) {
        let mend = configure("Let reservedMemory add up to that sum");
        found.push(RESERVED_MEMORY.finding(format!("Node {node}"), what, mend));
    }
    found
}

/// Returns what is wrong with `reservedMemory`; `None` if it is right, not set, or cannot be told.
fn reserved_memory(config: &KubeletConfig, mem_total: Option<u64>) -> Option<String> {
    let memory = || config.reserved_memory.values().filter_map(|limits| limits.get("memory"));
    memory().next()?;
    let given = memory().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    // Only a threshold in percent depends on the machine.
    let mem_total = mem_total.or_else(|| (!config.memory_eviction.ends_with('%')).then_some(0))?;
    let sum = config.memory_reservation(mem_total)?;
    (given != sum).then(|| {
        format!(
            "reservedMemory has {given} bytes of memory, but kubeReserved, systemReserved and evictionHard add up to {sum}"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn reserved_memory_is_the_sum_of_the_reservations() {
        let found = |memory: &str, eviction: Value, mem_total: Option<u64>| {
            let config = json!({"reservedMemory": [{"numaNode": 0, "limits": {"memory": memory}}, {"numaNode": 1, "limits": {"memory": "1Gi"}}],
                   "kubeReserved": {"memory": "1Gi", "cpu": "1"}, "systemReserved": {"memory": "924Mi"},
                   "evictionHard": eviction});
            let configz = json!({"kubeletconfig": config}).to_string();
            let found = of_configz("w", configz.as_bytes(), mem_total, None);
            found.into_iter().next().map(|finding| finding.what)
        };
        assert_eq!(found("1Gi", Value::Null, None), None);
        assert_eq!(found("1Gi", json!({"memory.available": "100Mi"}), None), None);
        let percentage = json!({"memory.available": "50%"});
        assert_eq!(found("1Gi", percentage.clone(), None), None, "it cannot be told");
        assert_eq!(found("1Gi", percentage.clone(), Some(200 << 20)), None);
        assert!(found("1Gi", percentage, Some(202 << 20)).is_some());
        let wrong = found("2Gi", Value::Null, None).unwrap();
        assert!(wrong.contains("3221225472 bytes") && wrong.ends_with("2147483648"), "{wrong}");
        assert!(found("1Gi", json!({}), None).is_some(), "no eviction threshold at all");
        assert_eq!(
            of_configz("w", b"{\"kubeletconfig\": {\"kubeReserved\": {\"memory\": \"1Gi\"}}}", None, None),
            [],
            "nothing is set"
        );
    }

    #[test]
    fn options_without_effect_are_known() {
        let of = |policy: &str, option: &str| {
            let value = |name: &str| (name == option).then_some("true");
            without_effect(policy, &value).len()
        };
        let (closest, distribute) =
            ("topologyManagerOptionPreferClosestNumaNodes", "cpuManagerOptionDistributeCpusAcrossNuma");
        assert_eq!(
            [of("none", closest), of("single-numa-node", closest), of("restricted", closest)],
            [1, 1, 0]
        );
        assert_eq!([of("single-numa-node", distribute), of("restricted", distribute)], [1, 0]);
    }
}
