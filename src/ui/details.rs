//! A node and a pod as the page shows them when they are opened. Pure.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::PublishedObject;
use crate::core_v1::PlacedPod;
use crate::holders::{Holder, holders};
use crate::machine::Id;
use crate::nrt::{L3_CACHES, POLICY, RESERVED_CPUS, SCOPE, SOCKETS};
use crate::topology::{Zone, real_zones};

/// The most containers with exclusive resources that are sent; a kubelet runs 110 pods by default.
const MAX_HOLDERS: usize = 1000;
/// The most bytes of one attribute that are sent.
const MAX_ATTRIBUTE: usize = 4096;

/// A node that was opened.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeDetails {
    name: String,
    /// Names and values of attributes that people know.
    facts: Vec<(&'static str, String)>,
    zones: Vec<ZoneDetails>,
    holders: Vec<HolderDetails>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ZoneDetails {
    id: Id,
    sockets: Vec<String>,
    /// The distances to zones, by their ids.
    distances: Vec<(Id, u32)>,
    /// CPU lists, one for each L3 cache.
    caches: Vec<String>,
    memory_group: Option<String>,
    resources: Vec<ResourceDetails>,
}

#[derive(Debug, Serialize)]
struct ResourceDetails {
    name: String,
    capacity: u64,
    allocatable: u64,
    available: u64,
    /// Who has how much of it: indexes of [`NodeDetails::holders`].
    held: Vec<(usize, u64)>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HolderDetails {
    namespace: String,
    pod: String,
    container: String,
    /// `None` if the object does not tell.
    zones: Option<Vec<Id>>,
    cpus: u64,
    amounts: BTreeMap<String, u64>,
}

impl HolderDetails {
    fn of(holder: &Holder) -> Self {
        let amounts = holder.memory.iter().chain(&holder.devices);
        Self {
            namespace: holder.namespace.clone(),
            pod: holder.pod.clone(),
            container: holder.container.clone(),
            zones: holder.zones.as_ref().map(|zones| zones.iter().collect()),
            cpus: holder.cpus,
            amounts: amounts.map(|(name, amount)| (name.clone(), *amount)).collect(),
        }
    }
}

/// Returns a node with what its pods have.
pub(super) fn node_details(object: &PublishedObject, pods: &[PlacedPod]) -> NodeDetails {
    let mut found = holders(&object.zones, &object.attributes, pods);
    found.sort_by(|a, b| (&a.namespace, &a.pod, &a.container).cmp(&(&b.namespace, &b.pod, &b.container)));
    found.truncate(MAX_HOLDERS);
    let zones = real_zones(&object.zones);
    NodeDetails {
        name: object.meta.name.clone(),
        facts: facts(object),
        zones: zones.iter().map(|zone| zone_details(zone, &found)).collect(),
        holders: found.iter().map(HolderDetails::of).collect(),
    }
}

fn facts(object: &PublishedObject) -> Vec<(&'static str, String)> {
    let names = [
        (POLICY, "Topology Manager policy"),
        (SCOPE, "scope"),
        ("cpuManagerPolicy", "CPU Manager policy"),
        ("memoryManagerPolicy", "Memory Manager policy"),
        (RESERVED_CPUS, "reserved CPUs"),
    ];
    let fact = |(name, text): (&str, &'static str)| {
        let value = object.attributes.get(name).filter(|value| value.len() <= MAX_ATTRIBUTE)?;
        Some((text, value.clone()))
    };
    names.into_iter().filter_map(fact).collect()
}

fn zone_details(zone: &Zone, holders: &[Holder]) -> ZoneDetails {
    let list = |name: &str, separator: char| {
        let value = zone.attributes.get(name).filter(|value| value.len() <= MAX_ATTRIBUTE);
        let parts = value.into_iter().flat_map(|value| value.split(separator));
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    // What a container has on several zones is not known for each.
    let is_here = |holder: &Holder| {
        holder.zones.as_ref().is_some_and(|zones| zones.len() == 1 && zones.contains(zone.id))
    };
    let resource = |(name, amounts): (&String, &crate::nrt::Amounts)| ResourceDetails {
        name: name.clone(),
        capacity: amounts.capacity,
        allocatable: amounts.allocatable,
        available: amounts.available,
        held: holders
            .iter()
            .enumerate()
            .filter(|(_, holder)| is_here(holder) && holder.amount(name) > 0)
            .map(|(at, holder)| (at, holder.amount(name)))
            .collect(),
    };
    ZoneDetails {
        id: zone.id,
        sockets: list(SOCKETS, ','),
        distances: zone.costs.iter().map(|(id, cost)| (*id, *cost)).collect(),
        caches: list(L3_CACHES, ';'),
        memory_group: zone.memory_group().filter(|group| group.len() > 1).map(|group| group.to_string()),
        resources: zone.resources.iter().map(resource).collect(),
    }
}

/// Returns a pod on a node: where each container is, and why.
pub(super) fn pod_details(
    object: &PublishedObject,
    pods: &[PlacedPod],
    namespace: &str,
    name: &str,
) -> Value {
    let policy = object.attributes.get(POLICY).map_or("none", String::as_str);
    let containers: Vec<Value> = holders(&object.zones, &object.attributes, pods)
        .iter()
        .filter(|holder| holder.namespace == namespace && holder.pod == name)
        .map(|holder| {
            let details = HolderDetails::of(holder);
            let (aligned, why) = alignment(details.zones.as_deref(), policy);
            json!({"name": holder.container, "zones": details.zones, "cpus": details.cpus,
                   "amounts": details.amounts, "aligned": aligned, "why": why})
        })
        .collect();
    let why = containers.is_empty().then(|| shared(pods, namespace, name));
    json!({"policy": policy, "containers": containers, "why": why})
}

/// Returns whether a container is on one zone, if that is known, and the reason.
fn alignment(zones: Option<&[Id]>, policy: &str) -> (Option<bool>, String) {
    match (zones, policy) {
        (Some([zone]), "single-numa-node") => {
            (Some(true), format!("the policy single-numa-node admitted it on zone {zone} as a whole"))
        }
        (Some([zone]), _) => (Some(true), format!("all of it is on zone {zone}")),
        (Some(_), policy) => {
            (Some(false), format!("no single zone had all of it, and the policy {policy} admits that"))
        }
        (None, "single-numa-node" | "restricted") => {
            (None, format!("several zones are possible; the policy {policy} admits only aligned containers"))
        }
        (None, policy) => {
            (None, format!("several zones are possible, and the policy {policy} does not require one"))
        }
    }
}

/// Returns why a pod has nothing exclusively.
fn shared(pods: &[PlacedPod], namespace: &str, name: &str) -> &'static str {
    let pod =
        pods.iter().map(|placed| &placed.pod).find(|pod| pod.namespace == namespace && pod.name == name);
    match pod {
        None => "it is not on this node any more",
        Some(pod) if pod.phase.is_terminal() => "it has ended: it has nothing any more",
        Some(pod) if !pod.qos_guaranteed => {
            "it is not Guaranteed: its containers share CPUs and memory that no pod has exclusively"
        }
        Some(_) => "it has no exclusive CPUs, memory or devices: see the node's policies",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{Container, Phase, Pod};

    fn object() -> PublishedObject {
        let zone = |id: u8, available: u64| {
            let cpu = json!({"name": "cpu", "capacity": 8, "allocatable": 8, "available": available});
            let costs = json!([{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}]);
            let attributes =
                json!([{"name": "sockets", "value": "0,1"}, {"name": "l3Caches", "value": "0-3;4-7"}]);
            json!({"name": format!("node-{id}"), "type": "Node", "resources": [cpu], "costs": costs,
                   "attributes": attributes})
        };
        let attributes = [("topologyManagerPolicy", "single-numa-node"), ("cpuManagerPolicy", "static")];
        let attributes = attributes.map(|(name, value)| json!({"name": name, "value": value}));
        let object =
            json!({"metadata": {"name": "w"}, "zones": [zone(0, 8), zone(1, 4)], "attributes": attributes});
        serde_json::from_value(object).unwrap()
    }

    fn pod(name: &str, cpus: u64, phase: Phase) -> PlacedPod {
        let container =
            Container { name: "c".into(), cpu_milli: cpus * 1000, memory: 1, ..Container::default() };
        let pod = Pod {
            namespace: "ns".into(),
            name: name.into(),
            phase,
            qos_guaranteed: cpus > 0,
            containers: Box::new([container]),
            ..Pod::default()
        };
        PlacedPod { pod, ..PlacedPod::default() }
    }

    #[test]
    fn each_zone_tells_who_has_what() {
        let details = node_details(&object(), &[pod("a", 4, Phase::Running), pod("b", 0, Phase::Running)]);
        let details = serde_json::to_value(details).unwrap();
        assert_eq!(details["holders"].as_array().unwrap().len(), 1);
        assert_eq!(details["zones"][0]["resources"][0]["held"], json!([]));
        assert_eq!(details["zones"][1]["resources"][0]["held"], json!([[0, 4]]));
        assert_eq!(details["zones"][1]["caches"], json!(["0-3", "4-7"]));
        assert_eq!(details["zones"][1]["distances"], json!([[0, 10], [1, 21]]));
        assert_eq!(details["facts"][0], json!(["Topology Manager policy", "single-numa-node"]));
    }

    #[test]
    fn a_pod_tells_whether_it_is_aligned_and_why() {
        let pods = [pod("a", 4, Phase::Running), pod("b", 0, Phase::Running), pod("c", 2, Phase::Succeeded)];
        let of = |name: &str| pod_details(&object(), &pods, "ns", name);
        assert_eq!(of("a")["containers"][0]["aligned"], true);
        assert_eq!(of("a")["containers"][0]["zones"], json!([1]));
        for (name, why) in [("b", "Guaranteed"), ("c", "ended"), ("d", "any more")] {
            assert!(of(name)["why"].as_str().unwrap().contains(why), "{name}");
        }
        assert_eq!(alignment(Some(&[0, 1]), "best-effort").0, Some(false));
        assert_eq!(alignment(None, "none").0, None);
    }
}
