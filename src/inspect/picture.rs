//! One node as a picture: its zones with bars, and who has what in them.

mod of_node;
mod of_object;

use crate::render::{Column, Line, Style, Table, Zone, gib, panels, resource_label, zone_table};
use crate::topology;

pub use of_node::NodeState;

/// A node to draw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// The node's name, and its policies.
    title: Line,
    /// More about the node, one line each.
    notes: Vec<Line>,
    zones: Vec<Zone>,
    /// Who has exclusive resources; `None` if that is not known.
    holdings: Option<Vec<Holding>>,
}

/// What a container has, as text for each column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Holding {
    /// Ids of its zones; `?` if they are not known.
    zones: String,
    /// `namespace/name`
    pod: String,
    container: String,
    /// Their ids or, if these are not known, their number.
    cpus: String,
    memory: String,
    devices: String,
}

impl Picture {
    /// Returns the lines, for a window of `width` columns.
    #[must_use]
    pub fn lines(&self, width: usize) -> Vec<Line> {
        let mut lines = self.head(width);
        lines.extend(panels(&self.zones, width));
        lines.extend(self.holders(width));
        lines
    }

    /// Returns at most `height` lines, with a line for each zone if there is no room for more.
    #[must_use]
    pub fn lines_within(&self, width: usize, height: usize) -> Vec<Line> {
        let mut lines = self.lines(width);
        if lines.len() > height {
            lines = self.head(width);
            lines.extend(zone_table(&self.zones, width));
            lines.extend(self.holders(width));
        }
        super::truncate(&mut lines, height, "lines");
        lines
    }

    /// Returns the title and the notes, and a blank line.
    fn head(&self, width: usize) -> Vec<Line> {
        let lines = std::iter::once(&self.title).chain(&self.notes);
        lines.flat_map(|line| line.clone().wrapped(width)).chain([Line::default()]).collect()
    }

    fn holders(&self, width: usize) -> Vec<Line> {
        let Some(holdings) = &self.holdings else { return Vec::new() };
        if holdings.is_empty() {
            let nobody = "No container has exclusive CPUs, memory or devices.";
            return vec![Line::default(), Line::new(nobody, Style::Dim)];
        }
        let headings = ["ZONES", "POD", "CONTAINER", "CPUS", "MEMORY", "DEVICES"].map(Column::text);
        let mut table = Table::new(headings.into_iter().enumerate().map(|(at, column)| match at {
            1 | 2 | 5 => column.flexible(),
            _ => column,
        }));
        for Holding { zones, pod, container, cpus, memory, devices } in holdings {
            table.push([zones, pod, container, cpus, memory, devices].map(|text| match text.as_str() {
                "" => Line::new("-", Style::Dim),
                text => Line::from(text),
            }));
        }
        std::iter::once(Line::default()).chain(table.lines(width)).collect()
    }
}

/// Formats bytes of memory or huge pages: `2.5 GiB`, `64 MiB of 2Mi pages`.
fn memory(resource: &str, bytes: u64) -> String {
    let amount = match bytes {
        ..0x4000_0000 => format!("{} MiB", bytes.div_ceil(1 << 20)),
        _ => format!("{} GiB", gib(bytes)),
    };
    if resource == "memory" { amount } else { format!("{amount} of {}", resource_label(resource)) }
}

/// Formats memory and then huge pages.
fn memories<'a>(bytes: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let mut bytes: Vec<_> = bytes.into_iter().collect();
    bytes.sort_by_key(|(resource, _)| *resource != "memory");
    bytes.into_iter().map(|(resource, bytes)| memory(resource, bytes)).collect::<Vec<_>>().join(", ")
}

/// Returns the policy, the scope and the number of zones.
fn summary(policy: Option<&str>, scope: Option<&str>, zones: usize) -> String {
    let policy = match (policy, scope) {
        (Some(policy), Some(scope)) => format!("{policy}, scope {scope}"),
        (Some(policy), None) => policy.to_owned(),
        (None, _) => "policy unknown".to_owned(),
    };
    let zones = if zones == 1 { "1 zone".to_owned() } else { format!("{zones} zones") };
    format!("  {policy}, {zones}")
}

