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
        let mut lines = vec![self.title.clone()];
        lines.extend(self.notes.iter().cloned());
        lines.push(Line::default());
        lines.extend(panels(&self.zones, width));
        lines.extend(self.holders(width));
        lines
    }

    /// Returns at most `height` lines, with a line for each zone if there is no room for more.
    #[must_use]
    pub fn lines_within(&self, width: usize, height: usize) -> Vec<Line> {
        let mut lines = self.lines(width);
        if lines.len() > height {
            lines = vec![self.title.clone()];
            lines.extend(self.notes.iter().cloned());
            lines.push(Line::default());
            lines.extend(zone_table(&self.zones, width));
            lines.extend(self.holders(width));
        }
        super::truncate(&mut lines, height, "lines");
        lines
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

/// Returns the zones with resources, without those that only fill gaps between their ids.
pub(super) fn real_zones(zones: &[topology::Zone]) -> Vec<&topology::Zone> {
    zones.iter().filter(|zone| zone.resources.values().any(|amounts| amounts.capacity > 0)).collect()
}

/// Returns the distances of a zone to these zones: `distances 10 21`.
fn distances(zone: &topology::Zone, zones: &[&topology::Zone]) -> Option<String> {
    let costs: Vec<String> =
        zones.iter().filter_map(|other| zone.costs.get(&other.id)).map(u32::to_string).collect();
    (!costs.is_empty()).then(|| format!("distances {}", costs.join(" ")))
}

/// Adds to each zone the pods in it: pairs of a pod's name and its zones, by their names.
fn add_pods<'a>(zones: &mut [Zone], pods: impl Iterator<Item = (&'a str, Vec<String>)>) {
    for (pod, names) in pods {
        for zone in zones.iter_mut().filter(|zone| names.contains(&zone.name)) {
            if zone.pods.last().is_none_or(|last| last != pod) {
                zone.pods.push(pod.to_owned());
            }
        }
    }
}
