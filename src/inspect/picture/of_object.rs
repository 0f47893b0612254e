//! The picture of a node from its object and its pods.

use jiff::Timestamp;

use super::{Holding, Picture, add_pods, distances, memories, real_zones, summary};
use crate::cluster::PublishedObject;
use crate::core_v1::PlacedPod;
use crate::holders::{Holder, holders};
use crate::nrt::{FINGERPRINT, POLICY, SCOPE, zone_name};
use crate::render::{Line, Style, Zone, resource_label};
use crate::scheduler::Fingerprint;
use crate::topology;
use crate::util::age::age;

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
            found.iter().map(Holding::from).collect()
        });
        Self { title: title(object, now), notes: notes(object), zones, holdings }
    }
}

/// Containers are in the order of their zones; those without known zones are last.
fn order(holder: &Holder) -> (bool, Option<String>, &str, &str) {
    let zones = holder.zones.as_ref().map(ToString::to_string);
    (zones.is_none(), zones, &holder.namespace, &holder.pod)
}

fn zone_names(holder: &Holder) -> Vec<String> {
    holder.zones.iter().flat_map(|zones| zones.iter().map(zone_name)).collect()
}

fn zone(zone: &topology::Zone, all: &[&topology::Zone]) -> Zone {
    let facts = distances(zone, all).map(|distances| Line::new(distances, Style::Dim));
    Zone { facts: facts.into_iter().collect(), ..Zone::from(zone) }
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
    let managers: Vec<String> = managers.chain(kinds).collect();
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
