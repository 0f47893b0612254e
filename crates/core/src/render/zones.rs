use std::collections::BTreeMap;
use std::fmt::Write;

use super::text::{Line, Style, printable};
use crate::nrt;
use crate::topology;

/// The widest bar.
const MAX_BAR: usize = 40;
/// The longest label of a resource. Longer ones are cut.
const MAX_LABEL: usize = 40;

/// A zone as it is drawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// `node-0`.
    pub name: String,
    /// CPU and memory first, then huge pages and devices.
    pub resources: Vec<Resource>,
    /// Names of its pods, which are listed beside its name as far as they fit.
    pub pods: Vec<String>,
    /// What else is known about it, below its name.
    pub facts: Vec<Line>,
}

/// A resource of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// See [`resource_label`].
    pub label: String,
    /// Whether the amounts are in bytes, which are shown in GiB.
    pub bytes: bool,
    /// What the kubelet can allocate.
    pub allocatable: u64,
    /// The part of it that is free.
    pub available: u64,
}

impl Zone {
    /// Returns a zone with these resources: name, allocatable and available.
    pub fn new<'a>(
        name: impl Into<String>,
        resources: impl IntoIterator<Item = (&'a str, u64, u64)>,
    ) -> Self {
        let resources: Vec<_> = resources.into_iter().collect();
        let mut uses: BTreeMap<String, usize> = BTreeMap::new();
        for (name, ..) in &resources {
            *uses.entry(resource_label(name)).or_default() += 1;
        }
        let resource = |(name, allocatable, available): (&str, u64, u64)| {
            // Devices of two vendors may differ only in their domain.
            let label = Some(resource_label(name)).filter(|label| uses[label] == 1);
            Resource {
                label: label.unwrap_or_else(|| cut(name)),
                bytes: name == "memory" || name.starts_with("hugepages-"),
                allocatable,
                available,
            }
        };
        let mut resources: Vec<Resource> = resources.into_iter().map(resource).collect();
        resources.sort_by_key(Resource::rank);
        Self { name: name.into(), resources, pods: Vec::new(), facts: Vec::new() }
    }
}

impl From<&nrt::Zone> for Zone {
    fn from(zone: &nrt::Zone) -> Self {
        let resources = zone.resources.iter().flatten();
        Self::new(&zone.name, resources.map(|it| (&*it.name, it.allocatable.ceil(), it.available.ceil())))
    }
}

impl From<&topology::Zone> for Zone {
    /// Leaves out what the zone has nothing of.
    fn from(zone: &topology::Zone) -> Self {
        let resources = zone.resources.iter().filter(|(_, it)| it.capacity > 0 || it.allocatable > 0);
        Self::new(
            nrt::zone_name(zone.id),
            resources.map(|(name, it)| (&**name, it.allocatable, it.available)),
        )
    }
}

/// Returns the short name of a resource: `cpu`, `memory`, `2Mi pages`, `gpu`.
#[must_use]
pub fn resource_label(name: &str) -> String {
    match name.strip_prefix("hugepages-") {
        Some(size) => cut(&format!("{size} pages")),
        None => cut(name.rsplit('/').next().unwrap_or(name)),
    }
}

fn cut(name: &str) -> String {
    printable(name).chars().take(MAX_LABEL).collect()
}

/// Formats bytes in GiB: `18`, `2.5`.
#[must_use]
pub fn gib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10 + (1 << 29)) >> 30;
    if tenths % 10 == 0 { (tenths / 10).to_string() } else { format!("{}.{}", tenths / 10, tenths % 10) }
}

impl Resource {
    /// CPU and memory are first, then huge pages, then devices.
    fn rank(&self) -> u8 {
        match self.label.as_str() {
            "cpu" => 0,
            "memory" => 1,
            _ if self.bytes => 2,
            _ => 3,
        }
    }

    fn used(&self) -> u64 {
        self.allocatable.saturating_sub(self.available)
    }

    /// Formats an amount of this resource.
    #[must_use]
    pub fn number(&self, value: u64) -> String {
        if self.bytes { gib(value) } else { value.to_string() }
    }
}

