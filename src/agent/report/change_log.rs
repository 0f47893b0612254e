//! Describes the changes between two published states.

use std::collections::BTreeMap;

use crate::kubelet::{PodUsage, Usage};
use crate::machine::{Id, IdSet, Machine};
use crate::pod::PodName;
use crate::scheduler::Publishable;
use crate::topology::{Amounts, Zone};

const MAX_NAMES: usize = 3;

/// The last published state, with which the next one is compared.
#[derive(Debug, Default)]
pub(super) struct ChangeLog(Option<(Publishable, Footprints)>);

/// What each pod was allocated, as far as a log line needs it: a few dozen bytes per pod with allocations.
type Footprints = BTreeMap<PodName, Footprint>;

#[derive(Debug, PartialEq, Eq)]
struct Footprint {
    hash: u64,
    nodes: IdSet,
}

impl ChangeLog {
    /// Returns one line per zone that differs from the last state, such as
    /// `node-1: cpu 6 -> 4 free (pod ns/a)`; one summary line for the first state.
    pub(super) fn record(&mut self, now: &Publishable, usage: &Usage, machine: &Machine) -> Vec<String> {
        let footprints = footprints(usage, machine);
        let lines = match &self.0 {
            Some((before, old)) => lines(before, now, &changed_pods(old, &footprints)),
            None => vec![format!("first topology: {} zones", now.zones.len())],
        };
        self.0 = Some((now.clone(), footprints));
        lines
    }
}

fn footprints(usage: &Usage, machine: &Machine) -> Footprints {
    let pods = usage.pods.iter().filter(|pod| pod.has_allocations());
    let footprint =
        |pod: &PodUsage| Footprint { hash: pod.allocations_hash(), nodes: nodes_of(pod, machine) };
    pods.map(|pod| (pod.full_name(), footprint(pod))).collect()
}

/// Returns the pods whose allocations differ, each with the affected NUMA nodes.
fn changed_pods<'a>(before: &'a Footprints, now: &'a Footprints) -> Vec<(&'a PodName, IdSet)> {
    let names = now.keys().chain(before.keys().filter(|name| !now.contains_key(*name)));
    let mut changed: Vec<(&PodName, IdSet)> = names
        .filter_map(|name| {
            let (now, then) = (now.get(name), before.get(name));
            let mut nodes = IdSet::new();
            now.into_iter().chain(then).for_each(|footprint| nodes.union_with(&footprint.nodes));
            (now != then).then_some((name, nodes))
        })
        .collect();
    changed.sort_by_key(|(name, _)| *name);
    changed
}

fn nodes_of(pod: &PodUsage, machine: &Machine) -> IdSet {
    let mut nodes = machine.nodes_of(&pod.cpus);
    pod.memory.iter().for_each(|block| nodes.union_with(&block.nodes));
    for container in &pod.containers {
        nodes.union_with(&machine.nodes_of(&container.cpus));
        container.memory.iter().for_each(|block| nodes.union_with(&block.nodes));
        container.devices.iter().for_each(|group| nodes.union_with(&group.nodes));
    }
    nodes
}

fn lines(before: &Publishable, now: &Publishable, changed: &[(&PodName, IdSet)]) -> Vec<String> {
    let zones = now.zones.iter();
    let mut lines: Vec<String> =
        zones.filter_map(|zone| Some(zone_line(&before.zones, zone)? + &pods_on(changed, zone.id))).collect();
    let is_gone = |old: &&Zone| now.zones.iter().all(|zone| zone.id != old.id);
    lines.extend(before.zones.iter().filter(is_gone).map(|zone| format!("node-{}: gone", zone.id)));
    if before.attributes != now.attributes {
        let pairs = now.attributes.iter().map(|(name, value)| format!("{name}={value}"));
        lines.push(format!("attributes: {}", pairs.collect::<Vec<_>>().join(" ")));
    }
    lines
}

/// Returns ` (pod ns/a)`, ` (pods ns/a, ns/b)`; empty if no pod is the cause.
fn pods_on(changed: &[(&PodName, IdSet)], zone: Id) -> String {
    let names: Vec<String> = changed
        .iter()
        .filter(|(_, nodes)| nodes.contains(zone))
        .map(|((namespace, name), _)| format!("{namespace}/{name}"))
        .collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => format!(" (pod {one})"),
        some if some.len() <= MAX_NAMES => format!(" (pods {})", some.join(", ")),
        many => format!(" (pods {} and {} more)", many[..MAX_NAMES].join(", "), many.len() - MAX_NAMES),
    }
}

fn zone_line(before: &[Zone], zone: &Zone) -> Option<String> {
    let Some(old) = before.iter().find(|old| old.id == zone.id) else {
        return Some(format!("node-{}: new", zone.id));
    };
    let resources = zone.resources.iter();
    let mut parts: Vec<String> = resources
        .filter_map(|(name, now)| resource_change(name, old.resources.get(name).copied(), *now))
        .collect();
    let is_gone = |name: &&String| !zone.resources.contains_key(*name);
    parts.extend(old.resources.keys().filter(is_gone).map(|name| format!("{name} gone")));
    if old.costs != zone.costs {
        parts.push("costs changed".to_owned());
    }
    (!parts.is_empty()).then(|| format!("node-{}: {}", zone.id, parts.join(", ")))
}

