//! When the controller writes to an object although nothing changed.
//!
//! The scheduler plugin refreshes what it knows of a node at ticks of its own (`cacheResyncPeriodSeconds`). A pod that it
//! rejected is tried again when any `NodeResourceTopology` is created or updated: the plugin registers these events without
//! a queueing hint, so an update of one object requeues every pod that the plugin rejected. An update that comes before
//! the tick makes the scheduler try the pod with the old data; the tick itself requeues nothing. So a nudge, one small
//! update of any one object, has to follow the tick.
//!
//! Nobody can see the ticks, but the usual periods are 1 to 10 s. With waits that double there is a nudge soon after the
//! next tick, whatever the period, and few in all. An object that changes by itself is as good as a nudge, and is a reason
//! for the next ones.
//!
//! Pure: no I/O and no clock. Moments are durations since any fixed one, the same for all calls.

use std::time::Duration;

/// Periods and patches are not exact: how much longer than the plugin's period a wait is.
const MARGIN: f64 = 1.04;

/// How often to nudge while pods stay pending and nothing changes.
const IDLE: Duration = Duration::from_secs(60);

/// When to nudge while pods wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The first nudge comes so long after a change, or after a pod began to wait.
    pub first: Duration,
    /// The last one comes so long after it. Before it, at half of this, a quarter and so on, as long as that is at least
    /// twice `first`.
    pub last: Duration,
    /// After the last one, so often.
    pub idle: Duration,
    /// At least so long between two nudges, and between a change and a nudge.
    pub gap: Duration,
}

impl Default for Plan {
    /// For plugins that resync every 1, 2, 5 or 10 s: 1.04, 2.6, 5.2 and 10.4 s after a change, then once a minute.
    fn default() -> Self {
        Self::of_period(Duration::from_secs(10))
    }
}

impl Plan {
    /// For a plugin that resyncs so often: the last nudge comes soon after a tick that follows the change.
    #[must_use]
    pub fn of_period(period: Duration) -> Self {
        let gap = Duration::from_secs(1);
        let first = gap.mul_f64(MARGIN);
        let last = period.mul_f64(MARGIN).max(first);
        Self { first, last, idle: IDLE.max(last), gap }
    }

    /// How long after a change the next nudge comes, if it has to be later than `elapsed`. `None` after the last.
    fn wait_after(&self, elapsed: Duration) -> Option<Duration> {
        if elapsed < self.first {
            return Some(self.first);
        }
        let mut wait = self.last;
        while wait / 2 > elapsed && wait / 2 >= self.first * 2 {
            wait /= 2;
        }
        Some(wait).filter(|wait| *wait > elapsed)
    }
}

/// Decides when to nudge.
#[derive(Clone, Debug)]
pub struct Nudger {
    plan: Plan,
    /// How many pods wait because of the plugin.
    pods: usize,
    /// The last reason for nudges: an object changed, or a pod began to wait.
    since: Duration,
    /// The last time that pods were requeued: an object changed, or was nudged.
    requeued: Option<Duration>,
    due: Option<Duration>,
}

