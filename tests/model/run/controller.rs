//! numacast's controller, limited to its nudges: the real nudger with an imitation of its watches.

use std::collections::BTreeSet;
use std::time::Duration;

use numacast::controller::{NudgePlan, Nudger};

use super::cluster::PodId;
use super::time::{S, Time};

/// When it nudges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Nudges {
    /// Never.
    None,
    /// As numacast does with this plan.
    Plan(NudgePlan),
    /// At this interval while pods are pending, for this time after a change of an object. For comparison.
    Periodic(Time, Time),
}

impl Nudges {
    /// numacast's default.
    pub(crate) fn default_plan() -> Self {
        Self::Plan(NudgePlan::default())
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::None => "no nudge".to_owned(),
            Self::Plan(_) => "nudges".to_owned(),
            Self::Periodic(period, _) => format!("a nudge each {:.1} s", period as f64 / S as f64),
        }
    }
}

/// The controller's state.
#[derive(Debug)]
pub(crate) struct Controller {
    nudges: Nudges,
    nudger: Nudger,
    /// When the next nudge of [`Nudges::Periodic`] is due, and when they end.
    periodic: Option<(Time, Time)>,
    /// Pods with a condition that the plugin rejects them.
    pending: BTreeSet<PodId>,
    /// Whether a write is in progress.
    pub(super) writing: bool,
    /// The current timer; earlier ones are void.
    pub(super) timer: u32,
    pub(super) wakes: Option<Time>,
}

impl Controller {
    pub(crate) fn new(nudges: Nudges) -> Self {
        let plan = if let Nudges::Plan(plan) = nudges { plan } else { NudgePlan::default() };
        let nudger = Nudger::new(plan);
        let pending = BTreeSet::new();
        Self { nudges, nudger, periodic: None, pending, writing: false, timer: 0, wakes: None }
    }

    /// Handles a change of an object. The objects are watched only while pods are pending.
    pub(super) fn object_changed(&mut self, now: Time) {
        if self.pending.is_empty() {
            return;
        }
        self.nudger.changed(Duration::from_micros(now));
        if let Nudges::Periodic(period, total) = self.nudges {
            self.periodic = Some((now + period, now + total));
        }
    }

    pub(super) fn add_pending(&mut self, pod: PodId, now: Time) {
        if self.pending.insert(pod) {
            self.nudger.set_pending(self.pending.len(), Duration::from_micros(now));
        }
    }

    pub(super) fn remove_pending(&mut self, pod: PodId, now: Time) {
        if self.pending.remove(&pod) {
            self.nudger.set_pending(self.pending.len(), Duration::from_micros(now));
        }
    }

    pub(super) fn nudged(&mut self, now: Time) {
        self.nudger.nudged(Duration::from_micros(now));
        if let (Some((_, until)), Nudges::Periodic(period, _)) = (self.periodic, self.nudges) {
            self.periodic = (now + period <= until).then_some((now + period, until));
        }
    }

    pub(super) fn due(&self) -> Option<Time> {
        match self.nudges {
            Nudges::None => None,
            Nudges::Plan(_) => self.nudger.due().and_then(|due| Time::try_from(due.as_micros()).ok()),
            Nudges::Periodic(..) => self.periodic.filter(|_| !self.pending.is_empty()).map(|(due, _)| due),
        }
    }
}
