//! The picture of a node from its object and its pods.

use jiff::Timestamp;

use super::{Holding, Picture, add_pods, caches, distances, memories, memory_group, summary};
use crate::cluster::PublishedObject;
use crate::core_v1::PlacedPod;
use crate::holders::{Holder, holders};
use crate::nrt::{FINGERPRINT, L3_CACHES, POLICY, RESERVED_CPUS, SCOPE, SOCKETS, zone_name};
use crate::render::{Line, Style, Zone, resource_label};
use crate::scheduler::Fingerprint;
use crate::topology::{self, real_zones};
use crate::util::age::age;

/// The longest attribute of a zone that is shown, in bytes. Agents write no longer ones.
const MAX_ATTRIBUTE: usize = 4096;
/// How many errors of an object are shown.
const MAX_ERRORS: usize = 5;

impl Picture {
    /// Returns the picture of an object. `pods` are those of the node, if they are known.
    #[must_use]
    pub fn of_object(object: &PublishedObject, pods: Option<&[PlacedPod]>, now: Timestamp) -> Self {
        let real = real_zones(&object.zones);
        let mut zones: Vec<Zone> = real.iter().map(|one| zone(one, &real)).collect();
        let holdings = pods.map(|pods| {
            let mut found = holders(&object.zones, &object.attributes, pods);
            found.sort_by(|a, b| order(a).cmp(&order(b)));
            add_pods(&mut zones, found.iter().map(|holder| (holder.pod.as_str(), zone_names(holder))));
            found.iter().map(Holding::from).chain(pods.iter().flat_map(of_claims)).collect()
        });
        Self { title: title(object, now), notes: notes(object), zones, holdings }
    }
}

/// Containers are in the order of their zones; those without known zones are last.
fn order(holder: &Holder) -> (bool, Option<String>, &str, &str) {
    let zones = holder.zones.as_ref().map(ToString::to_string);
    (zones.is_none(), zones, &holder.namespace, &holder.pod)
}

/// The object does not tell what a claim has.
fn of_claims(placed: &PlacedPod) -> impl Iterator<Item = Holding> {
    let pod = &placed.pod;
    let names = pod.claim_names().filter(|_| !pod.phase.is_terminal());
    names.map(|claim| Holding {
        zones: "?".to_owned(),
        pod: format!("{}/{}", pod.namespace, pod.name),
        container: format!("(claim {claim})"),
        ..Holding::default()
    })
}

fn zone_names(holder: &Holder) -> Vec<String> {
    holder.zones.iter().flat_map(|zones| zones.iter().map(zone_name)).collect()
}

fn zone(zone: &topology::Zone, all: &[&topology::Zone]) -> Zone {
    let is_usual = |value: &&String| !value.is_empty() && value.len() <= MAX_ATTRIBUTE;
    let attribute = |name: &str| zone.attributes.get(name).filter(is_usual);
    let sockets = attribute(SOCKETS).map(|sockets| format!("socket {}", sockets.replace(',', ", socket ")));
    let first: Vec<String> = sockets.into_iter().chain(distances(zone, all)).collect();
    let first = (!first.is_empty()).then(|| Line::new(first.join(", "), Style::Dim));
    let of_caches = attribute(L3_CACHES).map(|value| value.split(';').map(str::to_owned).collect::<Vec<_>>());
    let of_caches = of_caches.and_then(|of_caches| caches(&of_caches));
    let facts = first.into_iter().chain(of_caches).chain(memory_group(zone)).collect();
    Zone { facts, ..Zone::from(zone) }
}

fn title(object: &PublishedObject, now: Timestamp) -> Line {
    let attribute = |name: &str| object.attributes.get(name).map(String::as_str);
    let summary = summary(attribute(POLICY), attribute(SCOPE), real_zones(&object.zones).len());
    let ages = format!("  changed {} ago, age {}", age(object.changed, now), age(object.meta.created, now));
    Line::new(&object.meta.name, Style::Bold).add(summary, Style::Plain).add(ages, Style::Dim)
}

