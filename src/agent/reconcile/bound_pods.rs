//! When to scan for bound pods that the zones do not account for yet.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::pod::PodName;
use crate::util::backoff::back_off;

/// The delay from a pod's binding to the first List that may show it.
const DELAY: Duration = Duration::from_millis(5);
/// Maximum delay between the first scans: a kubelet admits a pod within 5 ms, or within 30 ms on a large
/// node.
const FIRST_LIMIT: Duration = Duration::from_millis(10);
/// The number of first scans. After them the fingerprint is withheld for the pod, with the default of
/// `fingerprint.withholdAfter`.
const FIRST_SCANS: u32 = 5;
/// Maximum delay in the first second: a kubelet under load takes longer; otherwise the backoff would add as
/// much delay as the admission took. The rate limit of Lists allows no more.
const FIRST_SECOND_LIMIT: Duration = Duration::from_millis(100);
/// The number of scans up to the end of that second.
const FIRST_SECOND_SCANS: u32 = 14;
/// Like [`DELAY`], if the kubelet's checkpoints show when it has admitted a pod.
const DELAY_WITH_CHECKPOINTS: Duration = Duration::from_millis(200);
/// Maximum delay between two such scans.
const LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(in super::super) struct BoundPods {
    pub(in super::super) unaccounted: BTreeSet<PodName>,
    /// Whether the kubelet's checkpoints show what it admits.
    has_checkpoints: bool,
    scans: u32,
    pub(in super::super) scan_at: Option<Instant>,
}

impl BoundPods {
    pub(super) fn scanned(&mut self, has_checkpoints: bool) {
        self.has_checkpoints = has_checkpoints;
        self.scan_at = None;
    }

    /// Sets the pods that the zones do not account for, and schedules a scan for them if the kubelet
    /// responds.
    pub(super) fn update(&mut self, unaccounted: &[PodName], is_responding: bool, now: Instant) {
        let unaccounted: BTreeSet<PodName> = unaccounted.iter().cloned().collect();
        if !unaccounted.is_subset(&self.unaccounted) {
            self.scans = 0;
            self.scan_at = None;
        }
        self.unaccounted = unaccounted;
        if self.unaccounted.is_empty() {
            self.scan_at = None;
        } else if is_responding && self.scan_at.is_none() {
            let (first, limit) = match self.has_checkpoints {
                true => (DELAY_WITH_CHECKPOINTS, LIMIT),
                false if self.scans < FIRST_SCANS => (DELAY, FIRST_LIMIT),
                false if self.scans < FIRST_SECOND_SCANS => (DELAY, FIRST_SECOND_LIMIT),
                false => (DELAY, LIMIT),
            };
            // It is counted when the scan starts: before, it may be scheduled several times.
            let mut scans = self.scans;
            self.scan_at = Some(now + back_off(&mut scans, first, limit));
        }
    }

    /// Counts the scan that was scheduled: it starts now.
    pub(in super::super) fn count_scan(&mut self) {
        self.scans = self.scans.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(names: &[&str]) -> Vec<PodName> {
        names.iter().map(|name| ("ns".to_owned(), (*name).to_owned())).collect()
    }

    /// Returns the delays of the next scans for pod a, in milliseconds.
    fn delays(bound: &mut BoundPods, scans: usize) -> Vec<u128> {
        let now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..scans {
            bound.update(&pods(&["a"]), true, now);
            delays.push(bound.scan_at.unwrap().duration_since(now).as_millis());
            bound.count_scan();
            bound.scan_at = None;
        }
        delays
    }

    #[test]
    fn scans_are_frequent_at_first() {
        let delays = delays(&mut BoundPods::default(), 20);
        assert!(delays[..5].iter().all(|delay| *delay <= 11), "{delays:?}");
        assert!(delays[5..14].iter().all(|delay| (89..=111).contains(delay)), "{delays:?}");
        assert!(delays[14..].iter().all(|delay| (899..=1101).contains(delay)), "{delays:?}");
    }

    #[test]
    fn scans_are_rare_if_checkpoints_show_admissions() {
        let mut bound = BoundPods::default();
        bound.scanned(true);
        let delays = delays(&mut bound, 4);
        assert!((179..=221).contains(&delays[0]) && (899..=1101).contains(&delays[3]), "{delays:?}");
    }

    #[test]
    fn another_pod_starts_anew() {
        let mut bound = BoundPods::default();
        delays(&mut bound, 20);
        let now = Instant::now();
        bound.update(&pods(&["a"]), true, now);
        let late = bound.scan_at.unwrap();
        bound.update(&pods(&["a", "b"]), true, now);
        assert!(bound.scan_at.unwrap() < late);
        assert_eq!(bound.unaccounted.len(), 2);
        bound.update(&[], true, now);
        assert_eq!((bound.scan_at, bound.unaccounted.len()), (None, 0));
    }

    #[test]
    fn a_kubelet_that_does_not_respond_is_not_scanned_more_often() {
        let mut bound = BoundPods::default();
        bound.update(&pods(&["a"]), false, Instant::now());
        assert_eq!(bound.scan_at, None);
    }
}
