//! The kubelet's rate limiter: one token bucket for all clients of both API versions.

use std::time::Instant;

/// Sustained requests per second.
const RATE: f64 = 100.0;
/// Requests in a burst.
const BURST: f64 = 10.0;

/// A token bucket that starts full.
#[derive(Debug)]
pub(super) struct Limiter {
    tokens: f64,
    refilled: Instant,
}

impl Limiter {
    pub(super) fn new(now: Instant) -> Self {
        Self { tokens: BURST, refilled: now }
    }

    /// Takes a token. Returns false if the request is to be rejected.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.refilled).as_secs_f64() * RATE;
        self.tokens = (self.tokens + earned).min(BURST);
        self.refilled = now;
        let admitted = self.tokens >= 1.0;
        if admitted {
            self.tokens -= 1.0;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_of_ten_is_admitted_then_one_every_ten_milliseconds() {
        let start = Instant::now();
        let mut limiter = Limiter::new(start);
        assert_eq!((0..20).filter(|_| limiter.admit(start)).count(), 10);
        assert!(!limiter.admit(start + Duration::from_millis(9)));
        assert!(limiter.admit(start + Duration::from_millis(20)));
        let later = start + Duration::from_secs(60);
        assert_eq!((0..20).filter(|_| limiter.admit(later)).count(), 10, "the number of tokens is bounded");
    }
}