fn notes(object: &PublishedObject) -> Vec<Line> {
    let mut notes = Vec::new();
    let attribute = |name: &str| object.attributes.get(name);
    let managers = [("CPU", "cpuManagerPolicy"), ("Memory", "memoryManagerPolicy")];
    let managers = managers
        .into_iter()
        .filter_map(|(manager, name)| Some(format!("{manager} Manager {}", attribute(name)?)));
    let kinds = object.attributes.iter();
    let kinds = kinds.filter_map(|(name, cpus)| Some(format!("{} cores {cpus}", name.strip_prefix("cpu_")?)));
    let reserved = attribute(RESERVED_CPUS).map(|cpus| format!("reserved CPUs {cpus}"));
    let managers: Vec<String> = managers.chain(reserved).chain(kinds).collect();
    if !managers.is_empty() {
        notes.push(Line::new(managers.join(", "), Style::Dim));
    }
    if attribute(FINGERPRINT).is_some_and(|value| *value == Fingerprint::WITHHELD.to_string()) {
        let withheld = "The fingerprint is withheld: the scheduler plugin does not place pods here.";
        notes.push(Line::new(withheld, Style::Warning));
    }
    if let Some(other) = &object.meta.writers.other {
        let also = if object.meta.writers.ours { "also " } else { "" };
        notes.push(Line::new(format!("{other} {also}writes this object's zones."), Style::Warning));
    }
    notes.extend(object.errors.iter().take(MAX_ERRORS).map(|error| Line::new(error, Style::Bad)));
    if object.errors.len() > MAX_ERRORS {
        notes.push(Line::new(format!("and {} more", object.errors.len() - MAX_ERRORS), Style::Bad));
    }
    notes
}

impl From<&Holder> for Holding {
    fn from(holder: &Holder) -> Self {
        let devices: Vec<String> = holder
            .devices
            .iter()
            .map(|(resource, count)| format!("{count} {}", resource_label(resource)))
            .collect();
        Self {
            zones: holder.zones.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string),
            pod: format!("{}/{}", holder.namespace, holder.pod),
            container: holder.container.clone(),
            cpus: if holder.cpus > 0 { holder.cpus.to_string() } else { String::new() },
            memory: memories(holder.memory.iter().map(|(name, bytes)| (name.as_str(), *bytes))),
            devices: devices.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::Pod;

    #[test]
    fn the_claims_of_pods_that_have_not_ended_are_named() {
        let pod = |name: &str, phase: &str| {
            let claims = json!([{"name": "a", "resourceClaimName": "gpus"}]);
            let pod = json!({"metadata": {"namespace": "ns", "name": name, "uid": name}, "status": {"phase": phase},
                "spec": {"containers": [{"name": "c"}], "resourceClaims": claims}});
            let pod = Pod::from_json(pod.to_string().as_bytes()).unwrap();
            PlacedPod { pod, ..PlacedPod::default() }
        };
        let object = serde_json::from_value(json!({"metadata": {"name": "w"}})).unwrap();
        let pods = [pod("run", "Running"), pod("ended", "Succeeded")];
        let picture = Picture::of_object(&object, Some(&pods), Timestamp::UNIX_EPOCH);
        let lines: Vec<String> = picture.lines(80).iter().map(Line::text).collect();
        let claims: Vec<&str> =
            lines.iter().filter(|line| line.contains("claim")).map(|line| line.trim_end()).collect();
        assert_eq!(claims, ["?       ns/run   (claim gpus)   -      -        -"]);
    }

    #[test]
    fn attributes_of_zones_are_shown() {
        let zone = |id: u8, attributes: &[(&str, &str)]| {
            let attributes: Vec<_> =
                attributes.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            json!({"name": format!("node-{id}"), "type": "Node", "attributes": attributes,
                   "resources": [{"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"}]})
        };
        let object = json!({
            "metadata": {"name": "w"},
            "attributes": [{"name": "reservedCPUs", "value": "0,8"}, {"name": "cpuManagerPolicy", "value": "static"}],
            "zones": [
                zone(0, &[("sockets", "0,1"), ("l3Caches", "0-3;4-7"), ("memoryGroup", "0-1")]),
                zone(1, &[("sockets", "1"), ("l3Caches", &"1;".repeat(9000)), ("memoryGroup", "1")]),
            ],
        });
        let object = serde_json::from_value(object).unwrap();
        let picture = Picture::of_object(&object, None, Timestamp::UNIX_EPOCH);
        let text: Vec<String> = picture.lines(usize::MAX).iter().map(Line::text).collect();
        let text = text.join("\n");
        for expected in [
            "CPU Manager static, reserved CPUs 0,8",
            "  socket 0, socket 1",
            "  L3 caches of CPUs 0-3 and 4-7",
            "  in the Memory Manager's group of the nodes 0-1",
            "  socket 1",
        ] {
            assert_eq!(
                text.lines().filter(|line| line.trim_end() == expected).count(),
                1,
                "{expected}: {text}"
            );
        }
        assert!(!text.contains("1 and 1") && !text.contains("nodes 1\n"), "{text}");
    }
}
