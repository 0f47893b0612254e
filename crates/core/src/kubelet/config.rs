//! The kubelet's configuration, parsed leniently: unknown keys and feature gates are normal, and one invalid
//! key does not hide the others.

mod command_line;
mod files;
mod mounts;
mod overrides;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::{Id, IdSet};
use crate::quantity::Quantity;
use crate::util::file::read_bounded;

pub use files::ConfigFiles;
pub use mounts::Mounts;
pub use overrides::Overrides;

/// Maximum bytes of a file: the configuration, a drop-in or a command line.
const FILE_LIMIT: u64 = 1 << 20;

/// The parts of a `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1) that numacast needs, with the
/// kubelet's defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeletConfig {
    /// `none` or `static`.
    pub cpu_manager_policy: String,
    /// The CPU Manager's options, verbatim.
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    /// `None` or `Static`.
    pub memory_manager_policy: String,
    /// `none`, `best-effort`, `restricted` or `single-numa-node`.
    pub topology_manager_policy: String,
    /// `container` or `pod`.
    pub topology_manager_scope: String,
    /// The Topology Manager's options, verbatim.
    pub topology_manager_policy_options: BTreeMap<String, String>,
    /// CPUs that are never allocated exclusively. If empty, the kubelet chooses `reserved_cpu_count` CPUs
    /// itself.
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: IdSet,
    /// The whole CPUs of `kubeReserved` and `systemReserved` together.
    pub reserved_cpu_count: u64,
    /// NUMA node to resource (`memory`, `hugepages-<size>`) to bytes.
    pub reserved_memory: BTreeMap<Id, BTreeMap<String, u64>>,
    /// Bytes of memory in `kubeReserved` and `systemReserved` together.
    #[serde(skip_serializing_if = "is_zero")]
    pub reserved_bytes: u64,
    /// The hard eviction threshold `memory.available`, an amount or a percentage; empty if it is not set.
    #[serde(skip_serializing_if = "is_default_eviction")]
    pub memory_eviction: String,
    /// The feature gate `PodLevelResourceManagers`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pod_level_resource_managers: bool,
}

impl Default for KubeletConfig {
    fn default() -> Self {
        Self {
            cpu_manager_policy: "none".into(),
            cpu_manager_policy_options: BTreeMap::new(),
            memory_manager_policy: "None".into(),
            topology_manager_policy: "none".into(),
            topology_manager_scope: "container".into(),
            topology_manager_policy_options: BTreeMap::new(),
            reserved_system_cpus: IdSet::new(),
            reserved_cpu_count: 0,
            reserved_memory: BTreeMap::new(),
            reserved_bytes: 0,
            memory_eviction: MEMORY_EVICTION.into(),
            pod_level_resource_managers: false,
        }
    }
}

/// The kubelet's default of `evictionHard` for memory (upstream: `pkg/kubelet/eviction/defaults_linux.go`).
const MEMORY_EVICTION: &str = "100Mi";

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

fn is_default_eviction(threshold: &str) -> bool {
    threshold == MEMORY_EVICTION
}

impl KubeletConfig {
    /// Returns the bytes of memory that `kubeReserved`, `systemReserved` and the hard eviction threshold take
    /// together on a node with `mem_total` bytes; `None` if the threshold cannot be parsed. With the Memory Manager's policy
    /// `Static`, a kubelet starts only if `reservedMemory` has as many in all.
    #[must_use]
    pub fn memory_reservation(&self, mem_total: u64) -> Option<u64> {
        let eviction = match self.memory_eviction.strip_suffix('%') {
            _ if self.memory_eviction.is_empty() => 0,
            // Upstream: "ignore 0% and 100%".
            Some("100") => 0,
            None => self.memory_eviction.parse::<Quantity>().ok()?.ceil(),
            // As the kubelet: a float of 32 bits, multiplied as one of 64 and truncated (upstream:
            // `pkg/kubelet/eviction/api`, `GetThresholdQuantity`).
            Some(percentage) => {
                let percentage =
                    percentage.parse::<f32>().ok().filter(|number| (0.0..=100.0).contains(number))?;
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss
                )]
                let bytes = (mem_total as f64 * f64::from(percentage / 100.0)) as u64;
                bytes
            }
        };
        Some(self.reserved_bytes.saturating_add(eviction))
    }
}

