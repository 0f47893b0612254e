//! The kubelet's configuration: whether it can be read, and whether a kubelet starts with it.

use super::facts::NodeFacts;
use crate::inspect::doctor::{CPU_MANAGER_NOT_STATIC, MEMORY_MANAGER_NOT_STATIC};
use crate::inspect::{Check, Finding, Mend, Severity};
use crate::kubelet::{KubeletConfig, Overrides};
use crate::machine::Machine;
use numacast_core::kubelet::is_true;

const NO_START: &str = "The kubelet does not start with it.";

static CONFIG_UNREADABLE: Check = Check {
    name: "ConfigUnreadable",
    severity: Severity::Error,
    looks_for: "the kubelet's configuration cannot be read from any source",
    why: "Objects without policies tell schedulers that nothing is aligned on the node.",
};
static CONFIG_KEY_INVALID: Check = Check {
    name: "ConfigKeyInvalid",
    severity: Severity::Error,
    looks_for: "a key of the kubelet's configuration has an invalid value",
    why: "numacast does without the key, and most such values keep the kubelet from starting.",
};
static CONFIG_NOT_IN_EFFECT: Check = Check {
    name: "ConfigNotInEffect",
    severity: Severity::Warning,
    looks_for: "the kubelet's configuration changed after the kubelet started",
    why: "The kubelet runs with the former configuration until it restarts, and the object keeps its policies.",
};
static OVERRIDE_DIFFERS: Check = Check {
    name: "OverrideDiffers",
    severity: Severity::Error,
    looks_for: "`kubelet.configOverrides` differs from the kubelet's configuration",
    why: "The scheduler places pods that the kubelet rejects.",
};
static POLICY_UNKNOWN: Check = Check {
    name: "PolicyUnknown",
    severity: Severity::Error,
    looks_for: "a manager's policy or scope is unknown to the kubelet",
    why: NO_START,
};
static OPTIONS_INVALID: Check = Check {
    name: "OptionsInvalid",
    severity: Severity::Error,
    looks_for: "options of the managers are unknown, exclude each other, or have invalid values",
    why: NO_START,
};
static TOO_MANY_NUMA_NODES: Check = Check {
    name: "TooManyNumaNodes",
    severity: Severity::Error,
    looks_for: "the machine has more NUMA nodes than `max-allowable-numa-nodes` (8 if not set)",
    why: NO_START,
};

pub(super) const CHECKS: &[&Check] = &[
    &CONFIG_UNREADABLE,
    &CONFIG_KEY_INVALID,
    &CONFIG_NOT_IN_EFFECT,
    &OVERRIDE_DIFFERS,
    &POLICY_UNKNOWN,
    &CPU_MANAGER_NOT_STATIC,
    &MEMORY_MANAGER_NOT_STATIC,
    &OPTIONS_INVALID,
    &TOO_MANY_NUMA_NODES,
];

/// The kubelet's limit of NUMA nodes, and the minimum of the option that raises it (upstream:
/// `pkg/kubelet/cm/topologymanager`, `defaultMaxAllowableNUMANodes`).
const DEFAULT_NUMA_NODES: u64 = 8;

/// With more NUMA nodes, the Memory Manager's policy `Static` takes too long: it tries every set of them.
const STATIC_MEMORY_NODES: usize = 8;

/// The options of the static CPU Manager up to Kubernetes 1.37 (upstream: `pkg/kubelet/cm/cpumanager/policy_options.go`).
const CPU_OPTIONS: [&str; 6] = [
    "full-pcpus-only",
    "distribute-cpus-across-numa",
    "align-by-socket",
    "distribute-cpus-across-cores",
    "strict-cpu-reservation",
    "prefer-align-cpus-by-uncorecache",
];
/// Those of them that a kubelet does not accept together.
const EXCLUSIVE: [[&str; 2]; 4] = [
    ["full-pcpus-only", "distribute-cpus-across-cores"],
    ["distribute-cpus-across-numa", "distribute-cpus-across-cores"],
    ["prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"],
    ["prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"],
];
const TOPOLOGY_OPTIONS: [&str; 2] = ["prefer-closest-numa-nodes", "max-allowable-numa-nodes"];

pub(super) fn check(facts: &NodeFacts) -> Vec<Finding> {
    let mut findings = readable(facts);
    findings.extend(overridden(facts));
    if let Some(config) = &facts.config {
        findings.extend(managers_off(facts, config));
    }
    if let Some(config) = facts.unproven_config() {
        findings.extend(policies(facts, config));
        findings.extend(cpu_options(facts, config));
        findings.extend(topology_options(facts, config));
    }
    if let Some((machine, config)) = facts.machine_and_config() {
        findings.extend(numa_nodes(facts, machine, config));
    }
    findings
}

