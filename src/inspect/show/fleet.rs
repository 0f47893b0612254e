//! A fleet as a table: one row per object.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::cluster::PublishedObject;
use crate::fragmentation::{Fragmentation, Shape, largest_block};
use crate::names::is_native_resource;
use crate::nrt::{FINGERPRINT, POLICY, SCOPE};
use crate::quantity::{is_huge_pages, is_memory};
use crate::render::{Column, Line, Style, Table, resource_label};
use crate::scheduler::Fingerprint;
use crate::topology::real_zones;
use crate::util::age::age;

/// What a table shows of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The node's name.
    pub node: String,
    /// The object's resource version.
    pub version: String,
    policy: Option<String>,
    scope: Option<String>,
    zones: usize,
    resources: BTreeMap<String, Free>,
    /// What is free in the zone with the most free CPUs.
    largest: BTreeMap<String, u64>,
    /// How the shape fits, if there is one and the node is large enough.
    pub(super) fragmentation: Option<Fragmentation>,
    status: Status,
    /// The field managers of the zones.
    writers: Vec<String>,
    created: Option<Timestamp>,
    changed: Option<Timestamp>,
}

/// A resource in all zones together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Free {
    allocatable: u64,
    available: u64,
    /// The most that is free in one zone.
    largest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok,
    /// The fingerprint is withheld: the scheduler plugin waits for the next one.
    Withheld,
    /// Another field manager writes the zones.
    OtherWriter,
    /// It has no zone.
    NoZones,
    /// A part of it cannot be read.
    Unreadable,
    /// It was deleted while it was watched.
    Deleted,
}

impl Status {
    fn of(object: &PublishedObject) -> Self {
        let withheld = Fingerprint::WITHHELD.to_string();
        let is_withheld = object.attributes.get(FINGERPRINT).is_some_and(|value| *value == withheld);
        match object {
            object if !object.errors.is_empty() => Self::Unreadable,
            object if object.zones.is_empty() => Self::NoZones,
            object if object.meta.writers.other.is_some() => Self::OtherWriter,
            _ if is_withheld => Self::Withheld,
            _ => Self::Ok,
        }
    }

    fn cell(self) -> Line {
        match self {
            Self::Ok => Line::new("OK", Style::Good),
            Self::Withheld => Line::new("Withheld", Style::Warning),
            Self::OtherWriter => Line::new("OtherWriter", Style::Warning),
            Self::NoZones => Line::new("NoZones", Style::Bad),
            Self::Unreadable => Line::new("Unreadable", Style::Bad),
            Self::Deleted => Line::new("Deleted", Style::Dim),
        }
    }
}

impl Row {
    /// Returns the row of an object, with how the shape fits, if there is one.
    #[must_use]
    pub fn new(object: &PublishedObject, shape: Option<&Shape>) -> Self {
        let mut resources: BTreeMap<String, Free> = BTreeMap::new();
        for (name, amounts) in object.zones.iter().flat_map(|zone| &zone.resources) {
            let free = resources.entry(name.clone()).or_default();
            free.allocatable = free.allocatable.saturating_add(amounts.allocatable);
            free.available = free.available.saturating_add(amounts.available);
            free.largest = free.largest.max(amounts.available);
        }
        let writers = &object.meta.writers;
        let ours = writers.ours.then(|| crate::cluster::FIELD_MANAGER.to_owned());
        Self {
            node: object.meta.name.clone(),
            version: object.meta.version.clone(),
            policy: object.attributes.get(POLICY).cloned(),
            scope: object.attributes.get(SCOPE).cloned(),
            zones: real_zones(&object.zones).len(),
            resources,
            largest: largest(object),
            fragmentation: shape.and_then(|shape| shape.fragmentation(&object.zones)),
            status: Status::of(object),
            writers: ours.into_iter().chain(writers.other.clone()).collect(),
            created: object.meta.created,
            changed: object.changed,
        }
    }
}

