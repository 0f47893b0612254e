//! Describes the changes between two topologies.

use std::collections::BTreeMap;

use crate::kubelet::{ContainerUsage, MemoryBlock, PodUsage, Usage};
use crate::machine::{Id, IdSet, Machine};
use crate::pod::PodName;
use crate::topology::{Amounts, Topology, Zone};

/// Maximum number of pods named in one line.
const NAMED: usize = 3;

/// What each pod was allocated, as far as a log line needs it: a few dozen bytes per pod with allocations.
#[derive(Debug, Default)]
pub(super) struct Footprints(BTreeMap<PodName, Footprint>);

#[derive(Debug, PartialEq, Eq)]
struct Footprint {
    /// Hash of everything that the pod is allocated.
    hash: u64,
    /// The NUMA nodes that it is on.
    nodes: IdSet,
}

impl Footprints {
    /// Returns the footprints of all pods with allocations.
    pub(super) fn of(usage: &Usage, machine: &Machine) -> Self {
        let holding = usage.pods.iter().filter(|pod| pod.holds_anything());
        let footprint =
            |pod: &PodUsage| Footprint { hash: pod.holdings_hash(), nodes: nodes_of(pod, machine) };
        Self(holding.map(|pod| (pod.full_name(), footprint(pod))).collect())
    }

    /// Returns the pods whose allocations differ from `before`, each with the affected NUMA nodes.
    fn changed_since<'a>(&'a self, before: &'a Self) -> Vec<(&'a PodName, IdSet)> {
        let names = self.0.keys().chain(before.0.keys().filter(|name| !self.0.contains_key(*name)));
        let mut changed: Vec<(&PodName, IdSet)> = names
            .filter_map(|name| {
                let (now, then) = (self.0.get(name), before.0.get(name));
                let mut nodes = IdSet::new();
                now.into_iter().chain(then).for_each(|footprint| nodes.union_with(&footprint.nodes));
                (now != then).then_some((name, nodes))
            })
            .collect();
        changed.sort_by_key(|(name, _)| *name);
        changed
    }
}

/// Returns the NUMA nodes of everything that a pod is allocated.
fn nodes_of(pod: &PodUsage, machine: &Machine) -> IdSet {
    let mut nodes = IdSet::new();
    let mut cpus = pod.cpus.clone();
    let mut memory: Vec<&MemoryBlock> = pod.memory.iter().collect();
    for ContainerUsage { cpus: of_container, memory: blocks, devices, .. } in &pod.containers {
        cpus.union_with(of_container);
        memory.extend(blocks);
        devices.iter().for_each(|group| nodes.union_with(&group.nodes));
    }
    memory.iter().for_each(|block| nodes.union_with(&block.nodes));
    for node in machine.nodes.iter().filter(|node| node.cpus.intersects(&cpus)) {
        nodes.insert(node.id);
    }
    nodes
}

/// Returns one line per changed zone, such as `node-1: cpu 6 -> 4 free (pod ns/a)`; one summary line for the
/// first topology.
pub(super) fn between(
    before: Option<(&Topology, &Footprints)>,
    now: (&Topology, &Footprints),
) -> Vec<String> {
    let (now, holders) = now;
    let Some((before, held)) = before else {
        return vec![format!("first account: {} zones", now.zones.len())];
    };
    let changed = holders.changed_since(held);
    let mut lines: Vec<String> = now
        .zones
        .iter()
        .filter_map(|zone| Some(zone_line(before, zone)? + &who(&changed, zone.id)))
        .collect();
    for gone in before.zones.iter().filter(|old| now.zones.iter().all(|zone| zone.id != old.id)) {
        lines.push(format!("node-{}: gone", gone.id));
    }
    if before.attributes != now.attributes {
        let words: Vec<String> =
            now.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        lines.push(format!("attributes: {}", words.join(" ")));
    }
    lines
}

