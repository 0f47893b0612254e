//! The schedulers that run the plugin.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Facts;
use super::installed::{ObjectName, SchedulerPod};
use super::report::counted;
use crate::config::{Config, Consumer};
use crate::inspect::{Check, Finding, Mend, Severity, shell_word};
use crate::scheduler_config::{self, SchedulerConfigError};

pub(super) static SCHEDULER_MISSING: Check = Check {
    name: "SchedulerMissing",
    severity: Severity::Warning,
    looks_for: "no running pod has a configuration with the plugin NodeResourceTopologyMatch",
    why: "Nothing reads the objects: pods are placed without regard to zones.",
};
pub(super) static SCHEDULER_CONFIG_INVALID: Check = Check {
    name: "SchedulerConfigInvalid",
    severity: Severity::Error,
    looks_for: "a configuration with the plugin is no valid KubeSchedulerConfiguration",
    why: "The scheduler does not start.",
};
pub(super) static SCHEDULER_DISAGREES: Check = Check {
    name: "SchedulerDisagrees",
    severity: Severity::Error,
    looks_for: "a scheduler's configuration does not fit the agents' and the controller's",
    why: "The scheduler uses old zones, or pods wait longer than necessary.",
};
pub(super) static OBJECTS_NEWER: Check = Check {
    name: "ObjectsNewerThanScheduler",
    severity: Severity::Error,
    looks_for: "objects were created after a scheduler with the overreserving cache has started",
    why: "The scheduler plugin ignores these objects until the scheduler restarts.",
};
pub(super) static SCHEDULER_NAME_UNSERVED: Check = Check {
    name: "SchedulerNameUnserved",
    severity: Severity::Error,
    looks_for: "pods are pending whose schedulerName no known scheduler has, and with which no pod was bound",
    why: "They stay pending.",
};

pub(super) const CHECKS: &[&Check] = &[
    &SCHEDULER_MISSING,
    &SCHEDULER_CONFIG_INVALID,
    &SCHEDULER_DISAGREES,
    &OBJECTS_NEWER,
    &SCHEDULER_NAME_UNSERVED,
];

const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// How many objects or pods a finding names.
const NAMED: usize = 3;

/// Notes the configurations that cannot be read.
pub(super) fn note_hidden(facts: &mut Facts) {
    for place in hidden(facts) {
        let reason = "its file is on the node; compare it there with `numacast config scheduler --check`";
        facts.skip(format!("the configuration of {place}"), reason);
    }
}

/// Returns the pods that may run the plugin with a configuration that is a file on the node, if no other does.
fn hidden(facts: &Facts) -> Vec<String> {
    if facts.schedulers.iter().any(SchedulerPod::has_plugin) {
        return Vec::new();
    }
    let hidden = facts.schedulers.iter().filter(|pod| pod.has_own_file && pod.configs.is_empty());
    hidden.map(SchedulerPod::place).collect()
}

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    if facts.pods.is_none() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let configs = agent_configs(facts);
    let running = || facts.schedulers.iter().filter(|pod| pod.started.is_some());
    let reads_maps = !facts.unchecked.iter().any(|one| one.what == "ConfigMaps");
    let is_expected = !facts.agents.is_empty() && (configs.is_empty() || configs.iter().any(uses_plugin));
    if is_expected && reads_maps && !running().any(SchedulerPod::has_plugin) && hidden(facts).is_empty() {
        let mend = "Set scheduler.enabled: true in the chart's values, or see docs/scheduler.md.".to_owned();
        let what = "no running pod mounts a ConfigMap with NodeResourceTopologyMatch";
        found.push(SCHEDULER_MISSING.finding("the cluster", what, Mend::Do(mend)));
    }
    found.extend(of_configs(facts, &configs));
    found.extend(running().filter_map(|pod| newer(facts, pod)));
    found.extend(unserved(facts));
    found
}

const fn uses_plugin(config: &Config) -> bool {
    matches!(config.consumer, Consumer::SchedulerPlugins | Consumer::SchedulerPluginsDirect)
}