fn readable(facts: &NodeFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(error) = &facts.config_error {
        let mend = "Let numacast read the file (`kubelet.configFile`) or request it from the kubelet \
                    (`kubelet.configSource: configz`), or set `kubelet.configOverrides`.";
        findings.push(facts.finding(&CONFIG_UNREADABLE, error, Mend::Do(mend.to_owned())));
    }
    for error in &facts.config_errors {
        let mend = format!("Correct the key in {}, and restart the kubelet.", facts.paths.config());
        findings.push(facts.finding(&CONFIG_KEY_INVALID, error, Mend::Do(mend)));
    }
    if let Some(file) = &facts.changed {
        let what = format!("{} changed after the kubelet started", file.display());
        let mend = Mend::Run("systemctl restart kubelet".to_owned());
        findings.push(facts.finding(&CONFIG_NOT_IN_EFFECT, what, mend));
    }
    findings
}

fn overridden(facts: &NodeFacts) -> Vec<Finding> {
    let Some((overrides, config)) = &facts.overridden else { return Vec::new() };
    let Overrides {
        cpu_manager_policy,
        memory_manager_policy,
        topology_manager_policy,
        topology_manager_scope,
        ..
    } = overrides;
    let keys = [
        ("topologyManagerPolicy", topology_manager_policy, &config.topology_manager_policy),
        ("topologyManagerScope", topology_manager_scope, &config.topology_manager_scope),
        ("cpuManagerPolicy", cpu_manager_policy, &config.cpu_manager_policy),
        ("memoryManagerPolicy", memory_manager_policy, &config.memory_manager_policy),
    ];
    let differs = |(key, given, own): (&str, &Option<String>, &String)| {
        let given = given.as_ref().filter(|given| *given != own)?;
        let what = format!("`kubelet.configOverrides.{key}` is {given}, the kubelet's {key} is {own}");
        let mend = format!("Remove `kubelet.configOverrides`, or set `{key}: {own}` in it.");
        Some(facts.finding(&OVERRIDE_DIFFERS, what, Mend::Do(mend)))
    };
    keys.into_iter().filter_map(differs).collect()
}

fn policies(facts: &NodeFacts, config: &KubeletConfig) -> Vec<Finding> {
    let keys: [(&str, &String, &[&str]); 4] = [
        (
            "topologyManagerPolicy",
            &config.topology_manager_policy,
            &["none", "best-effort", "restricted", "single-numa-node"],
        ),
        ("topologyManagerScope", &config.topology_manager_scope, &["container", "pod"]),
        ("cpuManagerPolicy", &config.cpu_manager_policy, &["none", "static"]),
        ("memoryManagerPolicy", &config.memory_manager_policy, &["None", "Static"]),
    ];
    let is_known = |value: &String, known: &[&str]| value.is_empty() || known.contains(&value.as_str());
    let unknown = keys.into_iter().filter(|(_, value, known)| !is_known(value, known));
    unknown
        .map(|(key, value, known)| {
            let what = format!("{key} is `{value}`, but must be one of {}", known.join(", "));
            facts.finding(&POLICY_UNKNOWN, what, facts.set(&format!("{key}: {}", nearest(value, known))))
        })
        .collect()
}

fn nearest<'a>(value: &str, known: &[&'a str]) -> &'a str {
    let distance = |one: &&&str| strsim::levenshtein(&value.to_lowercase(), &one.to_lowercase());
    known.iter().min_by_key(distance).copied().unwrap_or_default()
}

fn managers_off(facts: &NodeFacts, config: &KubeletConfig) -> Vec<Finding> {
    let policy = config.topology_manager_policy.as_str();
    if !matches!(policy, "restricted" | "single-numa-node") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if config.cpu_manager_policy == "none" {
        let what = format!("topologyManagerPolicy is {policy}, but cpuManagerPolicy is none");
        let mend = change_policy(facts, "cpuManagerPolicy: static", &facts.paths.cpu_checkpoint());
        findings.push(facts.finding(&CPU_MANAGER_NOT_STATIC, what, mend));
    }
    let can_be_static = facts
        .machine
        .as_ref()
        .is_ok_and(|machine| machine.numa && machine.nodes.len() <= STATIC_MEMORY_NODES);
    if can_be_static && config.memory_manager_policy == "None" {
        let what = format!("topologyManagerPolicy is {policy}, but memoryManagerPolicy is None");
        let mend = change_policy(facts, "memoryManagerPolicy: Static", &facts.paths.memory_checkpoint());
        findings.push(facts.finding(&MEMORY_MANAGER_NOT_STATIC, what, mend));
    }
    findings
}

