//! Keeps repeated messages out of the log.

use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Remembers the state that was last logged, so that it is logged once until it changes.
#[derive(Debug)]
pub struct LastLogged<T = ()>(Mutex<Option<T>>);

impl<T: PartialEq> LastLogged<T> {
    /// Returns true if `value` is not the last one recorded, and records it: the caller should log it.
    pub fn is_new(&self, value: T) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = last.as_ref() != Some(&value);
        *last = Some(value);
        is_new
    }

    /// Forgets the recorded value, so that the next one is logged again. Returns true if there was one.
    pub fn reset(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }
}

impl<T> Default for LastLogged<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Admits one message of a kind per period, and counts the suppressed ones.
#[derive(Debug)]
pub struct LogThrottle {
    period: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    logged: Option<Instant>,
    suppressed: u64,
}

impl LogThrottle {
    /// Returns a throttle that admits its first message at once.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        Self { period, state: Mutex::default() }
    }

    /// Returns the number of messages suppressed since the last one if a message may be logged now, else
    /// `None`.
    pub fn admit(&self) -> Option<u64> {
        let (now, mut state) = (Instant::now(), self.state.lock().unwrap_or_else(PoisonError::into_inner));
        if state.logged.is_some_and(|logged| now - logged < self.period) {
            state.suppressed += 1;
            return None;
        }
        state.logged = Some(now);
        Some(mem::take(&mut state.suppressed))
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
