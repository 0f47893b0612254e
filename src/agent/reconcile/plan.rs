//! The input of a reconcile step, the results of its guards, and the plan that it returns.

use tokio::time::Instant;

use super::fingerprint_guard::{Newest, Scope};
use crate::agent::live_object::LiveObject;
use crate::agent::metrics::Outcome;
use crate::agent::observe::{Depth, Scan};
use crate::agent::report::Reason;
use crate::pod_source::{PodCache, PodView};
use crate::topology::ZoneRules;

pub(in super::super) enum Change {
    Scanned {
        scan: Scan,
        start: Instant,
        /// Whether it was requested to read everything.
        is_full: bool,
    },
    ScanFailed(String),
    /// The pods have changed, or a recheck is due.
    Pods(Scope),
}

/// What a step is based on besides the change.
#[derive(Clone, Copy)]
pub(in super::super) struct Context<'a> {
    pub(in super::super) pods: &'a PodCache,
    /// The view of them at the start of the last scan.
    pub(in super::super) view: &'a PodView,
    /// The object before this agent's first write.
    pub(in super::super) live_object: &'a LiveObject,
    pub(in super::super) rules: &'a ZoneRules,
    /// Whether the API server could not be reached the last time: the kubelet may not get its pods from it
    /// either.
    pub(in super::super) is_api_server_unreachable: bool,
}

#[derive(Debug, Default)]
pub(in super::super) struct Plan {
    /// The newest state, if it may be published.
    pub(in super::super) publish: Option<Newest>,
    pub(in super::super) warnings: Vec<String>,
    /// What a kubelet that is starting lacks.
    pub(in super::super) notes: Vec<String>,
    pub(in super::super) events: Vec<(Reason, String)>,
    /// The number of pods that are no longer waited for.
    pub(in super::super) given_up: usize,
    pub(in super::super) outcome: Option<Outcome>,
    /// Whether scans work, or why not; `None` if that is as before.
    pub(in super::super) status: Option<Result<(), String>>,
    pub(in super::super) has_recovered: bool,
    /// Whether the object has the policies that its consumer needs, or why not; `None` if that is as before.
    pub(in super::super) policies: Option<Result<(), String>>,
    /// What the kubelet still lacks, if its state is published all the same.
    pub(super) incomplete: Option<String>,
}

/// The result of a guard.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Check<T = ()> {
    Pass,
    /// Go on with this instead. The text, if any, says what is still missing: it is reported, and everything
    /// is scanned again soon.
    Amend(T, Option<String>),
    /// Do not use this scan: the last accepted one stays.
    Wait {
        why: String,
        retry: Retry,
    },
    /// Go on: the time is up. The Event says what was waited for.
    GiveUp(Reason, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// Soon, with a backoff, and everything: the kubelet is not ready. This is reported like an error.
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

pub(super) struct Stop {
    pub(super) why: String,
    pub(super) retry: Retry,
    pub(super) outcome: Outcome,
}

impl Plan {
    pub(super) fn warn(&mut self, reason: Reason, note: String) {
        self.warnings.push(note.clone());
        self.events.push((reason, note));
    }

    /// Applies the result of a guard, and returns what to go on with. `outcome` is the scan's if the guard
    /// waits.
    pub(super) fn follow<T>(&mut self, check: Check<T>, unchanged: T, outcome: Outcome) -> Result<T, Stop> {
        match check {
            Check::Pass => Ok(unchanged),
            Check::Amend(amended, incomplete) => {
                self.incomplete = self.incomplete.take().or(incomplete);
                Ok(amended)
            }
            Check::GiveUp(reason, note) => {
                self.warn(reason, note);
                Ok(unchanged)
            }
            Check::Wait { why, retry } => Err(Stop { why, retry, outcome }),
        }
    }
}
