//! The result of an evaluation.

use std::time::Duration;

use serde::Serialize;

use crate::pod::PodName;
use crate::scheduler::{PodFingerprint, Reservation};

/// Whether to publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decision {
    /// Publish the fingerprint of the configured view. In the scheduler's view, no pod is waited for; in the
    /// others this is the only decision.
    #[default]
    Publish,
    /// Publish nothing yet: a pod is being admitted, and one write a moment later may cover everything.
    Wait,
    /// Publish the fingerprint that never matches.
    Withhold(WithholdReason),
}

/// Why the fingerprint is withheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum WithholdReason {
    /// No source has listed the node's pods yet.
    PodsUnknown,
    /// The zones do not account for all bound pods: [`Verdict::unaccounted`].
    UnaccountedPods,
}

/// What to publish now, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Whether to publish.
    pub decision: Decision,
    /// The fingerprint to publish; `None` in [`FingerprintView::None`](crate::scheduler::FingerprintView).
    pub fingerprint: Option<PodFingerprint>,
    /// Pods that the zones do not account for.
    pub unaccounted: Vec<PodName>,
    /// What to subtract from the zones: reservations for unaccounted pods, if enabled, and what pods keep
    /// that the List does not show.
    pub reservations: Vec<Reservation>,
    /// Pods that did not become accounted within the limit: from now on the fingerprint is not withheld and
    /// nothing is reserved for them.
    pub given_up: Vec<PodName>,
    /// When to evaluate again if nothing happens before.
    pub recheck_at: Option<Duration>,
}

impl Verdict {
    pub(super) fn recheck_by(&mut self, at: Duration) {
        self.recheck_at = Some(self.recheck_at.map_or(at, |before| before.min(at)));
    }
}
