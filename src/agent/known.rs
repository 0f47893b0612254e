//! Device resources that zones keep listing while no plugin offers them.
//!
//! The scheduler plugin does not check a resource that is missing from every zone (nrt.md 2.1), so a resource
//! whose plugin restarts must stay, with 0. One that is really gone must be removed, and a plugin that keeps
//! registering new names must not fill the memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::scan::Scan;

/// How long they are kept: the kubelet itself waits five minutes for a device plugin to come back.
const MEMORY: Duration = Duration::from_secs(600);

/// Maximum number of them: more than any node has plugins.
const MOST: usize = 128;

/// Remembers device resources.
#[derive(Debug, Default)]
pub(super) struct KnownDevices {
    /// By resource, since when it has been neither offered nor allocated.
    absent: BTreeMap<String, Option<Instant>>,
}

impl KnownDevices {
    /// Adds the resources of the live object: its zones keep listing them.
    pub(super) fn carry(&mut self, names: BTreeSet<String>, now: Instant) {
        for name in names {
            self.absent.entry(name).or_insert(Some(now));
        }
        self.forget_the_oldest();
    }

    /// Updates the resources with a scan. Returns those that every zone lists: those of the scan, and those
    /// that vanished recently.
    pub(super) fn after(&mut self, scan: &Scan, now: Instant) -> BTreeSet<String> {
        let present = present(scan);
        for (name, absent) in &mut self.absent {
            *absent = if present.contains(name.as_str()) { None } else { absent.or(Some(now)) };
        }
        self.absent.retain(|_, absent| absent.is_none_or(|since| now.duration_since(since) < MEMORY));
        for name in present {
            if !self.absent.contains_key(name) {
                self.absent.insert(name.to_owned(), None);
            }
        }
        self.forget_the_oldest();
        self.names()
    }

    /// Returns the resources that every zone lists.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.absent.keys().cloned().collect()
    }

    /// Removes the resources above the limit that have been absent longest.
    fn forget_the_oldest(&mut self) {
        let mut away: Vec<(Instant, String)> =
            self.absent.iter().filter_map(|(name, since)| Some(((*since)?, name.clone()))).collect();
        away.sort();
        let most = away.len().saturating_sub(MOST);
        for (_, name) in away.iter().take(most) {
            self.absent.remove(name);
        }
    }
}

/// Returns the resources that are offered or allocated on some NUMA node.
fn present(scan: &Scan) -> BTreeSet<&str> {
    let containers = scan.usage.pods.iter().flat_map(|pod| &pod.containers);
    let held = containers.flat_map(|container| &container.devices);
    let groups = scan.inventory.allocatable.devices.iter().chain(held);
    groups.filter(|group| !group.nodes.is_empty()).map(|group| group.resource.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::agent::Inventory;
    use crate::kubelet::{Allocatable, Connection, DeviceGroup, Usage};
    use crate::pod::TerminalPods;

    fn scan(resources: &[String]) -> Scan {
        let group = |resource: &String| DeviceGroup {
            resource: resource.clone(),
            ids: vec!["a".into()],
            nodes: "0".parse().unwrap(),
        };
        let devices = resources.iter().map(group).collect();
        let allocatable = Allocatable { devices, ..Allocatable::default() };
        Scan {
            usage: Arc::new(Usage::default()),
            inventory: Arc::new(Inventory { allocatable, ..Inventory::default() }),
            state: None,
            state_problems: Vec::new(),
            files_tell: false,
            terminal: TerminalPods::default(),
            connection: Connection::default(),
            socket_age: Duration::ZERO,
        }
    }

    #[test]
    fn a_resource_stays_while_its_plugin_is_away_and_goes_when_it_is_gone() {
        let mut known = KnownDevices::default();
        let start = Instant::now();
        let (nic, nobody) = (scan(&["a/nic".to_owned()]), scan(&[]));
        assert_eq!(known.after(&nic, start).len(), 1);
        assert_eq!(known.after(&nobody, start).len(), 1);
        assert_eq!(known.after(&nobody, start + MEMORY - Duration::from_secs(1)).len(), 1);
        assert_eq!(known.after(&nic, start + MEMORY).len(), 1, "it came back in time");
        assert_eq!(known.after(&nobody, start + MEMORY).len(), 1, "and its time starts anew");
        assert_eq!(known.after(&nobody, start + MEMORY * 2).len(), 0);
    }

    #[test]
    fn what_the_object_listed_stays_for_as_long() {
        let mut known = KnownDevices::default();
        let start = Instant::now();
        let later = start + MEMORY - Duration::from_secs(1);
        let nobody = scan(&[]);
        known.carry(["a/nic".to_owned(), "a/card".to_owned()].into(), start);
        assert_eq!(known.after(&scan(&["a/card".to_owned()]), later).len(), 2);
        known.carry(["a/card".to_owned()].into(), start);
        assert_eq!(known.after(&nobody, start + MEMORY), ["a/card".to_owned()].into(), "it was there later");
        known.carry((0..MOST + 9).map(|number| format!("b/{number}")).collect(), start);
        assert_eq!(known.names().len(), MOST);
    }

    #[test]
    fn no_more_than_so_many_are_remembered_that_are_away() {
        let mut known = KnownDevices::default();
        let mut now = Instant::now();
        for number in 0..MOST * 3 {
            now += Duration::from_millis(1);
            let names = known.after(&scan(&[format!("a/{number}")]), now);
            assert!(names.contains(&format!("a/{number}")));
            assert!(names.len() <= MOST + 1, "{}", names.len());
        }
        let names = known.after(&scan(&[]), now);
        assert!(
            !names.contains("a/0") && names.contains(&format!("a/{}", MOST * 3 - 2)),
            "the oldest go first"
        );
    }
}
