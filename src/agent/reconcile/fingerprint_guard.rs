//! Combines the newest account with the pods that the cluster knows: decides what is published, and when.
//!
//! Pods change between two scans, and a scan takes as long as the kubelet needs. Meanwhile the fingerprint is
//! withheld if necessary, and what bound pods will be allocated is reserved at once if the zones include
//! reservations.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::account::Account;
use super::bound_pods::BoundPods;
use super::write_delay::WriteDelay;
use crate::agent::report::Reason;
use crate::pod::PodName;
use crate::pod_source::PodCache;
use crate::scheduler::{Decision, FingerprintGate, FingerprintView, GateSettings, Publishable, Verdict};
use crate::topology::NodeExclusions;

/// How long the first object waits for the node's pods to be synced; also how long `--once` does before its
/// first scan.
pub(in super::super) const FIRST_LIST: Duration = Duration::from_secs(2);
/// Like [`FIRST_LIST`], if only reservations protect a pod that was bound before: longer than the backoff
/// after one failed list.
const FIRST_LIST_TO_RESERVE: Duration = Duration::from_secs(12);
/// A warning is logged if no source has listed the node's pods after this time. Longer than the backoff of a list that
/// failed: an API server that has just started may forbid what it will allow a moment later.
const WARN_AFTER: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Scope {
    All,
    /// Only a withheld fingerprint, and reservations: everything else can wait for the scan that is due.
    Urgent,
}

#[derive(Debug)]
pub(in super::super) struct Newest {
    pub(in super::super) publishable: Publishable,
    pub(in super::super) verdict: Verdict,
    pub(in super::super) is_new: bool,
}

/// What is to be reported about pods.
#[derive(Debug, Default)]
pub(super) struct PodReport {
    /// Events, which are also logged as warnings.
    pub(super) events: Vec<(Reason, String)>,
    /// The number of pods that are no longer waited for.
    pub(super) given_up: usize,
}

/// What a verdict depends on: the version of the pods, the number of the account, and whether the kubelet
/// responds. The same input has the same verdict until the gate is due to be evaluated again.
type InputVersion = (u64, u64, bool);

#[derive(Debug)]
pub(in super::super) struct FingerprintGuard {
    gate: FingerprintGate,
    /// The gate's times count from here.
    started: Instant,
    /// Since when only the node's pods are missing: the API server has responded by then.
    waiting_since: Option<Instant>,
    pub(in super::super) account: Option<Account>,
    accounts: u64,
    /// Whether the last scan was accepted.
    pub(super) is_responding: bool,
    pub(in super::super) bound_pods: BoundPods,
    delay: WriteDelay,
    last: Option<Publishable>,
    /// The last input, and whether the whole verdict on it was published or is delayed.
    evaluated: Option<(InputVersion, bool)>,
    pub(in super::super) recheck_at: Option<Instant>,
    is_reported: bool,
}

impl FingerprintGuard {
    pub(super) fn new(settings: GateSettings, started: Instant) -> Self {
        Self {
            gate: FingerprintGate::new(settings),
            started,
            waiting_since: None,
            account: None,
            accounts: 0,
            is_responding: false,
            bound_pods: BoundPods::default(),
            delay: WriteDelay::default(),
            last: None,
            evaluated: None,
            recheck_at: None,
            is_reported: false,
        }
    }

    pub(super) fn accept(&mut self, account: Account) {
        self.is_responding = true;
        self.accounts += 1;
        self.bound_pods.scanned(account.scan.has_cpu_checkpoint);
        self.account = Some(account);
    }

    /// Returns the UIDs of the pods for which the account is the truth, as of the last check.
    pub(in super::super) fn settled_pods(&self) -> BTreeSet<String> {
        self.gate.settled_pods().map(str::to_owned).collect()
    }

    /// Returns the pods that the published fingerprint covers.
    pub(in super::super) fn covered_pods(&self, pods: &PodCache, exclude: &NodeExclusions) -> Vec<PodName> {
        let Some(account) = &self.account else { return Vec::new() };
        let input = account.gate_input(self.accounts, self.is_responding, exclude);
        pods.with(|pods| self.gate.covered_pods(pods, &input))
    }

    /// Evaluates the newest account and the pods. Returns what may be published: the account with
    /// fingerprint, reservations and placement; `None` if nothing has changed, or the change has to wait. Adds
    /// what is to be reported to `report`.
    pub(super) fn check(
        &mut self,
        pods: &PodCache,
        exclude: &NodeExclusions,
        scope: Scope,
        now: Instant,
        report: &mut PodReport,
    ) -> Option<Newest> {
        let version = (pods.version(), self.accounts, self.is_responding);
        if self.is_evaluated(version, scope, now) {
            return None;
        }
        self.recheck_at = None;
        if self.account.is_none() || self.waits_for_pods(pods, now, report) {
            return None;
        }
        let verdict = self.evaluate(pods, exclude, now)?;
        self.schedule(&verdict, now);
        report.given_up += verdict.given_up.len();
        report.events.extend(verdict.given_up.iter().filter_map(|pod| self.given_up(pod)));
        let is_published = match scope {
            Scope::All => verdict.decision != Decision::Wait,
            Scope::Urgent => self.gate.settings.reserve || matches!(verdict.decision, Decision::Withhold(_)),
        };
        self.evaluated = Some((version, scope == Scope::All || is_published));
        if is_published { self.newest(verdict, pods, exclude, now) } else { None }
    }