/// Returns what is free in the zone with the most free CPUs.
fn largest(object: &PublishedObject) -> BTreeMap<String, u64> {
    let resources = largest_block(&object.zones).into_iter().flat_map(|zone| &zone.resources);
    resources.map(|(name, amounts)| (name.clone(), amounts.available)).collect()
}

/// Formats amounts other than 0, CPUs and memory first: `cpu 4, memory 7.7Gi, gpu 1`.
pub(super) fn amounts(amounts: &BTreeMap<String, u64>) -> String {
    let rank = |name: &str| match name {
        "cpu" => 0,
        "memory" => 1,
        _ if is_huge_pages(name) => 2,
        _ => 3,
    };
    let mut sorted: Vec<_> = amounts.iter().map(|(name, amount)| (name, number(name, *amount))).collect();
    sorted.retain(|(_, number)| number != "0");
    sorted.sort_by_key(|(name, _)| rank(name));
    let texts =
        sorted.iter().map(|(name, number)| format!("{} {number}{}", resource_label(name), unit(name)));
    texts.collect::<Vec<_>>().join(", ")
}

fn number(resource: &str, amount: u64) -> String {
    if is_memory(resource) { gib(amount) } else { amount.to_string() }
}

fn unit(resource: &str) -> &'static str {
    if is_memory(resource) { "Gi" } else { "" }
}

fn cell_of_amounts(of: &BTreeMap<String, u64>) -> Line {
    match amounts(of) {
        none if none.is_empty() => Line::new("-", Style::Dim),
        text => Line::from(text),
    }
}

impl Row {
    /// Returns the row as it is shown after the object was deleted.
    #[must_use]
    pub fn deleted(self) -> Self {
        Self { status: Status::Deleted, ..self }
    }

    /// Returns how many pods fit, and how many would if zones did not matter.
    fn pods(&self) -> Line {
        match &self.fragmentation {
            None => Line::new("-", Style::Dim),
            Some(of) => {
                let style = if of.lost() > 0 { Style::Warning } else { Style::Plain };
                Line::new(format!("{}/{}", of.aligned, of.any), style)
            }
        }
    }

    fn stranded(&self) -> Line {
        cell_of_amounts(self.fragmentation.as_ref().map_or(&BTreeMap::new(), |of| &of.stranded))
    }

    fn free(&self, resource: &str) -> Free {
        self.resources.get(resource).copied().unwrap_or_default()
    }

    /// Returns a cell: free, allocatable, and the most that is free in one zone.
    fn cell(&self, resource: &str) -> Line {
        match self.resources.get(resource) {
            Some(free) => Line::from(free.text(resource)),
            None => Line::new("-", Style::Dim),
        }
    }

    /// Returns a cell for the resources that `is_wanted` selects, with their names.
    fn cell_of(&self, is_wanted: impl Fn(&str) -> bool) -> Line {
        let wanted = self.resources.iter().filter(|(name, free)| is_wanted(name) && free.allocatable > 0);
        let texts = wanted.map(|(name, free)| format!("{} {}", resource_label(name), free.text(name)));
        match texts.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => Line::new("-", Style::Dim),
            text => Line::from(text),
        }
    }
}

impl Free {
    fn text(self, resource: &str) -> String {
        let Self { allocatable, available, largest } = self;
        let [available, allocatable, largest] =
            [available, allocatable, largest].map(|amount| number(resource, amount));
        format!("{available}/{allocatable}{} ({largest})", unit(resource))
    }
}

/// Formats bytes in GiB, rounded down: never more than there is. Small amounts have a decimal.
fn gib(bytes: u64) -> String {
    let (whole, tenths) = (bytes >> 30, (bytes % (1 << 30) * 10) >> 30);
    if whole < 10 && tenths > 0 { format!("{whole}.{tenths}") } else { whole.to_string() }
}

/// A column: its form, the tables that have it, and its cells.
struct Field {
    column: fn() -> Column,
    of: Of,
    cell: fn(&Row, Timestamp) -> Line,
}

/// The tables that have a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    All,
    Wide,
    /// Those with a shape.
    Shape,
}

