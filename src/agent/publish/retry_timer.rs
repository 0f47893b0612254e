//! When a failed write is tried again.

use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::ClusterError;
use crate::util::backoff::random_back_off;

pub(super) const RETRY: Duration = Duration::from_millis(200);
pub(super) const RETRY_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct RetryTimer {
    pub(super) failures: u32,
    is_requested: bool,
    pub(super) not_before: Option<Instant>,
}

impl RetryTimer {
    pub(super) fn fail(&mut self, error: &ClusterError, now: Instant) {
        // After an outage all agents of the cluster have something to write.
        let own = random_back_off(&mut self.failures, RETRY / 2, RETRY, RETRY_LIMIT);
        let requested = error.retry_after().map(|delay| delay.min(RETRY_LIMIT));
        self.is_requested = requested.is_some();
        self.not_before = Some(now + requested.unwrap_or_default() + own);
    }

    /// Shortens a long backoff because there is something new. A flood of changes must not become a flood of
    /// attempts.
    pub(super) fn shorten(&mut self, now: Instant) {
        if !self.is_requested {
            self.not_before = self.not_before.map(|at| at.min(now + RETRY));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(code: u16, retry_after: Option<u64>) -> ClusterError {
        let retry_after = retry_after.map(Duration::from_secs);
        ClusterError::Rejected { what: "x".into(), code, message: "no".into(), retry_after }
    }

    #[test]
    fn the_server_may_request_a_longer_delay_up_to_a_limit() {
        let now = Instant::now();
        let delay = |error: &ClusterError| {
            let mut timer = RetryTimer::default();
            timer.fail(error, now);
            timer.shorten(now);
            timer.not_before.unwrap() - now
        };
        assert!(delay(&rejected(500, None)) <= RETRY);
        let requested = delay(&rejected(429, Some(4))).as_secs_f64();
        assert!((4.0..4.5).contains(&requested), "a change does not shorten it: {requested}");
        assert!(delay(&rejected(503, Some(3600))) <= RETRY_LIMIT + 2 * RETRY);
    }

    #[test]
    fn a_change_shortens_a_long_delay() {
        let now = Instant::now();
        let mut timer = RetryTimer::default();
        while timer.not_before.is_none_or(|at| at < now + Duration::from_secs(5)) {
            timer.fail(&rejected(500, None), now);
        }
        timer.shorten(now);
        assert_eq!(timer.not_before, Some(now + RETRY));
    }
}