/// Returns a panel per zone, with a blank line between them.
#[must_use]
pub fn panels(zones: &[Zone], width: usize) -> Vec<Line> {
    // The column widths are the same for all zones, so that panels line up.
    let resources = || zones.iter().flat_map(|zone| &zone.resources);
    let widest = |of: &dyn Fn(&Resource) -> usize| resources().map(of).max().unwrap_or(0);
    let labels = widest(&|resource| resource.label.chars().count());
    let digits = widest(&|resource| {
        let amounts = [resource.allocatable, resource.used(), resource.available];
        amounts.map(|amount| resource.number(amount).len()).into_iter().max().unwrap_or(0)
    });
    let panels: Vec<Vec<Line>> =
        zones.iter().map(|zone| panel(zone, Widths { labels, digits, all: width })).collect();
    panels.join(&Line::default())
}

#[derive(Clone, Copy)]
struct Widths {
    labels: usize,
    digits: usize,
    all: usize,
}

fn panel(zone: &Zone, Widths { labels, digits, all }: Widths) -> Vec<Line> {
    let title = Line::new(format!("{:<8} ", zone.name), Style::Bold);
    let pods = listed(&zone.pods, all.saturating_sub(title.width()));
    let mut lines = vec![title.add(pods, Style::Plain)];
    lines.extend(zone.facts.iter().map(|fact| Line::from("  ").join(fact.clone())));
    for resource in &zone.resources {
        let numbers = format!(
            " {:>digits$} used {:>digits$} free{}",
            resource.number(resource.used()),
            resource.number(resource.available),
            if resource.bytes { " GiB" } else { "    " },
        );
        let width = all.saturating_sub(2 + labels + 1 + numbers.chars().count()).min(MAX_BAR);
        let line = Line::new(format!("  {:<labels$} ", resource.label), Style::Plain);
        let bar = bar(resource.used(), resource.allocatable, width);
        lines.push(line.join(bar).add(numbers, Style::Plain));
    }
    lines
}

/// Returns a bar of `used`, then of the rest of `total`. A small amount of either is always visible.
#[must_use]
pub fn bar(used: u64, total: u64, width: usize) -> Line {
    if total == 0 || width < 3 {
        return Line::new(" ".repeat(width), Style::Plain);
    }
    // Rounded down, so that a small free amount is visible as well.
    let share = u128::from(used.min(total)) * width as u128 / u128::from(total);
    let share = usize::try_from(share).unwrap_or(width).max(usize::from(used > 0));
    Line::new("█".repeat(share), Style::Used).add("░".repeat(width - share), Style::Free)
}

/// Returns one line per zone: available and allocatable amounts.
#[must_use]
pub fn zone_table(zones: &[Zone], width: usize) -> Vec<Line> {
    if zones.is_empty() {
        return Vec::new();
    }
    // A zone may lack a resource that another one has.
    let mut columns: Vec<&Resource> = Vec::new();
    for resource in zones.iter().flat_map(|zone| &zone.resources) {
        if columns.iter().all(|column| column.label != resource.label) {
            columns.push(resource);
        }
    }
    columns.sort_by_key(|column| column.rank());
    let each = width.saturating_sub(7) / columns.len().max(1);
    let mut heading = Line::new(format!("{:<7}", "free"), Style::Dim);
    for resource in &columns {
        let unit = if resource.label == "memory" { " GiB" } else { "" };
        let label = Line::new(format!("{}{unit}", resource.label), Style::Dim);
        heading = heading.join(label.fitted(each.saturating_sub(1)).add(" ", Style::Plain));
    }
    let row = |zone: &Zone| {
        let mut line = Line::new(format!("{:<7}", zone.name), Style::Bold);
        for column in &columns {
            let resource = zone.resources.iter().find(|resource| resource.label == column.label);
            let Some(resource) = resource else {
                line = line.add(" ".repeat(each), Style::Plain);
                continue;
            };
            let numbers =
                format!("{}/{}", resource.number(resource.available), resource.number(resource.allocatable));
            let text = match each.saturating_sub(numbers.chars().count() + 2).min(12) {
                0..3 => Line::new(numbers, Style::Plain),
                width => {
                    bar(resource.used(), resource.allocatable, width).add(format!(" {numbers}"), Style::Plain)
                }
            };
            line = line.join(text.fitted(each));
        }
        line
    };
    std::iter::once(heading).chain(zones.iter().map(row)).collect()
}

