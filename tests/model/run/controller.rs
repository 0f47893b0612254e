//! numacast's controller, limited to its nudges: the real nudger with an imitation of its watches.

use std::collections::BTreeSet;
use std::time::Duration;

use numacast::controller::{NudgePlan, Nudger};

use super::chance::{S, Time};
use super::cluster::PodId;

/// When it nudges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Nudges {
    /// Never.
    None,
    /// As numacast does with this plan.
    Plan(NudgePlan),
    /// At this interval while pods wait, for this time after a change of an object. For comparison.
    Each(Time, Time),
}

impl Nudges {
    /// The default.
    pub(crate) fn usual() -> Self {
        Self::Plan(NudgePlan::default())
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::None => "no nudge".to_owned(),
            Self::Plan(_) => "nudges".to_owned(),
            Self::Each(each, _) => format!("a nudge each {:.1} s", each as f64 / S as f64),
        }
    }
}

/// The controller's state.
#[derive(Debug)]
pub(crate) struct Controller {
    nudges: Nudges,
    nudger: Nudger,
    /// When the next nudge of [`Nudges::Each`] is due, and when they end.
    each: Option<(Time, Time)>,
    /// Pods with a condition that the plugin rejects them.
    waiting: BTreeSet<PodId>,
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
        let waiting = BTreeSet::new();
        Self { nudges, nudger, each: None, waiting, writing: false, timer: 0, wakes: None }
    }

    /// Handles a change of an object. The objects are watched only while pods wait.
    pub(super) fn changed(&mut self, now: Time) {
        if self.waiting.is_empty() {
            return;
        }
        self.nudger.changed(Duration::from_micros(now));
        if let Nudges::Each(each, lasting) = self.nudges {
            self.each = Some((now + each, now + lasting));
        }
    }

    pub(super) fn waits(&mut self, pod: PodId, now: Time) {
        if self.waiting.insert(pod) {
            self.nudger.set_pending(self.waiting.len(), Duration::from_micros(now));
        }
    }

    pub(super) fn waits_no_more(&mut self, pod: PodId, now: Time) {
        if self.waiting.remove(&pod) {
            self.nudger.set_pending(self.waiting.len(), Duration::from_micros(now));
        }
    }

    pub(super) fn nudged(&mut self, now: Time) {
        self.nudger.nudged(Duration::from_micros(now));
        if let (Some((_, until)), Nudges::Each(each, _)) = (self.each, self.nudges) {
            self.each = (now + each <= until).then_some((now + each, until));
        }
    }

    pub(super) fn due(&self) -> Option<Time> {
        match self.nudges {
            Nudges::None => None,
            Nudges::Plan(_) => self.nudger.due().and_then(|due| Time::try_from(due.as_micros()).ok()),
            Nudges::Each(..) => self.each.filter(|_| !self.waiting.is_empty()).map(|(due, _)| due),
        }
    }
}
