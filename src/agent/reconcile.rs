//! Decides what to publish, and when to scan next. Pure: no I/O, and the time is an argument.
//!
//! A scan passes guards, the list in [`Reconciler::accept`]: each may amend it, or keep the last good object
//! for now. What they accept is an [`Account`], which does not change any more. The last guard combines it
//! with the node's pods, also when only these have changed.

mod account;
mod admission_guard;
mod bound_pods;
mod fingerprint_guard;
mod plan;
mod policy_carryover;
mod remembered_resources;
mod restart_guard;
mod schedule;
mod startup_guard;
mod write_delay;

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use crate::agent::live_object::LiveObject;
use crate::agent::metrics::Outcome;
use crate::agent::observe::{Depth, Scan};
use crate::agent::report::Reason;
use crate::agent::reused_names::ReusedNames;
use crate::agent::settings::Settings;
use crate::kubelet::{PodUsage, Usage};
use crate::pod::{PodName, TerminatedPodNames};
use crate::pod_source::{PodCache, PodView};
use crate::topology::Finding;

pub use account::Account;
pub(super) use fingerprint_guard::{FIRST_LIST, Scope};
pub(super) use plan::{Change, Context, Plan};
pub(super) use schedule::Requeue;

use admission_guard::AdmissionGuard;
use fingerprint_guard::{FingerprintGuard, PodReport};
use plan::{Check, Retry, Stop};
use policy_carryover::{Demand, PolicyCarryover};
use remembered_resources::RememberedResources;
use restart_guard::{KnownPods, RestartGuard};
use schedule::Schedule;
use startup_guard::{PodListCheck, StartupGuard};

#[derive(Debug)]
pub(super) struct Reconciler {
    pub(super) has_pod_source: bool,
    reused_names: ReusedNames,
    pub(super) restart: RestartGuard,
    admission: AdmissionGuard,
    startup: StartupGuard,
    policies: PolicyCarryover,
    remembered: RememberedResources,
    pub(super) fingerprint: FingerprintGuard,
    pub(super) schedule: Schedule,
    /// The next scan, if nothing happens before.
    pub(super) requeue: Requeue,
    has_live_object: bool,
    warnings: BTreeSet<String>,
    /// What a kubelet that is not ready lacks.
    note: Option<String>,
}

/// Why a scan was not accepted.
enum Failure {
    /// The kubelet needs a moment: worth a warning only if that lasts.
    NotReady(String),
    Error(String),
}

impl Reconciler {
    pub(super) fn new(settings: &Settings, now: Instant) -> Self {
        let schedule = Schedule::new(settings.poll, now);
        let has_source = settings.kubelet_config.is_configured();
        let demand = Demand { is_needed: settings.needs_policies, has_source };
        Self {
            has_pod_source: !settings.pods.order.is_empty(),
            reused_names: ReusedNames::default(),
            restart: RestartGuard::new(&settings.node, settings.restart_wait),
            admission: AdmissionGuard::default(),
            startup: StartupGuard::new(now, settings.restart_wait),
            policies: PolicyCarryover::new(demand, settings.restart_wait, now),
            remembered: RememberedResources::default(),
            fingerprint: FingerprintGuard::new(settings.gate.clone(), now),
            requeue: schedule.full_scan(),
            schedule,
            has_live_object: false,
            warnings: BTreeSet::new(),
            note: None,
        }
    }

    pub(super) fn step(&mut self, change: Change, context: &Context<'_>, now: Instant) -> Plan {
        let mut plan = Plan::default();
        match change {
            Change::Scanned { scan, start, is_full } => {
                if is_full {
                    self.schedule.full_scan_done(start);
                }
                match self.accept(scan, context, now, &mut plan) {
                    Ok(account) => self.accepted(account, context, now, &mut plan),
                    Err(stop) => self.stopped(stop, context, now, &mut plan),
                }
            }
            Change::ScanFailed(error) => {
                plan.outcome = Some(Outcome::Failed);
                let next = self.schedule.failed(now);
                self.failed(Failure::Error(error), next, context, now, &mut plan);
            }
            Change::Pods(scope) => self.check_fingerprint(context, scope, now, &mut plan),
        }
        plan
    }

