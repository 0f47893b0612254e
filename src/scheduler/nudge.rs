//! When the object is written once more although nothing changed.
//!
//! The plugin refreshes its cache at ticks of its own. A pod that it rejected is tried again when the object changes,
//! which is before the tick: it meets the old cache, is rejected again, and nothing wakes it after the refresh (nrt.md
//! 5.2, rule 5). A nudge does. Nobody can see the ticks, but the usual periods are 1 to 10 s: with waits that double
//! from change to nudge there is one soon after the first tick, whatever the period, and few in all. Denser ones win
//! next to nothing (docs/proofs.md).
//!
//! A calm node needs a rare one as well: its last change was refreshed at no tick if nobody was rejected since, so that
//! the first pod to come meets an old cache, is rejected, and would wait for five minutes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::topology::{PodSet, Zone};

/// When to nudge after the object has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How long after the change; then after twice that time, four times, and so on.
    pub first: Duration,
    /// Not later: a plugin's tick must fit in.
    pub last: Duration,
    /// From then on, so often.
    pub idle: Duration,
}

/// Everyone's pods wait for at most so long, where nothing else happens.
const IDLE: Duration = Duration::from_secs(60);

impl Default for Plan {
    /// 0.65, 1.3, 2.6, 5.2 and 10.4 s: soon after the first tick of a plugin that resyncs each 1, 2, 5 or 10 s.
    fn default() -> Self {
        Self { first: Duration::from_millis(650), last: Duration::from_millis(10_400), idle: IDLE }
    }
}

impl Plan {
    /// For a plugin that resyncs so often: the last one comes soon after a tick that follows the change.
    #[must_use]
    pub fn of_period(period: Duration) -> Self {
        let last = period.mul_f64(1.04);
        let mut first = last;
        while first > Duration::from_secs(1) {
            first /= 2;
        }
        Self { first, last, idle: IDLE.max(last) }
    }
}

/// Nudges as planned.
#[derive(Clone, Debug, Default)]
pub struct Nudger {
    /// Never nudges without one.
    plan: Option<Plan>,
    /// The hash of what the last object said that agreed.
    said: Option<u64>,
    /// What comes next.
    next: Option<Next>,
    /// The object that the API server has is held.
    held: bool,
}

#[derive(Clone, Copy, Debug)]
struct Next {
    /// When the object changed.
    since: Duration,
    due: Duration,
}

impl Nudger {
    /// Nudges as `plan` says; never without one.
    #[must_use]
    pub fn new(plan: Option<Plan>) -> Self {
        Self { plan, ..Self::default() }
    }

    /// The API server took an object with these zones that stands for this set of pods.
    pub fn wrote(&mut self, pods: Option<PodSet>, zones: &[Zone], now: Duration) {
        let agreed = pods.filter(|pods| !pods.is_held());
        self.held = agreed.is_none();
        let (Some(plan), Some(pods)) = (self.plan, agreed) else { return };
        // The write was as good as a nudge.
        self.nudged(now);
        let said = hash_of(pods, zones);
        // Less that is free is a change too: what the plugin took for a new pod from every zone comes back at a tick. So is
        // another set of pods: the plugin rejects every pod between a change of a foreign one and the next tick.
        if self.said != Some(said) {
            let due = now + plan.first;
            // Changes that follow one another must not put it off for ever.
            let due = self.next.map_or(due, |next| next.due.min(due));
            self.next = Some(Next { since: now, due });
            self.said = Some(said);
        }
    }

    /// Is the object held that was written last?
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.held
    }

    /// When to nudge, if nothing happens before.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        // While the object is held a pod that is tried again meets the old cache.
        self.next.filter(|_| !self.held).map(|next| next.due)
    }

    /// The API server took a nudge, or could not.
    pub fn nudged(&mut self, now: Duration) {
        let (Some(plan), Some(next)) = (self.plan, self.next) else { return };
        if now < next.due {
            return;
        }
        let mut wait = plan.first;
        while next.since + wait <= now && wait <= plan.last {
            wait *= 2;
        }
        let due = if wait <= plan.last { next.since + wait } else { now + plan.idle };
        self.next = Some(Next { due, ..next });
    }
}

