//! The picture of this node from its hardware and kubelet, with ids.

use std::collections::{BTreeMap, BTreeSet};

use super::{Holding, Picture, add_pods, distances, memories, memory_group, summary};
use crate::claims::{self, NodeClaims};
use crate::kubelet::{ContainerUsage, PodUsage};
use crate::machine::{CpuLocation, Id, IdSet, Machine};
use crate::nrt::{POLICY, SCOPE, zone_name};
use crate::render::{Line, Style, Zone, resource_label};
use crate::topology::{self, real_zones};

/// A node as it was read on the node itself.
#[derive(Clone, Debug)]
pub struct NodeState<'a> {
    /// The node's name.
    pub name: &'a str,
    /// The zones to draw.
    pub zones: &'a [topology::Zone],
    /// The object's attributes.
    pub attributes: &'a [(String, String)],
    /// The hardware.
    pub machine: &'a Machine,
    /// Where each CPU is, as far as known.
    pub cpus: &'a BTreeMap<Id, CpuLocation>,
    /// What the kubelet has allocated to active pods.
    pub pods: Vec<&'a PodUsage>,
    /// What the scheduler has allocated to claims of pods, if that was read.
    pub claims: Option<&'a NodeClaims>,
}

impl Picture {
    /// Returns the picture of a node, with the ids of CPUs and devices.
    #[must_use]
    pub fn of_node(node: &NodeState<'_>) -> Self {
        let real = real_zones(node.zones);
        let zone = |zone: &&topology::Zone| Zone { facts: node.facts(zone, &real), ..Zone::from(*zone) };
        let mut zones: Vec<Zone> = real.iter().map(zone).collect();
        let mut found: Vec<(IdSet, &str, Holding)> =
            node.pods.iter().flat_map(|pod| node.holdings(pod)).chain(node.holdings_of_claims()).collect();
        found.sort_by_key(|(_, _, holding)| {
            (holding.zones.clone(), holding.pod.clone(), holding.container.clone())
        });
        add_pods(&mut zones, found.iter().map(|(ids, pod, _)| (*pod, ids.iter().map(zone_name).collect())));
        let holdings = Some(found.into_iter().map(|(_, _, holding)| holding).collect());
        Self { title: node.title(), notes: Vec::new(), zones, holdings }
    }
}