/// Returns the distances of a zone to these zones: `distances 10 21`.
fn distances(zone: &topology::Zone, zones: &[&topology::Zone]) -> Option<String> {
    let costs: Vec<String> =
        zones.iter().filter_map(|other| zone.costs.get(&other.id)).map(u32::to_string).collect();
    (!costs.is_empty()).then(|| format!("distances {}", costs.join(" ")))
}

/// Returns the line for a zone's L3 caches, if it has several.
fn caches(caches: &[String]) -> Option<Line> {
    let text = || format!("L3 caches of CPUs {}", caches.join(" and "));
    (caches.len() > 1).then(|| Line::new(text(), Style::Dim))
}

/// Returns the line for the Memory Manager's group of several zones that this one is in.
fn memory_group(zone: &topology::Zone) -> Option<Line> {
    let group = zone.memory_group().filter(|group| group.len() > 1)?;
    let text = format!("in the Memory Manager's group of the nodes {group}");
    Some(Line::new(text, Style::Dim))
}

/// Adds to each zone the pods in it: pairs of a pod's name and its zones, by their names.
fn add_pods<'a>(zones: &mut [Zone], pods: impl Iterator<Item = (&'a str, Vec<String>)>) {
    for (pod, names) in pods {
        for zone in zones.iter_mut().filter(|zone| names.contains(&zone.name)) {
            if zone.pods.iter().all(|name| name != pod) {
                zone.pods.push(pod.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::claims::NodeClaims;
    use crate::kubelet::{ContainerUsage, DeviceGroup, MemoryBlock, PodUsage};
    use crate::machine::{CpuLocation, Id, Machine, NumaNode};
    use crate::nrt::Amounts;

    fn zone(id: Id, cpus: u64) -> topology::Zone {
        let amounts = |allocatable, available| Amounts { capacity: allocatable, allocatable, available };
        let resources = [
            ("cpu", amounts(cpus, cpus / 2)),
            ("memory", amounts(cpus << 30, cpus << 28)),
            ("a.io/nic", amounts(cpus / 4, 0)),
        ];
        let costs = [(0, 10), (1, 255), (2, 21)].into();
        let attributes = match id {
            0 => [("l3Caches", "0-3;4-7"), ("memoryGroup", "0,2"), ("sockets", "0")],
            _ => [("l3Caches", ""), ("memoryGroup", "1"), ("sockets", "")],
        };
        let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        topology::Zone {
            id,
            costs,
            resources: resources.map(|(name, all)| (name.to_owned(), all)).into(),
            attributes: attributes.map(text).into(),
        }
    }

    fn pods() -> Vec<PodUsage> {
        let set = |text: &str| text.parse().unwrap();
        let block = |resource: &str, bytes, nodes| MemoryBlock {
            resource: resource.to_owned(),
            bytes,
            nodes: set(nodes),
        };
        let nic = |nodes| DeviceGroup {
            resource: "a.io/nic".to_owned(),
            ids: vec!["eth0".to_owned()],
            nodes: set(nodes),
        };
        let pod = |name: &str, container| PodUsage {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            containers: vec![ContainerUsage::default(), container],
            ..PodUsage::default()
        };
        let wide = ContainerUsage {
            name: "c".to_owned(),
            cpus: set("2-3,8"),
            memory: vec![
                block("hugepages-2Mi", 64 << 20, "0"),
                block("memory", 1 << 30, "0"),
                block("memory", 1 << 30, "2"),
            ],
            // The kubelet repeats it.
            devices: vec![nic("0"), nic("2")],
            ..ContainerUsage::default()
        };
        let narrow = ContainerUsage { name: "c".to_owned(), cpus: set("9"), ..ContainerUsage::default() };
        vec![pod("narrow", narrow), pod("wide", wide)]
    }

    /// Returns a claim of two pods, and one of CPUs whose ids are not known.
    fn claims() -> NodeClaims {
        let json = json!({
            "inventory": {
                "dra.cpu": {"w": {"devices": {"cpudevnuma002": {"numa": 2, "standsFor": {"cpu": {
                    "consumed": {"capacity": "dra.cpu/cpu", "milli": 1000, "whole": 4}}}}}}},
                "gpu.a.io": {"w": {"devices": {"gpu-0": {"numa": 0}, "gpu-1": {"numa": 2}}}},
            },
            "claims": {
                "ns/cpus": {"pods": ["only"], "claim": {"uid": "u", "isAllocated": true, "devices": [
                    {"driver": "dra.cpu", "pool": "w", "device": "cpudevnuma002", "consumed": {"dra.cpu/cpu": 2}}]}},
                "ns/gpus": {"pods": ["narrow", "wide"], "claim": {"uid": "v", "isAllocated": true, "devices": [
                    {"driver": "dra.cpu", "pool": "w", "device": "cpudevnuma002", "consumed": {"dra.cpu/cpu": 1}},
                    {"driver": "gpu.a.io", "pool": "w", "device": "gpu-0"},
                    {"driver": "gpu.a.io", "pool": "w", "device": "gpu-1"}]}},
            },
            "cdi": {"cpus": {"v": "10"}},
        });
        serde_json::from_value(json).unwrap()
    }

    fn picture() -> Picture {
        let node = |id, cpus: &str| NumaNode { id, cpus: cpus.parse().unwrap(), ..NumaNode::default() };
        let machine = Machine { nodes: vec![node(0, "0-7"), node(2, "8-11")], ..Machine::default() };
        let location =
            |cpu: Id| CpuLocation { node: cpu / 8 * 2, socket: cpu / 8, core: cpu, cache: cpu / 4 };
        let cpus: BTreeMap<Id, CpuLocation> = (0..12).map(|cpu| (cpu, location(cpu))).collect();
        let pods = pods();
        Picture::of_node(&NodeState {
            name: "w",
            zones: &[zone(0, 8), zone(1, 0), zone(2, 4)],
            attributes: &[],
            machine: &machine,
            cpus: &cpus,
            pods: pods.iter().collect(),
            claims: Some(&claims()),
        })
    }

    fn text(lines: &[Line]) -> String {
        lines.iter().map(|line| line.text().trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn a_node_is_drawn_with_ids() {
        let expected = "\
w  policy unknown, 2 zones

node-0   narrow wide
  CPUs 0-7, socket 0, distances 10 21
  L3 caches of CPUs 0-3 and 4-7
  in the Memory Manager's group of the nodes 0,2
  cpu    ████████████████████░░░░░░░░░░░░░░░░░░░░   4 used   4 free
  memory ██████████████████████████████░░░░░░░░░░   6 used   2 free GiB
  nic    ████████████████████████████████████████   2 used   0 free

node-2   narrow wide only
  CPUs 8-11, socket 1, distances 10 21
  cpu    ████████████████████░░░░░░░░░░░░░░░░░░░░   2 used   2 free
  memory ██████████████████████████████░░░░░░░░░░   3 used   1 free GiB
  nic    ████████████████████████████████████████   1 used   0 free

ZONES   POD         CONTAINER      CPUS               MEMORY                       DEVICES
0,2     ns/narrow   (claim gpus)   10                 -                            gpu.a.io gpu-0,gpu-1
0,2     ns/wide     (claim gpus)   10                 -                            gpu.a.io gpu-0,gpu-1
0,2     ns/wide     c              2-3,8              2 GiB, 64 MiB of 2Mi pages   nic eth0
2       ns/narrow   c              9                  -                            -
2       ns/only     (claim cpus)   2 of unknown ids   -                            -
";
        assert_eq!(text(&picture().lines(usize::MAX)), expected);
    }

    #[test]
    fn a_low_window_has_a_line_per_zone() {
        let lines = picture().lines_within(80, 10);
        let first: Vec<String> =
            lines.iter().map(|line| line.text().split(' ').next().unwrap_or_default().to_owned()).collect();
        assert_eq!(first, ["w", "", "free", "node-0", "node-2", "", "ZONES", "0,2", "0,2", "and"]);
        for height in 0..30 {
            assert!(picture().lines_within(80, height).len() <= height.max(1), "{height}");
        }
    }
}
