//! Delays between retries. kube-runtime's and tower's backoffs count failures in a stream or a service of
//! their own; here the caller keeps the count, since it knows which success resets it.

use std::time::Duration;

use tokio::time::Instant;

/// When the next attempt may begin.
#[derive(Debug)]
pub(crate) struct NextAttempt {
    at: Instant,
    /// In a row.
    failures: u32,
}

impl NextAttempt {
    pub(crate) const fn new(at: Instant) -> Self {
        Self { at, failures: 0 }
    }

    pub(crate) const fn at(&self) -> Instant {
        self.at
    }

    /// Sets the time of the next attempt. The failures count on.
    pub(crate) const fn set(&mut self, at: Instant) {
        self.at = at;
    }

    pub(crate) const fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure, and delays the next attempt as [`random_back_off`] does.
    pub(crate) fn failed(&mut self, min: Duration, window: Duration, limit: Duration) {
        self.at = Instant::now() + random_back_off(&mut self.failures, min, window, limit);
    }
}

/// Counts a failure and returns the delay before the next attempt: doubled each time up to `limit`, with 10%
/// jitter.
pub(crate) fn back_off(failures: &mut u32, first: Duration, limit: Duration) -> Duration {
    jittered(doubled(failures, first, limit))
}

/// Counts a failure and returns the delay before the next attempt: `min` plus a random part of a window. The
/// window doubles with each further failure, up to `limit`, so that clients that failed at the same moment do
/// not retry together.
pub(crate) fn random_back_off(
    failures: &mut u32,
    min: Duration,
    window: Duration,
    limit: Duration,
) -> Duration {
    min + random_delay(doubled(failures, window, limit))
}

fn doubled(failures: &mut u32, first: Duration, limit: Duration) -> Duration {
    let delay = first.saturating_mul(1 << (*failures).min(16)).min(limit);
    *failures = failures.saturating_add(1);
    delay
}

/// Adds 10% jitter either way, so that a fleet does not act in lockstep.
pub(crate) fn jittered(period: Duration) -> Duration {
    period.mul_f64(0.9 + 0.2 * fastrand::f64())
}

/// Returns a random duration from zero up to `window`.
pub(crate) fn random_delay(window: Duration) -> Duration {
    window.mul_f64(fastrand::f64())
}
