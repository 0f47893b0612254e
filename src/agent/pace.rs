//! How often to poll for changes without events: releases, if no source reports deleted pods; and
//! allocations, if none reports bound pods and the kubelet's checkpoints are not visible.
//!
//! The List shows a release up to 1.5 s before any file does. Scanning once a second finds it in time, and
//! its cost is limited: a node whose List is expensive is scanned less often, except for a while after a
//! change.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// The shortest interval: a release shows within a second, allowing for 10% jitter, the scan and the write.
const FAST: Duration = Duration::from_millis(800);

/// How long after a change a node is scanned often, whatever that costs: changes tend to come together.
const COMPANY: Duration = Duration::from_secs(10);

/// The CPU that polling may use: half a thousandth of a core. The other half of an idle node's budget is for
/// everything else.
const SHARE: f64 = 0.000_5;

/// The weight of the newest scan in the mean cost.
const WEIGHT: f64 = 0.2;

/// The polling interval.
#[derive(Debug)]
pub(super) struct Pace {
    slow: Duration,
    /// The CPU time of one scan, in seconds.
    cost: f64,
    active: Option<Instant>,
}

impl Pace {
    /// Returns an interval that never exceeds `slow`.
    pub(super) fn new(slow: Duration) -> Self {
        Self { slow, cost: 0.0, active: None }
    }

    /// Records a change.
    pub(super) fn stir(&mut self, now: Instant) {
        self.active = Some(now);
    }

    /// Records the CPU time of a scan.
    pub(super) fn paid(&mut self, cost: Duration) {
        let cost = cost.as_secs_f64();
        self.cost = if self.cost == 0.0 { cost } else { self.cost * (1.0 - WEIGHT) + cost * WEIGHT };
    }

    /// Returns how long to wait before the next scan, if a change could be missed.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let stirred = self.active.is_some_and(|at| now.duration_since(at) < COMPANY);
        let affordable = if stirred {
            Duration::ZERO
        } else {
            Duration::try_from_secs_f64(self.cost / SHARE).unwrap_or(self.slow)
        };
        FAST.max(affordable).min(self.slow)
    }
}

/// Returns the CPU time used by this thread. Its other work between two readings counts too, which only
/// lengthens the interval.
pub(super) fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(used.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(used.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_looked_at_as_often_as_it_can_be_afforded_and_more_often_after_a_change() {
        let start = Instant::now();
        let slow = Duration::from_secs(5);
        let mut pace = Pace::new(slow);
        assert_eq!(pace.wait(start), FAST, "what it costs is not known yet");
        pace.paid(Duration::from_micros(200));
        assert_eq!(pace.wait(start), FAST);
        for _ in 0..50 {
            pace.paid(Duration::from_millis(1));
        }
        let wait = pace.wait(start);
        assert!(wait > Duration::from_millis(1990) && wait <= Duration::from_secs(2), "{wait:?}");
        for _ in 0..50 {
            pace.paid(Duration::from_millis(30));
        }
        assert_eq!(pace.wait(start), slow);
        pace.stir(start);
        assert_eq!(pace.wait(start + COMPANY / 2), FAST);
        assert_eq!(pace.wait(start + COMPANY), slow);
    }

    #[test]
    fn an_impatient_poll_is_the_pace() {
        let mut pace = Pace::new(Duration::from_millis(20));
        pace.stir(Instant::now());
        assert_eq!(pace.wait(Instant::now()), Duration::from_millis(20));
    }

    #[test]
    fn the_first_scan_is_the_mean_and_each_further_one_a_fifth_of_it() {
        let now = Instant::now();
        let mut pace = Pace::new(Duration::from_secs(60));
        let mut paid = |milliseconds| {
            pace.paid(Duration::from_millis(milliseconds));
            (pace.wait(now).as_secs_f64() * 1000.0).round()
        };
        assert_eq!([paid(1), paid(2), paid(6)], [2000.0, 2400.0, 4320.0]);
    }

    #[test]
    fn the_clock_counts_work() {
        let before = cpu_time();
        let mut sum = 0_u64;
        while cpu_time() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_time() > before);
    }
}
