//! A token bucket rate limiter. `governor` and `tower::limit` have no bucket that goes into debt, which
//! reserves a place in the queue, or whose cost is known only afterwards.

use std::time::Duration;

use tokio::time::Instant;

/// Refills at a steady rate up to a burst.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    per_second: f64,
    burst: f64,
    /// Negative while the bucket is in debt.
    tokens: f64,
    /// When `tokens` was computed.
    at: Instant,
}

impl TokenBucket {
    /// Returns a full bucket.
    pub(crate) fn new(per_second: f64, burst: f64, now: Instant) -> Self {
        Self { per_second, burst, tokens: burst, at: now }
    }

    fn tokens_at(&self, now: Instant) -> f64 {
        let refilled = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        (self.tokens + refilled).min(self.burst)
    }

    /// Takes a token if one is available now.
    pub(crate) fn take_now(&mut self, now: Instant) -> bool {
        let tokens = self.tokens_at(now);
        if tokens < 1.0 {
            return false;
        }
        (self.tokens, self.at) = (tokens - 1.0, now);
        true
    }

    /// Returns true if the bucket is full.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.tokens_at(now) >= self.burst
    }

    /// Returns how long until a token is available.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        Duration::from_secs_f64((1.0 - self.tokens_at(now)).max(0.0) / self.per_second)
    }

    /// Takes a token and returns how long to wait before using it; the bucket may go into debt.
    pub(crate) fn take(&mut self, now: Instant) -> Duration {
        self.take_many(1, now)
    }

    /// Takes `count` tokens and returns how long to wait before using them; the bucket may go into debt.
    pub(crate) fn take_many(&mut self, count: u32, now: Instant) -> Duration {
        (self.tokens, self.at) = (self.tokens_at(now) - f64::from(count), now);
        Duration::from_secs_f64((-self.tokens).max(0.0) / self.per_second)
    }

    /// Takes `count` tokens, which may be a fraction and more than there are, unless the bucket is empty or
    /// in debt. Returns whether it did.
    pub(crate) fn take_unless_in_debt(&mut self, count: f64, now: Instant) -> bool {
        (self.tokens, self.at) = (self.tokens_at(now), now);
        let has_tokens = self.tokens > 0.0;
        if has_tokens {
            self.tokens -= count;
        }
        has_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_burst_the_rate_applies() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(10.0, 4.0, start);
        let waits: Vec<u128> = (0..6).map(|_| bucket.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 100, 200]);
        // A minute later the debt is paid; the bucket is full again, and no more than full.
        let later = start + Duration::from_secs(60);
        let waits: Vec<u128> = (0..5).map(|_| bucket.take(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 100]);
    }

    #[test]
    fn nothing_is_taken_while_in_debt() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(1.0, 1.0, start);
        let mut taken =
            |tenths: u64| bucket.take_unless_in_debt(0.7, start + Duration::from_millis(100 * tenths));
        assert_eq!([0, 0, 3, 5, 6].map(&mut taken), [true, true, false, true, false]);
    }

    #[test]
    fn a_token_is_available_after_the_wait() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(25.0, 5.0, start);
        let mut now = start;
        for taken in 0..100 {
            let wait = bucket.wait(now);
            assert_eq!(wait.is_zero(), bucket.take_now(now), "{taken}");
            if !wait.is_zero() {
                now += wait;
                assert!(bucket.take_now(now) || bucket.wait(now) <= Duration::from_nanos(1), "{taken}");
            }
        }
    }
}
