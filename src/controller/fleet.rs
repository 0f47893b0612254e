//! Totals over all objects: pure. Objects are added one at a time and not kept.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::cluster::{ByZone, NrtSummary, is_built_in};
use crate::fragmentation::{Fragmentation, Shape};
use crate::nrt::Amounts;

/// Maximum number of resources. Their names come from devices; a cluster has some dozens.
const MAX_RESOURCES: usize = 1024;

/// Maximum number of non-native resources per object, so that one agent's credentials cannot fill the totals
/// with names.
const MAX_RESOURCES_PER_OBJECT: usize = 64;

/// Policies and scopes reported by name.
const POLICIES: [&str; 4] = ["none", "best-effort", "restricted", "single-numa-node"];
const SCOPES: [&str; 2] = ["container", "pod"];
const UNKNOWN: &str = "unknown";
const OTHER: &str = "other";

/// The problem of an object that the scheduler plugin ignores.
pub(super) const NEWER: &str =
    "created after the scheduler started, whose plugin ignores it until the scheduler is restarted";
/// The problem if no pod matches `controller.scheduler`.
pub(super) const NO_SCHEDULER: &str = "no pod of the scheduler runs:";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fleet {
    /// Number of objects by policy and scope.
    pub(super) objects_by_policy: BTreeMap<(&'static str, &'static str), u64>,
    pub(super) resources: BTreeMap<String, Amounts>,
    /// Number of objects whose zones another field manager wrote.
    pub(super) foreign: u64,
    /// The first object with an invalid quantity: its name, and the error.
    pub(super) invalid: Option<(String, String)>,
    /// Objects created after the scheduler started, in the order they were added.
    pub(super) newer: Vec<String>,
    /// When the newest of them was created.
    pub(super) newest: Option<Timestamp>,
    scheduler_started: Option<Timestamp>,
    pub(super) names: BTreeSet<Box<str>>,
    /// How the configured shapes fit, by name.
    pub(super) shapes: BTreeMap<String, (Shape, Fragmentation)>,
}