impl<'a> NodeState<'a> {
    fn title(&self) -> Line {
        let value = |name: &str| {
            let found = self.attributes.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.as_str())
        };
        let summary = summary(value(POLICY), value(SCOPE), real_zones(self.zones).len());
        Line::new(self.name, Style::Bold).add(summary, Style::Plain)
    }

    /// Returns CPUs, socket, caches and distances of a zone.
    fn facts(&self, zone: &topology::Zone, all: &[&topology::Zone]) -> Vec<Line> {
        let Some(node) = self.machine.node(zone.id) else { return Vec::new() };
        let locations = || node.cpus.iter().filter_map(|cpu| Some((cpu, self.cpus.get(&cpu)?)));
        let sockets: BTreeSet<Id> = locations().map(|(_, location)| location.socket).collect();
        let mut caches: BTreeMap<Id, IdSet> = BTreeMap::new();
        for (cpu, location) in locations() {
            caches.entry(location.cache).or_default().insert(cpu);
        }
        let mut facts = Vec::new();
        if !node.cpus.is_empty() {
            facts.push(format!("CPUs {}", node.cpus));
        }
        facts.extend(sockets.iter().map(|socket| format!("socket {socket}")));
        facts.extend(distances(zone, all));
        let mut lines = vec![Line::new(facts.join(", "), Style::Dim)];
        let caches: Vec<String> = caches.values().map(ToString::to_string).collect();
        lines.extend(super::caches(&caches));
        lines.extend(memory_group(zone));
        lines
    }

    /// Returns what each container of a pod has, and in which zones.
    fn holdings(&self, pod: &'a PodUsage) -> Vec<(IdSet, &'a str, Holding)> {
        let of_pod = ContainerUsage {
            name: "(pod)".to_owned(),
            cpus: pod.cpus.clone(),
            memory: pod.memory.clone(),
            ..ContainerUsage::default()
        };
        let containers = std::iter::once(&of_pod).chain(&pod.containers);
        let has_any =
            |one: &&ContainerUsage| !one.cpus.is_empty() || !one.memory.is_empty() || !one.devices.is_empty();
        let holding = |container: &ContainerUsage| {
            let zones = self.zones_of(container);
            let text = Holding {
                zones: zones_text(&zones),
                pod: format!("{}/{}", pod.namespace, pod.name),
                container: container.name.clone(),
                cpus: container.cpus.to_string(),
                memory: memory_of(container),
                devices: devices_of(container),
            };
            (zones, pod.name.as_str(), text)
        };
        containers.filter(has_any).map(holding).collect()
    }

    /// Returns what each claim of a pod has, and in which zones; that of a shared claim for each of its pods.
    fn holdings_of_claims(&self) -> Vec<(IdSet, &'a str, Holding)> {
        let Some(claims) = self.claims else { return Vec::new() };
        let of_claim = |(name, in_use, held): (&'a str, &'a claims::ClaimInUse, claims::Holding)| {
            let (namespace, claim) = name.split_once('/').unwrap_or(("", name));
            let text = Holding {
                zones: zones_text(&held.nodes),
                container: format!("(claim {claim})"),
                cpus: cpus_of_claim(&held),
                memory: memories(held.memory.iter().map(|(resource, bytes)| (resource.as_str(), *bytes))),
                devices: devices_text(&held.devices),
                ..Holding::default()
            };
            let of_pod = move |pod: &'a String| {
                let text = Holding { pod: format!("{namespace}/{pod}"), ..text.clone() };
                (held.nodes.clone(), pod.as_str(), text)
            };
            in_use.pods.iter().map(of_pod)
        };
        claims::holdings(self.machine, claims).into_iter().flat_map(of_claim).collect()
    }

    fn zones_of(&self, container: &ContainerUsage) -> IdSet {
        let mut zones = self.machine.nodes_of(&container.cpus);
        container.memory.iter().for_each(|block| zones.union_with(&block.nodes));
        container.devices.iter().for_each(|group| zones.union_with(&group.nodes));
        zones
    }
}

fn zones_text(zones: &IdSet) -> String {
    if zones.is_empty() { "-".to_owned() } else { zones.to_string() }
}

/// Formats the CPUs of a claim: `4-7`, or their number if their ids are not known.
fn cpus_of_claim(held: &claims::Holding) -> String {
    let ids = (!held.cpus.is_empty()).then(|| held.cpus.to_string());
    let others = (held.other_cpus > 0).then(|| format!("{} of unknown ids", held.other_cpus));
    ids.into_iter().chain(others).collect::<Vec<_>>().join(" and ")
}

fn memory_of(container: &ContainerUsage) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for block in &container.memory {
        let sum = sums.entry(&block.resource).or_default();
        *sum = sum.saturating_add(block.bytes);
    }
    memories(sums)
}

fn devices_of(container: &ContainerUsage) -> String {
    // The kubelet repeats a device that is on several zones.
    let mut ids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for group in &container.devices {
        ids.entry(&group.resource).or_default().extend(group.ids.iter().map(String::as_str));
    }
    devices_text(&ids)
}

/// Formats the ids of devices by resource or driver.
fn devices_text<T: AsRef<str>>(ids: &BTreeMap<T, BTreeSet<T>>) -> String {
    let text = |(resource, ids): (&T, &BTreeSet<T>)| {
        let ids: Vec<&str> = ids.iter().map(AsRef::as_ref).collect();
        format!("{} {}", resource_label(resource.as_ref()), ids.join(","))
    };
    ids.iter().map(text).collect::<Vec<_>>().join("; ")
}
