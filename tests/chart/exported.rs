//! The series that agents and controllers export, with their labels.

use std::collections::{BTreeMap, BTreeSet};

use numacast::telemetry::metrics::{DOCS, Doc};

/// What Prometheus and the chart's monitors add to every series.
pub(crate) const TARGET: [&str; 7] = ["job", "namespace", "instance", "pod", "node", "container", "endpoint"];

/// Every series by name. What else is asked for has to be listed here.
pub(crate) fn exported() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut all = BTreeMap::from([("up".to_owned(), BTreeSet::new())]);
    for (name, labels) in CONTROLLER {
        all.insert((*name).to_owned(), labels.iter().copied().collect());
    }
    for Doc { name, kind, labels, .. } in DOCS {
        let labels: BTreeSet<&str> = labels.iter().map(|(label, _)| *label).collect();
        if *kind == "histogram" {
            let buckets = labels.iter().copied().chain(["le"]).collect();
            all.insert(format!("{name}_bucket"), buckets);
            all.insert(format!("{name}_sum"), labels.clone());
            all.insert(format!("{name}_count"), labels);
        } else {
            all.entry((*name).to_owned()).or_insert(labels);
        }
    }
    all
}

const CONTROLLER: &[(&str, &[&str])] = &[
    ("numacast_controller_leader", &[]),
    ("numacast_controller_errors_total", &["kind"]),
    ("numacast_garbage_objects", &[]),
    ("numacast_garbage_deleted_total", &[]),
    ("numacast_garbage_delete_errors_total", &["kind"]),
    ("numacast_garbage_held_back", &[]),
    ("numacast_garbage_last_pass_timestamp_seconds", &[]),
    ("numacast_fleet_nodes", &["policy", "scope"]),
    ("numacast_fleet_capacity", &["resource"]),
    ("numacast_fleet_allocatable", &["resource"]),
    ("numacast_fleet_available", &["resource"]),
    ("numacast_fleet_covered_nodes", &[]),
    ("numacast_fleet_silent_nodes", &[]),
    ("numacast_fleet_missing_objects", &[]),
    ("numacast_fleet_foreign_objects", &[]),
    ("numacast_fleet_last_pass_timestamp_seconds", &[]),
];
