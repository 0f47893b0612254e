//! What is observed, and what follows from it.

use tokio::time::Instant;

use super::check::{Check, Retry};
use super::fingerprint_guard::{Newest, Scope};
use crate::agent::live_object::LiveObject;
use crate::agent::metrics::Outcome;
use crate::agent::observe::Scan;
use crate::agent::report::Reason;
use crate::pod_source::{PodCache, PodView};
use crate::topology::Rules;

/// What is new since the last step.
pub(in crate::agent) enum Change {
    /// The node was scanned.
    Scanned {
        /// The scan.
        scan: Scan,
        /// When it began.
        start: Instant,
        /// Whether it was requested to read everything.
        is_full: bool,
    },
    /// The scan failed, for this reason.
    ScanFailed(String),
    /// The pods, or the time.
    Pods(Scope),
}

/// What a step is based on besides the change.
#[derive(Clone, Copy)]
pub(in crate::agent) struct Context<'a> {
    /// The node's pods.
    pub(in crate::agent) pods: &'a PodCache,
    /// The view of them at the start of the last scan.
    pub(in crate::agent) view: &'a PodView,
    /// The object before this agent's first write.
    pub(in crate::agent) live_object: &'a LiveObject,
    /// How to compute the topology.
    pub(in crate::agent) rules: &'a Rules,
    /// Whether the API server, from which the kubelet gets its pods, does not respond.
    pub(in crate::agent) is_api_server_down: bool,
}

/// What follows from an observation.
#[derive(Debug, Default)]
pub(in crate::agent) struct Plan {
    /// The newest state, if it may be published.
    pub(in crate::agent) publish: Option<Newest>,
    /// New warnings for the log.
    pub(in crate::agent) warnings: Vec<String>,
    /// Kubernetes Events to post.
    pub(in crate::agent) events: Vec<(Reason, String)>,
    /// The outcome of the scan, if there was one.
    pub(in crate::agent) outcome: Option<Outcome>,
    /// Whether scans work, or why not; `None` if that is as before.
    pub(in crate::agent) status: Option<Result<(), String>>,
    /// Whether the scans before failed.
    pub(in crate::agent) has_recovered: bool,
    /// What the kubelet still lacks, if its state is published all the same.
    pub(super) incomplete: Option<String>,
}

/// Why a scan is not accepted.
pub(super) struct Stop {
    pub(super) why: String,
    pub(super) retry: Retry,
    pub(super) outcome: Outcome,
}

impl Plan {
    /// Logs a warning and posts it as an Event.
    pub(super) fn warn(&mut self, reason: Reason, note: String) {
        self.warnings.push(note.clone());
        self.events.push((reason, note));
    }

    /// Follows a guard: returns what to go on with. `outcome` is the scan's if the guard waits.
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
