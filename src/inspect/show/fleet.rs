//! A fleet as a table: one row per object.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::cluster::PublishedObject;
use crate::names::is_native_resource;
use crate::nrt::{FINGERPRINT, POLICY, SCOPE};
use crate::quantity::is_huge_pages;
use crate::render::{Column, Line, Style, Table, resource_label};
use crate::scheduler::Fingerprint;
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

impl From<&PublishedObject> for Row {
    fn from(object: &PublishedObject) -> Self {
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
            zones: super::super::picture::real_zones(&object.zones).len(),
            resources,
            status: Status::of(object),
            writers: ours.into_iter().chain(writers.other.clone()).collect(),
            created: object.meta.created,
            changed: object.changed,
        }
    }
}

impl Row {
    /// Returns the row as it is shown after the object was deleted.
    #[must_use]
    pub fn deleted(self) -> Self {
        Self { status: Status::Deleted, ..self }
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
        let is_bytes = resource == "memory" || is_huge_pages(resource);
        let number = |value: u64| if is_bytes { gib(value) } else { value.to_string() };
        let unit = if is_bytes { "Gi" } else { "" };
        let Self { allocatable, available, largest } = self;
        format!("{}/{}{unit} ({})", number(available), number(allocatable), number(largest))
    }
}

/// Formats bytes in GiB, rounded down: never more than there is. Small amounts have a decimal.
fn gib(bytes: u64) -> String {
    let (whole, tenths) = (bytes >> 30, (bytes % (1 << 30) * 10) >> 30);
    if whole < 10 && tenths > 0 { format!("{whole}.{tenths}") } else { whole.to_string() }
}

/// A column: its form, whether only wide tables have it, and its cells.
struct Field {
    column: fn() -> Column,
    wide: bool,
    cell: fn(&Row, Timestamp) -> Line,
}

/// The columns in their order.
const FIELDS: [Field; 11] = [
    Field { column: || Column::text("NODE"), wide: false, cell: |row, _| Line::from(&*row.node) },
    Field { column: || Column::text("POLICY").flexible(), wide: false, cell: |row, _| policy(row) },
    Field {
        column: || Column::number("ZONES").optional(),
        wide: false,
        cell: |row, _| Line::from(row.zones.to_string()),
    },
    Field { column: || Column::number("CPU"), wide: false, cell: |row, _| row.cell("cpu") },
    Field { column: || Column::number("MEMORY"), wide: false, cell: |row, _| row.cell("memory") },
    Field {
        column: || Column::text("DEVICES").flexible().optional(),
        wide: false,
        cell: |row, _| row.cell_of(|name| !is_native_resource(name)),
    },
    Field { column: || Column::text("STATUS"), wide: false, cell: |row, _| row.status.cell() },
    Field {
        column: || Column::text("CHANGED"),
        wide: false,
        cell: |row, now| Line::from(age(row.changed, now)),
    },
    Field { column: || Column::text("AGE"), wide: true, cell: |row, now| Line::from(age(row.created, now)) },
    Field { column: || Column::text("HUGEPAGES"), wide: true, cell: |row, _| row.cell_of(is_huge_pages) },
    Field {
        column: || Column::text("WRITERS"),
        wide: true,
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
}

impl SortBy {
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
        }
    }
}

/// The form of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Whether it has all columns.
    pub wide: bool,
    /// Whether it has no line of headings.
    pub no_headers: bool,
}

impl Fleet {
    /// Returns the table of these rows.
    #[must_use]
    pub fn table<'a>(self, rows: impl IntoIterator<Item = &'a Row>, now: Timestamp) -> Table {
        let fields = || FIELDS.iter().filter(|field| self.wide || !field.wide);
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
            let resource = |name: &str, available: Value| json!({"name": name, "capacity": 64, "allocatable": 60, "available": available});
            json!({"name": format!("node-{id}"), "type": "Node",
                   "resources": [resource("cpu", json!(cpus)), resource("memory", json!(gib << 30))]})
        };
        let zones: Vec<Value> = zones.iter().enumerate().map(zone).collect();
        let mut object = json!({"metadata": {"name": name}, "zones": zones});
        for (key, value) in more.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn row(name: &str, zones: &[(u64, u64)]) -> Row {
        Row::from(&object(name, zones, &json!({})))
    }

    #[test]
    fn what_is_wrong_with_an_object_is_its_status() {
        let withheld = json!([{"name": FINGERPRINT, "value": Fingerprint::WITHHELD.to_string()}]);
        let managed = |manager: &str| json!([{"manager": manager, "fieldsV1": {"f:zones": {}}}]);
        let by_other = json!({"name": "w", "managedFields": managed("nfd")});
        let status = |zones: &[(u64, u64)], more: Value| Row::from(&object("w", zones, &more)).status;
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
        assert_eq!(Row::from(&object).free("cpu").allocatable, u64::MAX);
    }

    #[test]
    fn names_do_not_control_the_terminal() {
        let attributes = json!([{"name": POLICY, "value": "\u{1b}[2J"}, {"name": SCOPE, "value": "\n"}]);
        let row = Row::from(&object("w", &[(1, 1)], &json!({"attributes": attributes})));
        let fleet = Fleet { wide: true, no_headers: true };
        let text = page(&fleet.table([&row], Timestamp::UNIX_EPOCH).lines(usize::MAX), usize::MAX, false);
        assert!(text.starts_with("w   ?[2J/?   1   1/60 (1)"), "{text}");
    }
}
