//! Other publishers of the objects.

use super::facts::Facts;
use super::objects;
use crate::cluster::{SlimContainer, SlimDaemonSet, runs_agents};
use crate::controller::Coverage;
use crate::inspect::{Check, Finding, Mend, Severity, shell_word};

pub(super) static FOREIGN_WRITER: Check = Check {
    name: "ForeignWriter",
    severity: Severity::Error,
    looks_for: "another field manager wrote the zones of an object",
    why: "The zones may be wrong, and the fingerprint does not belong to them.",
};
pub(super) static RIVAL_PUBLISHER: Check = Check {
    name: "RivalPublisher",
    severity: Severity::Error,
    looks_for: "NFD's topology updater, resource-topology-exporter or koordlet publishes objects on a Node with an agent",
    why: "Both write the same objects again and again.",
};

pub(super) const CHECKS: &[&Check] = &[&FOREIGN_WRITER, &RIVAL_PUBLISHER];

/// The programs that publish objects under the Node's name.
const PROGRAMS: [&str; 3] = ["nfd-topology-updater", "resource-topology-exporter", "koordlet"];
/// The feature gate of koordlet without which it publishes none.
const KOORDLET_GATE: &str = "NodeTopologyReport=false";

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for object in
        facts.objects.iter().flatten().filter(|object| object.describes_node && !object.meta.is_kept)
    {
        if let Some(other) = &object.meta.writers.other {
            let what = format!("{other} wrote its zones");
            found.push(FOREIGN_WRITER.finding(objects::place(object), what, objects::delete(object)));
        }
    }
    for set in facts.daemon_sets.iter().flatten().filter(|one| !one.is_deleted() && !runs_agents(one)) {
        let Some(program) = publishes(set) else { continue };
        let shared = shared_nodes(facts, set);
        if let Some(first) = shared.first() {
            let (namespace, name) = (set.namespace(), set.name());
            let what = match shared.len() {
                1 => format!("{program} runs on {first}, as an agent does"),
                count => format!("{program} runs on {count} Nodes with an agent, such as {first}"),
            };
            let mend = if program == "koordlet" {
                Mend::Do(format!("Add {KOORDLET_GATE} to its --feature-gates."))
            } else {
                let (namespace, name) = (shell_word(namespace), shell_word(name));
                Mend::Run(format!("kubectl delete daemonset --namespace {namespace} {name}"))
            };
            found.push(RIVAL_PUBLISHER.finding(format!("DaemonSet {namespace}/{name}"), what, mend));
        }
    }
    found
}

/// Returns the program of a DaemonSet that publishes objects.
fn publishes(set: &SlimDaemonSet) -> Option<&'static str> {
    let containers = || set.pod().into_iter().flat_map(|pod| pod.containers());
    let words = || {
        let images = containers().filter_map(|container| container.image.as_deref());
        images.chain(containers().flat_map(SlimContainer::arguments))
    };
    let program = |word: &str| {
        let name = word.rsplit('/').next().unwrap_or_default().split([':', '@']).next().unwrap_or_default();
        PROGRAMS.into_iter().find(|program| name == *program)
    };
    let found = words().find_map(program)?;
    let is_off = found == "koordlet" && words().any(|word| word.contains(KOORDLET_GATE));
    (!is_off).then_some(found)
}

/// Returns the Nodes that both this DaemonSet and one of agents cover.
fn shared_nodes<'a>(facts: &'a Facts, set: &SlimDaemonSet) -> Vec<&'a str> {
    let Some(coverage) = Coverage::of(set) else { return Vec::new() };
    let nodes = facts.nodes.iter().flatten().filter(|(_, node)| coverage.covers(&node.slim));
    let shared = nodes.filter(|(name, _)| super::agents::covering(facts, name).is_some());
    shared.map(|(name, _)| name.as_str()).collect()
}