/// Of what the plugin reads: who is counted, and what is free.
fn hash_of(pods: PodSet, zones: &[Zone]) -> u64 {
    let mut hasher = DefaultHasher::new();
    pods.hash(&mut hasher);
    for zone in zones {
        zone.id.hash(&mut hasher);
        for (resource, amounts) in &zone.resources {
            (resource, amounts.available).hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Id;
    use crate::topology::{Amounts, Fingerprint, Method};

    fn zones(free: &[u64]) -> Vec<Zone> {
        let zone = |(id, free): (usize, &u64)| {
            let amounts = Amounts { capacity: 9, allocatable: 8, available: *free };
            let resources = [("cpu".to_owned(), amounts)].into();
            Zone { id: Id::try_from(id).unwrap(), resources, ..Zone::default() }
        };
        free.iter().enumerate().map(zone).collect()
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    const AGREED: Option<PodSet> = Some(PodSet { fingerprint: Fingerprint::of_sum(1), method: Method::All });
    const OTHERS: Option<PodSet> = Some(PodSet { fingerprint: Fingerprint::of_sum(2), method: Method::All });
    const HELD: Option<PodSet> = Some(PodSet { fingerprint: Fingerprint::HELD, method: Method::All });

    /// The next seven.
    fn all_from(nudger: &mut Nudger) -> Vec<u128> {
        let mut all = Vec::new();
        for _ in 0..7 {
            let due = nudger.due().unwrap();
            all.push(due.as_millis());
            nudger.nudged(due);
        }
        all
    }

    #[test]
    fn nudges_follow_a_change_of_the_zones_with_waits_that_double() {
        let mut nudger = Nudger::new(Some(Plan::default()));
        nudger.wrote(AGREED, &zones(&[7, 7]), ms(1000));
        let all = all_from(&mut nudger);
        assert_eq!(all[..5], [1650, 2300, 3600, 6200, 11_400], "the first one is a change");
        assert_eq!(all[5..], [71_400, 131_400], "a calm node");
        nudger.wrote(AGREED, &zones(&[7, 7]), ms(140_000));
        assert_eq!(nudger.due(), Some(ms(191_400)), "nothing changed");
        for (pods, free, at) in [(AGREED, [7, 5], 300), (AGREED, [7, 7], 400), (OTHERS, [7, 7], 500)] {
            nudger.wrote(pods, &zones(&free), ms(at * 1000));
            assert_eq!(all_from(&mut nudger)[4], u128::from(at) * 1000 + 10_400, "less, more, other pods");
        }
    }

    #[test]
    fn who_knows_the_plugins_period_has_fewer() {
        for (period, last) in [(1, 1040), (5, 5200), (10, 10_400), (60, 62_400)] {
            let plan = Plan::of_period(Duration::from_secs(period));
            assert_eq!(plan.last, ms(last));
            assert!(plan.first >= ms(500) && plan.first <= ms(1040), "{plan:?}");
            assert!(plan.idle >= plan.last);
        }
    }

    #[test]
    fn a_change_does_not_put_off_the_nudge_of_the_one_before() {
        let mut nudger = Nudger::new(Some(Plan::default()));
        for at in 0..10 {
            nudger.wrote(AGREED, &zones(&[at]), ms(at * 100));
        }
        // The write at 700 ms was as good as the nudge at 650 ms; the next is planned since the change at 600 ms.
        assert_eq!(nudger.due(), Some(ms(1250)));
        nudger.nudged(ms(1251));
        assert_eq!(nudger.due(), Some(ms(1550)), "since the last change");
    }

    #[test]
    fn a_write_is_as_good_as_a_nudge() {
        let mut nudger = Nudger::new(Some(Plan::default()));
        nudger.wrote(AGREED, &zones(&[1]), ms(0));
        nudger.wrote(AGREED, &zones(&[1]), ms(600));
        assert_eq!(nudger.due(), Some(ms(650)), "but not before it is due");
        nudger.wrote(AGREED, &zones(&[1]), ms(3000));
        assert_eq!(nudger.due(), Some(ms(5200)));
    }

    #[test]
    fn a_held_object_is_not_nudged() {
        let mut nudger = Nudger::new(Some(Plan::default()));
        nudger.wrote(AGREED, &zones(&[1]), ms(0));
        nudger.wrote(HELD, &zones(&[1]), ms(100));
        assert_eq!(nudger.due(), None);
        nudger.wrote(AGREED, &zones(&[1]), ms(200));
        assert_eq!(nudger.due(), Some(ms(650)));
    }

    #[test]
    fn without_a_plan_there_are_none() {
        let mut nudger = Nudger::new(None);
        nudger.wrote(AGREED, &zones(&[1]), ms(0));
        nudger.wrote(AGREED, &zones(&[2]), ms(1));
        nudger.nudged(ms(2));
        assert_eq!(nudger.due(), None);
    }
}
