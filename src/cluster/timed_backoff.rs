//! Backoff for kube's watcher, which resets kube-runtime's own (`ResetTimerBackoff` too) as soon as a list
//! begins, even if the previous one failed later: an overloaded API server would be asked for all pages again
//! and again, without growing delays.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use tokio::time::Instant;

use crate::util::backoff::back_off;

/// Delay after the first failure.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum delay after many failures in a row.
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// Failures are forgotten after this long without one.
const RESET_AFTER: Duration = Duration::from_secs(120);

/// A backoff that only time resets.
#[derive(Debug, Default)]
pub(super) struct TimedBackoff {
    failures: u32,
    last: Option<Instant>,
}

impl Iterator for TimedBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.last.replace(now).is_some_and(|last| now.duration_since(last) > RESET_AFTER) {
            self.failures = 0;
        }
        Some(back_off(&mut self.failures, RETRY, RETRY_LIMIT))
    }
}

impl Backoff for TimedBackoff {
    /// Does nothing: the success may be the start of a list that fails again.
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use kube::runtime::WatchStreamExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_start_of_a_list_does_not_reset_the_backoff() {
        // The events of kube's watcher for a list that fails each time.
        let fails = stream::iter((0..20).map(|n| if n % 2 == 0 { Ok(()) } else { Err(()) }));
        let mut events = std::pin::pin!(fails.backoff(TimedBackoff::default()));
        let start = Instant::now();
        while events.next().await.is_some() {}
        let waited = start.elapsed();
        assert!(waited > Duration::from_secs(150), "{waited:?} for ten failures");
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_failures_resets_the_backoff() {
        let mut backoff = TimedBackoff::default();
        for _ in 0..9 {
            backoff.next();
        }
        assert!(backoff.next().unwrap() > RETRY_LIMIT / 2);
        tokio::time::advance(RESET_AFTER + RETRY).await;
        assert!(backoff.next().unwrap() < RETRY * 2);
    }
}