    /// Passes a scan to the guards, in this order, and computes its topology.
    fn accept(
        &mut self,
        scan: Scan,
        context: &Context<'_>,
        now: Instant,
        plan: &mut Plan,
    ) -> Result<Account, Stop> {
        use Outcome::{ConfigUnknown, KubeletNotReady, ObjectUnknown, PodAdmission};
        let Context { pods, view, .. } = *context;

        let terminated = self.find_reused_names(&scan, view, now);
        let check = self.check_restart(&scan, context, now);
        let usage = plan.follow(check, Arc::clone(&scan.usage), KubeletNotReady)?;
        self.reused_names.accept(&usage, &view.terminated);
        let scan = Scan { usage, terminated, ..scan };

        plan.follow(self.admission.check(&scan, now), (), PodAdmission)?;
        plan.follow(self.adopt_live_object(context.live_object, &scan, now), (), ObjectUnknown)?;
        plan.follow(self.startup.check_config(&scan, now), (), ConfigUnknown)?;
        plan.policies = Some(self.policies.missing(&scan.config).map_or(Ok(()), Err));
        if let Some(note) = self.policies.report(&scan.config, now) {
            plan.warn(Reason::PoliciesUnknown, note);
        }
        let policies = plan.follow(self.policies.check(&scan.config, now), None, KubeletNotReady)?;
        let remembered = self.remembered.update(&scan, now);
        let account = Account::new(scan, policies.as_deref(), &remembered, context.rules);

        let (usage, is_first_moment) = (&account.scan.usage, self.startup.is_first_moment(now));
        let expects_source = self.has_pod_source && is_first_moment;
        let list_check = || check_list(usage, pods, view, expects_source);
        let check = self.startup.check(&account.topology, usage.has_allocations(), list_check, now);
        plan.follow(check, (), KubeletNotReady)?;
        self.policies.accept(account.scan.config.confidence);
        Ok(account)
    }

    /// Returns the terminated pods of the scan without those whose names new pods have taken.
    fn find_reused_names(&mut self, scan: &Scan, view: &PodView, now: Instant) -> TerminatedPodNames {
        let Scan { usage, terminated, .. } = scan;
        let found = self.reused_names.find(usage, terminated, &view.terminated, view.is_up_to_date, now);
        found.unwrap_or_else(|| Arc::clone(terminated))
    }

    fn check_restart(&mut self, scan: &Scan, context: &Context<'_>, now: Instant) -> Check<Arc<Usage>> {
        let Context { pods, view, is_api_server_unreachable, .. } = *context;
        let is_live = |name: &PodName| pods.has_live(name);
        let is_gone = |name: &PodName| pods.is_gone(name);
        let is_missing_since = |name: &PodName, since| pods.lacks_since(name, since);
        let known_pods =
            KnownPods { is_live: &is_live, is_gone: &is_gone, is_missing_since: &is_missing_since };
        self.restart.check(scan, is_api_server_unreachable, view.is_up_to_date.then_some(known_pods), now)
    }

    /// Waits until the live object is known; then the guards adopt what they need of it.
    fn adopt_live_object(&mut self, live_object: &LiveObject, scan: &Scan, now: Instant) -> Check {
        // Once known, it does not change any more.
        if self.has_live_object {
            return Check::Pass;
        }
        if matches!(live_object, LiveObject::Unknown) {
            let why = "the object in the API server is not known yet".to_owned();
            return Check::Wait { why, retry: Retry::Later };
        }
        self.remembered.adopt(live_object.devices(), now);
        self.policies.adopt(live_object);
        self.startup.adopt(live_object, scan.socket_age, now);
        self.has_live_object = true;
        Check::Pass
    }

    fn accepted(&mut self, account: Account, context: &Context<'_>, now: Instant, plan: &mut Plan) {
        plan.outcome = Some(Outcome::Success);
        let findings = &account.topology.findings;
        let warnings = account.scan.errors().cloned().chain(findings.iter().map(ToString::to_string));
        if self.set_warnings(warnings.chain(plan.incomplete.clone()).collect(), plan) {
            let unpublished = findings.iter().filter(|it| matches!(it, Finding::UnpublishedNodes(_)));
            plan.events.extend(unpublished.map(|it| (Reason::NodesNotPublished, it.to_string())));
        }
        if plan.incomplete.is_none() {
            plan.status = Some(Ok(()));
            let was_starting = self.note.take().is_some();
            plan.has_recovered = self.schedule.recovered() && !was_starting;
        }
        self.fingerprint.accept(account);
        self.check_fingerprint(context, Scope::All, now, plan);
        if plan.publish.as_ref().is_some_and(|newest| newest.is_new) {
            self.schedule.poll.record_change(now);
        }
        self.requeue = match (&plan.incomplete, &self.fingerprint.account) {
            (None, Some(account)) => self.schedule.after(&account.scan, context.view, now),
            _ => Schedule::soon(now),
        };
    }