/// Parses a configuration file (YAML or JSON). Missing keys get the kubelet's defaults. The second value
/// lists invalid keys, which were left at their default.
pub fn parse_config(text: &str) -> Result<(KubeletConfig, Vec<String>), String> {
    parse_mapping(text).map(|value| from_value(&value))
}

/// Parses the kubelet's response at `/configz`; the second value is as in [`parse_config`].
pub fn parse_configz(response: &[u8]) -> Result<(KubeletConfig, Vec<String>), String> {
    let value: Value = serde_json::from_slice(response).map_err(|error| error.to_string())?;
    match &value["kubeletconfig"] {
        config @ Value::Object(_) => Ok(from_value(config)),
        _ => Err("there is no `kubeletconfig` in it".into()),
    }
}

/// Parses YAML or JSON that must be a mapping.
fn parse_mapping(text: &str) -> Result<Value, String> {
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
    match value {
        Value::Object(_) => Ok(value),
        _ => Err("it is not a mapping of keys".into()),
    }
}

fn from_value(value: &Value) -> (KubeletConfig, Vec<String>) {
    let (defaults, mut errors) = (KubeletConfig::default(), Vec::new());
    let mut text = |name: &str, default: String| match &value[name] {
        Value::Null => default,
        Value::String(text) if text.is_empty() => default,
        Value::String(text) => text.clone(),
        other => {
            errors.push(format!("{name} is `{other}`, which is not a string; using {default}"));
            default
        }
    };
    let config = KubeletConfig {
        cpu_manager_policy: text("cpuManagerPolicy", defaults.cpu_manager_policy),
        memory_manager_policy: text("memoryManagerPolicy", defaults.memory_manager_policy),
        topology_manager_policy: text("topologyManagerPolicy", defaults.topology_manager_policy),
        topology_manager_scope: text("topologyManagerScope", defaults.topology_manager_scope),
        cpu_manager_policy_options: options(&value["cpuManagerPolicyOptions"]),
        topology_manager_policy_options: options(&value["topologyManagerPolicyOptions"]),
        reserved_system_cpus: reserved_cpus(&value["reservedSystemCPUs"], &mut errors),
        reserved_cpu_count: reserved_cpu_count(value, &mut errors),
        reserved_memory: reserved_memory(&value["reservedMemory"], &mut errors),
        reserved_bytes: reserved_bytes(value, &mut errors),
        memory_eviction: memory_eviction(value),
        pod_level_resource_managers: value["featureGates"]["PodLevelResourceManagers"] == true,
    };
    (config, errors)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Returns true if an option with this value is on: as Go's `strconv.ParseBool`.
#[must_use]
pub fn is_true(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "TRUE" | "true" | "True")
}

fn options(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), scalar(value)?))).collect()
}

fn reserved_cpus(value: &Value, errors: &mut Vec<String>) -> IdSet {
    let Some(text) = scalar(value) else { return IdSet::new() };
    text.parse().unwrap_or_else(|error| {
        errors.push(format!("reservedSystemCPUs: {error}; taken as none"));
        IdSet::new()
    })
}

/// The kubelet reserves whole CPUs: the sum of both reservations, rounded up.
fn reserved_cpu_count(value: &Value, errors: &mut Vec<String>) -> u64 {
    let mut cpus = |section: &str| quantity(&value[section]["cpu"], &format!("{section}.cpu"), errors);
    [cpus("kubeReserved"), cpus("systemReserved")].into_iter().sum::<Quantity>().ceil()
}

fn reserved_bytes(value: &Value, errors: &mut Vec<String>) -> u64 {
    let mut bytes = |section: &str| quantity(&value[section]["memory"], &format!("{section}.memory"), errors);
    [bytes("kubeReserved"), bytes("systemReserved")].into_iter().sum::<Quantity>().ceil()
}

