//! Other publishers of the objects.

use super::facts::Facts;
use super::objects;
use crate::cluster::{SlimContainer, SlimDaemonSet, runs_agents};
use crate::controller::Coverage;
use crate::inspect::{Check, Finding, Mend, Severity, shell_word};
use crate::publishers::Publisher;

pub(super) static FOREIGN_WRITER: Check = Check {
    name: "ForeignWriter",
    severity: Severity::Error,
    looks_for: "another field manager wrote the zones of an object",
    why: "The zones may be wrong, and the fingerprint does not belong to them.",
};
pub(super) static RIVAL_PUBLISHER: Check = Check {
    name: "RivalPublisher",
    severity: Severity::Error,
    looks_for: "NFD's topology updater, resource-topology-exporter, koordlet, nri-plugins or KAI's numa-placement-exporter runs on a Node with an agent",
    why: "Both write the same objects, or pods, again and again.",
};

pub(super) const CHECKS: &[&Check] = &[&FOREIGN_WRITER, &RIVAL_PUBLISHER];

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for object in
        facts.objects.iter().flatten().filter(|object| object.describes_node && !object.meta.is_kept)
    {
        if let Some(other) = &object.meta.writers.other {
            let what = match Publisher::of_manager(other) {
                Some(publisher) => format!("{} wrote its zones; {}", publisher.name, publisher.switch),
                None => format!("{other} wrote its zones"),
            };
            found.push(FOREIGN_WRITER.finding(objects::place(object), what, objects::delete(object)));
        }
    }
    for set in facts.daemon_sets.iter().flatten().filter(|one| !one.is_deleted() && !runs_agents(one)) {
        let Some(publisher) = publishes(set) else { continue };
        let shared = shared_nodes(facts, set);
        if let Some(first) = shared.first() {
            let (namespace, name) = (set.namespace(), set.name());
            let what = match shared.len() {
                1 => format!("{} runs on {first}, as an agent does", publisher.name),
                count => format!("{} runs on {count} Nodes with an agent, such as {first}", publisher.name),
            };
            let place = format!("DaemonSet {namespace}/{name}");
            let mend = match publisher.is_only_publisher {
                true => {
                    let (namespace, name) = (shell_word(namespace), shell_word(name));
                    Mend::Run(format!("kubectl delete daemonset --namespace {namespace} {name}"))
                }
                false => Mend::Do(order(publisher)),
            };
            found.push(RIVAL_PUBLISHER.finding(place, what, mend));
        }
    }
    found
}

/// Returns what to do about a publisher, as a sentence.
fn order(publisher: &Publisher) -> String {
    let mut switch = format!("{}.", publisher.switch);
    switch[..1].make_ascii_uppercase();
    switch
}

/// Returns the publisher that a DaemonSet runs.
fn publishes(set: &SlimDaemonSet) -> Option<&'static Publisher> {
    let containers = || set.pod().into_iter().flat_map(|pod| pod.containers());
    let images = containers().filter_map(|container| container.image.as_deref());
    let words: Vec<&str> = images.chain(containers().flat_map(SlimContainer::arguments)).collect();
    Publisher::of_container(words.into_iter())
}

/// Returns the Nodes that both this DaemonSet and one of agents cover.
fn shared_nodes<'a>(facts: &'a Facts, set: &SlimDaemonSet) -> Vec<&'a str> {
    let Some(coverage) = Coverage::of(set) else { return Vec::new() };
    let nodes = facts.nodes.iter().flatten().filter(|(_, node)| coverage.covers(&node.slim));
    let shared = nodes.filter(|(name, _)| super::agents::covering(facts, name).is_some());
    shared.map(|(name, _)| name.as_str()).collect()
}
