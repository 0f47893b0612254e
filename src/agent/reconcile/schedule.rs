//! When to scan next if nothing happens before.

use std::time::Duration;

use tokio::time::Instant;

use crate::agent::observe::{Depth, PollInterval, Scan};
use crate::kubelet::{PodUsage, Usage};
use crate::pod_source::{PodView, RELEASE_TIMEOUT};
use crate::util::backoff::{back_off, jittered};

/// Delay of the next scan if the List still shows a pod that is gone.
const GONE_RETRY: Duration = Duration::from_millis(30);
/// Maximum delay between two such scans.
const GONE_RETRY_LIMIT: Duration = Duration::from_secs(1);

/// Delay of the next scan after a failed one, or if the kubelet was not ready.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_LIMIT: Duration = Duration::from_secs(5);
/// Maximum delay between two scans of a kubelet that is not ready.
const NOT_READY_LIMIT: Duration = Duration::from_secs(1);

/// How long the node may be unreadable before an Event is posted.
const UNREADABLE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Requeue {
    pub(in super::super) at: Instant,
    pub(in super::super) depth: Depth,
}

#[derive(Debug)]
pub(in super::super) struct Schedule {
    interval: Duration,
    /// When everything has to be scanned again, whatever happens in between.
    full_scan_at: Instant,
    pub(in super::super) poll: PollInterval,
    /// The number of consecutive scans whose List still showed a pod that is gone.
    gone_listed: u32,
    /// The number of consecutive scans that failed, or found a kubelet that is not ready.
    failures: u32,
    /// Since when no scan has been accepted.
    unreadable_since: Option<Instant>,
}

impl Schedule {
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            full_scan_at: now,
            poll: PollInterval::new(interval),
            gone_listed: 0,
            failures: 0,
            unreadable_since: None,
        }
    }

    /// Records that everything was scanned. The scan began at `start`.
    pub(super) fn full_scan_done(&mut self, start: Instant) {
        self.full_scan_at = start + jittered(self.interval);
    }

    pub(super) fn is_full_scan_due(&self, now: Instant) -> bool {
        now >= self.full_scan_at
    }

    pub(super) fn full_scan(&self) -> Requeue {
        Requeue { at: self.full_scan_at, depth: Depth::Everything }
    }

    /// Returns the next scan after one that is incomplete and published all the same.
    pub(super) fn soon(now: Instant) -> Requeue {
        Requeue { at: now + RETRY, depth: Depth::Everything }
    }

    pub(super) fn after(&mut self, scan: &Scan, view: &PodView, now: Instant) -> Requeue {
        let wait = if lists_gone_pods(&scan.usage, view, now) {
            back_off(&mut self.gone_listed, GONE_RETRY, GONE_RETRY_LIMIT)
        } else {
            self.gone_listed = 0;
            // A live pod source reports bound and deleted pods. Without one, only a scan finds what was
            // released, and what was allocated if the checkpoints cannot be watched.
            if view.is_up_to_date || scan.has_cpu_checkpoint && !scan.usage.has_allocations() {
                return self.full_scan();
            }
            jittered(self.poll.get(now))
        };
        match now + wait {
            at if at < self.full_scan_at => Requeue { at, depth: Depth::Usage },
            _ => self.full_scan(),
        }
    }

    /// Counts a failed scan. Returns the next one, and whether the node has been unreadable for long.
    pub(super) fn failed(&mut self, now: Instant) -> (Requeue, bool) {
        let since = *self.unreadable_since.get_or_insert(now);
        let wait = back_off(&mut self.failures, RETRY, RETRY_LIMIT);
        let is_long = now.duration_since(since) > UNREADABLE;
        (Requeue { at: now + wait, depth: Depth::Everything }, is_long)
    }

    /// As [`Schedule::failed`], for a kubelet that responds and is about to be ready.
    pub(super) fn not_ready(&mut self, now: Instant) -> (Requeue, bool) {
        let (requeue, is_long) = self.failed(now);
        (Requeue { at: requeue.at.min(now + jittered(NOT_READY_LIMIT)), ..requeue }, is_long)
    }

    /// Records that a scan was accepted. Returns true if the ones before failed.
    pub(super) fn recovered(&mut self) -> bool {
        self.unreadable_since = None;
        std::mem::take(&mut self.failures) > 0
    }
}

