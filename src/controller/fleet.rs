//! Sums over all objects: pure. Objects are added one at a time and not kept.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::cluster::{Brief, Sum, is_native};

/// Maximum number of resources summed. Their names come from devices; a cluster has some dozens.
const MOST_RESOURCES: usize = 1024;

/// Maximum number of non-native resources summed per object, so that one agent's credentials cannot fill the
/// sums with names.
const MOST_OF_ONE: usize = 64;

/// Policies and scopes reported by name.
const POLICIES: [&str; 4] = ["none", "best-effort", "restricted", "single-numa-node"];
const SCOPES: [&str; 2] = ["container", "pod"];
/// Label of a missing value.
const UNKNOWN: &str = "unknown";
/// Label of any other value.
const OTHER: &str = "other";

/// The problem of an object that the scheduler plugin ignores.
pub(super) const NEWER: &str =
    "created after the scheduler started, whose plugin ignores it until the scheduler is restarted";
/// The problem if no pod matches `controller.scheduler`.
pub(super) const NO_SCHEDULER: &str = "no pod of the scheduler runs:";

/// Sums over the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fleet {
    /// Number of objects by policy and scope.
    pub(super) nodes: BTreeMap<(&'static str, &'static str), u64>,
    /// Sums by resource.
    pub(super) resources: BTreeMap<String, Sum>,
    /// Number of objects whose zones another writer wrote.
    pub(super) foreign: u64,
    /// The first object with an invalid quantity: its name, and the error.
    pub(super) unread: Option<(String, String)>,
    /// Objects created after the scheduler started, in the order they were added.
    pub(super) newer: Vec<String>,
    scheduler_started: Option<Timestamp>,
    /// The names of all objects.
    names: BTreeSet<Box<str>>,
}

fn word(text: Option<&str>, known: &[&'static str]) -> &'static str {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return UNKNOWN };
    known.iter().find(|word| **word == text).copied().unwrap_or(OTHER)
}

impl Fleet {
    /// Creates empty sums; `scheduler_started` if known.
    pub(super) fn new(scheduler_started: Option<Timestamp>) -> Self {
        Self { scheduler_started, ..Self::default() }
    }

    /// Adds an object.
    pub(super) fn add(&mut self, brief: Brief) {
        let Brief { mark, policy, scope, resources, unread, of_numa } = brief;
        let kind = (word(policy.as_deref(), &POLICIES), word(scope.as_deref(), &SCOPES));
        *self.nodes.entry(kind).or_default() += 1;
        self.foreign += u64::from(mark.writers.other.is_some());
        let (native, other): (Vec<_>, Vec<_>) = resources.into_iter().partition(|(name, _)| is_native(name));
        for (name, sum) in native.into_iter().chain(other.into_iter().take(MOST_OF_ONE)) {
            let has_room = self.resources.len() < MOST_RESOURCES || is_native(&name);
            if has_room || self.resources.contains_key(&name) {
                let all = self.resources.entry(name).or_default();
                *all = all.plus(sum);
            }
        }
        if self.unread.is_none() {
            self.unread = unread.map(|what| (mark.name.clone(), what));
        }
        let is_newer = self.scheduler_started.zip(mark.created).is_some_and(|(started, made)| made > started);
        if of_numa && is_newer {
            self.newer.push(mark.name.clone());
        }
        self.names.insert(mark.name.into());
    }

    /// Returns how many objects were created after the scheduler started, if known.
    pub(super) fn newer_than_scheduler(&self) -> Option<u64> {
        self.scheduler_started.and_then(|_| u64::try_from(self.newer.len()).ok())
    }

    /// Returns true if this Node has an object.
    pub(super) fn has(&self, node: &str) -> bool {
        self.names.contains(node)
    }

    /// Returns the number of objects.
    pub(super) fn objects(&self) -> usize {
        self.names.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Mark, Writers};

    fn brief(name: &str, policy: Option<&str>, scope: &str, cpus: u64) -> Brief {
        let writers = Writers { ours: cpus > 0, other: (cpus == 0).then(|| "nfd".to_owned()) };
        let sum = Sum { capacity: cpus, allocatable: cpus, available: cpus / 2 };
        Brief {
            mark: Mark {
                name: name.into(),
                uid: String::new(),
                version: String::new(),
                created: None,
                writers,
                kept: false,
                going: false,
            },
            policy: policy.map(str::to_owned),
            scope: Some(scope.to_owned()),
            resources: [("cpu".to_owned(), sum)].into(),
            unread: None,
            of_numa: true,
        }
    }

    #[test]
    fn objects_are_counted_and_their_resources_added() {
        let mut fleet = Fleet::default();
        fleet.add(brief("a", Some("restricted"), "pod", 8));
        fleet.add(brief("b", Some("restricted"), "pod", 4));
        fleet.add(brief("c", None, "node", 0));
        fleet.add(brief("d", Some("made-up"), "container", 2));
        let nodes = [(("other", "container"), 1), (("restricted", "pod"), 2), (("unknown", "other"), 1)];
        assert_eq!(fleet.nodes, nodes.into());
        assert_eq!(fleet.resources["cpu"], Sum { capacity: 14, allocatable: 14, available: 7 });
        assert_eq!((fleet.foreign, fleet.objects()), (1, 4));
        assert!(fleet.has("a") && !fleet.has("e"));
    }

    #[test]
    fn objects_that_are_newer_than_the_scheduler_are_named() {
        let at = |hour: u8| Some(format!("2026-11-23T{hour:02}:00:00Z").parse().unwrap());
        let objects = || {
            let made = |name: &str, created| {
                let mut brief = brief(name, None, "", 1);
                brief.mark.created = created;
                brief
            };
            let rack = Brief { of_numa: false, ..made("rack", at(9)) };
            [made("a", at(7)), made("b", at(8)), made("c", at(9)), made("d", None), rack]
        };
        let mut fleet = Fleet::new(at(8));
        objects().into_iter().for_each(|brief| fleet.add(brief));
        assert_eq!((&fleet.newer[..], fleet.newer_than_scheduler()), (&["c".to_owned()][..], Some(1)));
        let mut fleet = Fleet::new(None);
        objects().into_iter().for_each(|brief| fleet.add(brief));
        assert_eq!((fleet.newer.len(), fleet.newer_than_scheduler()), (0, None), "nobody knows");
    }

    #[test]
    fn names_of_resources_without_end_fill_no_memory() {
        let mut fleet = Fleet::default();
        for of in 0..100 {
            let mut many = brief(&of.to_string(), None, "", 0);
            many.resources = (0..5000).map(|n| (format!("a{of}-{n}"), Sum::default())).collect();
            fleet.add(many);
        }
        assert_eq!(fleet.resources.len(), MOST_RESOURCES);
        fleet.add(brief("x", None, "", 1));
        fleet.add(brief("y", None, "", 1));
        assert_eq!((fleet.resources.len(), fleet.resources["cpu"].capacity), (MOST_RESOURCES + 1, 2));
    }

    #[test]
    fn one_object_brings_in_few_names() {
        let mut fleet = Fleet::default();
        let mut many = brief("a", None, "", 1);
        many.resources.extend((0..5000).map(|n| (format!("a/{n}"), Sum::default())));
        fleet.add(many);
        assert_eq!(fleet.resources.len(), MOST_OF_ONE + 1);
        assert_eq!(fleet.resources["cpu"].capacity, 1);
    }
}
