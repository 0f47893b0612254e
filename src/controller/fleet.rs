//! Sums over all objects: pure. Each object is added and forgotten.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::{Brief, Sum, is_native};

/// Names of resources come from devices; a cluster has some dozens.
const MOST_RESOURCES: usize = 1024;

/// Of one object, beside those of Kubernetes itself: a single agent's token is not to fill the sums with names.
const MOST_OF_ONE: usize = 64;

/// Policies and scopes that are told by name.
const POLICIES: [&str; 4] = ["none", "best-effort", "restricted", "single-numa-node"];
const SCOPES: [&str; 2] = ["container", "pod"];
/// What says nothing...
const UNKNOWN: &str = "unknown";
/// ...and what says something else.
const OTHER: &str = "other";

/// What there is in the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fleet {
    /// Objects by policy and scope.
    pub(super) nodes: BTreeMap<(&'static str, &'static str), u64>,
    /// By resource.
    pub(super) resources: BTreeMap<String, Sum>,
    /// Objects whose zones somebody else wrote.
    pub(super) foreign: u64,
    /// Of the first object with a quantity that cannot be read: its name, and what is wrong.
    pub(super) unread: Option<(String, String)>,
    /// Whose objects there are.
    names: BTreeSet<Box<str>>,
}

fn word(text: Option<&str>, known: &[&'static str]) -> &'static str {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return UNKNOWN };
    known.iter().find(|word| **word == text).copied().unwrap_or(OTHER)
}

impl Fleet {
    /// Adds an object.
    pub(super) fn add(&mut self, brief: Brief) {
        let Brief { mark, policy, scope, resources, unread, of_numa: _ } = brief;
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
        self.names.insert(mark.name.into());
    }

    /// Is there an object of this Node?
    pub(super) fn has(&self, node: &str) -> bool {
        self.names.contains(node)
    }

    /// How many objects there are.
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
