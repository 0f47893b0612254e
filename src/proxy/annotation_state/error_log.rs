//! The log of errors in annotations. The pods' creators must not be able to flood it.

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

pub(super) struct ErrorLog {
    /// When each kind of error of a pod was last logged.
    logged: BTreeMap<(PodName, ErrorKind), Instant>,
    lines: TokenBucket,
}

impl ErrorLog {
    pub(super) fn new(now: Instant) -> Self {
        Self { logged: BTreeMap::new(), lines: TokenBucket::new(RATE.0, RATE.1, now) }
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
}