/// Returns as many names as fit, and the number of the others.
#[must_use]
pub fn listed<S: AsRef<str>>(names: &[S], width: usize) -> String {
    // The sum of the widths, with a space after each name.
    let mut columns = 0;
    let mut fitting = 0;
    for name in names {
        columns += name.as_ref().chars().count() + 1;
        if columns > width + 1 {
            break;
        }
        fitting += 1;
    }
    for shown in (0..=fitting).rev() {
        let shown_names: Vec<&str> = names[..shown].iter().map(AsRef::as_ref).collect();
        let (mut text, hidden) = (shown_names.join(" "), names.len() - shown);
        if hidden > 0 {
            let _ = write!(text, "{}+{hidden}", if shown > 0 { " " } else { "" });
        }
        if text.chars().count() <= width {
            return text;
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_small_amounts_of_used_or_free() {
        let bar = |used, total| bar(used, total, 4).text();
        assert_eq!(bar(0, 1000), "░░░░");
        assert_eq!(bar(1, 1000), "█░░░");
        assert_eq!(bar(999, 1000), "███░");
        assert_eq!(bar(1000, 1000), "████");
        assert_eq!(bar(0, 0), "    ");
        assert_eq!(bar(9, 2), "████", "more used than there is");
        assert_eq!(bar(u64::MAX, u64::MAX), "████");
    }

    #[test]
    fn names_that_do_not_fit_are_counted() {
        let names = ["alpha", "beta", "gamma"];
        assert_eq!(listed(&names, 16), "alpha beta gamma");
        assert_eq!(listed(&names, 15), "alpha beta +1");
        assert_eq!(listed(&names, 9), "alpha +2");
        assert_eq!(listed(&names, 2), "+3");
        assert_eq!(listed(&names, 1), "");
        assert_eq!(listed::<&str>(&[], 1), "");
    }

    #[test]
    fn zones_in_a_table_may_have_different_resources() {
        let zones = [
            Zone::new("node-0", [("memory", 1 << 30, 1 << 30), ("a.io/nic", 2, 1)]),
            Zone::new("node-1", [("memory", 2 << 30, 0), ("cpu", 8, 7)]),
        ];
        let lines: Vec<String> = zone_table(&zones, 40).iter().map(Line::text).collect();
        let lines: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["free", "cpu", "memory", "GiB", "nic"]);
        assert_eq!(lines[1], ["node-0", "░░░░░", "1/1", "██░░░", "1/2"]);
        assert_eq!(lines[2], ["node-1", "█░░░░", "7/8", "█████", "0/2"]);
    }

    #[test]
    fn equal_labels_are_written_out() {
        let zone =
            Zone::new("node-0", [("a.io/gpu", 1, 1), ("b.io/gpu", 1, 0), ("b.io/nic", 1, 1), ("cpu", 8, 2)]);
        let labels: Vec<&str> = zone.resources.iter().map(|resource| &*resource.label).collect();
        assert_eq!(labels, ["cpu", "a.io/gpu", "b.io/gpu", "nic"]);
    }

    #[test]
    fn facts_are_below_the_name() {
        let mut zone = Zone::new("node-0", [("cpu", 8, 2), ("memory", 4 << 30, 1 << 29)]);
        zone.pods = vec!["a".into(), "b".into()];
        zone.facts = vec![Line::new("socket 1", Style::Dim)];
        let lines: Vec<String> = panels(&[zone], 40).iter().map(Line::text).collect();
        assert_eq!(
            lines,
            [
                "node-0   a b",
                "  socket 1",
                "  cpu    ██████░░░   6 used   2 free    ",
                "  memory ███████░░ 3.5 used 0.5 free GiB",
            ]
        );
    }
}
