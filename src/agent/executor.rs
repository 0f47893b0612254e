//! Calls the reconciler, carries out its plans, and follows the node's pods between and during scans.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info};

use crate::agent::annotate::PodAnnotator;
use crate::agent::live_object::LiveObject;
use crate::agent::metrics::{Metrics, Outcome};
use crate::agent::observe::Scan;
use crate::agent::publish::Publisher;
use crate::agent::reconcile::{Change, Context, FIRST_LIST, Plan, Reconciler, Requeue, Scope};
use crate::agent::report::{EventRecorder, Reporter};
use crate::agent::settings::Settings;
use crate::cluster::Cluster;
use crate::pod::TerminatedPodNames;
use crate::pod_source::{PodCache, PodView};
use crate::topology::ZoneRules;

/// Minimum interval between two checks of the API server: all agents of a cluster may wait for their kubelets
/// at the same time.
const API_SERVER_CHECKS: Duration = Duration::from_secs(5);

/// Delay of the first scan after a pod's containers have terminated: the API server learns of that a moment
/// before the kubelet releases the resources. Pods that terminate at the same time share the scan.
const RELEASE_DELAY: Duration = Duration::from_millis(15);

enum Wake {
    Pods,
    Recheck,
    Scan,
}

#[derive(Debug)]
pub(super) struct Executor {
    pub(super) reconciler: Reconciler,
    pub(super) pods: PodCache,
    view: PodView,
    live_object: watch::Receiver<LiveObject>,
    rules: watch::Receiver<ZoneRules>,
    /// For checks of the API server while a restarted kubelet is waited for.
    node: String,
    cluster: Option<Cluster>,
    /// Whether the API server could not be reached at the last check, and the time of that; `None` unless a
    /// kubelet is waited for.
    api_server: Option<(bool, Instant)>,
    pub(super) publisher: Publisher,
    annotator: Option<PodAnnotator>,
    pub(super) reporter: Reporter,
    metrics: Arc<Metrics>,
}

impl Executor {
    pub(super) fn new(
        settings: &Settings,
        cluster: Option<Cluster>,
        pods: PodCache,
        rules: watch::Receiver<ZoneRules>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let events = EventRecorder::start(settings, cluster.clone(), Arc::clone(&metrics));
        let publisher = Publisher::start(settings, cluster.clone(), Arc::clone(&metrics), events.clone());
        let annotator = cluster.clone().filter(|_| settings.annotate_pods);
        let annotator = annotator
            .map(|cluster| PodAnnotator::start(cluster, pods.clone(), Arc::clone(&metrics), events.clone()));
        Self {
            reconciler: Reconciler::new(settings, Instant::now()),
            annotator,
            pods,
            view: PodView::default(),
            live_object: publisher.live_object.clone(),
            rules,
            node: settings.node.clone(),
            cluster,
            api_server: None,
            publisher,
            reporter: Reporter::new(settings, Arc::clone(&metrics), events),
            metrics,
        }
    }

    /// Waits, for a limited time, until the pods are synced and it is known which have terminated.
    pub(super) async fn wait_for_pods(&mut self) {
        let has_source = self.reconciler.has_pod_source;
        let synced = async {
            while !self.pods.view().is_complete {
                self.pods.changed().await;
            }
        };
        if has_source && timeout(FIRST_LIST, synced).await.is_err() {
            debug!("the node's pods have not been listed yet");
        }
    }

    pub(super) fn start_scan(&mut self) -> TerminatedPodNames {
        self.view = self.pods.view();
        self.reconciler.start_scan(&self.view, &self.pods)
    }

    /// Takes the result of the scan that began at `start`, and returns when to scan next. `is_full`: it was
    /// requested to read everything.
    pub(super) fn scanned(&mut self, scan: Result<Scan, String>, start: Instant, is_full: bool) -> Requeue {
        self.step(match scan {
            Ok(scan) => Change::Scanned { scan, start, is_full },
            Err(error) => Change::ScanFailed(error),
        });
        self.reconciler.requeue
    }

    /// Checks whether the API server responds if a restarted kubelet is waited for, unless that was checked
    /// lately.
    pub(super) async fn check_api_server(&mut self) {
        let Some(cluster) = self.cluster.clone() else { return };
        if !self.reconciler.restart.is_waiting() {
            self.api_server = None;
        } else if self.api_server.is_none_or(|(_, at)| at.elapsed() >= API_SERVER_CHECKS) {
            let node = self.node.clone();
            let response = self.run_while_following_pods(async move { cluster.node_uid(&node).await }).await;
            let is_unreachable = response.is_err_and(|error| error.is_unreachable());
            self.api_server = Some((is_unreachable, Instant::now()));
        }
    }