/// The columns in their order.
const FIELDS: [Field; 14] = [
    Field { column: || Column::text("NODE"), of: Of::All, cell: |row, _| Line::from(&*row.node) },
    Field { column: || Column::text("POLICY").flexible(), of: Of::All, cell: |row, _| policy(row) },
    Field {
        column: || Column::number("ZONES").optional(),
        of: Of::All,
        cell: |row, _| Line::from(row.zones.to_string()),
    },
    Field { column: || Column::number("CPU"), of: Of::All, cell: |row, _| row.cell("cpu") },
    Field { column: || Column::number("MEMORY"), of: Of::All, cell: |row, _| row.cell("memory") },
    Field {
        column: || Column::text("DEVICES").flexible().optional(),
        of: Of::All,
        cell: |row, _| row.cell_of(|name| !is_native_resource(name)),
    },
    Field { column: || Column::number("PODS"), of: Of::Shape, cell: |row, _| row.pods() },
    Field { column: || Column::text("STRANDED").flexible(), of: Of::Shape, cell: |row, _| row.stranded() },
    Field { column: || Column::text("STATUS"), of: Of::All, cell: |row, _| row.status.cell() },
    Field {
        column: || Column::text("CHANGED"),
        of: Of::All,
        cell: |row, now| Line::from(age(row.changed, now)),
    },
    Field {
        column: || Column::text("AGE"),
        of: Of::Wide,
        cell: |row, now| Line::from(age(row.created, now)),
    },
    Field { column: || Column::text("HUGEPAGES"), of: Of::Wide, cell: |row, _| row.cell_of(is_huge_pages) },
    Field { column: || Column::text("LARGEST"), of: Of::Wide, cell: |row, _| cell_of_amounts(&row.largest) },
    Field {
        column: || Column::text("WRITERS"),
        of: Of::Wide,
        cell: |row, _| Line::from(row.writers.join(",")),
    },
];

/// Returns the policy, and the scope if it is not the default.
fn policy(row: &Row) -> Line {
    match (&row.policy, row.scope.as_deref()) {
        (None, _) => Line::new("-", Style::Dim),
        (Some(policy), None | Some("container")) => Line::from(&**policy),
        (Some(policy), Some(scope)) => Line::from(format!("{policy}/{scope}")),
    }
}

/// The order of the rows. Rows that are equal in it are ordered by node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SortBy {
    /// By name
    #[default]
    Node,
    /// Most free CPUs first
    FreeCpu,
    /// Most free CPUs in one zone first
    LargestCpu,
    /// Most free memory first
    FreeMemory,
    /// Most free memory in one zone first
    LargestMemory,
    /// Those that did not change for longest first
    Changed,
    /// Most pods of the --shape that fit first
    Pods,
    /// Most pods of the --shape that only zones keep from fitting first
    Stranded,
}

impl SortBy {
    /// Returns true if it orders by how a shape fits.
    #[must_use]
    pub const fn needs_shape(self) -> bool {
        matches!(self, Self::Pods | Self::Stranded)
    }

    /// Sorts the rows.
    pub fn sort(self, rows: &mut [Row]) {
        rows.sort_by(|a, b| a.node.cmp(&b.node));
        match self {
            Self::Node => {}
            Self::FreeCpu => rows.sort_by_key(|row| Reverse(row.free("cpu").available)),
            Self::LargestCpu => rows.sort_by_key(|row| Reverse(row.free("cpu").largest)),
            Self::FreeMemory => rows.sort_by_key(|row| Reverse(row.free("memory").available)),
            Self::LargestMemory => rows.sort_by_key(|row| Reverse(row.free("memory").largest)),
            Self::Changed => rows.sort_by_key(|row| row.changed),
            Self::Pods => rows.sort_by_key(|row| Reverse(row.fragmentation.as_ref().map(|of| of.aligned))),
            Self::Stranded => {
                rows.sort_by_key(|row| Reverse(row.fragmentation.as_ref().map(Fragmentation::lost)))
            }
        }
    }
}