impl Nudger {
    /// Nudges as `plan` says; no pod waits yet.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self { plan, pods: 0, since: Duration::ZERO, requeued: None, due: None }
    }

    /// An object changed by itself, which is as good as a nudge. The plugin learns what changed at its next tick only.
    pub fn changed(&mut self, now: Duration) {
        (self.since, self.requeued) = (now, Some(now));
        // Changes that follow one another within this time need no nudges between them.
        self.due = Some(now + self.plan.first);
    }

    /// So many pods wait because of the plugin. To be called for each pod that begins or ceases to wait.
    pub fn waiting(&mut self, pods: usize, now: Duration) {
        let more = pods > self.pods;
        let due = self.due.filter(|_| self.pods > 0);
        self.pods = pods;
        if !more {
            return;
        }
        self.since = now;
        // A nudge that is due before is not put off: pods may come one after the other.
        let first = now + self.plan.first;
        self.due = Some(self.spaced(due.map_or(first, |due| due.min(first))));
    }

    /// When to nudge, if nothing happens before. `None` while no pod waits.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        self.due.filter(|_| self.pods > 0)
    }

    /// An object was nudged.
    pub fn nudged(&mut self, now: Duration) {
        self.requeued = Some(now);
        let wait = self.plan.wait_after(now.saturating_sub(self.since));
        let due = wait.map_or(now + self.plan.idle, |wait| self.since + wait);
        self.due = Some(self.spaced(due));
    }

    /// Not too soon after pods were requeued last.
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

    /// One pod waits, since this moment.
    fn with_a_pod(at: Duration) -> Nudger {
        let mut nudger = Nudger::new(Plan::default());
        nudger.waiting(1, at);
        nudger
    }

    /// The next ones up to `until`, in milliseconds, each done when it is due.
    fn all_until(nudger: &mut Nudger, until: Duration) -> Vec<u128> {
        let mut all = Vec::new();
        while let Some(due) = nudger.due().filter(|due| *due <= until) {
            all.push(due.as_millis());
            nudger.nudged(due);
        }
        all
    }

    #[test]
    fn there_are_none_while_no_pod_waits() {
        let mut nudger = Nudger::new(Plan::default());
        assert_eq!(nudger.due(), None);
        nudger.changed(ms(100));
        nudger.waiting(0, ms(200));
        assert_eq!(nudger.due(), None);
        nudger.waiting(1, ms(300));
        assert!(nudger.due().is_some());
        nudger.waiting(0, ms(400));
        assert_eq!(nudger.due(), None, "it was scheduled");
        nudger.changed(ms(500));
        nudger.nudged(ms(600));
        assert_eq!(nudger.due(), None);
    }

    #[test]
    fn a_pod_that_begins_to_wait_is_followed_by_waits_that_double_and_then_by_rare_ones() {
        let mut nudger = with_a_pod(secs(100));
        let all = all_until(&mut nudger, secs(300));
        assert_eq!(all, [101_040, 102_600, 105_200, 110_400, 170_400, 230_400, 290_400]);
    }

    #[test]
    fn a_change_is_as_good_as_a_nudge_and_a_reason_for_the_next() {
        let mut nudger = with_a_pod(secs(0));
        assert_eq!(all_until(&mut nudger, secs(30)).len(), 4);
        nudger.changed(secs(31));
        assert_eq!(all_until(&mut nudger, secs(60)), [32_040, 33_600, 36_200, 41_400]);
        // It takes the place of the one that would be due.
        let mut nudger = with_a_pod(secs(0));
        nudger.changed(ms(1000));
        assert_eq!(nudger.due(), Some(ms(2040)));
    }

    #[test]
    fn frequent_changes_need_no_nudges_and_rarer_ones_do_not_put_them_off() {
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
    fn pods_that_begin_to_wait_one_after_the_other_neither_put_nudges_off_nor_make_them_dense() {
        let mut nudger = Nudger::new(Plan::default());
        let mut all = Vec::new();
        for pod in 0..1000 {
            let now = ms(pod * 100);
            all.extend(all_until(&mut nudger, now));
            nudger.waiting(usize::try_from(pod).unwrap() + 1, now);
        }
        assert!((90..=100).contains(&all.len()), "{} in 100 s", all.len());
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 1000), "{all:?}");
    }

    #[test]
    fn a_pod_that_ceases_to_wait_changes_nothing_for_the_others() {
        let mut nudger = Nudger::new(Plan::default());
        nudger.waiting(2, secs(0));
        assert_eq!(all_until(&mut nudger, secs(3)), [1040, 2600]);
        nudger.waiting(1, secs(4));
        assert_eq!(nudger.due(), Some(ms(5200)));
        // One in its place began to wait.
        nudger.waiting(2, secs(5));
        assert_eq!(all_until(&mut nudger, secs(20)), [5200, 6200, 7600, 10_200, 15_400]);
    }

    #[test]
    fn a_pod_that_comes_soon_after_a_nudge_waits_for_the_gap() {
        let mut nudger = with_a_pod(secs(0));
        nudger.nudged(ms(1040));
        nudger.waiting(0, ms(1050));
        nudger.waiting(1, ms(1060));
        assert_eq!(nudger.due(), Some(ms(2100)), "since it began to wait");
        let plan = Plan { first: ms(100), ..Plan::default() };
        let mut nudger = Nudger::new(plan);
        nudger.nudged(ms(1000));
        nudger.waiting(1, ms(1060));
        assert_eq!(nudger.due(), Some(ms(2000)));
    }

    #[test]
    fn a_nudge_that_could_not_be_made_is_due_still() {
        let mut nudger = with_a_pod(secs(0));
        assert_eq!(nudger.due(), Some(ms(1040)));
        nudger.nudged(secs(50));
        assert_eq!(nudger.due(), Some(secs(110)), "whatever was left out meanwhile");
    }

    #[test]
    fn whoever_knows_the_plugins_period_has_no_more_than_needed() {
        let of = |period| {
            let mut nudger = Nudger::new(Plan::of_period(secs(period)));
            nudger.waiting(1, secs(0));
            all_until(&mut nudger, secs(110))
        };
        assert_eq!(of(1), [1040, 61_040]);
        assert_eq!(of(2), [1040, 2080, 62_080]);
        assert_eq!(of(5), [1040, 2600, 5200, 65_200]);
        assert_eq!(of(10), [1040, 2600, 5200, 10_400, 70_400]);
        assert_eq!(of(60), [1040, 3900, 7800, 15_600, 31_200, 62_400]);
    }
}
