//! How long to wait before the next attempt.

use std::time::Duration;

/// Counts a failure and says how long to wait after it: twice as long each time, up to a limit, give or take a tenth.
pub(crate) fn back_off(failures: &mut u32, first: Duration, limit: Duration) -> Duration {
    jittered(doubled(failures, first, limit))
}

/// Counts a failure and says how long to wait after it: at least `least`, and up to `window` longer. The window is twice as
/// long after each further failure, up to `limit`. Clients that failed at the same moment do not return together.
pub(crate) fn spread(failures: &mut u32, least: Duration, window: Duration, limit: Duration) -> Duration {
    least + within(doubled(failures, window, limit))
}

fn doubled(failures: &mut u32, first: Duration, limit: Duration) -> Duration {
    let wait = first.saturating_mul(1 << (*failures).min(16)).min(limit);
    *failures = failures.saturating_add(1);
    wait
}

/// Give or take a tenth, so that a fleet does not move in step.
pub(crate) fn jittered(period: Duration) -> Duration {
    period.mul_f64(0.9 + 0.2 * fastrand::f64())
}

/// Any time from nothing up to `window`.
pub(crate) fn within(window: Duration) -> Duration {
    window.mul_f64(fastrand::f64())
}
