//! Delays some changes for a moment, to write them together with the next one.
//!
//! An overreserving plugin reads the object only at its ticks, a second or more apart. It loses almost
//! nothing if it sees 50 ms later that the pods match again, and a pod that starts or terminates often causes
//! another change within that time. A hold and a changed zone are never delayed, and take the delayed change
//! with them.

use std::time::Duration;

use tokio::time::Instant;

use crate::topology::{Placement, Topology, Zone};

/// Maximum delay of a change, whatever else changes meanwhile.
pub(super) const JOIN: Duration = Duration::from_millis(50);

/// Whether a change is delayed, and until when.
#[derive(Debug, Default)]
pub(super) struct Joining {
    /// Set by the first change that was not offered yet.
    until: Option<Instant>,
}

impl Joining {
    /// Returns true if the change from `last`, the last offer, to `next` is delayed.
    pub(super) fn waits(&mut self, last: &Topology, next: &Topology, now: Instant) -> bool {
        if !may_wait(last, next) {
            self.until = None;
            return false;
        }
        let until = *self.until.get_or_insert(now + JOIN);
        if now >= until {
            self.until = None;
        }
        now < until
    }

    /// Records that `last`, the last offer, is up to date again: nothing is delayed any more. If it is held,
    /// the deadline of a match that was superseded stays, since successive holds must not postpone the next
    /// match indefinitely.
    pub(super) fn is_said(&mut self, last: &Topology) {
        if !is_held(last) {
            self.until = None;
        }
    }

    /// Returns when the delayed change has to be offered, if that is still to come.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| now < *until)
    }
}

/// Returns true if `next` differs only in which pods it matches.
fn may_wait(last: &Topology, next: &Topology) -> bool {
    !is_held(next)
        && without_placement(&last.attributes).eq(without_placement(&next.attributes))
        && last.zones.len() == next.zones.len()
        && last.zones.iter().zip(&next.zones).all(|(last, next)| is_same_zone(last, next))
}

fn is_held(topology: &Topology) -> bool {
    topology.pods.is_some_and(|pods| pods.is_held())
}

fn is_same_zone(last: &Zone, next: &Zone) -> bool {
    let Zone { id, costs, resources, attributes } = next;
    last.id == *id
        && last.costs == *costs
        && last.resources == *resources
        && without_placement(&last.attributes).eq(without_placement(attributes))
}

/// Returns the attributes without the placement, which changes with the set of pods.
fn without_placement(attributes: &[(String, String)]) -> impl Iterator<Item = &(String, String)> {
    attributes.iter().filter(|(name, _)| !Placement::has_attribute(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Amounts, Fingerprint, Method, PodSet};

    fn topology(fingerprint: Fingerprint, available: u64) -> Topology {
        let amounts = Amounts { capacity: 8, allocatable: 8, available };
        let zone = Zone { resources: [("cpu".to_owned(), amounts)].into(), ..Zone::default() };
        Topology {
            zones: vec![zone],
            pods: Some(PodSet { fingerprint, method: Method::All }),
            ..Topology::default()
        }
    }

    fn of(pods: u64) -> Fingerprint {
        Fingerprint::of([pods])
    }

    #[test]
    fn another_set_of_pods_waits_and_no_longer_than_once() {
        let start = Instant::now();
        let ms = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut joining = Joining::default();
        let last = topology(of(1), 8);
        assert!(joining.waits(&last, &topology(of(2), 8), ms(0)));
        assert_eq!(joining.due(ms(1)), Some(ms(50)));
        assert!(joining.waits(&last, &topology(of(3), 8), ms(40)), "more changes do not put it off");
        assert_eq!(joining.due(ms(50)), None);
        assert!(!joining.waits(&last, &topology(of(3), 8), ms(50)));
        assert!(joining.waits(&last, &topology(of(3), 8), ms(90)), "the next one has its own time");
        joining.is_said(&last);
        assert_eq!(joining.due(ms(91)), None);
    }

    #[test]
    fn holds_one_after_another_do_not_put_off_what_agrees_in_between() {
        let start = Instant::now();
        let ms = |milliseconds| start + Duration::from_millis(milliseconds);
        let (mut joining, held, agrees) =
            (Joining::default(), topology(Fingerprint::HELD, 4), topology(of(1), 4));
        assert!(joining.waits(&held, &agrees, ms(0)));
        joining.is_said(&held);
        assert!(joining.waits(&held, &agrees, ms(40)));
        joining.is_said(&held);
        assert!(!joining.waits(&held, &agrees, ms(60)));
    }

    #[test]
    fn a_hold_and_a_changed_zone_never_wait() {
        let now = Instant::now();
        let last = topology(of(1), 4);
        let waits = |next: &Topology| Joining::default().waits(&last, next, now);
        assert!(!waits(&topology(Fingerprint::HELD, 4)));
        assert!(!waits(&topology(of(2), 3)), "an allocation");
        assert!(!waits(&topology(of(1), 5)), "a release");
        let policy = ("topologyManagerPolicy".to_owned(), "none".to_owned());
        assert!(!waits(&Topology { attributes: vec![policy], ..topology(of(2), 4) }));
        let mut larger = topology(of(2), 4);
        larger.zones[0].resources.values_mut().for_each(|amounts| amounts.capacity = 9);
        assert!(!waits(&larger));
        assert!(!waits(&Topology { zones: Vec::new(), ..topology(of(2), 4) }));
        let held = topology(Fingerprint::HELD, 4);
        assert!(Joining::default().waits(&held, &last, now), "no longer held, with the same zones");
    }

    #[test]
    fn placements_wait_with_their_pods() {
        let placed = |metadata: &str, vector: &str| {
            let mut topology = topology(of(1), 4);
            let of_plugin =
                |what, value: &str| (format!("topology.node.k8s.io/numaplacement-{what}"), value.to_owned());
            topology.attributes.push(of_plugin("metadata", metadata));
            topology.zones[0].attributes.push(of_plugin("vector", vector));
            topology
        };
        let waits = |next: &Topology| Joining::default().waits(&placed("a", "b"), next, Instant::now());
        assert!(waits(&placed("c", "d")));
        assert!(waits(&topology(of(1), 4)));
        let mut other = placed("a", "b");
        other.zones[0].attributes.push(("cpu_core".to_owned(), "0-3".to_owned()));
        assert!(!waits(&other));
    }
}
