//! The kubelet's configuration, parsed leniently: unknown keys and feature gates are normal, and one invalid
//! key does not hide the others.

mod command_line;
mod files;
mod mounts;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::{Id, IdSet};
use crate::quantity::Quantity;

pub use files::ConfigFiles;
pub use mounts::Mounts;

/// Maximum file size.
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
        }
    }
}

/// Fields of a `KubeletConfiguration` that override the kubelet's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Overrides {
    /// As [`KubeletConfig::cpu_manager_policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_manager_policy: Option<String>,
    /// As [`KubeletConfig::memory_manager_policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_manager_policy: Option<String>,
    /// As [`KubeletConfig::topology_manager_policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_manager_policy: Option<String>,
    /// As [`KubeletConfig::topology_manager_scope`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_manager_scope: Option<String>,
    /// Options by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub topology_manager_policy_options: BTreeMap<String, String>,
}

/// The policies and scopes that a kubelet has.
const CPU_MANAGER_POLICIES: [&str; 2] = ["none", "static"];
const MEMORY_MANAGER_POLICIES: [&str; 2] = ["None", "Static"];
const TOPOLOGY_MANAGER_POLICIES: [&str; 4] = ["none", "best-effort", "restricted", "single-numa-node"];
const TOPOLOGY_MANAGER_SCOPES: [&str; 2] = ["container", "pod"];

impl Overrides {
    /// Checks the values.
    ///
    /// # Errors
    /// For a policy or scope that no kubelet has, and for a policy without a scope or a scope without a policy.
    pub fn check(&self) -> Result<(), String> {
        for (field, value, known) in [
            ("cpuManagerPolicy", &self.cpu_manager_policy, &CPU_MANAGER_POLICIES[..]),
            ("memoryManagerPolicy", &self.memory_manager_policy, &MEMORY_MANAGER_POLICIES[..]),
            ("topologyManagerPolicy", &self.topology_manager_policy, &TOPOLOGY_MANAGER_POLICIES[..]),
            ("topologyManagerScope", &self.topology_manager_scope, &TOPOLOGY_MANAGER_SCOPES[..]),
        ] {
            if let Some(value) = value.as_deref().filter(|value| !known.contains(value)) {
                return Err(format!("{field}: unknown value `{value}`, expected one of {}", known.join(", ")));
            }
        }
        match (&self.topology_manager_policy, &self.topology_manager_scope) {
            (Some(_), None) => {
                Err("consumers misread a policy without its scope: set topologyManagerScope as well".to_owned())
            }
            (None, Some(_)) => {
                Err("a scope has no meaning without a policy: set topologyManagerPolicy as well".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Overrides the values in `config`.
    pub fn apply(&self, config: &mut KubeletConfig) {
        for (given, key) in [
            (&self.cpu_manager_policy, &mut config.cpu_manager_policy),
            (&self.memory_manager_policy, &mut config.memory_manager_policy),
            (&self.topology_manager_policy, &mut config.topology_manager_policy),
            (&self.topology_manager_scope, &mut config.topology_manager_scope),
        ] {
            if let Some(given) = given {
                key.clone_from(given);
            }
        }
        config.topology_manager_policy_options.extend(self.topology_manager_policy_options.clone());
    }

    /// Returns a configuration of these values alone, with unset policies empty; `None` if nothing is set.
    #[must_use]
    pub fn alone(&self) -> Option<KubeletConfig> {
        if *self == Self::default() {
            return None;
        }
        let mut config = KubeletConfig {
            cpu_manager_policy: String::new(),
            memory_manager_policy: String::new(),
            topology_manager_policy: String::new(),
            topology_manager_scope: String::new(),
            ..KubeletConfig::default()
        };
        self.apply(&mut config);
        Some(config)
    }
}

/// Parses a configuration file (YAML or JSON). Missing keys get the kubelet's defaults. The second value
/// lists invalid keys, which were left at their default.
///
/// # Errors
/// Half a sentence, if the text is not a mapping.
pub fn parse_config(text: &str) -> Result<(KubeletConfig, Vec<String>), String> {
    let value = mapping(text)?;
    let mut problems = Vec::new();
    let config = pick(&value, &mut problems);
    Ok((config, problems))
}

/// Parses the kubelet's response at `/configz`; the second value is as in [`parse_config`].
///
/// # Errors
/// Half a sentence, if it is something else.
pub fn parse_configz(answer: &[u8]) -> Result<(KubeletConfig, Vec<String>), String> {
    let value: Value = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    match &value["kubeletconfig"] {
        config @ Value::Object(_) => {
            let mut problems = Vec::new();
            let config = pick(config, &mut problems);
            Ok((config, problems))
        }
        _ => Err("there is no `kubeletconfig` in it".into()),
    }
}

/// Returns the text of a file up to the maximum size.
fn text_of(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_LIMIT + 1).read_to_end(&mut bytes))
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err("it is larger than 1 MiB".into());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses YAML or JSON that must be a mapping.
fn mapping(text: &str) -> Result<Value, String> {
    match serde_saphyr::from_str(text).map_err(|error| first_line(&error))? {
        value @ Value::Object(_) => Ok(value),
        _ => Err("it is no mapping of keys".into()),
    }
}

fn first_line(error: &impl ToString) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

fn pick(value: &Value, problems: &mut Vec<String>) -> KubeletConfig {
    let defaults = KubeletConfig::default();
    let mut key = |name: &str, default: String| match &value[name] {
        Value::Null => default,
        Value::String(text) if text.is_empty() => default,
        Value::String(text) => text.clone(),
        other => {
            problems.push(format!("{name} is `{other}`, no text; taken as {default}"));
            default
        }
    };
    KubeletConfig {
        cpu_manager_policy: key("cpuManagerPolicy", defaults.cpu_manager_policy),
        memory_manager_policy: key("memoryManagerPolicy", defaults.memory_manager_policy),
        topology_manager_policy: key("topologyManagerPolicy", defaults.topology_manager_policy),
        topology_manager_scope: key("topologyManagerScope", defaults.topology_manager_scope),
        cpu_manager_policy_options: options(&value["cpuManagerPolicyOptions"]),
        topology_manager_policy_options: options(&value["topologyManagerPolicyOptions"]),
        reserved_system_cpus: reserved_cpus(&value["reservedSystemCPUs"], problems),
        reserved_cpu_count: reserved_cpu_count(value, problems),
        reserved_memory: reserved_memory(&value["reservedMemory"], problems),
    }
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn options(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), plain(value)?))).collect()
}