    /// Returns true if the gate was evaluated with this input and is not due yet. In the whole scope, the
    /// verdict must have been published, too.
    fn is_evaluated(&self, version: InputVersion, scope: Scope, now: Instant) -> bool {
        let is_early = self.recheck_at.is_none_or(|at| now < at);
        let is_done = |(known, is_whole): (InputVersion, bool)| {
            known == version && (is_whole || scope == Scope::Urgent)
        };
        is_early && self.evaluated.is_some_and(is_done)
    }

    fn evaluate(&mut self, pods: &PodCache, exclude: &NodeExclusions, now: Instant) -> Option<Verdict> {
        let input = self.account.as_ref()?.gate_input(self.accounts, self.is_responding, exclude);
        let (gate, at) = (&mut self.gate, now.duration_since(self.started));
        Some(pods.with(|pods| gate.evaluate(pods, &input, at)))
    }

    /// Returns true while the first object waits for the pods: until they are known, no fingerprint can match
    /// and nothing can be reserved. The wait is limited.
    fn waits_for_pods(&mut self, pods: &PodCache, now: Instant, report: &mut PodReport) -> bool {
        let GateSettings { view, reserve, .. } = self.gate.settings;
        let is_scheduler_view = view == FingerprintView::Scheduler;
        if pods.is_synced() || !is_scheduler_view && !reserve {
            return false;
        }
        // In the scheduler's view, the fingerprint of an object that is written without the pods is withheld.
        let limit = if is_scheduler_view { FIRST_LIST } else { FIRST_LIST_TO_RESERVE };
        let since = *self.waiting_since.get_or_insert(now);
        let (deadline, warn_at) = (since + limit, since + WARN_AFTER);
        if now < deadline {
            self.recheck_at = Some(deadline);
            return true;
        }
        if now < warn_at {
            self.recheck_at = Some(warn_at);
        } else if !self.is_reported {
            self.is_reported = true;
            report.events.push((Reason::PodsUnknown, pods_unknown(is_scheduler_view, pods.error())));
        }
        false
    }

    fn schedule(&mut self, verdict: &Verdict, now: Instant) {
        let recheck_at = verdict.recheck_at.map(|at| self.started + at);
        self.recheck_at = earliest([self.recheck_at, recheck_at, self.delay.due(now)]);
        self.bound_pods.update(&verdict.unaccounted, self.is_responding, now);
    }

    /// Describes that a pod is not waited for any longer; `None` if nothing in the object waits for it.
    fn given_up(&self, (namespace, name): &PodName) -> Option<(Reason, String)> {
        let GateSettings { view, give_up_after, reserve, .. } = self.gate.settings;
        let pod = format!("{namespace}/{name}");
        let what =
            format!("the kubelet has neither admitted nor rejected the pod {pod} within {give_up_after:?}");
        let consequence = if view == FingerprintView::Scheduler {
            "the fingerprint is not withheld for it any longer"
        } else if reserve {
            "nothing is reserved for it any longer"
        } else {
            debug!("{what}; no more scans are made for it");
            return None;
        };
        Some((Reason::PodAdmissionTimeout, format!("{what}; {consequence}")))
    }

    /// Combines the account with the verdict; `None` if that is a change to be written later.
    fn newest(
        &mut self,
        verdict: Verdict,
        pods: &PodCache,
        exclude: &NodeExclusions,
        now: Instant,
    ) -> Option<Newest> {
        let input = self.account.as_ref()?.gate_input(self.accounts, self.is_responding, exclude);
        let publishable = pods.with(|pods| self.gate.publishable(pods, &input, &verdict));
        let is_new = self.last.as_ref() != Some(&publishable);
        if !is_new {
            self.delay.confirm(&publishable);
        } else if self.delays(&publishable, now) {
            return None;
        } else {
            self.last = Some(publishable.clone());
        }
        Some(Newest { publishable, verdict, is_new })
    }

    /// Returns true if the change is delayed. Nothing is delayed if consumers use the object without the
    /// scheduler plugin's cache, or with reservations.
    fn delays(&mut self, next: &Publishable, now: Instant) -> bool {
        let GateSettings { view, reserve, .. } = self.gate.settings;
        let Some(last) = &self.last else { return false };
        if view != FingerprintView::Scheduler || reserve {
            return false;
        }
        let is_delayed = self.delay.delays(last, next, now);
        self.recheck_at = earliest([self.recheck_at, self.delay.due(now)]);
        is_delayed
    }
}

fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
    times.into_iter().flatten().min()
}

fn pods_unknown(is_scheduler_view: bool, cause: Option<String>) -> String {
    let consequence = match is_scheduler_view {
        true => "the scheduler plugin cannot use its NodeResourceTopology",
        false => "its NodeResourceTopology reserves nothing for bound pods",
    };
    let cause = cause.unwrap_or_else(|| "their source has not responded yet".to_owned());
    format!("the node's pods have not been listed since the agent started, so {consequence}: {cause}")
}

#[cfg(test)]
mod tests;
