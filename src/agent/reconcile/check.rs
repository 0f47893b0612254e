//! The result of a guard.

use tokio::time::Instant;

use crate::agent::observe::Depth;
use crate::agent::report::Reason;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Check<T = ()> {
    Pass,
    /// Go on with this instead. The text, if any, says what is still missing: it is reported, and everything
    /// is scanned again soon.
    Amend(T, Option<String>),
    /// Publish nothing: the last good object stays.
    Wait {
        why: String,
        retry: Retry,
    },
    /// Go on: the time is up. The Event says what was waited for.
    GiveUp(Reason, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// Soon, with a backoff, and everything: the kubelet is not ready. The reason is reported like an error.
    Backoff,
    At(Instant, Depth),
    /// When something changes; at the latest with the next scan of everything.
    Later,
}

impl<T> Check<T> {
    pub(super) fn not_ready(why: String) -> Self {
        Self::Wait { why, retry: Retry::Backoff }
    }
}
