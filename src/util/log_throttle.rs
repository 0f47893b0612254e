//! Keeps repeated messages out of the log.

use std::mem;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::sync::lock;

/// Remembers the state that was last logged, so that it is logged once until it changes.
#[derive(Debug)]
pub struct LastLogged<T = ()>(Mutex<Option<T>>);

impl<T: PartialEq> LastLogged<T> {
    /// Returns true if `value` is not the last one recorded, and records it: the caller should log it.
    pub fn is_new(&self, value: T) -> bool {
        let mut last = lock(&self.0);
        let is_new = last.as_ref() != Some(&value);
        *last = Some(value);
        is_new
    }

    /// Forgets the recorded value, so that the next one is logged again. Returns true if there was one.
    pub fn reset(&self) -> bool {
        lock(&self.0).take().is_some()
    }
}

impl<T> Default for LastLogged<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Logs a lasting problem once, and its end once.
pub(crate) type LogOnce = LastLogged<String>;

impl LogOnce {
    /// Logs a warning, unless it equals the last one.
    pub(crate) fn warn(&self, message: &str) {
        if self.is_new(message.to_owned()) {
            warn!("{message}");
        }
    }

    /// Logs that the problem is over, if there was one.
    pub(crate) fn recovered(&self, message: &str) {
        if self.reset() {
            info!("{message}");
        }
    }
}

/// Admits one message of a kind per period, and counts the suppressed ones.
#[derive(Debug)]
pub struct LogThrottle {
    period: Duration,
    /// When a message was last admitted, and how many were suppressed since.
    last: Mutex<(Option<Instant>, u64)>,
}

impl LogThrottle {
    /// Returns a throttle that admits its first message at once.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        Self { period, last: Mutex::default() }
    }

    /// Returns the number of messages suppressed since the last one if a message may be logged now, else
    /// `None`.
    pub fn admit(&self) -> Option<u64> {
        let (now, mut last) = (Instant::now(), lock(&self.last));
        let (logged, suppressed) = &mut *last;
        if logged.is_some_and(|logged| now - logged < self.period) {
            *suppressed += 1;
            return None;
        }
        *logged = Some(now);
        Some(mem::take(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_new_until_it_is_repeated() {
        let log = LastLogged::default();
        assert_eq!([1, 1, 2, 1].map(|value| log.is_new(value)), [true, false, true, true]);
        assert!(log.reset() && !log.reset());
        assert!(log.is_new(1));
    }

    #[tokio::test(start_paused = true)]
    async fn one_message_is_admitted_per_period() {
        let throttle = LogThrottle::new(Duration::from_secs(60));
        assert_eq!([(); 3].map(|()| throttle.admit()), [Some(0), None, None]);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!([(); 2].map(|()| throttle.admit()), [Some(2), None]);
    }
}