/// Without `mergeDefaultEvictionSettings`, thresholds replace all defaults (upstream: `cmd/kubelet/app/server.go`).
fn memory_eviction(value: &Value) -> String {
    let Value::Object(thresholds) = &value["evictionHard"] else { return MEMORY_EVICTION.to_owned() };
    let default = if value["mergeDefaultEvictionSettings"] == true { MEMORY_EVICTION } else { "" };
    thresholds.get("memory.available").and_then(scalar).unwrap_or_else(|| default.to_owned())
}

fn reserved_memory(value: &Value, errors: &mut Vec<String>) -> BTreeMap<Id, BTreeMap<String, u64>> {
    let mut reserved: BTreeMap<Id, BTreeMap<String, u64>> = BTreeMap::new();
    for entry in value.as_array().into_iter().flatten() {
        let Some(node) = entry["numaNode"].as_u64().and_then(|id| Id::try_from(id).ok()) else {
            errors.push(format!(
                "reservedMemory: `{}` is not a NUMA node id; entry ignored",
                entry["numaNode"]
            ));
            continue;
        };
        for (resource, amount) in entry["limits"].as_object().into_iter().flatten() {
            let bytes = quantity(amount, &format!("reservedMemory.{resource}"), errors).ceil();
            let sum = reserved.entry(node).or_default().entry(resource.clone()).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    reserved
}

/// Returns a quantity, or 0 if it is missing. An invalid or negative one is also 0 and is reported; no
/// kubelet starts with such a one.
fn quantity(value: &Value, name: &str, errors: &mut Vec<String>) -> Quantity {
    let read = match value {
        Value::Null => return Quantity::default(),
        value => Quantity::deserialize(value).map_err(|error| error.to_string()),
    };
    let error = match read {
        Ok(quantity) if quantity < Quantity::default() => format!("`{quantity}` is below zero"),
        Ok(quantity) => return quantity,
        Err(error) => error,
    };
    errors.push(format!("{name}: {error}; taken as 0"));
    Quantity::default()
}

/// Returns the text of a file of at most [`FILE_LIMIT`] bytes.
fn read_text(path: &Path) -> Result<String, String> {
    let bytes = read_bounded(path, FILE_LIMIT).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(yaml: &str) -> (KubeletConfig, Vec<String>) {
        parse_config(yaml).unwrap()
    }

    #[test]
    fn an_empty_mapping_has_the_kubelets_defaults() {
        assert_eq!(parse("kind: KubeletConfiguration\n"), (KubeletConfig::default(), vec![]));
    }

    #[test]
    fn unknown_keys_are_ignored() {
        let (config, errors) = parse(
            "featureGates: {FromTheFuture: true}\nnewKey: [1, {a: b}]\ncpuManagerPolicy: static\n\
             topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\nmemoryManagerPolicy: Static\n\
             topologyManagerPolicyOptions: {max-allowable-numa-nodes: 16}\nreservedSystemCPUs: 0,8-9\n\
             kubeReserved: {cpu: 1500m}\nsystemReserved: {cpu: '0.6'}\n\
             reservedMemory: [{numaNode: 1, limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}]\n",
        );
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!(config.cpu_manager_policy, "static");
        assert_eq!(config.topology_manager_scope, "pod");
        assert_eq!(config.topology_manager_policy_options["max-allowable-numa-nodes"], "16");
        assert_eq!(config.reserved_system_cpus.to_string(), "0,8-9");
        assert_eq!(config.reserved_cpu_count, 3);
        assert_eq!(
            config.reserved_memory[&1],
            [("hugepages-2Mi".into(), 4 << 20), ("memory".into(), 1 << 30)].into()
        );
    }

    #[test]
    fn an_invalid_key_is_reported_and_the_others_are_read() {
        let (config, errors) = parse(
            "cpuManagerPolicy: [static]\nreservedSystemCPUs: some\nkubeReserved: {cpu: much}\n\
             reservedMemory: [{numaNode: -1}]\ntopologyManagerPolicy: restricted\n",
        );
        assert_eq!(config.topology_manager_policy, "restricted");
        assert_eq!(
            errors,
            [
                "cpuManagerPolicy is `[\"static\"]`, which is not a string; using none",
                "reservedSystemCPUs: `some` is not a list of ids such as 0-3,8; taken as none",
                "kubeReserved.cpu: `much` is not a Kubernetes quantity such as 4, 500m, 64Mi or 16Gi; taken as 0",
                "reservedMemory: `-1` is not a NUMA node id; entry ignored",
            ]
        );
    }

    #[test]
    fn reserved_cpus_are_any_quantity_and_rounded_once() {
        for (kube, system, count) in [
            ("1000e-3", "'0'", 1),
            ("1500000u", "0.5", 2),
            ("999500u", "500u", 1),
            ("1n", "1n", 1),
            ("1k", "24e0", 1024),
            ("' 1 '", "1", 2),
        ] {
            let (config, errors) =
                parse(&format!("{{kubeReserved: {{cpu: {kube}}}, systemReserved: {{cpu: {system}}}}}"));
            assert_eq!((config.reserved_cpu_count, errors), (count, vec![]), "{kube} {system}");
        }
        for nonsense in ["-1", "[1]", "true", "1.5.5", "{a: b}"] {
            let (config, errors) = parse(&format!(
                "kubeReserved: {{cpu: {nonsense}}}\nreservedMemory: [{{numaNode: 0, limits: {{memory: {nonsense}}}}}]"
            ));
            assert_eq!(config.reserved_cpu_count, 0);
            for (error, key) in errors.iter().zip(["kubeReserved.cpu: ", "reservedMemory.memory: "]) {
                assert!(error.starts_with(key) && error.ends_with("; taken as 0"), "{errors:?}");
            }
            assert_eq!(errors.len(), 2, "{errors:?}");
        }
    }

    #[test]
    fn the_memory_reservation_includes_the_eviction_threshold() {
        for (yaml, bytes) in [
            ("a: b", 100 << 20),
            ("kubeReserved: {memory: 1Gi}\nsystemReserved: {memory: 512Mi}", (1536 << 20) + (100 << 20)),
            ("evictionHard: {nodefs.available: 5%}\nsystemReserved: {memory: 1Gi}", 1 << 30),
            ("evictionHard: {nodefs.available: 5%}\nmergeDefaultEvictionSettings: true", 100 << 20),
            ("evictionHard: {memory.available: 5%}", 53_687_092),
            ("evictionHard: {memory.available: 100%}", 0),
            ("evictionHard: {}", 0),
        ] {
            let (config, errors) = parse(yaml);
            assert_eq!((config.memory_reservation(1 << 30), errors), (Some(bytes), vec![]), "{yaml}");
        }
        let (config, _) = parse("evictionHard: {memory.available: some}");
        assert_eq!(config.memory_reservation(1 << 30), None);
    }

    #[test]
    fn text_that_is_no_mapping_is_an_error() {
        for text in ["- a\n", "", "3"] {
            assert_eq!(parse_config(text).unwrap_err(), "it is not a mapping of keys", "{text:?}");
        }
        assert!(parse_config("a: [").is_err());
    }

    #[test]
    fn configz_contains_the_configuration() {
        let response =
            br#"{"kubeletconfig":{"cpuManagerPolicy":"static","featureGates":{"New":true},"newKey":{}}}"#;
        let (config, errors) = parse_configz(response).unwrap();
        assert_eq!((config.cpu_manager_policy.as_str(), errors), ("static", vec![]));
        for (response, error) in
            [("{}", "there is no `kubeletconfig` in it"), ("Unauthorized", "expected value")]
        {
            let actual = parse_configz(response.as_bytes()).unwrap_err();
            assert!(actual.starts_with(error), "{actual}");
        }
    }
}
