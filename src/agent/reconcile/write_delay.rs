//! Delays some changes for a moment, to write them together with the next one.
//!
//! The scheduler plugin's OverReserve cache reads the object only at its resyncs, a second or more apart. It
//! loses almost nothing if it sees 50 ms later that the pods match again, and a pod that starts or terminates
//! often causes another change within that time. A withheld fingerprint and a changed zone are never delayed,
//! and take the delayed change with them.

use std::time::Duration;

use tokio::time::Instant;

use crate::scheduler::Publishable;

/// Maximum delay of a change, whatever else changes meanwhile.
const DELAY: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct WriteDelay {
    until: Option<Instant>,
}

impl WriteDelay {
    /// Returns true if the change from `last`, which was published, to `next` is delayed.
    pub(super) fn delays(&mut self, last: &Publishable, next: &Publishable, now: Instant) -> bool {
        if next.is_withheld() || !next.has_same_zones_and_attributes(last) {
            self.until = None;
            return false;
        }
        let until = *self.until.get_or_insert(now + DELAY);
        if now >= until {
            self.until = None;
        }
        now < until
    }

    /// Records that `last`, which was published, is up to date again: nothing is delayed any more. If its
    /// fingerprint is withheld, the deadline of a match that was superseded stays, since withholding again
    /// and again must not postpone the next match indefinitely.
    pub(super) fn confirm(&mut self, last: &Publishable) {
        if !last.is_withheld() {
            self.until = None;
        }
    }

    /// Returns when the delayed change has to be published, if that is still to come.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{Fingerprint, FingerprintMethod, Placement, PodFingerprint};
    use crate::topology::{Amounts, Topology, Zone};

    fn topology(available: u64) -> Topology {
        let amounts = Amounts { capacity: 8, allocatable: 8, available };
        let zone = Zone { resources: [("cpu".to_owned(), amounts)].into(), ..Zone::default() };
        Topology { zones: vec![zone], ..Topology::default() }
    }

    fn with(topology: &Topology, value: Fingerprint, placement: Option<Placement>) -> Publishable {
        let fingerprint = PodFingerprint { value, method: FingerprintMethod::All };
        Publishable::new(topology, Some(fingerprint), &[], placement)
    }

    fn publishable(value: Fingerprint, available: u64) -> Publishable {
        with(&topology(available), value, None)
    }

    fn of(pods: u64) -> Fingerprint {
        Fingerprint::of([pods])
    }

    #[test]
    fn changed_pods_are_delayed_once() {
        let start = Instant::now();
        let ms = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut delay = WriteDelay::default();
        let last = publishable(of(1), 8);
        assert!(delay.delays(&last, &publishable(of(2), 8), ms(0)));
        assert_eq!(delay.due(ms(1)), Some(ms(50)));
        assert!(delay.delays(&last, &publishable(of(3), 8), ms(40)), "more changes do not postpone it");
        assert_eq!(delay.due(ms(50)), None);
        assert!(!delay.delays(&last, &publishable(of(3), 8), ms(50)));
        assert!(delay.delays(&last, &publishable(of(3), 8), ms(90)), "the next one has its own time");
        delay.confirm(&last);
        assert_eq!(delay.due(ms(91)), None);
    }

    #[test]
    fn withholding_again_and_again_does_not_postpone_a_match() {
        let start = Instant::now();
        let ms = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut delay = WriteDelay::default();
        let (withheld, matching) = (publishable(Fingerprint::WITHHELD, 4), publishable(of(1), 4));
        assert!(delay.delays(&withheld, &matching, ms(0)));
        delay.confirm(&withheld);
        assert!(delay.delays(&withheld, &matching, ms(40)));
        delay.confirm(&withheld);
        assert!(!delay.delays(&withheld, &matching, ms(60)));
    }

    #[test]
    fn a_withheld_fingerprint_and_a_changed_zone_are_never_delayed() {
        let now = Instant::now();
        let last = publishable(of(1), 4);
        let delays = |next: &Publishable| WriteDelay::default().delays(&last, next, now);
        assert!(!delays(&publishable(Fingerprint::WITHHELD, 4)));
        assert!(!delays(&publishable(of(2), 3)), "an allocation");
        assert!(!delays(&publishable(of(1), 5)), "a release");
        let policy = ("topologyManagerPolicy".to_owned(), "none".to_owned());
        assert!(!delays(&with(&Topology { attributes: vec![policy], ..topology(4) }, of(2), None)));
        let mut larger = topology(4);
        larger.zones[0].resources.values_mut().for_each(|amounts| amounts.capacity = 9);
        assert!(!delays(&with(&larger, of(2), None)));
        assert!(!delays(&with(&Topology::default(), of(2), None)));
        let withheld = publishable(Fingerprint::WITHHELD, 4);
        assert!(WriteDelay::default().delays(&withheld, &last, now), "no longer withheld");
    }

    #[test]
    fn placements_are_delayed_with_their_pods() {
        let placement =
            |metadata: &str| Placement { metadata: metadata.into(), vectors: [(0, "b".into())].into() };
        let placed = |metadata: &str| with(&topology(4), of(1), Some(placement(metadata)));
        let delays = |next: &Publishable| WriteDelay::default().delays(&placed("a"), next, Instant::now());
        assert!(delays(&placed("c")));
        assert!(delays(&publishable(of(1), 4)));
    }
}
