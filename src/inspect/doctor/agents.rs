//! The agents: one on every node that their DaemonSets cover.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Facts;
use super::installed::AgentSet;
use crate::core_v1::{ContainerDetails, InspectedPod, PodDetails};
use crate::inspect::{Check, Finding, Mend, Severity, shell_word};

pub(super) static AGENTS_MISSING: Check = Check {
    name: "AgentsMissing",
    severity: Severity::Error,
    looks_for: "no DaemonSet runs agents that publish",
    why: "Nothing publishes the zones of the nodes.",
};
pub(super) static AGENTS_COVER_NO_NODE: Check = Check {
    name: "AgentsCoverNoNode",
    severity: Severity::Error,
    looks_for: "node selector, affinity or tolerations of the agents' DaemonSets match no Node",
    why: "Nothing publishes the zones of the nodes.",
};
pub(super) static AGENT_MISSING: Check = Check {
    name: "AgentMissing",
    severity: Severity::Error,
    looks_for: "a Ready Node that a DaemonSet covers has no agent",
    why: "Its object is missing or does not change.",
};
pub(super) static AGENT_NOT_READY: Check = Check {
    name: "AgentNotReady",
    severity: Severity::Error,
    looks_for: "the agent on a Ready Node is not Ready",
    why: "The object is not up to date, or schedulers ignore it.",
};
pub(super) static AGENT_TWICE: Check = Check {
    name: "AgentTwice",
    severity: Severity::Error,
    looks_for: "a Node has two agents",
    why: "They overwrite each other's object.",
};
pub(super) static AGENT_OUT_OF_MEMORY: Check = Check {
    name: "AgentOutOfMemory",
    severity: Severity::Error,
    looks_for: "an agent was killed because it reached its memory limit",
    why: "The object does not change until it has started again.",
};
pub(super) static AGENT_RESTARTS: Check = Check {
    name: "AgentRestarts",
    severity: Severity::Warning,
    looks_for: "an agent was restarted three times or more, the last time within an hour",
    why: "The fingerprint is withheld at each start, so pods may have to wait.",
};
pub(super) static AGENT_IMAGES_DIFFER: Check = Check {
    name: "AgentImagesDiffer",
    severity: Severity::Warning,
    looks_for: "an agent has another image than its DaemonSet, or than other agents with the same tag",
    why: "Nodes are described by different versions; a rollout has stopped, or the tag was moved.",
};

pub(super) const CHECKS: &[&Check] = &[
    &AGENTS_MISSING,
    &AGENTS_COVER_NO_NODE,
    &AGENT_MISSING,
    &AGENT_NOT_READY,
    &AGENT_TWICE,
    &AGENT_OUT_OF_MEMORY,
    &AGENT_RESTARTS,
    &AGENT_IMAGES_DIFFER,
];

/// From how many restarts on they are reported.
const MANY_RESTARTS: u32 = 3;
/// The memory limit, in bytes, if the DaemonSet has none.
const DEFAULT_LIMIT: u64 = 64 << 20;
/// For how many seconds the last restart is recent.
const LATELY: i64 = 3600;

/// An agent's pod on a Node.
pub(super) struct Agent<'a> {
    pub(super) pod: &'a InspectedPod,
    pub(super) ready: bool,
}

/// Returns the pods of a DaemonSet.
fn pods_of<'a>(
    facts: &'a Facts,
    set: &'a AgentSet,
) -> impl Iterator<Item = (&'a InspectedPod, &'a PodDetails)> {
    let pods = set.pods.iter().filter_map(|index| facts.pods.as_ref()?.get(*index));
    pods.filter_map(|pod| Some((pod, pod.details.as_deref()?)))
}

/// Returns the agents by Node.
pub(super) fn by_node(facts: &Facts) -> BTreeMap<&str, Vec<Agent<'_>>> {
    let mut agents: BTreeMap<&str, Vec<Agent<'_>>> = BTreeMap::new();
    for (pod, details) in facts.agents.iter().flat_map(|set| pods_of(facts, set)) {
        if !pod.placed.node.is_empty() {
            agents.entry(&pod.placed.node).or_default().push(Agent { pod, ready: details.ready });
        }
    }
    agents
}

/// Returns the DaemonSet that covers a Node.
pub(super) fn covering<'a>(facts: &'a Facts, node: &str) -> Option<&'a AgentSet> {
    let node = &facts.nodes.as_ref()?.get(node)?.slim;
    facts.agents.iter().find(|set| set.coverage.as_ref().is_some_and(|coverage| coverage.covers(node)))
}

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    if facts.daemon_sets.is_none() {
        return found;
    }
    if facts.has_only_serving {
        return found;
    }
    if facts.agents.iter().all(|set| set.is_deleted) {
        let mend = "Install the chart, see docs/install.md.".to_owned();
        found.push(AGENTS_MISSING.finding(
            "the cluster",
            "no DaemonSet runs agents that publish",
            Mend::Do(mend),
        ));
        return found;
    }
    let nodes = || facts.nodes.iter().flatten();
    if nodes().next().is_some() && !nodes().any(|(name, _)| covering(facts, name).is_some()) {
        let places: Vec<String> = facts.agents.iter().map(AgentSet::place).collect();
        let mend = "Change agent.nodeSelector, agent.affinity or agent.tolerations of the chart.".to_owned();
        found.push(AGENTS_COVER_NO_NODE.finding(places.join(", "), "it covers no Node", Mend::Do(mend)));
    }
    if facts.pods.is_none() {
        return found;
    }
    let agents = by_node(facts);
    for (name, _) in nodes().filter(|(_, node)| node.slim.ready) {
        let Some(set) = covering(facts, name) else { continue };
        let agents = agents.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        found.extend(of_node(name, set, agents));
    }
    for set in &facts.agents {
        found.extend(of_images(facts, set));
        for (pod, details) in pods_of(facts, set) {
            found.extend(details.containers.iter().flat_map(|one| of_container(facts, set, pod, one)));
        }
    }
    found
}

