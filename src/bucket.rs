//! A token bucket rate limiter.

use std::time::Duration;

use tokio::time::Instant;

/// Fills at a steady rate up to a burst.
#[derive(Debug)]
pub(crate) struct Bucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// Returns a full bucket.
    pub(crate) fn new(per_second: f64, burst: f64, now: Instant) -> Self {
        Self { per_second, burst, tokens: burst, at: now }
    }

    /// Takes a token if one is available now.
    pub(crate) fn take_now(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        let tokens = (self.tokens + earned).min(self.burst);
        if tokens < 1.0 {
            return false;
        }
        (self.tokens, self.at) = (tokens - 1.0, now);
        true
    }

    /// Returns true if the bucket is full.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        self.tokens + earned >= self.burst
    }

    /// Returns how long until a token is available.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        Duration::from_secs_f64((1.0 - self.tokens - earned).max(0.0) / self.per_second)
    }

    /// Takes a token and returns how long to wait before using it; the bucket may go into debt.
    pub(crate) fn take(&mut self, now: Instant) -> Duration {
        self.take_many(1, now)
    }

    /// Takes `count` tokens, which may be a fraction and more than there are, unless the bucket is empty or
    /// in debt. Returns whether it did.
    pub(crate) fn take_unless_in_debt(&mut self, count: f64, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        (self.tokens, self.at) = ((self.tokens + earned).min(self.burst), now);
        let any = self.tokens > 0.0;
        if any {
            self.tokens -= count;
        }
        any
    }

    /// Takes `count` tokens and returns how long to wait before using them; the bucket may go into debt.
    pub(crate) fn take_many(&mut self, count: u32, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + earned).min(self.burst) - f64::from(count);
        self.at = now;
        if self.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-self.tokens / self.per_second)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10.0, 4.0, start);
        let waits: Vec<u128> = (0..6).map(|_| bucket.take(start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 100, 200]);
        // A minute later the debt is paid; the bucket is full again, and no more than full.
        let later = start + Duration::from_secs(60);
        let waits: Vec<u128> = (0..5).map(|_| bucket.take(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 100]);
    }

    #[test]
    fn whoever_took_too_much_waits_until_that_is_earned() {
        let start = Instant::now();
        let mut bucket = Bucket::new(1.0, 1.0, start);
        let mut taken =
            |tenths: u64| bucket.take_unless_in_debt(0.7, start + Duration::from_millis(100 * tenths));
        assert_eq!([0, 0, 3, 5, 6].map(&mut taken), [true, true, false, true, false]);
    }

    #[test]
    fn who_waits_as_long_as_told_gets_a_token() {
        let start = Instant::now();
        let mut bucket = Bucket::new(25.0, 5.0, start);
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