/// The form of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Whether it has all columns.
    pub wide: bool,
    /// Whether it shows how a shape fits.
    pub has_shape: bool,
    /// Whether it has no line of headings.
    pub no_headers: bool,
}

impl Fleet {
    /// Returns the table of these rows.
    #[must_use]
    pub fn table<'a>(self, rows: impl IntoIterator<Item = &'a Row>, now: Timestamp) -> Table {
        let has = |field: &&Field| match field.of {
            Of::All => true,
            Of::Wide => self.wide,
            Of::Shape => self.has_shape,
        };
        let fields = || FIELDS.iter().filter(has);
        let mut table = Table::new(fields().map(|field| (field.column)()));
        if self.no_headers {
            table = table.without_headings();
        }
        for row in rows {
            table.push(fields().map(|field| (field.cell)(row, now)));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::render::page;

    fn object(name: &str, zones: &[(u64, u64)], more: &Value) -> PublishedObject {
        let zone = |(id, (cpus, gib)): (usize, &(u64, u64))| {
            let resource = |name: &str, unit: u64, available: u64| json!({"name": name, "capacity": 64 * unit, "allocatable": 60 * unit, "available": available * unit});
            json!({"name": format!("node-{id}"), "type": "Node",
                   "resources": [resource("cpu", 1, *cpus), resource("memory", 1 << 30, *gib)]})
        };
        let zones: Vec<Value> = zones.iter().enumerate().map(zone).collect();
        let mut object = json!({"metadata": {"name": name}, "zones": zones});
        for (key, value) in more.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn row(name: &str, zones: &[(u64, u64)]) -> Row {
        Row::new(&object(name, zones, &json!({})), None)
    }

    #[test]
    fn what_is_wrong_with_an_object_is_its_status() {
        let withheld = json!([{"name": FINGERPRINT, "value": Fingerprint::WITHHELD.to_string()}]);
        let managed = |manager: &str| json!([{"manager": manager, "fieldsV1": {"f:zones": {}}}]);
        let by_other = json!({"name": "w", "managedFields": managed("nfd")});
        let status = |zones: &[(u64, u64)], more: Value| Row::new(&object("w", zones, &more), None).status;
        let one = &[(1, 1)];
        assert_eq!(status(one, json!({})), Status::Ok);
        assert_eq!(
            status(one, json!({"metadata": {"name": "w", "managedFields": managed("numacast")}})),
            Status::Ok
        );
        assert_eq!(status(one, json!({"attributes": withheld})), Status::Withheld);
        assert_eq!(status(one, json!({"attributes": withheld, "metadata": by_other})), Status::OtherWriter);
        assert_eq!(status(&[], json!({"metadata": by_other})), Status::NoZones);
        assert_eq!(status(&[], json!({"zones": [7]})), Status::Unreadable);
        assert_eq!(row("w", one).deleted().status, Status::Deleted);
    }

    #[test]
    fn changes_are_those_of_the_zones() {
        let managed = |manager: &str, field: &str, time: &str| json!({"manager": manager, "time": time, "fieldsV1": {field: {}}});
        let metadata = json!({"name": "w", "managedFields": [
            managed("numacast", "f:zones", "2026-01-01T00:00:05Z"),
            managed("nfd", "f:zones", "2026-01-01T00:00:03Z"),
            managed("kubectl", "f:metadata", "2026-01-01T00:00:09Z"),
            // Go accepts this one.
            managed("odd", "f:zones", "9999-12-31T23:59:59Z"),
        ]});
        let changed = object("w", &[], &json!({"metadata": metadata})).changed;
        assert_eq!(changed, Some("2026-01-01T00:00:05Z".parse().unwrap()));
    }

    #[test]
    fn rows_are_in_a_stable_order() {
        let rows = [row("c", &[(5, 1), (5, 1)]), row("b", &[(9, 2), (0, 2)]), row("a", &[(9, 3), (0, 0)])];
        let order = |by: SortBy| {
            let mut rows = rows.clone();
            by.sort(&mut rows);
            rows.map(|row| row.node).concat()
        };
        assert_eq!(order(SortBy::Node), "abc");
        assert_eq!(order(SortBy::FreeCpu), "cab");
        assert_eq!(order(SortBy::LargestCpu), "abc");
        assert_eq!(order(SortBy::FreeMemory), "bac");
        assert_eq!(order(SortBy::LargestMemory), "abc");
        assert_eq!(order(SortBy::Changed), "abc");
    }

    #[test]
    fn a_shape_adds_columns_an_order_and_a_summary() {
        let shape: Shape = "cpu=4,memory=1Gi".parse().unwrap();
        let of = |name: &str, zones: &[(u64, u64)]| Row::new(&object(name, zones, &json!({})), Some(&shape));
        let mut rows = [
            of("a", &[(2, 9), (2, 9)]),
            of("b", &[]),
            of("c", &[(9, 3), (3, 0)]),
            of("d", &[(4, 1), (4, 1)]),
        ];
        let cells = |rows: &[Row]| -> Vec<String> {
            let fleet = Fleet { has_shape: true, no_headers: true, ..Fleet::default() };
            let lines = fleet.table(rows, Timestamp::UNIX_EPOCH).lines(usize::MAX);
            let cells = |line: &str| -> Vec<String> {
                line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
            };
            page(&lines, usize::MAX, false)
                .lines()
                .map(|line| [0, 6, 7].map(|at| cells(line)[at].clone()).join(" "))
                .collect()
        };
        let [a, b, c, d] = ["a 0/1 cpu 4, memory 18Gi", "b - -", "c 2/3 cpu 4, memory 1Gi", "d 2/2 -"];
        assert_eq!(cells(&rows), [a, b, c, d]);
        SortBy::Pods.sort(&mut rows);
        assert_eq!(cells(&rows), [c, d, a, b]);
        SortBy::Stranded.sort(&mut rows);
        assert_eq!(cells(&rows), [a, c, d, b]);
        let summary = |rows: &[Row]| {
            page(&[super::super::ChosenShape::from(shape.clone()).summary(rows)], usize::MAX, false)
        };
        let name = "cpu=4,memory=1Gi";
        let all = format!("{name}: 4 pods fit, 6 if zones did not matter; stranded: cpu 8, memory 19Gi");
        assert_eq!(summary(&rows), all);
        assert_eq!(summary(&rows[2..]), format!("{name}: 2 pods fit, 2 if zones did not matter"));
        assert_eq!(summary(&rows[3..]), format!("{name}: no node is large enough"));
    }

    #[test]
    fn amounts_are_rounded_down_and_do_not_overflow() {
        for (bytes, expected) in [
            (0, "0"),
            ((1 << 30) - 1, "0.9"),
            (1 << 30, "1"),
            ((10 << 30) - 1, "9.9"),
            ((11 << 30) - 1, "10"),
            (u64::MAX, "17179869183"),
        ] {
            assert_eq!(gib(bytes), expected);
        }
        let huge = json!({"name": "cpu", "capacity": "9E", "allocatable": "9E", "available": "9E"});
        let zone = |id: u16| json!({"name": format!("node-{id}"), "type": "Node", "resources": [huge]});
        let object = object("w", &[], &json!({"zones": [zone(0), zone(1), zone(2)]}));
        assert_eq!(Row::new(&object, None).free("cpu").allocatable, u64::MAX);
    }

    #[test]
    fn names_do_not_control_the_terminal() {
        let attributes = json!([{"name": POLICY, "value": "\u{1b}[2J"}, {"name": SCOPE, "value": "\n"}]);
        let row = Row::new(&object("w", &[(1, 1)], &json!({"attributes": attributes})), None);
        let fleet = Fleet { wide: true, no_headers: true, ..Fleet::default() };
        let text = page(&fleet.table([&row], Timestamp::UNIX_EPOCH).lines(usize::MAX), usize::MAX, false);
        assert!(text.starts_with("w   ?[2J/?   1   1/60 (1)"), "{text}");
    }
}
