//! The objects, each compared with its Node.

use super::agents::{by_node, covering};
use super::facts::Facts;
use crate::cluster::{NodeDetails, PublishedObject, is_built_in};
use crate::inspect::{Check, Finding, Mend, Severity, shell_word};
use crate::nrt::POLICY;
use crate::quantity::is_huge_pages;
use crate::topology::Zone;

pub(super) static OBJECT_MISSING: Check = Check {
    name: "ObjectMissing",
    severity: Severity::Error,
    looks_for: "a Node with a Ready agent has no object",
    why: "The scheduler plugin places pods on the node without regard to zones, and the kubelet may reject them.",
};
pub(super) static OBJECT_WITHOUT_NODE: Check = Check {
    name: "ObjectWithoutNode",
    severity: Severity::Warning,
    looks_for: "an object has no Node",
    why: "If a Node of this name is added, the scheduler uses the zones of the earlier one.",
};
pub(super) static OBJECT_UNREADABLE: Check = Check {
    name: "ObjectUnreadable",
    severity: Severity::Error,
    looks_for: "zones have invalid quantities or names, or are there twice",
    why: "Schedulers skip such zones, or fail.",
};
pub(super) static OBJECT_WITHOUT_POLICIES: Check = Check {
    name: "ObjectWithoutPolicies",
    severity: Severity::Error,
    looks_for: "an object has no Topology Manager policy",
    why: "Schedulers ignore its zones.",
};
pub(super) static OBJECT_OF_EARLIER_NODE: Check = Check {
    name: "ObjectOfEarlierNode",
    severity: Severity::Error,
    looks_for: "an object is owned by an earlier Node of the same name",
    why: "The zones are those of another machine, until Kubernetes' garbage collector deletes the object.",
};
pub(super) static ZONE_IDS: Check = Check {
    name: "ZoneIds",
    severity: Severity::Error,
    looks_for: "zone ids have gaps or are above 63",
    why: "The scheduler plugin panics.",
};
pub(super) static ZONES_EXCEED_NODE: Check = Check {
    name: "ZonesExceedNode",
    severity: Severity::Error,
    looks_for: "the zones have more CPUs, memory, huge pages or devices than the Node",
    why: "Schedulers place pods that the kubelet rejects.",
};
pub(super) static NODE_EXCEEDS_ZONES: Check = Check {
    name: "NodeExceedsZones",
    severity: Severity::Warning,
    looks_for: "the Node offers more CPUs or huge pages than the zones have",
    why: "CPUs or huge pages are gone, and the kubelet still allocates them.",
};
pub(super) static OBJECT_WRITTEN_OFTEN: Check = Check {
    name: "ObjectWrittenOften",
    severity: Severity::Warning,
    looks_for: "an object was changed more than once per second on average since it was created, and 100 times or more",
    why: "Each write goes through etcd and to every watcher.",
};

pub(super) const CHECKS: &[&Check] = &[
    &OBJECT_MISSING,
    &OBJECT_WITHOUT_NODE,
    &OBJECT_UNREADABLE,
    &OBJECT_WITHOUT_POLICIES,
    &OBJECT_OF_EARLIER_NODE,
    &ZONE_IDS,
    &ZONES_EXCEED_NODE,
    &NODE_EXCEEDS_ZONES,
    &OBJECT_WRITTEN_OFTEN,
];

/// The highest zone id of which the scheduler plugin does not panic.
const MAX_ZONE: u16 = 63;
/// From how many writes on their rate is known.
const MANY_WRITES: u64 = 100;
/// The kubelet and the kernel's files of NUMA nodes count memory differently, by less than one part of this many.
const MEMORY_TOLERANCE: u64 = 50;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let Some(objects) = &facts.objects else { return Vec::new() };
    let mut found = missing(facts, objects);
    for object in objects {
        let place = place(object);
        let node = facts.nodes.as_ref().and_then(|nodes| nodes.get(&object.meta.name));
        if node.is_none() && facts.nodes.is_some() && object.describes_node && !object.meta.is_kept {
            let what = format!("there is no Node {}", object.meta.name);
            found.push(OBJECT_WITHOUT_NODE.finding(&place, what, delete(object)));
        }
        if let Some(error) = object.errors.first() {
            found.push(OBJECT_UNREADABLE.finding(&place, error, delete(object)));
        }
        let is_ours = object.meta.writers.ours && object.meta.writers.other.is_none();
        if is_ours && object.describes_node && !object.attributes.contains_key(POLICY) {
            let mend =
                "See the Event PoliciesUnknown on the Node, which has the cause and what to set.".to_owned();
            let what = "it has no policy, since the agent cannot read the kubelet's configuration";
            found.push(OBJECT_WITHOUT_POLICIES.finding(&place, what, Mend::Do(mend)));
        }
        if let Some(what) = wrong_ids(&object.zones) {
            found.push(ZONE_IDS.finding(&place, what, delete(object)));
        }
        found.extend(written_often(facts, object));
        if let Some(node) = node {
            found.extend(of_node(object, node));
        }
    }
    found
}

pub(super) fn place(object: &PublishedObject) -> String {
    format!("NodeResourceTopology {}", object.meta.name)
}

/// An agent whose object is deleted writes it again at once.
pub(super) fn delete(object: &PublishedObject) -> Mend {
    Mend::Run(format!("kubectl delete noderesourcetopology {}", shell_word(&object.meta.name)))
}

