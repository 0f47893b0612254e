//! The log of errors in annotations, and of failed lookups. The pods' creators must not be able to flood it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::pod::PodName;
use crate::proxy::annotations::{AnnotationError, ErrorKind};
use crate::util::token_bucket::TokenBucket;

/// A recurring error of a pod is logged again after this time at the earliest.
const REPEAT: Duration = Duration::from_secs(600);
/// Lines per second, and burst.
const RATE: (f64, f64) = (0.2, 20.0);
/// How many errors of lookups are remembered: those of different pods may alternate.
const MAX_LOOKUP_ERRORS: usize = 4;

pub(super) struct ErrorLog {
    /// When each kind of error of a pod was last logged.
    logged: BTreeMap<(PodName, ErrorKind), Instant>,
    lines: TokenBucket,
    /// The errors of lookups that were logged last, the newest first.
    lookup_errors: Vec<String>,
}

impl ErrorLog {
    pub(super) fn new(now: Instant) -> Self {
        let lines = TokenBucket::new(RATE.0, RATE.1, now);
        Self { logged: BTreeMap::new(), lines, lookup_errors: Vec::new() }
    }

    /// Logs each error unless the same kind was logged for the same pod recently, or there are too many.
    pub(super) fn log<'a>(&mut self, errors: impl Iterator<Item = &'a AnnotationError>, now: Instant) {
        self.logged.retain(|_, at| now.duration_since(*at) < REPEAT);
        for error in errors {
            let key = (error.pod.clone(), error.kind);
            if !self.logged.contains_key(&key) && self.lines.take_now(now) {
                warn!("{}", error.message);
                self.logged.insert(key, now);
            }
        }
    }

    /// Logs why a pod could not be looked up, unless that is one of the errors logged last.
    pub(super) fn log_failed_lookup(&mut self, error: String) {
        if !self.lookup_errors.contains(&error) {
            warn!("cannot look up a pod that the kubelet lists: {error}");
            self.lookup_errors.insert(0, error);
            self.lookup_errors.truncate(MAX_LOOKUP_ERRORS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternating_errors_of_lookups_are_logged_once() {
        let mut log = ErrorLog::new(Instant::now());
        ["a", "b", "a", "b"].into_iter().for_each(|error| log.log_failed_lookup(error.to_owned()));
        assert_eq!(log.lookup_errors, ["b", "a"]);
        (0..9).for_each(|number| log.log_failed_lookup(number.to_string()));
        assert_eq!(log.lookup_errors, ["8", "7", "6", "5"]);
    }
}
