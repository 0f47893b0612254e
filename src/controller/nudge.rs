//! Decides when the controller nudges: when it updates an object although nothing changed.
//!
//! The scheduler plugin refreshes its cache of a node at each resync (`cacheResyncPeriodSeconds`). A pod it
//! rejected is retried when any `NodeResourceTopology` is created or updated: the plugin registers these
//! events without a queueing hint, so an update of one object requeues every pod that the plugin rejected. An
//! update before the resync makes the scheduler retry the pod with the old data; the resync itself requeues
//! nothing. So a nudge, a small update of any object, has to follow the resync.
//!
//! Resyncs cannot be observed, but the usual periods are 1 to 10 s. With doubling delays there is a nudge
//! soon after the next resync, whatever the period, and few nudges in total. Any other change of an object
//! has the effect of a nudge, and is a reason for the next ones.
//!
//! Pure: no I/O and no clock. Times are durations since a fixed moment, the same for all calls.

use std::time::Duration;

/// Factor by which a delay exceeds the plugin's period, since neither periods nor patches are exact.
const MARGIN: f64 = 1.04;

/// Interval of nudges while pods stay pending and nothing changes.
const IDLE: Duration = Duration::from_secs(60);

/// When to nudge while pods are pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NudgePlan {
    /// Delay of the first nudge after a change, or after a pod became pending.
    pub first: Duration,
    /// Delay of the last nudge. Earlier ones follow at half of this, a quarter and so on, down to twice
    /// `first`.
    pub last: Duration,
    /// Interval after the last one.
    pub idle: Duration,
    /// Minimum interval between two nudges, and between a change and a nudge.
    pub gap: Duration,
}

impl Default for NudgePlan {
    /// For plugins that resync every 1, 2, 5 or 10 s: 1.04, 2.6, 5.2 and 10.4 s after a change, then once a
    /// minute.
    fn default() -> Self {
        Self::of_period(Duration::from_secs(10))
    }
}

impl NudgePlan {
    /// Returns the plan for a plugin with this resync period: the last nudge follows soon after a resync that
    /// sees the change.
    pub fn of_period(period: Duration) -> Self {
        let gap = Duration::from_secs(1);
        let first = gap.mul_f64(MARGIN);
        let last = period.mul_f64(MARGIN).max(first);
        Self { first, last, idle: IDLE.max(last), gap }
    }

    /// Returns how long after a change the first nudge later than `elapsed` is due; `None` after the last.
    fn delay_after(&self, elapsed: Duration) -> Option<Duration> {
        if elapsed < self.first {
            return Some(self.first);
        }
        let mut delay = self.last;
        while delay / 2 > elapsed && delay / 2 >= self.first * 2 {
            delay /= 2;
        }
        Some(delay).filter(|delay| *delay > elapsed)
    }
}

/// Decides when to nudge.
#[derive(Clone, Debug)]
pub struct Nudger {
    plan: NudgePlan,
    /// Number of pods pending because of the plugin.
    pods: usize,
    /// When the nudges' last reason occurred: an object changed, or a pod became pending.
    since: Duration,
    /// When pods were last requeued: an object changed, or was nudged.
    requeued: Option<Duration>,
    due: Option<Duration>,
}

impl Nudger {
    /// Creates a nudger with this plan and no pending pods.
    pub fn new(plan: NudgePlan) -> Self {
        Self { plan, pods: 0, since: Duration::ZERO, requeued: None, due: None }
    }

    /// Records that an object changed, other than by a nudge. This has the effect of a nudge, but the plugin
    /// sees the change only at its next resync.
    pub fn changed(&mut self, now: Duration) {
        (self.since, self.requeued) = (now, Some(now));
        // Changes in quick succession need no nudges between them.
        self.due = Some(now + self.plan.first);
    }

    /// Sets the number of pods pending because of the plugin. Must be called for each pod that becomes
    /// pending or no longer is.
    pub fn set_pending(&mut self, pods: usize, now: Duration) {
        let has_more = pods > self.pods;
        let due = self.due.filter(|_| self.pods > 0);
        self.pods = pods;
        if !has_more {
            return;
        }
        self.since = now;
        // A nudge due earlier is not postponed: pods may become pending one after the other.
        let first = now + self.plan.first;
        self.due = Some(self.spaced(due.map_or(first, |due| due.min(first))));
    }

    /// Returns when to nudge if nothing happens before; `None` if no pods are pending.
    pub fn due(&self) -> Option<Duration> {
        self.due.filter(|_| self.pods > 0)
    }

    /// Records a nudge.
    pub fn nudged(&mut self, now: Duration) {
        self.requeued = Some(now);
        let delay = self.plan.delay_after(now.saturating_sub(self.since));
        let due = delay.map_or(now + self.plan.idle, |delay| self.since + delay);
        self.due = Some(self.spaced(due));
    }