/// Returns true if the List still shows allocations of a pod that is gone.
fn lists_gone_pods(usage: &Usage, view: &PodView, now: Instant) -> bool {
    let deleted = &view.recently_deleted;
    let is_gone = |pod: &&PodUsage| {
        deleted.get(&pod.full_name()).is_some_and(|at| now.duration_since(*at) < RELEASE_TIMEOUT)
    };
    !deleted.is_empty() && usage.pods.iter().filter(is_gone).any(PodUsage::has_allocations)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kubelet::ContainerUsage;

    const INTERVAL: Duration = Duration::from_secs(5);

    /// Returns a schedule whose next scan of everything is due after 4.5 to 5.5 seconds.
    fn schedule(now: Instant) -> Schedule {
        let mut schedule = Schedule::new(INTERVAL, now);
        assert!(schedule.is_full_scan_due(now));
        schedule.full_scan_done(now);
        schedule
    }

    fn scan(pod: &str, cpus: &str) -> Scan {
        let pod = PodUsage {
            namespace: "ns".into(),
            name: pod.into(),
            containers: vec![ContainerUsage { cpus: cpus.parse().unwrap(), ..ContainerUsage::default() }],
            ..PodUsage::default()
        };
        Scan { usage: Arc::new(Usage { pods: vec![pod] }), ..Scan::default() }
    }

    fn milliseconds(requeue: Requeue, now: Instant) -> u128 {
        requeue.at.duration_since(now).as_millis()
    }

    #[test]
    fn a_live_source_of_pods_needs_no_polls() {
        let now = Instant::now();
        let mut schedule = schedule(now);
        let live = PodView { is_up_to_date: true, ..PodView::default() };
        let next = schedule.after(&scan("a", "1"), &live, now);
        assert_eq!((next, next.depth), (schedule.full_scan(), Depth::Everything));
        assert!((4500..5501).contains(&milliseconds(next, now)));
    }

    #[test]
    fn allocations_are_polled_without_one() {
        let now = Instant::now();
        let mut schedule = schedule(now);
        let next = schedule.after(&scan("a", "1"), &PodView::default(), now);
        assert_eq!(next.depth, Depth::Usage);
        assert!((719..882).contains(&milliseconds(next, now)), "{next:?}");
        let later = schedule.after(&scan("a", "1"), &PodView::default(), now + INTERVAL);
        assert_eq!(later, schedule.full_scan());
        let mut empty = scan("a", "");
        assert_eq!(schedule.after(&empty, &PodView::default(), now).depth, Depth::Usage);
        empty.has_cpu_checkpoint = true;
        assert_eq!(schedule.after(&empty, &PodView::default(), now), schedule.full_scan());
    }

    #[test]
    fn a_pod_that_is_gone_is_scanned_for_until_it_leaves_the_list() {
        let now = Instant::now();
        let mut schedule = schedule(now);
        let recently_deleted = Arc::new([(("ns".to_owned(), "a".to_owned()), now)].into());
        let view = PodView { is_up_to_date: true, recently_deleted, ..PodView::default() };
        let mut waits = (0..8).map(|_| milliseconds(schedule.after(&scan("a", "1"), &view, now), now));
        assert!((26..34).contains(&waits.next().unwrap()));
        assert!((53..67).contains(&waits.next().unwrap()));
        assert!((899..1101).contains(&waits.last().unwrap()));
        assert_eq!(schedule.after(&scan("b", "1"), &view, now), schedule.full_scan());
        let again = milliseconds(schedule.after(&scan("a", "1"), &view, now), now);
        assert!((26..34).contains(&again), "{again}");
        // The next scan of everything is due long before, so its time does not show this limit.
        let (usage, accepted) = (scan("a", "1").usage, now + RELEASE_TIMEOUT);
        assert!(lists_gone_pods(&usage, &view, accepted - Duration::from_millis(1)));
        assert!(!lists_gone_pods(&usage, &view, accepted));
    }

    #[test]
    fn failures_back_off_and_a_kubelet_that_is_not_ready_is_scanned_soon() {
        let now = Instant::now();
        let mut schedule = schedule(now);
        let waits: Vec<u128> = (0..8).map(|_| milliseconds(schedule.failed(now).0, now)).collect();
        assert!(waits[0] <= 110 && (4499..5501).contains(&waits[7]), "{waits:?}");
        let not_ready = milliseconds(schedule.not_ready(now).0, now);
        assert!((899..1101).contains(&not_ready), "{not_ready}");
        assert!(!schedule.failed(now + UNREADABLE).1);
        assert!(schedule.failed(now + UNREADABLE + Duration::from_millis(1)).1);
        assert!(schedule.recovered() && !schedule.recovered());
        assert!(!schedule.failed(now + UNREADABLE * 2).1, "its time starts anew");
    }
}
