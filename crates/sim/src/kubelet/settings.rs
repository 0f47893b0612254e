//! The keys of the machine's `KubeletConfiguration` that the simulated managers implement. Parsed here a
//! second time on purpose: the simulation is the oracle for the agent's own parser.

use std::collections::BTreeMap;

use numacast_core::admission::{self, CpuOptions, Scope, TopologyPolicy};
use numacast_core::machine::{Id, IdSet};
use numacast_core::quantity::Quantity;
use serde_json::{Map, Value};

/// The version of the kubelet. Each variant covers the versions up to the next variant, and its documentation
/// lists what is new in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum KubeletVersion {
    /// Only v1alpha1 (before 1.20).
    OnlyV1alpha1,
    /// v1 with `List`, which reports devices and exclusive CPUs.
    V1_20,
    /// `GetAllocatableResources`, behind a feature gate that is on here: no memory, and only the CPUs that
    /// were free when the kubelet started.
    V1_21,
    /// `GetAllocatableResources` by default; memory in both; all CPUs that can be exclusive are allocatable.
    V1_23,
    /// The rate limiter; `Get`, but disabled.
    V1_27,
    /// Sidecars are in the List.
    V1_29,
    /// The List contains active pods only, no longer terminated ones; `Get` and `dynamic_resources`.
    #[default]
    V1_34,
    /// Shared devices in `dynamic_resources`.
    V1_35,
    /// Pod-level entries in the checkpoints.
    V1_36,
    /// Pod-level CPUs and memory in the List; pod-level entries in the checkpoints only in `data`, as JSON
    /// text.
    V1_37,
}

/// The settings that the managers implement.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) static_cpus: bool,
    pub(super) static_memory: bool,
    cpu_options: BTreeMap<String, String>,
    pub(super) policy: TopologyPolicy,
    scope: Scope,
    prefer_closest: bool,
    /// The feature gate PodLevelResourceManagers (1.36 and later, off by default).
    pod_level_managers: bool,
    pub(super) reserved_cpus: IdSet,
    pub(super) reserved_cpu_count: u64,
    reserved_memory: BTreeMap<(Id, String), u64>,
}

impl Settings {
    pub(super) fn from_keys(keys: &Map<String, Value>) -> Self {
        let text = |key: &str| keys.get(key).and_then(Value::as_str).unwrap_or_default();
        let is_set = |section: &str, key: &str| {
            let value = keys.get(section).and_then(|section| section.get(key));
            value.is_some_and(|value| value == "true" || *value == true)
        };
        let options = keys.get("cpuManagerPolicyOptions").and_then(Value::as_object).into_iter().flatten();
        let option = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        Self {
            static_cpus: text("cpuManagerPolicy") == "static",
            static_memory: text("memoryManagerPolicy") == "Static",
            cpu_options: options.filter_map(option).collect(),
            policy: TopologyPolicy::named(text("topologyManagerPolicy")).unwrap_or_default(),
            scope: if text("topologyManagerScope") == "pod" { Scope::Pod } else { Scope::Container },
            prefer_closest: is_set("topologyManagerPolicyOptions", "prefer-closest-numa-nodes"),
            pod_level_managers: is_set("featureGates", "PodLevelResourceManagers"),
            reserved_cpus: text("reservedSystemCPUs").parse().unwrap_or_default(),
            reserved_cpu_count: reserved_cpu_count(keys),
            reserved_memory: reserved_memory(keys),
        }
    }

    /// The settings that decide admission.
    pub(super) fn admission(&self, version: KubeletVersion) -> admission::Settings {
        admission::Settings {
            policy: self.policy,
            scope: self.scope,
            prefer_closest: self.prefer_closest,
            pod_level_managers: self.pod_level_managers,
            device_hints_skip_other_nodes: version >= KubeletVersion::V1_36,
            is_older: false,
            allocates_zero_bytes: version < KubeletVersion::V1_37,
        }
    }

    /// The options of the CPU Manager.
    pub(super) fn cpu_options(&self, version: KubeletVersion) -> CpuOptions {
        CpuOptions::of(&self.cpu_options, if version >= KubeletVersion::V1_37 { 37 } else { 36 })
    }

    /// Bytes of a resource that `reservedMemory` reserves on a node.
    pub(super) fn reserved(&self, node: Id, resource: &str) -> u64 {
        self.reserved_memory.get(&(node, resource.to_owned())).copied().unwrap_or(0)
    }
}

fn quantity(value: &Value) -> Quantity {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.parse().unwrap_or_default()
}

fn reserved_cpu_count(keys: &Map<String, Value>) -> u64 {
    let cpu = |section: &&str| keys.get(*section).and_then(|section| section.get("cpu"));
    ["kubeReserved", "systemReserved"].iter().filter_map(cpu).map(quantity).sum::<Quantity>().ceil()
}

fn reserved_memory(keys: &Map<String, Value>) -> BTreeMap<(Id, String), u64> {
    let mut reserved = BTreeMap::new();
    for entry in keys.get("reservedMemory").and_then(Value::as_array).into_iter().flatten() {
        let node = entry["numaNode"].as_u64().and_then(|node| Id::try_from(node).ok());
        for (resource, amount) in entry["limits"].as_object().into_iter().flatten() {
            let Some(node) = node else { continue };
            *reserved.entry((node, resource.clone())).or_default() += quantity(amount).ceil();
        }
    }
    reserved
}
