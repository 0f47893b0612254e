//! Device resources that zones keep listing while no plugin offers them.
//!
//! The scheduler plugin does not check a device resource that is missing from every zone
//! (NodeResourceTopologyMatch, `filter.go`), so a resource whose plugin restarts must stay, with 0. One that
//! is really gone must be removed, and a plugin that keeps registering new names must not fill the memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::agent::observe::Scan;

/// How long an absent resource is remembered: the kubelet itself waits five minutes for a device plugin to come back.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// Maximum number of absent resources: more than any node has plugins.
const MAX_ABSENT: usize = 128;

#[derive(Debug, Default)]
pub(super) struct RememberedResources {
    /// By resource, since when it has been neither offered nor allocated.
    absent_since: BTreeMap<String, Option<Instant>>,
}

impl RememberedResources {
    /// Adds the resources of the live object: its zones keep listing them.
    pub(super) fn adopt(&mut self, names: BTreeSet<String>, now: Instant) {
        for name in names {
            self.absent_since.entry(name).or_insert(Some(now));
        }
        self.forget_oldest();
    }

    /// Returns the resources that every zone has to list: those of the scan, and those that vanished
    /// recently.
    pub(super) fn update(&mut self, scan: &Scan, now: Instant) -> BTreeSet<String> {
        let present = present(scan);
        for (name, since) in &mut self.absent_since {
            *since = if present.contains(name.as_str()) { None } else { since.or(Some(now)) };
        }
        self.absent_since
            .retain(|_, since| since.is_none_or(|since| now.duration_since(since) < REMEMBERED_FOR));
        for name in present {
            if !self.absent_since.contains_key(name) {
                self.absent_since.insert(name.to_owned(), None);
            }
        }
        self.forget_oldest();
        self.absent_since.keys().cloned().collect()
    }

    /// Removes the resources above the limit that have been absent longest.
    fn forget_oldest(&mut self) {
        let absent = self.absent_since.iter();
        let mut absent: Vec<(Instant, String)> =
            absent.filter_map(|(name, since)| Some(((*since)?, name.clone()))).collect();
        absent.sort();
        let excess = absent.len().saturating_sub(MAX_ABSENT);
        for (_, name) in absent.iter().take(excess) {
            self.absent_since.remove(name);
        }
    }
}

fn present(scan: &Scan) -> BTreeSet<&str> {
    let containers = scan.usage.pods.iter().flat_map(|pod| &pod.containers);
    let allocated = containers.flat_map(|container| &container.devices);
    let groups = scan.inventory.allocatable.devices.iter().chain(allocated);
    let placed = groups.filter(|group| !group.nodes.is_empty()).map(|group| group.resource.as_str());
    placed.chain(scan.claims.iter().flat_map(|claims| claims.placed_drivers())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::agent::observe::Inventory;
    use crate::kubelet::{Allocatable, DeviceGroup};

    fn scan(resources: &[String]) -> Scan {
        let group = |resource: &String| DeviceGroup {
            resource: resource.clone(),
            ids: vec!["a".into()],
            nodes: "0".parse().unwrap(),
        };
        let devices = resources.iter().map(group).collect();
        let allocatable = Allocatable { devices, ..Allocatable::default() };
        let inventory = Arc::new(Inventory { allocatable, ..Inventory::default() });
        Scan { inventory, ..Scan::default() }
    }

    #[test]
    fn a_resource_stays_for_a_while_after_its_plugin_is_gone() {
        let mut remembered = RememberedResources::default();
        let start = Instant::now();
        let (nic, none) = (scan(&["a/nic".to_owned()]), scan(&[]));
        assert_eq!(remembered.update(&nic, start).len(), 1);
        assert_eq!(remembered.update(&none, start).len(), 1);
        assert_eq!(remembered.update(&none, start + REMEMBERED_FOR - Duration::from_secs(1)).len(), 1);
        assert_eq!(remembered.update(&nic, start + REMEMBERED_FOR).len(), 1, "it came back in time");
        assert_eq!(remembered.update(&none, start + REMEMBERED_FOR).len(), 1, "and its time starts anew");
        assert_eq!(remembered.update(&none, start + REMEMBERED_FOR * 2).len(), 0);
    }

    #[test]
    fn a_resource_of_the_live_object_stays_for_as_long() {
        let mut remembered = RememberedResources::default();
        let start = Instant::now();
        let later = start + REMEMBERED_FOR - Duration::from_secs(1);
        let none = scan(&[]);
        remembered.adopt(["a/nic".to_owned(), "a/card".to_owned()].into(), start);
        assert_eq!(remembered.update(&scan(&["a/card".to_owned()]), later).len(), 2);
        remembered.adopt(["a/card".to_owned()].into(), start);
        let left = remembered.update(&none, start + REMEMBERED_FOR);
        assert_eq!(left, ["a/card".to_owned()].into(), "it was present later");
        remembered.adopt((0..MAX_ABSENT + 9).map(|number| format!("b/{number}")).collect(), start);
        assert_eq!(remembered.absent_since.len(), MAX_ABSENT);
    }

    #[test]
    fn the_number_of_absent_resources_is_limited() {
        let mut remembered = RememberedResources::default();
        let mut now = Instant::now();
        for number in 0..MAX_ABSENT * 3 {
            now += Duration::from_millis(1);
            let names = remembered.update(&scan(&[format!("a/{number}")]), now);
            assert!(names.contains(&format!("a/{number}")));
            assert!(names.len() <= MAX_ABSENT + 1, "{}", names.len());
        }
        let names = remembered.update(&scan(&[]), now);
        let newest = format!("a/{}", MAX_ABSENT * 3 - 2);
        assert!(!names.contains("a/0") && names.contains(&newest), "the oldest are forgotten first");
    }
}
