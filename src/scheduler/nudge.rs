//! When the object is written once more although nothing changed.
//!
//! The plugin refreshes its cache at ticks of its own. A pod that it rejected is tried again when the object changes,
//! which is before the tick: it meets the old cache, is rejected again, and nothing wakes it after the refresh (nrt.md
//! 5.2, rule 5). A nudge does. Nobody can see the ticks, but the usual periods are 1 to 10 s: with waits that double
//! from change to nudge there is one soon after the first tick, whatever the period, and few in all. Denser ones win
//! next to nothing (docs/proofs.md).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::machine::Id;
use crate::topology::Zone;

/// When to nudge after the zones have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How long after the change; then after twice that time, four times, and so on.
    pub first: Duration,
    /// Not later: a plugin's tick must fit in.
    pub last: Duration,
}

impl Default for Plan {
    /// 0.65, 1.3, 2.6, 5.2 and 10.4 s: soon after the first tick of a plugin that resyncs each 1, 2, 5 or 10 s.
    fn default() -> Self {
        Self { first: Duration::from_millis(650), last: Duration::from_millis(10_400) }
    }
}

/// Nudges as planned.
#[derive(Clone, Debug, Default)]
pub struct Nudger {
    /// Never nudges without one.
    plan: Option<Plan>,
    /// What was free, by zone and resource, in the last object that agreed.
    free: Option<BTreeMap<(Id, String), u64>>,
    /// What comes next.
    next: Option<Next>,
    /// The object that the API server has is held.
    held: bool,
}

#[derive(Clone, Copy, Debug)]
struct Next {
    /// When the zones changed.
    since: Duration,
    due: Duration,
}

impl Nudger {
    /// Nudges as `plan` says; never without one.
    #[must_use]
    pub fn new(plan: Option<Plan>) -> Self {
        Self { plan, ..Self::default() }
    }

    /// The API server took an object with these zones; did it agree, or was it held?
    pub fn wrote(&mut self, agreed: bool, zones: &[Zone], now: Duration) {
        self.held = !agreed;
        let Some(plan) = self.plan.filter(|_| agreed) else { return };
        // The write was as good as a nudge.
        self.nudged(now);
        let free = free_of(zones);
        // Less is a change too: what the plugin took for a new pod from every zone comes back at a tick.
        if self.free.as_ref() != Some(&free) {
            let due = now + plan.first;
            // Changes that follow one another must not put it off for ever.
            let due = self.next.map_or(due, |next| next.due.min(due));
            self.next = Some(Next { since: now, due });
            self.free = Some(free);
        }
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
        self.next = (wait <= plan.last).then_some(Next { due: next.since + wait, ..next });
    }
}

fn free_of(zones: &[Zone]) -> BTreeMap<(Id, String), u64> {
    let of_zone = |zone: &Zone| {
        let id = zone.id;
        let amounts = zone.resources.iter();
        amounts
            .map(move |(resource, amounts)| ((id, resource.clone()), amounts.available))
            .collect::<Vec<_>>()
    };
    zones.iter().flat_map(of_zone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Amounts;

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

    fn all_from(nudger: &mut Nudger) -> Vec<u128> {
        let mut all = Vec::new();
        while let Some(due) = nudger.due() {
            all.push(due.as_millis());
            nudger.nudged(due);
        }
        all
    }

    #[test]
    fn nudges_follow_a_change_of_the_zones_with_waits_that_double() {
        let mut nudger = Nudger::new(Some(Plan::default()));
        nudger.wrote(true, &zones(&[7, 7]), ms(1000));
        assert_eq!(all_from(&mut nudger), [1650, 2300, 3600, 6200, 11_400], "the first one is a change");
        nudger.wrote(true, &zones(&[7, 7]), ms(20_000));
        assert_eq!(nudger.due(), None, "another fingerprint, the same zones");
        for (free, at) in [([7, 5], 30_000), ([7, 7], 50_000)] {
            nudger.wrote(true, &zones(&free), ms(at));
            assert_eq!(all_from(&mut nudger)[4], u128::from(at) + 10_400, "less or more");
        }
    }

    #[test]
    fn a_change_does_not_put_off_the_nudge_of_the_one_before() {
        let mut nudger = Nudger::new(Some(Plan::default()));
        for at in 0..10 {
            nudger.wrote(true, &zones(&[at]), ms(at * 100));
        }
        // The write at 700 ms was as good as the nudge at 650 ms; the next is planned since the change at 600 ms.
        assert_eq!(nudger.due(), Some(ms(1250)));
        nudger.nudged(ms(1251));
        assert_eq!(nudger.due(), Some(ms(1550)), "since the last change");
    }

    #[test]
    fn a_write_is_as_good_as_a_nudge() {
        let mut nudger = Nudger::new(Some(Plan::default()));
        nudger.wrote(true, &zones(&[1]), ms(0));
        nudger.wrote(true, &zones(&[1]), ms(600));
        assert_eq!(nudger.due(), Some(ms(650)), "but not before it is due");
        nudger.wrote(true, &zones(&[1]), ms(3000));
        assert_eq!(nudger.due(), Some(ms(5200)));
    }

    #[test]
    fn a_held_object_is_not_nudged() {
        let mut nudger = Nudger::new(Some(Plan::default()));
        nudger.wrote(true, &zones(&[1]), ms(0));
        nudger.wrote(false, &zones(&[1]), ms(100));
        assert_eq!(nudger.due(), None);
        nudger.wrote(true, &zones(&[1]), ms(200));
        assert_eq!(nudger.due(), Some(ms(650)));
    }

    #[test]
    fn without_a_plan_there_are_none() {
        let mut nudger = Nudger::new(None);
        nudger.wrote(true, &zones(&[1]), ms(0));
        nudger.wrote(true, &zones(&[2]), ms(1));
        nudger.nudged(ms(2));
        assert_eq!(nudger.due(), None);
    }
}
