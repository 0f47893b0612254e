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

pub(in crate::agent) enum Change {
    Scanned {
        scan: Scan,
        start: Instant,
        /// Whether it was requested to read everything.
        is_full: bool,
    },
    ScanFailed(String),
    /// The pods, or the time.
    Pods(Scope),
}

/// What a step is based on besides the change.
#[derive(Clone, Copy)]
pub(in crate::agent) struct Context<'a> {
    pub(in crate::agent) pods: &'a PodCache,
    /// The view of them at the start of the last scan.
    pub(in crate::agent) view: &'a PodView,
    /// The object before this agent's first write.
    pub(in crate::agent) live_object: &'a LiveObject,
    pub(in crate::agent) rules: &'a Rules,
    /// Whether the API server, from which the kubelet gets its pods, does not respond.
    pub(in crate::agent) is_api_server_down: bool,
}

#[derive(Debug, Default)]
pub(in crate::agent) struct Plan {
    /// The newest state, if it may be published.
    pub(in crate::agent) publish: Option<Newest>,
    pub(in crate::agent) warnings: Vec<String>,
    pub(in crate::agent) events: Vec<(Reason, String)>,
    pub(in crate::agent) outcome: Option<Outcome>,
    /// Whether scans work, or why not; `None` if that is as before.
    pub(in crate::agent) status: Option<Result<(), String>>,
    pub(in crate::agent) has_recovered: bool,
    /// What the kubelet still lacks, if its state is published all the same.
    pub(super) incomplete: Option<String>,
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
