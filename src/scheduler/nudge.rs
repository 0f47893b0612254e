//! When the object is written once more although nothing changed.
//!
//! The plugin refreshes its cache at ticks of its own. A pod that it rejected is tried again when the object changes,
//! which is before the tick: it meets the old cache, is rejected again, and nothing wakes it after the refresh (nrt.md
//! 5.2, rule 5). A nudge does. Each early one costs the pod a step of the scheduler's back-off, so they are few.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::machine::Id;
use crate::topology::Zone;

/// When to nudge after more became free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// How long after the write.
    pub first: Duration,
    /// How much longer each wait is than the one before.
    pub factor: f64,
    /// The longest wait.
    pub longest: Duration,
    /// How long to go on.
    pub lasting: Duration,
}

/// Nudges as planned.
#[derive(Clone, Debug, Default)]
pub struct Nudger {
    /// Never nudges without one.
    plan: Option<Plan>,
    /// What was free, by zone and resource, in the last object that agreed.
    free: BTreeMap<(Id, String), u64>,
    /// What comes next.
    next: Option<Next>,
    /// The object that the API server has is held.
    held: bool,
}

#[derive(Clone, Copy, Debug)]
struct Next {
    due: Duration,
    wait: Duration,
    until: Duration,
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
        let Some(plan) = self.plan else { return };
        if !agreed {
            return;
        }
        let mut more = false;
        let mut free = BTreeMap::new();
        for zone in zones {
            for (resource, amounts) in &zone.resources {
                let key = (zone.id, resource.clone());
                more |= self.free.get(&key).is_some_and(|before| amounts.available > *before);
                free.insert(key, amounts.available);
            }
        }
        self.free = free;
        if more {
            self.next = Some(Next { due: now + plan.first, wait: plan.first, until: now + plan.lasting });
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
        let wait = next.wait.mul_f64(plan.factor).min(plan.longest);
        let due = now + wait;
        self.next = (due <= next.until).then_some(Next { due, wait, until: next.until });
    }
}