fn resource_change(name: &str, old: Option<Amounts>, now: Amounts) -> Option<String> {
    let Some(old) = old else { return Some(format!("{name} new, {} free", now.available)) };
    if old == now {
        return None;
    }
    let mut text = format!("{name} {} -> {} free", old.available, now.available);
    if old.allocatable != now.allocatable {
        text.push_str(&format!(" of {} -> {}", old.allocatable, now.allocatable));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::{ContainerUsage, DeviceGroup};
    use crate::machine::NumaNode;
    use crate::scheduler::{Fingerprint, FingerprintMethod, PodFingerprint};
    use crate::topology::Topology;

    type Listed<'a> = (u16, &'a [(&'a str, u64, u64)]);

    /// Returns a state with these amounts, allocatable and available, in each zone.
    fn state(zones: &[Listed<'_>], attributes: &[(&str, &str)]) -> Publishable {
        let amounts = |allocatable, available| Amounts { capacity: allocatable, allocatable, available };
        let zone = |(id, resources): &Listed<'_>| Zone {
            id: *id,
            resources: resources.iter().map(|(name, a, b)| ((*name).to_owned(), amounts(*a, *b))).collect(),
            ..Zone::default()
        };
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let topology = Topology {
            zones: zones.iter().map(zone).collect(),
            attributes: attributes.collect(),
            ..Topology::default()
        };
        Publishable::new(&topology, None, &[], None)
    }

    #[test]
    fn each_changed_zone_has_a_line() {
        let record = |log: &mut ChangeLog, state: &Publishable| {
            log.record(state, &Usage::default(), &Machine::default())
        };
        let before = state(&[(0, &[("cpu", 8, 6), ("memory", 9, 9)]), (1, &[("cpu", 8, 8)])], &[]);
        let changes = |now: &Publishable| {
            let mut log = ChangeLog::default();
            record(&mut log, &before);
            record(&mut log, now)
        };
        let now = state(
            &[(0, &[("cpu", 8, 4), ("memory", 9, 9)]), (2, &[("cpu", 8, 8)])],
            &[("cpuManagerPolicy", "static")],
        );
        assert_eq!(
            changes(&now),
            ["node-0: cpu 6 -> 4 free", "node-2: new", "node-1: gone", "attributes: cpuManagerPolicy=static"]
        );
        let resized = state(&[(0, &[("cpu", 7, 5), ("nic", 1, 1)]), (1, &[("cpu", 8, 8)])], &[]);
        let expected = "node-0: cpu 6 -> 5 free of 8 -> 7, nic new, 1 free, memory gone";
        assert_eq!(changes(&resized), [expected]);
        assert_eq!(changes(&before), Vec::<String>::new());
        let fingerprint = PodFingerprint { value: Fingerprint::of([1]), method: FingerprintMethod::All };
        let of_pods = Publishable { fingerprint: Some(fingerprint), ..before.clone() };
        assert_eq!(changes(&of_pods), Vec::<String>::new(), "attributes that change with each pod");
        assert_eq!(record(&mut ChangeLog::default(), &now), ["first topology: 2 zones"]);
    }

    #[test]
    fn a_line_names_the_pods_whose_allocations_changed_on_its_zone() {
        let node = |id, cpus: &str| NumaNode { id, cpus: cpus.parse().unwrap(), ..NumaNode::default() };
        let machine = Machine { nodes: vec![node(0, "0-7"), node(1, "8-15")], ..Machine::default() };
        let nic = |ids: &[&str], nodes: &str| DeviceGroup {
            resource: "nic".into(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            nodes: nodes.parse().unwrap(),
        };
        let pod = |name: &str, cpus: &str, devices: Vec<DeviceGroup>| PodUsage {
            namespace: "ns".into(),
            name: name.into(),
            containers: vec![ContainerUsage {
                cpus: cpus.parse().unwrap(),
                devices,
                ..ContainerUsage::default()
            }],
            ..PodUsage::default()
        };
        let (four, six) = (
            state(&[(0, &[("cpu", 8, 4)]), (1, &[("cpu", 8, 4)])], &[]),
            state(&[(0, &[("cpu", 8, 6)]), (1, &[("cpu", 8, 6)])], &[]),
        );
        let lines = |before: Vec<PodUsage>, now: Vec<PodUsage>| {
            let mut log = ChangeLog::default();
            log.record(&six, &Usage { pods: before }, &machine);
            log.record(&four, &Usage { pods: now }, &machine)
        };
        let stays = || pod("stays", "6", vec![nic(&["a", "b"], "0-1")]);
        // The kubelet reports the same in another order.
        let again = pod("stays", "6", vec![nic(&["b"], "0-1"), nic(&["a"], "0-1")]);
        assert_eq!(
            lines(
                vec![stays(), pod("went", "8", vec![])],
                vec![again, pod("came", "0-1", vec![]), pod("idle", "", vec![])]
            ),
            ["node-0: cpu 6 -> 4 free (pod ns/came)", "node-1: cpu 6 -> 4 free (pod ns/went)"]
        );
        let moved = vec![pod("moved", "9", vec![])];
        assert_eq!(
            lines(moved, vec![pod("moved", "1", vec![])]),
            ["node-0: cpu 6 -> 4 free (pod ns/moved)", "node-1: cpu 6 -> 4 free (pod ns/moved)"]
        );
        let three = ["a", "b", "c"].map(|name| pod(name, "1", vec![])).to_vec();
        assert_eq!(lines(vec![], three)[0], "node-0: cpu 6 -> 4 free (pods ns/a, ns/b, ns/c)");
        let many = ["a", "b", "c", "d", "e"].map(|name| pod(name, "1", vec![])).to_vec();
        assert_eq!(lines(vec![], many)[0], "node-0: cpu 6 -> 4 free (pods ns/a, ns/b, ns/c and 2 more)");
    }
}