    /// Follows the pods until they are a reason to scan. Returns the name of the trigger, and how long to wait
    /// before the scan.
    pub(super) async fn follow(&mut self) -> (&'static str, Duration) {
        loop {
            // The change is published with the result of the scan, unless the fingerprint has to be withheld.
            if self.pods.peek().needs_rescan(&self.view) {
                self.step(Change::Pods(Scope::Urgent));
                return ("pods", RELEASE_DELAY);
            }
            match self.wake().await {
                Wake::Scan => {
                    self.reconciler.fingerprint.bound_pods.count_scan();
                    return ("bound", Duration::ZERO);
                }
                Wake::Pods if self.pods.peek().needs_rescan(&self.view) => {}
                Wake::Pods | Wake::Recheck => self.step(Change::Pods(Scope::All)),
            }
        }
    }

    pub(super) async fn run_while_following_pods<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            done = work => done,
            never = self.follow_during_scan() => match never {},
        }
    }

    pub(super) async fn sleep_while_following_pods(&mut self, time: Duration) {
        // Even a sleep of zero lasts until the timer's next millisecond.
        if !time.is_zero() {
            self.run_while_following_pods(sleep(time)).await;
        }
    }

    async fn follow_during_scan(&mut self) -> Infallible {
        // Other code may have marked changes of the pods as seen since the last step.
        self.step(Change::Pods(Scope::Urgent));
        loop {
            match self.wake().await {
                // The running scan is the one that is due.
                Wake::Scan => self.reconciler.fingerprint.bound_pods.scan_at = None,
                Wake::Pods | Wake::Recheck => self.step(Change::Pods(Scope::All)),
            }
        }
    }

    async fn wake(&mut self) -> Wake {
        let guard = &self.reconciler.fingerprint;
        let (recheck, scan) = (guard.recheck_at, guard.bound_pods.scan_at);
        tokio::select! {
            () = self.pods.changed() => {
                self.pods.view();
                Wake::Pods
            }
            () = sleep_until(recheck.unwrap_or_else(Instant::now)), if recheck.is_some() => Wake::Recheck,
            () = sleep_until(scan.unwrap_or_else(Instant::now)), if scan.is_some() => Wake::Scan,
        }
    }

    fn step(&mut self, change: Change) {
        let plan = {
            let (live_object, rules) = (self.live_object.borrow(), self.rules.borrow());
            let is_api_server_unreachable = self.api_server.is_some_and(|(unreachable, _)| unreachable)
                || self.publisher.published.borrow().is_unreachable;
            let context = Context {
                pods: &self.pods,
                view: &self.view,
                live_object: &live_object,
                rules: &rules,
                is_api_server_unreachable,
            };
            self.reconciler.step(change, &context, Instant::now())
        };
        self.carry_out(plan);
    }

    fn carry_out(&mut self, plan: Plan) {
        let guard = &self.reconciler.fingerprint;
        let account = guard.account.as_ref();
        let unaccounted = &guard.bound_pods.unaccounted;
        match (plan.outcome, account) {
            (Some(Outcome::Success), Some(account)) => {
                self.metrics.accounted(&account.scan, &account.topology);
            }
            (Some(outcome), _) => self.metrics.scanned(outcome),
            (None, _) => {}
        }
        self.metrics.unaccounted.set(unaccounted.len() as u64);
        if let (Some(annotator), Some(account)) = (&self.annotator, account) {
            let rules = self.rules.borrow();
            let rules = (plan.outcome == Some(Outcome::Success)).then_some(&*rules);
            annotator.update(account, rules, guard.settled_pods());
        }
        self.metrics.admission_timeouts.inc_by(plan.given_up as u64);
        self.reporter.report(&plan.notes, &plan.warnings, plan.events);
        if plan.has_recovered {
            info!("the node can be read again");
        }
        if let Some(policies) = plan.policies {
            self.metrics.health.set_no_policies(policies.err());
        }
        if let Some(status) = plan.status {
            self.reporter.scan_error.send_replace(status.err());
        }
        if let (Some(newest), Some(account)) = (plan.publish, account) {
            let covered_pods = || guard.covered_pods(&self.pods, &self.rules.borrow().exclude);
            let (publishable, is_new) = (newest.publishable, newest.is_new);
            self.reporter.publish(&publishable, &newest.verdict, is_new, &account.scan, covered_pods);
            if is_new {
                self.publisher.publish(publishable);
            }
        }
    }
}