    fn stopped(&mut self, stop: Stop, context: &Context<'_>, now: Instant, plan: &mut Plan) {
        plan.outcome = Some(stop.outcome);
        match stop.retry {
            Retry::Backoff => {
                let next = self.schedule.not_ready(now);
                self.failed(Failure::NotReady(stop.why), next, context, now, plan);
            }
            Retry::At(at, depth) => self.requeue = Requeue { at, depth },
            Retry::Later => self.requeue = self.schedule.full_scan(),
        }
    }

    /// Keeps the last good object and reports why. Changes of pods that waited for this scan are published
    /// now, because the following scans may fail too.
    fn failed(
        &mut self,
        failure: Failure,
        (next, is_long): (Requeue, bool),
        context: &Context<'_>,
        now: Instant,
        plan: &mut Plan,
    ) {
        self.fingerprint.is_responding = false;
        self.check_fingerprint(context, Scope::All, now, plan);
        self.fingerprint.bound_pods.scan_at = None;
        let error = match failure {
            Failure::NotReady(why) if !is_long => self.note(why, plan),
            Failure::NotReady(error) | Failure::Error(error) => self.warn(error, is_long, plan),
        };
        plan.status = Some(Err(error));
        self.requeue = next;
    }

    /// Says once what a kubelet that is starting lacks, and returns it.
    fn note(&mut self, why: String, plan: &mut Plan) -> String {
        if self.note.replace(why.clone()).is_none_or(|before| before != why) {
            plan.notes.push(why.clone());
        }
        why
    }

    /// Warns of an error, with an Event if the node has been unreadable for long, and returns it.
    fn warn(&mut self, error: String, is_long: bool, plan: &mut Plan) -> String {
        self.note = None;
        if is_long {
            plan.events.push((Reason::NodeUnreadable, error.clone()));
        }
        self.set_warnings([error.clone()].into(), plan);
        error
    }

    fn check_fingerprint(&mut self, context: &Context<'_>, scope: Scope, now: Instant, plan: &mut Plan) {
        let Context { pods, rules, .. } = *context;
        let mut report = PodReport::default();
        plan.publish = self.fingerprint.check(pods, &rules.exclude, scope, now, &mut report);
        plan.given_up = report.given_up;
        report.events.into_iter().for_each(|(reason, note)| plan.warn(reason, note));
    }

    /// Adds the warnings to the plan that were not there in the last step. Returns true if there are any.
    fn set_warnings(&mut self, warnings: BTreeSet<String>, plan: &mut Plan) -> bool {
        let before = plan.warnings.len();
        plan.warnings.extend(warnings.difference(&self.warnings).cloned());
        self.warnings = warnings;
        plan.warnings.len() > before
    }

    /// Prepares a scan. Returns the terminated pods, which kubelets before 1.34 still list.
    pub(super) fn start_scan(&mut self, view: &PodView, pods: &PodCache) -> TerminatedPodNames {
        self.reused_names.update(&view.terminated, |since| pods.listed_since(since));
        self.reused_names.exclude_from(&view.terminated)
    }

    /// Returns how deep to scan, at least `depth`.
    pub(super) fn depth(&self, depth: Depth, now: Instant) -> Depth {
        // Nothing that was read from a kubelet while it was starting is reliable.
        let is_full =
            self.schedule.is_full_scan_due(now) || self.restart.is_waiting() || self.startup.is_active();
        if is_full { Depth::Everything } else { depth }
    }
}

/// Compares the List with the pod source. `expects_source`: it may still be synced in time.
fn check_list(usage: &Usage, pods: &PodCache, view: &PodView, expects_source: bool) -> PodListCheck {
    if view.is_up_to_date {
        let missing = pods.count_live_except(&usage.pods.iter().map(PodUsage::full_name).collect());
        return match missing {
            0 => PodListCheck::Complete,
            _ => PodListCheck::Incomplete(format!(
                "does not list {missing} pods that the API server has for this node"
            )),
        };
    }
    match expects_source {
        true => PodListCheck::Incomplete("the node's pods have not been listed yet".to_owned()),
        false => PodListCheck::Unavailable,
    }
}

#[cfg(test)]
mod tests;