/// A kubelet does not start with the checkpoint of another policy.
fn change_policy(facts: &NodeFacts, setting: &str, checkpoint: &std::path::Path) -> Mend {
    Mend::Do(format!(
        "Drain the node, stop the kubelet, set `{setting}` in {}, delete {}, and start the kubelet.",
        facts.paths.config(),
        checkpoint.display()
    ))
}

fn cpu_options(facts: &NodeFacts, config: &KubeletConfig) -> Vec<Finding> {
    let options = &config.cpu_manager_policy_options;
    let invalid = |what: String, mend: Mend| facts.finding(&OPTIONS_INVALID, what, mend);
    let remove = |option: &str| {
        Mend::Do(format!(
            "Remove {option} from cpuManagerPolicyOptions in {} and restart the kubelet.",
            facts.paths.config()
        ))
    };
    if config.cpu_manager_policy == "none" {
        let what = "cpuManagerPolicyOptions are set, but cpuManagerPolicy is none".to_owned();
        let is_set = !options.is_empty();
        return is_set.then(|| invalid(what, facts.set("cpuManagerPolicyOptions: {}"))).into_iter().collect();
    }
    let mut findings = Vec::new();
    for (option, value) in options {
        if !CPU_OPTIONS.contains(&option.as_str()) {
            findings.push(invalid(format!("the CPU Manager has no option {option}"), remove(option)));
        } else if !is_bool(value) {
            findings.push(invalid(
                format!("the CPU Manager's option {option} is `{value}`, not true or false"),
                remove(option),
            ));
        }
    }
    let is_on = |option: &str| options.get(option).is_some_and(|value| is_true(value));
    for [one, other] in EXCLUSIVE.into_iter().filter(|both| both.iter().all(|option| is_on(option))) {
        let what = format!("the CPU Manager's options {one} and {other} exclude each other");
        findings.push(invalid(what, remove(other)));
    }
    if is_on("align-by-socket") && config.topology_manager_policy == "single-numa-node" {
        let what = "the CPU Manager's option align-by-socket and topologyManagerPolicy single-numa-node exclude each other";
        findings.push(invalid(what.to_owned(), remove("align-by-socket")));
    }
    findings
}

/// As Go's `strconv.ParseBool`.
fn is_bool(value: &str) -> bool {
    is_true(value) || matches!(value, "0" | "f" | "F" | "FALSE" | "false" | "False")
}

/// With the policy `none` the kubelet reads no options.
fn topology_options(facts: &NodeFacts, config: &KubeletConfig) -> Vec<Finding> {
    if config.topology_manager_policy == "none" {
        return Vec::new();
    }
    let remove = |option: &str| {
        Mend::Do(format!(
            "Remove {option} from topologyManagerPolicyOptions in {} and restart the kubelet.",
            facts.paths.config()
        ))
    };
    let mut findings = Vec::new();
    for (option, value) in &config.topology_manager_policy_options {
        let what = match option.as_str() {
            name if !TOPOLOGY_OPTIONS.contains(&name) => format!("the Topology Manager has no option {name}"),
            "prefer-closest-numa-nodes" if !is_bool(value) => {
                format!("the Topology Manager's option {option} is `{value}`, not true or false")
            }
            "max-allowable-numa-nodes"
                if value.parse::<u64>().map_or(true, |nodes| nodes < DEFAULT_NUMA_NODES) =>
            {
                format!("the Topology Manager's option {option} is `{value}`, not a number of at least 8")
            }
            _ => continue,
        };
        findings.push(facts.finding(&OPTIONS_INVALID, what, remove(option)));
    }
    findings
}

fn numa_nodes(facts: &NodeFacts, machine: &Machine, config: &KubeletConfig) -> Option<Finding> {
    let option = "max-allowable-numa-nodes";
    let maximum = config.topology_manager_policy_options.get(option).and_then(|value| value.parse().ok());
    let maximum = maximum.unwrap_or(DEFAULT_NUMA_NODES).max(DEFAULT_NUMA_NODES);
    let nodes = machine.nodes.len() as u64;
    if config.topology_manager_policy == "none" || nodes <= maximum || facts.is_proven {
        return None;
    }
    let policy = &config.topology_manager_policy;
    let what = format!(
        "topologyManagerPolicy is {policy} with at most {maximum} NUMA nodes, and the machine has {nodes}"
    );
    let setting = format!("topologyManagerPolicyOptions: {{{option}: \"{nodes}\"}}");
    Some(facts.finding(&TOO_MANY_NUMA_NODES, what, facts.set(&setting)))
}