fn label(text: Option<&str>, known: &[&'static str]) -> &'static str {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return UNKNOWN };
    known.iter().find(|name| **name == text).copied().unwrap_or(OTHER)
}

impl Fleet {
    /// Creates empty totals; `scheduler_started` if known.
    pub(super) fn new(scheduler_started: Option<Timestamp>) -> Self {
        Self { scheduler_started, ..Self::default() }
    }

    /// Also sums up how these shapes fit.
    pub(super) fn with_shapes(self, shapes: &BTreeMap<String, Shape>) -> Self {
        let empty = |(name, shape): (&String, &Shape)| {
            let stranded = shape.amounts().map(|(name, _)| (name.to_owned(), 0)).collect();
            (name.clone(), (shape.clone(), Fragmentation { stranded, ..Fragmentation::default() }))
        };
        Self { shapes: shapes.iter().map(empty).collect(), ..self }
    }

    pub(super) fn add(&mut self, summary: NrtSummary) {
        let NrtSummary { meta, policy, scope, resources, invalid, describes_node } = summary;
        let kind = (label(policy.as_deref(), &POLICIES), label(scope.as_deref(), &SCOPES));
        *self.objects_by_policy.entry(kind).or_default() += 1;
        self.foreign += u64::from(meta.writers.other.is_some());
        for (shape, all) in self.shapes.values_mut() {
            let by_zone = |name: &str| resources.get(name).map(ByZone::in_order).unwrap_or_default();
            shape.fragmentation_of(by_zone).iter().for_each(|of_node| all.add(of_node));
        }
        let (native, other): (Vec<_>, Vec<_>) =
            resources.into_iter().partition(|(name, _)| is_built_in(name));
        for (name, by_zone) in native.into_iter().chain(other.into_iter().take(MAX_RESOURCES_PER_OBJECT)) {
            let has_room = self.resources.len() < MAX_RESOURCES || is_built_in(&name);
            if has_room || self.resources.contains_key(&name) {
                let all = self.resources.entry(name).or_default();
                *all = all.plus(by_zone.total());
            }
        }
        if self.invalid.is_none() {
            self.invalid = invalid.map(|error| (meta.name.clone(), error));
        }
        let is_newer =
            self.scheduler_started.zip(meta.created).is_some_and(|(started, created)| created > started);
        if describes_node && is_newer {
            self.newer.push(meta.name.clone());
            self.newest = self.newest.max(meta.created);
        }
        self.names.insert(meta.name.into());
    }

    /// Returns how many objects were created after the scheduler started, if known.
    pub(super) fn newer_than_scheduler(&self) -> Option<u64> {
        self.scheduler_started.and_then(|_| u64::try_from(self.newer.len()).ok())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::NrtMeta;

    fn summary(name: &str, policy: Option<&str>, scope: &str, cpus: u64) -> NrtSummary {
        let meta = if cpus > 0 { NrtMeta::ours(name) } else { NrtMeta::of_other(name, "nfd") };
        let totals = Amounts { capacity: cpus, allocatable: cpus, available: cpus / 2 };
        NrtSummary {
            policy: policy.map(str::to_owned),
            scope: Some(scope.to_owned()),
            resources: [("cpu".to_owned(), totals.into())].into(),
            ..NrtSummary::new(meta)
        }
    }

    #[test]
    fn objects_are_counted_and_their_resources_added() {
        let mut fleet = Fleet::default();
        fleet.add(summary("a", Some("restricted"), "pod", 8));
        fleet.add(summary("b", Some("restricted"), "pod", 4));
        fleet.add(summary("c", None, "node", 0));
        fleet.add(summary("d", Some("made-up"), "container", 2));
        let objects = [(("other", "container"), 1), (("restricted", "pod"), 2), (("unknown", "other"), 1)];
        assert_eq!(fleet.objects_by_policy, objects.into());
        let cpu = Amounts { capacity: 14, allocatable: 14, available: 7 };
        assert_eq!(fleet.resources["cpu"], cpu);
        assert_eq!((fleet.foreign, fleet.names.len()), (1, 4));
        assert!(fleet.names.contains("a") && !fleet.names.contains("e"));
    }

    #[test]
    fn shapes_are_fitted_to_the_zones_of_each_object() {
        let object = |name: &str, free: &[[u64; 2]]| -> NrtSummary {
            let zone = |[cpus, gpus]: &[u64; 2]| {
                let resource =
                    |name, free| json!({"name": name, "capacity": 8, "allocatable": 8, "available": free});
                json!({"type": "Node", "resources": [resource("cpu", cpus), resource("a.b/gpu", gpus)]})
            };
            let zones: Vec<Value> = free.iter().map(zone).collect();
            serde_json::from_value(json!({"metadata": {"name": name}, "zones": zones})).unwrap()
        };
        let shapes = [("large", "cpu=4,a.b/gpu=1"), ("nic", "cpu=1,a.b/nic=1")];
        let shapes = shapes.map(|(name, shape)| (name.to_owned(), shape.parse().unwrap())).into();
        let mut fleet = Fleet::default().with_shapes(&shapes);
        fleet.add(object("split", &[[8, 0], [0, 2]]));
        fleet.add(object("aligned", &[[4, 1], [1, 1]]));
        fleet.add(object("empty", &[]));
        let of = |name: &str| {
            let (_, Fragmentation { aligned, any, stranded }) = &fleet.shapes[name];
            (*aligned, *any, stranded.values().copied().collect::<Vec<_>>())
        };
        // Devices come before CPUs.
        assert_eq!(of("large"), (1, 3, vec![3, 9]));
        assert_eq!(of("nic"), (0, 0, vec![0, 0]), "no node is for it");
        assert!(Fleet::default().shapes.is_empty());
    }

    #[test]
    fn objects_newer_than_the_scheduler_are_named() {
        let at = |hour: u8| Some(format!("2026-11-23T{hour:02}:00:00Z").parse().unwrap());
        let objects = || {
            let created_at = |name: &str, created| {
                let mut summary = summary(name, None, "", 1);
                summary.meta.created = created;
                summary
            };
            let rack = NrtSummary { describes_node: false, ..created_at("rack", at(9)) };
            let nodes = [("a", at(7)), ("b", at(8)), ("c", at(9)), ("d", None)];
            nodes.into_iter().map(move |(name, at)| created_at(name, at)).chain([rack])
        };
        let mut fleet = Fleet::new(at(8));
        objects().for_each(|object| fleet.add(object));
        assert_eq!((&fleet.newer[..], fleet.newer_than_scheduler()), (&["c".to_owned()][..], Some(1)));
        assert_eq!(fleet.newest, at(9));
        let mut fleet = Fleet::new(None);
        objects().for_each(|object| fleet.add(object));
        assert_eq!((fleet.newer.len(), fleet.newer_than_scheduler()), (0, None), "unknown");
    }

    #[test]
    fn the_number_of_resources_is_limited() {
        let mut fleet = Fleet::default();
        for of in 0..100 {
            let mut many = summary(&of.to_string(), None, "", 0);
            many.resources = (0..5000).map(|n| (format!("a{of}-{n}"), ByZone::default())).collect();
            fleet.add(many);
        }
        assert_eq!(fleet.resources.len(), MAX_RESOURCES);
        fleet.add(summary("x", None, "", 1));
        fleet.add(summary("y", None, "", 1));
        assert_eq!((fleet.resources.len(), fleet.resources["cpu"].capacity), (MAX_RESOURCES + 1, 2));
    }

    #[test]
    fn the_number_of_resources_per_object_is_limited() {
        let mut fleet = Fleet::default();
        let mut many = summary("a", None, "", 1);
        many.resources.extend((0..5000).map(|n| (format!("a/{n}"), ByZone::default())));
        fleet.add(many);
        assert_eq!(fleet.resources.len(), MAX_RESOURCES_PER_OBJECT + 1);
        assert_eq!(fleet.resources["cpu"].capacity, 1);
    }
}
