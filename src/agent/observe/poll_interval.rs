//! How often to poll for changes without events: releases, if no source reports deleted pods; and
//! allocations, if none reports bound pods and the kubelet's checkpoints are not visible.
//!
//! The List shows a release up to 1.5 s before any file does. Scanning once a second finds it in time, and
//! its cost is limited: a node whose List is expensive is scanned less often, except for a while after a
//! change.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// The minimum: a release shows within a second, allowing for 10% jitter, the scan and the write.
const MIN_INTERVAL: Duration = Duration::from_millis(800);

/// How long after a change a node is scanned often, whatever that costs: changes tend to come together.
const AFTER_CHANGE: Duration = Duration::from_secs(10);

/// The CPU that polling may use, in cores. The other half of an idle node's budget of a thousandth is for
/// everything else.
const CPU_LIMIT: f64 = 0.000_5;

/// The weight of the newest scan in the mean cost.
const WEIGHT: f64 = 0.2;

#[derive(Debug)]
pub(in super::super) struct PollInterval {
    limit: Duration,
    /// The mean CPU time of a scan, in seconds; 0 before the first.
    cost: f64,
    changed_at: Option<Instant>,
}

impl PollInterval {
    pub(in super::super) fn new(limit: Duration) -> Self {
        Self { limit, cost: 0.0, changed_at: None }
    }

    pub(in super::super) fn record_change(&mut self, now: Instant) {
        self.changed_at = Some(now);
    }

    pub(in super::super) fn record_cost(&mut self, cost: Duration) {
        let cost = cost.as_secs_f64();
        self.cost = if self.cost == 0.0 { cost } else { self.cost * (1.0 - WEIGHT) + cost * WEIGHT };
    }

    /// Returns how long to wait before the next scan, if a change could be missed.
    pub(in super::super) fn get(&self, now: Instant) -> Duration {
        let has_changed = self.changed_at.is_some_and(|at| now.duration_since(at) < AFTER_CHANGE);
        let affordable = if has_changed {
            Duration::ZERO
        } else {
            Duration::try_from_secs_f64(self.cost / CPU_LIMIT).unwrap_or(self.limit)
        };
        MIN_INTERVAL.max(affordable).min(self.limit)
    }
}

/// Returns the CPU time used by this thread. Its other work between two readings counts too, which only
/// lengthens the interval.
pub(in super::super) fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_follows_the_cost_and_is_short_after_a_change() {
        let start = Instant::now();
        let limit = Duration::from_secs(5);
        let mut interval = PollInterval::new(limit);
        assert_eq!(interval.get(start), MIN_INTERVAL, "the cost is not known yet");
        interval.record_cost(Duration::from_micros(200));
        assert_eq!(interval.get(start), MIN_INTERVAL);
        for _ in 0..50 {
            interval.record_cost(Duration::from_millis(1));
        }
        let wait = interval.get(start);
        assert!(wait > Duration::from_millis(1990) && wait <= Duration::from_secs(2), "{wait:?}");
        for _ in 0..50 {
            interval.record_cost(Duration::from_millis(30));
        }
        assert_eq!(interval.get(start), limit);
        interval.record_change(start);
        assert_eq!(interval.get(start + AFTER_CHANGE / 2), MIN_INTERVAL);
        assert_eq!(interval.get(start + AFTER_CHANGE), limit);
    }

    #[test]
    fn a_limit_below_the_minimum_is_the_interval() {
        let mut interval = PollInterval::new(Duration::from_millis(20));
        interval.record_change(Instant::now());
        assert_eq!(interval.get(Instant::now()), Duration::from_millis(20));
    }

    #[test]
    fn the_first_cost_is_the_mean_and_each_further_one_a_fifth_of_it() {
        let now = Instant::now();
        let mut interval = PollInterval::new(Duration::from_secs(60));
        let mut after = |milliseconds| {
            interval.record_cost(Duration::from_millis(milliseconds));
            (interval.get(now).as_secs_f64() * 1000.0).round()
        };
        assert_eq!([after(1), after(2), after(6)], [2000.0, 2400.0, 4320.0]);
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let before = cpu_time();
        let mut sum = 0_u64;
        for _ in 0..10_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_time() > before);
    }
}
