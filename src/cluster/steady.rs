//! Backoff for kube's watcher, which resets a backoff as soon as a list begins, even if the previous one
//! failed later: an API server in trouble would be asked for all pages again and again, without growing
//! delays.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use tokio::time::Instant;

use crate::util::backoff::back_off;

/// Delay after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// Delay after many failures in a row.
const LIMIT: Duration = Duration::from_secs(30);
/// Failures are forgotten after this long without one.
const CALM: Duration = Duration::from_secs(120);

/// A backoff that only time resets.
#[derive(Debug, Default)]
pub(super) struct Steady {
    failures: u32,
    last: Option<Instant>,
}

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.last.replace(now).is_some_and(|last| now.duration_since(last) > CALM) {
            self.failures = 0;
        }
        Some(back_off(&mut self.failures, FIRST, LIMIT))
    }
}

impl Backoff for Steady {
    /// Does nothing: what succeeded may be the start of a list that fails again.
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use kube::runtime::WatchStreamExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_list_that_begins_does_not_shorten_the_wait_after_the_next_failure() {
        // The events of kube's watcher for a list that fails each time.
        let fails = stream::iter((0..20).map(|n| if n % 2 == 0 { Ok(()) } else { Err(()) }));
        let mut events = std::pin::pin!(fails.backoff(Steady::default()));
        let start = Instant::now();
        while events.next().await.is_some() {}
        let waited = start.elapsed();
        assert!(waited > Duration::from_secs(150), "{waited:?} for ten failures");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_after_a_long_calm_is_a_first_one() {
        let mut steady = Steady::default();
        for _ in 0..9 {
            steady.next();
        }
        assert!(steady.next().unwrap() > LIMIT / 2);
        tokio::time::advance(CALM + FIRST).await;
        assert!(steady.next().unwrap() < FIRST * 2);
    }
}
