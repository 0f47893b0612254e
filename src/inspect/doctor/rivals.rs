//! Other publishers of the objects.

use super::facts::Facts;
use super::installed::{AgentSet, words_of};
use super::objects;
use crate::cluster::{NriPolicy, PublishedObject, SlimDaemonSet, runs_agents};
use crate::config::Config;
use crate::controller::Coverage;
use crate::inspect::{Check, Finding, Mend, Severity, shell_word};
use crate::publishers::{Publisher, nri_configuration};

pub(super) static FOREIGN_WRITER: Check = Check {
    name: "ForeignWriter",
    severity: Severity::Error,
    looks_for: "another field manager wrote the zones of an object",
    why: "The zones may be wrong, and the fingerprint does not belong to them.",
};
pub(super) static RIVAL_PUBLISHER: Check = Check {
    name: "RivalPublisher",
    severity: Severity::Error,
    looks_for: "NFD's topology updater, resource-topology-exporter, koordlet or nri-plugins publishes objects on a Node with an agent, or KAI's numa-placement-exporter runs where an agent annotates pods",
    why: "Both write the same objects, or pods, again and again.",
};

pub(super) const CHECKS: &[&Check] = &[&FOREIGN_WRITER, &RIVAL_PUBLISHER];

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    // The zones of nri-plugins are of other types.
    let is_of_node = |object: &&PublishedObject| object.describes_node || object.publisher.is_some();
    let objects = facts.objects.iter().flatten().filter(is_of_node);
    for object in objects.filter(|object| !object.meta.is_kept) {
        if let Some(other) = &object.meta.writers.other {
            let what = match object.publisher {
                Some(publisher) => format!("{} wrote its zones; {}", publisher.name, publisher.switch),
                None => format!("{other} wrote its zones"),
            };
            found.push(FOREIGN_WRITER.finding(objects::place(object), what, objects::delete(object)));
        }
    }
    for set in facts.daemon_sets.iter().flatten().filter(|one| !one.is_deleted() && !runs_agents(one)) {
        let Some(publisher) = publishes(facts, set) else { continue };
        let shared = shared_nodes(facts, set, publisher);
        if let Some(first) = shared.first() {
            let (namespace, name) = (set.namespace(), set.name());
            let mut what = match shared.len() {
                1 => format!("{} runs on {first}, as an agent does", publisher.name),
                count => format!("{} runs on {count} Nodes with an agent, such as {first}", publisher.name),
            };
            let place = format!("DaemonSet {namespace}/{name}");
            let mend = match publisher.is_only_publisher {
                true => {
                    what = format!("{what}; {}", publisher.switch);
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

/// Returns the publisher that a DaemonSet runs, unless its configuration turns the writes off.
fn publishes(facts: &Facts, set: &SlimDaemonSet) -> Option<&'static Publisher> {
    let words = words_of(set);
    let publisher = Publisher::of_container(words.iter().copied())?;
    let Some(resource) = nri_configuration(words.into_iter()) else { return Some(publisher) };
    let mut own = facts.nri_policies.get(&resource)?.iter().filter(|policy| policy.is_in(set.namespace()));
    own.any(NriPolicy::publishes).then_some(publisher)
}

/// Returns the Nodes that both this DaemonSet and one of agents that write the same cover.
fn shared_nodes<'a>(facts: &'a Facts, set: &SlimDaemonSet, publisher: &Publisher) -> Vec<&'a str> {
    let Some(coverage) = Coverage::of(set) else { return Vec::new() };
    let writes_the_same = |agents: &AgentSet| {
        publisher.writes_objects() || agents.config.as_ref().is_some_and(Config::annotates_pods)
    };
    let nodes = facts.nodes.iter().flatten().filter(|(_, node)| coverage.covers(&node.slim));
    let shared = nodes.filter(|(name, _)| super::agents::covering(facts, name).is_some_and(writes_the_same));
    shared.map(|(name, _)| name.as_str()).collect()
}