/// Returns ` (pod ns/a)`, ` (pods ns/a, ns/b)`; empty if no pod is the cause.
fn who(changed: &[(&PodName, IdSet)], zone: Id) -> String {
    let names: Vec<String> = changed
        .iter()
        .filter(|(_, nodes)| nodes.contains(zone))
        .map(|((namespace, name), _)| format!("{namespace}/{name}"))
        .collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => format!(" (pod {one})"),
        some if some.len() <= NAMED => format!(" (pods {})", some.join(", ")),
        many => format!(" (pods {} and {} more)", many[..NAMED].join(", "), many.len() - NAMED),
    }
}

fn zone_line(before: &Topology, zone: &Zone) -> Option<String> {
    let Some(old) = before.zones.iter().find(|old| old.id == zone.id) else {
        return Some(format!("node-{}: new", zone.id));
    };
    let mut words: Vec<String> = zone
        .resources
        .iter()
        .filter_map(|(name, now)| resource_words(name, old.resources.get(name).copied(), *now))
        .collect();
    words.extend(
        old.resources
            .keys()
            .filter(|name| !zone.resources.contains_key(*name))
            .map(|name| format!("{name} gone")),
    );
    if old.costs != zone.costs {
        words.push("costs changed".to_owned());
    }
    (!words.is_empty()).then(|| format!("node-{}: {}", zone.id, words.join(", ")))
}

fn resource_words(name: &str, old: Option<Amounts>, now: Amounts) -> Option<String> {
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
    use crate::kubelet::DeviceGroup;
    use crate::machine::NumaNode;

    type Listed<'a> = (u16, &'a [(&'a str, u64, u64)]);

    fn topology(zones: &[Listed<'_>]) -> Topology {
        let amounts = |allocatable, available| Amounts { capacity: allocatable, allocatable, available };
        let zone = |(id, resources): &Listed<'_>| Zone {
            id: *id,
            resources: resources.iter().map(|(name, a, b)| ((*name).to_owned(), amounts(*a, *b))).collect(),
            ..Zone::default()
        };
        Topology { zones: zones.iter().map(zone).collect(), ..Topology::default() }
    }

    #[test]
    fn each_zone_that_changed_has_its_line() {
        let before = topology(&[(0, &[("cpu", 8, 6), ("memory", 9, 9)]), (1, &[("cpu", 8, 8)])]);
        let mut now = topology(&[(0, &[("cpu", 8, 4), ("memory", 9, 9)]), (2, &[("cpu", 8, 8)])]);
        now.attributes.push(("cpuManagerPolicy".into(), "static".into()));
        let nobody = Footprints::default();
        let between = |before: Option<&Topology>, now: &Topology| {
            super::between(before.map(|before| (before, &nobody)), (now, &nobody))
        };
        assert_eq!(
            between(Some(&before), &now),
            ["node-0: cpu 6 -> 4 free", "node-2: new", "node-1: gone", "attributes: cpuManagerPolicy=static"]
        );
        let resized = topology(&[(0, &[("cpu", 7, 5), ("nic", 1, 1)]), (1, &[("cpu", 8, 8)])]);
        assert_eq!(
            between(Some(&before), &resized),
            ["node-0: cpu 6 -> 5 free of 8 -> 7, nic new, 1 free, memory gone"]
        );
        assert_eq!(between(Some(&now), &now), Vec::<String>::new());
        assert_eq!(between(None, &now), ["first account: 2 zones"]);
    }

    #[test]
    fn a_line_names_the_pods_whose_holdings_changed_on_its_zone() {
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
        let footprints = |pods: Vec<PodUsage>| Footprints::of(&Usage { pods }, &machine);
        let (four, six) = (
            topology(&[(0, &[("cpu", 8, 4)]), (1, &[("cpu", 8, 4)])]),
            topology(&[(0, &[("cpu", 8, 6)]), (1, &[("cpu", 8, 6)])]),
        );
        let lines = |before: Vec<PodUsage>, now: Vec<PodUsage>| {
            between(Some((&six, &footprints(before))), (&four, &footprints(now)))
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