/// Returns the agents' configurations, with the controllers' part.
fn agent_configs(facts: &Facts) -> Vec<Config> {
    let controller = |namespace: &str| {
        let set = facts.controllers.iter().find(|set| set.namespace == namespace)?;
        Some(set.config.as_ref()?.controller.clone())
    };
    let configs = facts.agents.iter().filter_map(|set| {
        let mut config = set.config.clone()?;
        config.controller = controller(&set.name.0).unwrap_or(config.controller);
        Some(config)
    });
    configs.collect()
}

fn of_configs(facts: &Facts, configs: &[Config]) -> Vec<Finding> {
    let texts: BTreeSet<&(ObjectName, String)> =
        facts.schedulers.iter().flat_map(|pod| &pod.configs).collect();
    let mut found = Vec::new();
    for ((namespace, name), text) in texts {
        let place = format!("ConfigMap {namespace}/{name}");
        let mut sentences = BTreeSet::new();
        for config in configs {
            match scheduler_config::disagreements(config, text) {
                Ok(disagreements) => sentences.extend(disagreements),
                Err(SchedulerConfigError::OtherConsumer(_) | SchedulerConfigError::OtherKind(_)) => {}
                Err(error @ SchedulerConfigError::Malformed(_)) => {
                    let mend = "Compare it with the output of `numacast config scheduler`.".to_owned();
                    found.push(SCHEDULER_CONFIG_INVALID.finding(&place, error.to_string(), Mend::Do(mend)));
                    break;
                }
            }
        }
        for sentence in sentences {
            let mend = "Change it as the output of `numacast config scheduler`, or the chart's values, and restart the scheduler.".to_owned();
            found.push(SCHEDULER_DISAGREES.finding(&place, sentence, Mend::Do(mend)));
        }
    }
    found
}

/// Only the overreserving cache ignores objects that are created later.
fn newer(facts: &Facts, pod: &SchedulerPod) -> Option<Finding> {
    let started = pod.started.filter(|_| pod.profiles().any(|profile| profile.over_reserves))?;
    let objects = facts.objects.iter().flatten().filter(|object| object.describes_node);
    let newer: Vec<&str> = objects
        .filter(|object| object.meta.created.is_some_and(|created| created > started))
        .map(|object| object.meta.name.as_str())
        .collect();
    if newer.is_empty() {
        return None;
    }
    let what = format!("it started at {started} and ignores {}", named(&newer, "object"));
    let (namespace, name) = (shell_word(&pod.name.0), shell_word(&pod.name.1));
    let command = format!("kubectl delete pod --namespace {namespace} {name}");
    Some(OBJECTS_NEWER.finding(pod.place(), what, Mend::Run(command)))
}

fn named(names: &[&str], kind: &str) -> String {
    let some = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let dots = if names.len() > NAMED { ", ..." } else { "" };
    format!("{} ({some}{dots})", counted(names.len(), kind))
}

fn unserved(facts: &Facts) -> Vec<Finding> {
    let pods = || facts.pods.iter().flatten().map(|pod| &pod.placed);
    let mut served: BTreeSet<String> =
        pods().filter(|pod| !pod.node.is_empty()).map(|pod| pod.scheduler.clone()).collect();
    served.insert(DEFAULT_SCHEDULER.to_owned());
    served.extend(facts.schedulers.iter().flat_map(SchedulerPod::profiles).map(|profile| profile.name));
    let mut waiting: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let is_waiting = |pod: &&crate::core_v1::PlacedPod| {
        pod.node.is_empty()
            && !pod.pod.deleted
            && !pod.pod.phase.is_terminal()
            && !served.contains(&pod.scheduler)
    };
    for pod in pods().filter(is_waiting) {
        waiting.entry(&pod.scheduler).or_default().push(format!("{}/{}", pod.pod.namespace, pod.pod.name));
    }
    let finding = |(scheduler, pods): (&str, Vec<String>)| {
        let names: Vec<&str> = pods.iter().map(String::as_str).collect();
        let what = format!("set in {}", named(&names, "pending pod"));
        let mend =
            "Start a scheduler with a profile of that name, or change schedulerName in the pods' owner."
                .to_owned();
        SCHEDULER_NAME_UNSERVED.finding(format!("schedulerName {scheduler}"), what, Mend::Do(mend))
    };
    waiting.into_iter().map(finding).collect()
}