    /// Delays a nudge until the minimum interval after the last requeue has passed.
    fn spaced(&self, due: Duration) -> Duration {
        self.requeued.map_or(due, |requeued| due.max(requeued + self.plan.gap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns a nudger with one pod, pending since this time.
    fn with_a_pod(at: Duration) -> Nudger {
        let mut nudger = Nudger::new(NudgePlan::default());
        nudger.set_pending(1, at);
        nudger
    }

    /// Runs all nudges due up to `until`. Returns their times in milliseconds.
    fn all_until(nudger: &mut Nudger, until: Duration) -> Vec<u128> {
        let mut all = Vec::new();
        while let Some(due) = nudger.due().filter(|due| *due <= until) {
            all.push(due.as_millis());
            nudger.nudged(due);
        }
        all
    }

    #[test]
    fn without_pending_pods_there_are_no_nudges() {
        let mut nudger = Nudger::new(NudgePlan::default());
        assert_eq!(nudger.due(), None);
        nudger.changed(ms(100));
        nudger.set_pending(0, ms(200));
        assert_eq!(nudger.due(), None);
        nudger.set_pending(1, ms(300));
        assert!(nudger.due().is_some());
        nudger.set_pending(0, ms(400));
        assert_eq!(nudger.due(), None, "it was scheduled");
        nudger.changed(ms(500));
        nudger.nudged(ms(600));
        assert_eq!(nudger.due(), None);
    }

    #[test]
    fn delays_double_and_then_nudges_are_rare() {
        let mut nudger = with_a_pod(secs(100));
        let all = all_until(&mut nudger, secs(300));
        assert_eq!(all, [101_040, 102_600, 105_200, 110_400, 170_400, 230_400, 290_400]);
    }

    #[test]
    fn a_change_replaces_a_nudge_and_starts_the_delays_anew() {
        let mut nudger = with_a_pod(secs(0));
        assert_eq!(all_until(&mut nudger, secs(30)).len(), 4);
        nudger.changed(secs(31));
        assert_eq!(all_until(&mut nudger, secs(60)), [32_040, 33_600, 36_200, 41_400]);
        // It replaces the nudge that would be due.
        let mut nudger = with_a_pod(secs(0));
        nudger.changed(ms(1000));
        assert_eq!(nudger.due(), Some(ms(2040)));
    }

    #[test]
    fn frequent_changes_need_no_nudges_and_rare_ones_do_not_postpone_them() {
        let mut nudger = with_a_pod(secs(0));
        for at in 1..100 {
            nudger.changed(ms(at * 900));
            assert!(nudger.due() > Some(ms(at * 900 + 900)), "the next change comes first");
        }
        let mut nudger = with_a_pod(secs(0));
        let mut nudges = 0;
        for at in 1..100 {
            nudges += all_until(&mut nudger, ms(at * 1500)).len();
            nudger.changed(ms(at * 1500));
        }
        assert_eq!(nudges, 99, "one between two changes");
    }

    #[test]
    fn a_series_of_new_pending_pods_neither_postpones_nor_adds_nudges() {
        let mut nudger = Nudger::new(NudgePlan::default());
        let mut all = Vec::new();
        for pod in 0..1000 {
            let now = ms(pod * 100);
            all.extend(all_until(&mut nudger, now));
            nudger.set_pending(usize::try_from(pod).unwrap() + 1, now);
        }
        assert!((90..=100).contains(&all.len()), "{} in 100 s", all.len());
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 1000), "{all:?}");
    }

    #[test]
    fn a_pod_that_is_no_longer_pending_changes_nothing_for_the_others() {
        let mut nudger = Nudger::new(NudgePlan::default());
        nudger.set_pending(2, secs(0));
        assert_eq!(all_until(&mut nudger, secs(3)), [1040, 2600]);
        nudger.set_pending(1, secs(4));
        assert_eq!(nudger.due(), Some(ms(5200)));
        // Another pod became pending in its place.
        nudger.set_pending(2, secs(5));
        assert_eq!(all_until(&mut nudger, secs(20)), [5200, 6200, 7600, 10_200, 15_400]);
    }

    #[test]
    fn the_gap_after_a_nudge_applies_to_new_pods() {
        let mut nudger = with_a_pod(secs(0));
        nudger.nudged(ms(1040));
        nudger.set_pending(0, ms(1050));
        nudger.set_pending(1, ms(1060));
        assert_eq!(nudger.due(), Some(ms(2100)), "since it is pending");
        let plan = NudgePlan { first: ms(100), ..NudgePlan::default() };
        let mut nudger = Nudger::new(plan);
        nudger.nudged(ms(1000));
        nudger.set_pending(1, ms(1060));
        assert_eq!(nudger.due(), Some(ms(2000)));
    }

    #[test]
    fn a_nudge_stays_due_until_it_is_made() {
        let mut nudger = with_a_pod(secs(0));
        assert_eq!(nudger.due(), Some(ms(1040)));
        nudger.nudged(secs(50));
        assert_eq!(nudger.due(), Some(secs(110)), "missed ones are skipped");
    }

    #[test]
    fn a_known_period_needs_fewer_nudges() {
        let of = |period| {
            let mut nudger = Nudger::new(NudgePlan::of_period(secs(period)));
            nudger.set_pending(1, secs(0));
            all_until(&mut nudger, secs(110))
        };
        assert_eq!(of(1), [1040, 61_040]);
        assert_eq!(of(2), [1040, 2080, 62_080]);
        assert_eq!(of(5), [1040, 2600, 5200, 65_200]);
        assert_eq!(of(10), [1040, 2600, 5200, 10_400, 70_400]);
        assert_eq!(of(60), [1040, 3900, 7800, 15_600, 31_200, 62_400]);
    }
}