fn of_node(node: &str, set: &AgentSet, agents: &[Agent<'_>]) -> Option<Finding> {
    let (namespace, name) = (&set.name.0, &set.name.1);
    let names =
        || agents.iter().map(|agent| agent.pod.placed.pod.name.as_str()).collect::<Vec<_>>().join(", ");
    let place = format!("Node {node}");
    match agents {
        [] => {
            let mend = format!("Read its Events: kubectl describe daemonset --namespace {namespace} {name}");
            Some(AGENT_MISSING.finding(
                place,
                format!("no agent of {} runs on it", set.place()),
                Mend::Do(mend),
            ))
        }
        [_, _, ..] => {
            let mend = "Remove one of the DaemonSets, or let their node selectors differ.".to_owned();
            Some(AGENT_TWICE.finding(place, format!("it has the agents {}", names()), Mend::Do(mend)))
        }
        [agent] if !agent.ready => {
            let mend = format!("Read its log: kubectl logs --namespace {namespace} {}", names());
            Some(AGENT_NOT_READY.finding(
                place,
                format!("its agent {} is not Ready", names()),
                Mend::Do(mend),
            ))
        }
        [_] => None,
    }
}

fn of_container(
    facts: &Facts,
    set: &AgentSet,
    pod: &InspectedPod,
    container: &ContainerDetails,
) -> Option<Finding> {
    let (reason, at) = container.ended.as_ref()?;
    let (namespace, name) = (&pod.placed.pod.namespace, &pod.placed.pod.name);
    let place = format!("Pod {namespace}/{name}");
    let (times, node) = (container.restarts, &pod.placed.node);
    if reason == "OOMKilled" {
        let limit = set.memory_limits.get(&container.name).copied().unwrap_or(DEFAULT_LIMIT);
        let command = format!(
            "kubectl set resources daemonset {} --namespace {} --containers {} --limits memory={}Mi",
            shell_word(&set.name.1),
            shell_word(namespace),
            shell_word(&container.name),
            (limit.saturating_mul(2) >> 20).max(1),
        );
        let what = format!("the container {} was killed on {node}: out of memory", container.name);
        return Some(AGENT_OUT_OF_MEMORY.finding(place, what, Mend::Run(command)));
    }
    let is_recent = facts.now.as_second().saturating_sub(*at) < LATELY;
    if times < MANY_RESTARTS || !is_recent {
        return None;
    }
    let mend = format!("Read why it ended: kubectl logs --previous --namespace {namespace} {name}");
    let what = format!("it was restarted {times} times on {node}, last because of {reason}");
    Some(AGENT_RESTARTS.finding(place, what, Mend::Do(mend)))
}

/// Returns an image's name without registry and path, which admission webhooks may rewrite.
fn last_part(image: &str) -> &str {
    image.rsplit('/').next().unwrap_or_default()
}

/// Returns agents with another image than the DaemonSet's, or than most others.
fn of_images(facts: &Facts, set: &AgentSet) -> Vec<Finding> {
    let mut found = Vec::new();
    let restart = |pod: &InspectedPod| {
        let (namespace, name) = (shell_word(&pod.placed.pod.namespace), shell_word(&pod.placed.pod.name));
        Mend::Run(format!("kubectl delete pod --namespace {namespace} {name}"))
    };
    // Digests by container and architecture: those of another architecture may differ.
    let mut digests: BTreeMap<(&str, &str), BTreeMap<&str, Vec<&InspectedPod>>> = BTreeMap::new();
    for (pod, details) in pods_of(facts, set) {
        for container in &details.containers {
            match set.images.get(&container.name) {
                Some(image) if last_part(image) != last_part(&container.image) => {
                    let what = format!("it runs {}, but {} has {image}", container.image, set.place());
                    let place = format!("Pod {}/{}", pod.placed.pod.namespace, pod.placed.pod.name);
                    found.push(AGENT_IMAGES_DIFFER.finding(place, what, restart(pod)));
                }
                Some(_) if !container.image_id.is_empty() => {
                    let node = facts.nodes.as_ref().and_then(|nodes| nodes.get(&pod.placed.node));
                    let architecture = node.map_or("", |node| node.architecture.as_str());
                    let same = digests.entry((&container.name, architecture)).or_default();
                    same.entry(&container.image_id).or_default().push(pod);
                }
                _ => {}
            }
        }
    }
    for by_digest in digests.into_values().filter(|by_digest| by_digest.len() > 1) {
        let most = by_digest.iter().max_by_key(|(_, pods)| pods.len()).map(|(digest, _)| *digest);
        let usual = most.unwrap_or_default();
        let unusual: BTreeSet<_> = by_digest.keys().copied().filter(|digest| *digest != usual).collect();
        for digest in unusual {
            for pod in &by_digest[digest] {
                let place = format!("Pod {}/{}", pod.placed.pod.namespace, pod.placed.pod.name);
                let what = format!("it runs {digest}, most others {usual}, under the same name");
                found.push(AGENT_IMAGES_DIFFER.finding(place, what, restart(pod)));
            }
        }
    }
    found
}