fn missing(facts: &Facts, objects: &[PublishedObject]) -> Vec<Finding> {
    let has_object: std::collections::BTreeSet<&str> =
        objects.iter().map(|object| object.meta.name.as_str()).collect();
    // Without the CRD that is one finding, not one for each Node.
    if matches!(facts.crd, Some(None)) {
        return Vec::new();
    }
    let agents = by_node(facts);
    let nodes = facts.nodes.iter().flatten().filter(|(name, node)| {
        let is_covered = node.slim.ready && covering(facts, name).is_some();
        is_covered && !has_object.contains(name.as_str())
    });
    let found = nodes.filter_map(|(name, _)| {
        let agent = agents.get(name.as_str())?.iter().find(|agent| agent.ready)?;
        let pod = &agent.pod.placed.pod;
        let mend = format!("Read the agent's log: kubectl logs --namespace {} {}", pod.namespace, pod.name);
        Some(OBJECT_MISSING.finding(
            format!("Node {name}"),
            "it has no object although its agent is Ready",
            Mend::Do(mend),
        ))
    });
    found.collect()
}

fn wrong_ids(zones: &[Zone]) -> Option<String> {
    let ids: Vec<u16> = zones.iter().map(|zone| zone.id).collect();
    if let Some(high) = ids.iter().find(|id| **id > MAX_ZONE) {
        return Some(format!(
            "it has the zone node-{high}, and the highest that schedulers read is node-{MAX_ZONE}"
        ));
    }
    let gap = ids.iter().enumerate().find(|(index, id)| *index != usize::from(**id));
    gap.map(|(index, _)| format!("it has {} zones, but no node-{index}", ids.len()))
}

fn of_node(object: &PublishedObject, node: &NodeDetails) -> Vec<Finding> {
    let mut found = Vec::new();
    let place = place(object);
    let meta = &object.meta;
    let is_other = meta.node_uid.as_ref().is_some_and(|uid| *uid != node.slim.uid);
    if is_other {
        let what = "its owner is another Node with the same name";
        found.push(OBJECT_OF_EARLIER_NODE.finding(&place, what, delete(object)));
    }
    let restart = || {
        Mend::Do(
            "Restart the kubelet; if it stays, delete the object, which the agent writes again.".to_owned(),
        )
    };
    if let Some(what) = zones_exceed(&object.zones, node) {
        found.push(ZONES_EXCEED_NODE.finding(&place, what, restart()));
    }
    if let Some(what) = node_exceeds(&object.zones, node) {
        found.push(NODE_EXCEEDS_ZONES.finding(format!("Node {}", node.slim.name), what, restart()));
    }
    found
}

/// Returns the sum of a resource's capacity over the zones, in the units of a Node; `None` if no zone lists it.
fn capacity(zones: &[Zone], resource: &str) -> Option<u64> {
    let amounts = zones.iter().filter_map(|zone| zone.resources.get(resource));
    let unit = if resource == "cpu" { 1000 } else { 1 };
    amounts.map(|amounts| amounts.capacity.saturating_mul(unit)).reduce(u64::saturating_add)
}

fn shown(resource: &str, amount: u64) -> String {
    match resource {
        "cpu" if amount.is_multiple_of(1000) => (amount / 1000).to_string(),
        "cpu" => format!("{amount}m"),
        _ => amount.to_string(),
    }
}

fn zones_exceed(zones: &[Zone], node: &NodeDetails) -> Option<String> {
    let of_all = node.capacity.iter().filter(|(name, _)| is_built_in(name)).find_map(|(name, has)| {
        let sum = capacity(zones, name)?;
        let tolerated = if name == "memory" { has / MEMORY_TOLERANCE } else { 0 };
        (sum > has.saturating_add(tolerated)).then(|| {
            format!("its zones have {} of {name}, and the Node has {}", shown(name, sum), shown(name, *has))
        })
    });
    // A device may belong to several zones, so they are compared one by one.
    let of_one = || {
        zones.iter().find_map(|zone| {
            let devices = zone.resources.iter().filter(|(name, _)| !is_built_in(name));
            let (name, amounts) = devices.into_iter().find(|(name, amounts)| {
                node.capacity.get(*name).is_some_and(|has| amounts.allocatable > *has)
            })?;
            let has = node.capacity.get(name).copied().unwrap_or_default();
            Some(format!(
                "its zone node-{} has {} of {name}, and the Node has {has}",
                zone.id, amounts.allocatable
            ))
        })
    };
    of_all.or_else(of_one)
}

fn node_exceeds(zones: &[Zone], node: &NodeDetails) -> Option<String> {
    let compared = node.allocatable.iter().filter(|(name, _)| *name == "cpu" || is_huge_pages(name));
    compared.into_iter().find_map(|(name, offered)| {
        let sum = capacity(zones, name)?;
        (*offered > sum).then(|| {
            format!("it offers {} of {name}, and its zones have {}", shown(name, *offered), shown(name, sum))
        })
    })
}

/// The API server counts changes of the content, and not of metadata, in `metadata.generation`.
fn written_often(facts: &Facts, object: &PublishedObject) -> Option<Finding> {
    let created = object.meta.created?;
    let age = u64::try_from(facts.now.as_second().saturating_sub(created.as_second())).ok()?.max(1);
    let writes = object.meta.generation;
    if writes < MANY_WRITES || writes <= age {
        return None;
    }
    let what = format!("it was written {writes} times in the {age} s since it was created");
    let mend = "Look for another publisher; else read what changes in the agent's log.".to_owned();
    Some(OBJECT_WRITTEN_OFTEN.finding(place(object), what, Mend::Do(mend)))
}