fn reserved_cpus(value: &Value, problems: &mut Vec<String>) -> IdSet {
    let Some(text) = plain(value) else { return IdSet::new() };
    text.parse().unwrap_or_else(|error| {
        problems.push(format!("reservedSystemCPUs: {error}; taken as none"));
        IdSet::new()
    })
}

/// The kubelet reserves whole CPUs: the sum of both reservations, rounded up.
fn reserved_cpu_count(value: &Value, problems: &mut Vec<String>) -> u64 {
    let sections = ["kubeReserved", "systemReserved"];
    let sum: Quantity = sections
        .map(|section| quantity(&value[section]["cpu"], &format!("{section}.cpu"), problems))
        .into_iter()
        .sum();
    sum.ceil()
}

fn reserved_memory(value: &Value, problems: &mut Vec<String>) -> BTreeMap<Id, BTreeMap<String, u64>> {
    let mut reserved: BTreeMap<Id, BTreeMap<String, u64>> = BTreeMap::new();
    for entry in value.as_array().into_iter().flatten() {
        let Some(node) = entry["numaNode"].as_u64().and_then(|id| Id::try_from(id).ok()) else {
            problems.push(format!("reservedMemory: `{}` is no NUMA node; entry ignored", entry["numaNode"]));
            continue;
        };
        for (resource, amount) in entry["limits"].as_object().into_iter().flatten() {
            let bytes = quantity(amount, &format!("reservedMemory.{resource}"), problems).ceil();
            let sum = reserved.entry(node).or_default().entry(resource.clone()).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    reserved
}

/// Returns a quantity, or 0 if it is missing. An invalid or negative one is also 0 and is reported; no
/// kubelet starts with such a one.
fn quantity(value: &Value, name: &str, problems: &mut Vec<String>) -> Quantity {
    let read = match value {
        Value::Null => return Quantity::default(),
        value => Quantity::deserialize(value).map_err(|error| error.to_string()),
    };
    let error = match read {
        Ok(quantity) if quantity < Quantity::default() => format!("`{quantity}` is below zero"),
        Ok(quantity) => return quantity,
        Err(error) => error,
    };
    problems.push(format!("{name}: {error}; taken as 0"));
    Quantity::default()
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
    fn keys_we_do_not_know_are_normal() {
        let (config, problems) = parse(
            "featureGates: {FromTheFuture: true}\nnewKey: [1, {a: b}]\ncpuManagerPolicy: static\n\
             topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\nmemoryManagerPolicy: Static\n\
             topologyManagerPolicyOptions: {max-allowable-numa-nodes: 16}\nreservedSystemCPUs: 0,8-9\n\
             kubeReserved: {cpu: 1500m}\nsystemReserved: {cpu: '0.6'}\n\
             reservedMemory: [{numaNode: 1, limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}]\n",
        );
        assert_eq!(problems, Vec::<String>::new());
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
    fn a_key_that_makes_no_sense_is_told_and_hides_no_other() {
        let (config, problems) = parse(
            "cpuManagerPolicy: [static]\nreservedSystemCPUs: some\nkubeReserved: {cpu: much}\n\
             reservedMemory: [{numaNode: -1}]\ntopologyManagerPolicy: restricted\n",
        );
        assert_eq!(config.topology_manager_policy, "restricted");
        assert_eq!(
            problems,
            [
                "cpuManagerPolicy is `[\"static\"]`, no text; taken as none",
                "reservedSystemCPUs: `some` is not a list of ids such as 0-3,8; taken as none",
                "kubeReserved.cpu: `much` is not a Kubernetes quantity such as 4, 500m, 64Mi or 16Gi; taken as 0",
                "reservedMemory: `-1` is no NUMA node; entry ignored",
            ]
        );
    }

    #[test]
    fn reserved_cpus_are_read_in_every_spelling_and_rounded_once() {
        for (kube, system, count) in [
            ("1000e-3", "'0'", 1),
            ("1500000u", "0.5", 2),
            ("999500u", "500u", 1),
            ("1n", "1n", 1),
            ("1k", "24e0", 1024),
            ("' 1 '", "1", 2),
        ] {
            let (config, problems) =
                parse(&format!("{{kubeReserved: {{cpu: {kube}}}, systemReserved: {{cpu: {system}}}}}"));
            assert_eq!((config.reserved_cpu_count, problems), (count, vec![]), "{kube} {system}");
        }
        for nonsense in ["-1", "[1]", "true", "1.5.5", "{a: b}"] {
            let (config, problems) = parse(&format!(
                "kubeReserved: {{cpu: {nonsense}}}\nreservedMemory: [{{numaNode: 0, limits: {{memory: {nonsense}}}}}]"
            ));
            assert_eq!(config.reserved_cpu_count, 0);
            let told = |at: usize, key: &str| {
                problems[at].starts_with(key) && problems[at].ends_with("; taken as 0")
            };
            assert!(told(0, "kubeReserved.cpu: ") && told(1, "reservedMemory.memory: "), "{problems:?}");
        }
    }

    #[test]
    fn text_that_is_no_mapping_is_told() {
        for text in ["- a\n", "", "3"] {
            assert_eq!(parse_config(text).unwrap_err(), "it is no mapping of keys", "{text:?}");
        }
        assert!(parse_config("a: [").is_err());
    }

    #[test]
    fn configz_is_the_same_in_an_envelope() {
        let answer =
            br#"{"kubeletconfig":{"cpuManagerPolicy":"static","featureGates":{"New":true},"newKey":{}}}"#;
        let (config, problems) = parse_configz(answer).unwrap();
        assert_eq!((config.cpu_manager_policy.as_str(), problems), ("static", vec![]));
        for (answer, error) in
            [("{}", "there is no `kubeletconfig` in it"), ("Unauthorized", "expected value")]
        {
            let told = parse_configz(answer.as_bytes()).unwrap_err();
            assert!(told.starts_with(error), "{told}");
        }
    }

    #[test]
    fn overrides_that_no_kubelet_has_are_errors() {
        let check = |json: &str| serde_json::from_str::<Overrides>(json).unwrap().check();
        assert_eq!(check("{}"), Ok(()));
        assert_eq!(check(r#"{"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"}"#), Ok(()));
        for (json, reason) in [
            (
                r#"{"topologyManagerPolicy": "strict", "topologyManagerScope": "pod"}"#,
                "topologyManagerPolicy: unknown value `strict`, expected one of none, best-effort",
            ),
            (r#"{"memoryManagerPolicy": "static"}"#, "expected one of None, Static"),
            (r#"{"topologyManagerPolicy": "restricted"}"#, "a policy without its scope"),
            (r#"{"topologyManagerScope": "pod"}"#, "a scope has no meaning without a policy"),
        ] {
            let error = check(json).unwrap_err();
            assert!(error.contains(reason), "{json}: {error}");
        }
    }

    #[test]
    fn overrides_win_and_alone_leave_the_rest_empty() {
        assert_eq!(Overrides::default().alone(), None);
        let options = |name: &str| BTreeMap::from([(name.to_owned(), "true".to_owned())]);
        let overrides = Overrides {
            topology_manager_policy: Some("restricted".into()),
            topology_manager_scope: Some("pod".into()),
            topology_manager_policy_options: options("a"),
            ..Overrides::default()
        };
        let alone = overrides.alone().unwrap();
        assert_eq!(
            (alone.topology_manager_policy.as_str(), alone.cpu_manager_policy.as_str()),
            ("restricted", "")
        );
        let mut read =
            KubeletConfig { topology_manager_policy_options: options("b"), ..KubeletConfig::default() };
        overrides.apply(&mut read);
        assert_eq!((read.topology_manager_scope.as_str(), read.cpu_manager_policy.as_str()), ("pod", "none"));
        assert_eq!(read.topology_manager_policy_options.len(), 2);
    }
}
