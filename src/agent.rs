//! The agent's loop: triggers -> scan -> topology -> publish.
//!
//! A scan is one `List`; the slower inventory (hardware, allocatable, kubelet configuration) is read when it
//! may have changed. The zones are computed from that one List and published in one write. If a scan fails,
//! or the kubelet is not ready yet, nothing is published: the last good object stays.

pub(crate) mod health;
pub(crate) mod metrics;

mod accord;
mod changes;
mod hotplug;
mod joining;
mod known;
mod kubelet_config;
mod notices;
mod object;
mod pace;
mod publish;
mod recording;
mod scan;
mod settings;
mod settle;
mod standing;
mod status_file;
mod triggers;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::cluster::{Cluster, ClusterError};
use crate::kubelet::{PodUsage, SharedClient, Usage};
use crate::pod::{Pod, PodEvent, PodName, TerminalPods, Wanted};
use crate::pod_source::{LINGER, PodSource, PodView};
use crate::scheduler::{self, Contract, Reading, Requirements, Reservation};
use crate::telemetry::health::Probes;
use crate::telemetry::registry::Registry;
use crate::topology::{self, Finding, Rules, Topology};
use crate::util::backoff::{back_off, jittered};
use crate::util::token_bucket::TokenBucket;

pub use kubelet_config::{ConfigSource, ConfigSources};
pub use notices::Reason;
pub use object::object;
pub use publish::{ConflictPolicy, Published};
pub use recording::{Answer, Recording, RecordingError};
pub use scan::{Depth, Inventory, Merge, MergeAnswer, Scan, ScanError, Scanner};
pub use settings::Settings;
pub use standing::Standing;

use accord::{Accord, Asked};
use health::{Health, Limits};
use known::KnownDevices;
use metrics::{Metrics, Outcome};
use notices::Notices;
use pace::Pace;
use publish::Publisher;
use settle::{PATIENCE, Settling, Told, Verdict};
use standing::{Carried, Known, Others, Promise};
use triggers::{Directories, Trigger, Triggers};

/// Rate of List calls: a tenth of the kubelet's limit for all its clients together (DESIGN section 10).
const LISTS_PER_SECOND: f64 = 10.0;
/// Burst of List calls: a pod's admission may need a few at once.
const LIST_BURST: f64 = 4.0;

/// A burst of triggers has ended when none came for this long, or when the kubelet has recorded the pod as
/// admitted. For one pod the kubelet writes its checkpoints up to eight times, some 0.5 ms apart: first it
/// releases what an earlier pod left, then it allocates devices, CPUs and memory.
const QUIET: Duration = Duration::from_millis(2);
/// Maximum length of a burst. Also the delay before a half-admitted pod is scanned again.
const FOLD: Duration = Duration::from_millis(10);

/// How long the first scan waits for the watches on the kubelet's directories. They are set at once or not at
/// all.
const WATCHES: Duration = Duration::from_millis(20);

/// Delay of the first scan after a pod's containers have terminated: the API server learns of that a moment
/// before the kubelet releases the resources. Pods that terminate at the same time share the scan.
const PARTING: Duration = Duration::from_millis(15);
/// Delay of the next scan if the List still shows the pod.
const LINGERING: Duration = Duration::from_millis(30);
/// Maximum delay between two such scans.
const LINGERING_LIMIT: Duration = Duration::from_secs(1);

/// If the API server takes longer than this to return our object, it was unavailable.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Delay of the next scan after a failed one, or if the kubelet was not ready.
const RETRY: Duration = Duration::from_millis(100);
/// Maximum delay between two failed scans.
const RETRY_LIMIT: Duration = Duration::from_secs(5);
/// Maximum delay between two scans of a kubelet that is not ready.
const SETTLE_RETRY: Duration = Duration::from_secs(1);

/// Minimum interval between two checks whether the API server responds while a kubelet restarts.
const CHECKED: Duration = Duration::from_secs(5);

/// How many times [`Settings::settle`] the policies of the live object are carried over before that is
/// reported.
const CARRIED_UNREPORTED: u32 = 10;

/// How long the node may be unreadable before an Event is posted.
const UNREADABLE: Duration = Duration::from_secs(60);

/// Why a single pass ended without publishing the object.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// The node could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The object could not be written; the text is the reason.
    #[error("{0}")]
    Publish(String),
}

/// The status of the agent's scans.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The number of scans that produced a topology.
    pub scans: u64,
    /// The last error, until a scan succeeds.
    pub trouble: Option<String>,
}

/// Returns what to subtract from the zones for bound pods that the List of `scan` does not show yet. Lists
/// the node's pods from the API server; returns nothing if that fails or reservations are disabled.
pub async fn reserved(
    settings: &Settings,
    cluster: &Cluster,
    scan: &Scan,
    topology: &Topology,
) -> Vec<Reservation> {
    if !settings.gate.reserve {
        return Vec::new();
    }
    let pods = listed_pods(settings, cluster).await;
    let requirements = Requirements::of(&scan.inventory.allocatable, &BTreeSet::new());
    let reading = Reading {
        usage: &scan.usage,
        number: 0,
        requirements: &requirements,
        zones: &topology.zones,
        answers: true,
        unlisted: Some(scan.unlisted()),
    };
    let verdict = Contract::new(settings.gate.clone()).judge(pods.as_deref(), &reading, Duration::ZERO);
    scheduler::allowed(&verdict.reserved, &settings.rules.exclude, &topology.zones)
}

/// Lists the node's pods from the API server; `None` if that fails.
async fn listed_pods(settings: &Settings, cluster: &Cluster) -> Option<Vec<Pod>> {
    let mut events = std::pin::pin!(cluster.pods_of(&settings.node, Wanted::default()));
    let mut pods = Vec::new();
    loop {
        match timeout(settings.kubelet_timeout, events.next()).await.ok()?? {
            Ok(PodEvent::Listing) => pods.clear(),
            Ok(PodEvent::Listed(pod) | PodEvent::Is(pod)) => pods.push(pod),
            Ok(PodEvent::Complete) => return Some(pods),
            Ok(PodEvent::Gone(gone)) => pods.retain(|pod| pod.uid != gone.uid),
            Ok(PodEvent::Again) => {}
            Err(sentence) => {
                warn!("{sentence}");
                return None;
            }
        }
    }
}

/// Returns how certain the kubelet's configuration is.
fn certainty(scanner: &Scanner, scan: &Scan) -> Known {
    match scan.inventory.config {
        None => Known::Nothing,
        Some(_) if scanner.is_config_certain() => Known::Certain,
        Some(_) => Known::Doubtful,
    }
}

/// Computes the topology of a scan.
#[must_use]
pub fn account(scan: &Scan, known: &BTreeSet<String>, rules: &Rules) -> Topology {
    topology::account(&topology::Inputs {
        machine: &scan.inventory.machine,
        allocatable: &scan.inventory.allocatable,
        usage: &scan.usage,
        terminal: &scan.terminal,
        state: scan.state.as_deref(),
        config: scan.inventory.config.as_ref(),
        known,
        rules,
    })
}

/// When to scan next if nothing happens before, and how deep.
#[derive(Clone, Copy, Debug)]
struct Next {
    at: Instant,
    depth: Depth,
}

/// Keeps the object of one node up to date until it is shut down.
pub struct Agent {
    settings: Settings,
    scanner: Scanner,
    settling: Settling,
    triggers: Triggers,
    bucket: TokenBucket,
    /// Combines pods and topologies, and decides what to publish.
    accord: Accord,
    /// The pods as of the last scan.
    view: PodView,
    pace: Pace,
    /// The number of consecutive scans whose List still showed a pod that is gone.
    lingering: u32,
    /// The live object before this agent's first write.
    standing: watch::Receiver<Standing>,
    /// Whether the live object is known and its content was carried over.
    knows: bool,
    carried: Carried,
    promise: Promise,
    /// Whether the last check of the API server, from which the kubelet gets its pods, failed, and the time of
    /// the check. `None` unless the agent is waiting for a restarted kubelet.
    api_server_check: Option<(bool, Instant)>,
    /// For checking whether the API server responds.
    cluster: Cluster,
    started: Instant,
    known: KnownDevices,
    /// Half-admitted pods that a scan was already repeated for.
    waited_for: BTreeSet<PodName>,
    /// The List of the last accepted scan.
    previous: Arc<Usage>,
    /// The terminated pods of that scan, with their UIDs.
    previous_terminal: Arc<BTreeMap<PodName, String>>,
    /// Names of terminated pods that a new pod has taken, with the terminated pods' UIDs, and when the List
    /// showed it.
    returned: BTreeMap<PodName, (String, Instant)>,
    /// What was warned about in the previous iteration.
    told: BTreeSet<String>,
    failures: u32,
    /// The error of the last scan, if it failed.
    failed: Option<ScanError>,
    /// Since when no scan has produced a topology.
    unreadable_since: Option<Instant>,
    /// When everything has to be read again, whatever happens in between.
    everything_due: Instant,
    status: watch::Sender<Status>,
    /// The rules for computing topologies; they may be replaced while the agent runs.
    rules: watch::Sender<Rules>,
    new_rules: watch::Receiver<Rules>,
    metrics: Arc<Metrics>,
    notices: Notices,
}

impl Agent {
    /// Returns an agent for this node and cluster. [`Agent::run`] starts it.
    #[must_use]
    pub fn new(settings: Settings, cluster: Cluster, registry: &mut Registry) -> Self {
        let cluster = cluster.in_form(settings.form);
        let limits = Limits::new(settings.poll, settings.kubelet_timeout, settings.refresh);
        let metrics = Arc::new(Metrics::register(registry, Arc::new(Health::new(limits))));
        let (pods, node) = (settings.pods.clone(), settings.node.clone());
        let pods = PodSource::follow(pods, node, cluster.clone(), metrics.pod_source());
        let notices = match settings.events {
            true => Notices::start(settings.node.clone(), cluster.clone(), Arc::clone(&metrics)),
            false => Notices::nowhere(),
        };
        let publisher = Publisher::start(&settings, cluster.clone(), Arc::clone(&metrics), notices.clone());
        let directories = Directories {
            root: settings.kubelet_dir.clone(),
            device_plugins: settings.device_plugins.clone(),
            socket: settings.socket.parent().map(PathBuf::from).unwrap_or_default(),
            notify: settings.notify_file.clone(),
        };
        let mut scanner = Scanner::new(&settings);
        scanner.report_to(Arc::clone(&metrics));
        scanner.ask_through(cluster.clone());
        scanner.identify_by(pods.clone());
        let (rules, new_rules) = watch::channel(settings.rules.clone());
        let now = Instant::now();
        Self {
            scanner,
            settling: Settling::new(&settings.node, settings.settle),
            triggers: Triggers::start(directories),
            bucket: TokenBucket::new(LISTS_PER_SECOND, LIST_BURST, now),
            standing: publisher.standing(),
            accord: Accord::new(
                &settings,
                pods,
                publisher,
                rules.subscribe(),
                Arc::clone(&metrics),
                notices.clone(),
            ),
            knows: false,
            carried: match settings.kubelet_config.may_tell() {
                true => Carried::new(now, settings.settle, settings.settle * CARRIED_UNREPORTED),
                false => Carried::nothing(),
            },
            promise: Promise::default(),
            api_server_check: None,
            cluster,
            started: now,
            view: PodView::default(),
            pace: Pace::new(settings.poll),
            lingering: 0,
            known: KnownDevices::default(),
            waited_for: BTreeSet::new(),
            previous: Arc::default(),
            previous_terminal: Arc::default(),
            returned: BTreeMap::new(),
            told: BTreeSet::new(),
            failures: 0,
            failed: None,
            unreadable_since: None,
            everything_due: now,
            status: watch::Sender::new(Status::default()),
            rules,
            new_rules,
            metrics,
            notices,
            settings,
        }
    }

    /// Returns the agent's pod source, to be shared.
    #[must_use]
    pub fn pods(&self) -> PodSource {
        self.accord.pods.clone()
    }

    /// Calls the kubelet through a shared connection from now on.
    pub fn share(&mut self, kubelet: SharedClient) {
        self.scanner.share(kubelet);
    }

    /// Merges this into the kubelet's responses from now on.
    pub fn merge_with(&mut self, merge: Merge) {
        self.scanner.merge_with(merge);
    }

    /// Returns the status of the agent's scans.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Returns the status of the agent's writes.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Published> {
        self.accord.publisher.published()
    }

    /// Returns a sender that replaces the rules of the settings at any time.
    #[must_use]
    pub fn rules(&self) -> watch::Sender<Rules> {
        self.rules.clone()
    }

    /// Returns the agent's health, to be served.
    #[must_use]
    pub fn health(&self) -> Arc<dyn Probes> {
        self.metrics.health().clone()
    }

    /// Runs the loop until `shutdown` completes, then gives a write in flight a moment to end.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut depth = Depth::Everything;
        // Setting the watches triggers a full scan: wait for it, so that the first scan covers it. If nothing
        // can be watched, no trigger comes.
        tokio::select! {
            _ = self.triggers.next() => {}
            () = sleep(WATCHES) => {}
        }
        loop {
            self.metrics.health().loop_ran();
            let next = tokio::select! {
                biased;
                () = &mut shutdown => break,
                next = self.turn(depth) => next,
            };
            depth = tokio::select! {
                biased;
                () = &mut shutdown => break,
                depth = self.wait(next) => depth,
            };
        }
        info!("stopping");
        self.accord.publisher.stop().await;
    }

    /// Runs the loop until the object is written once.
    ///
    /// # Errors
    /// The first scan or write that failed.
    pub async fn run_once(mut self) -> Result<(), OnceError> {
        self.accord.first_pods(!self.settings.pods.order.is_empty()).await;
        let mut published = self.published();
        let mut depth = Depth::Everything;
        loop {
            let next = self.turn(depth).await;
            if let Some(error) = self.failed.take() {
                return Err(error.into());
            }
            depth = tokio::select! {
                biased;
                Ok(()) = published.changed() => {
                    let Published { writes, trouble, .. } = published.borrow_and_update().clone();
                    match trouble {
                        Some(sentence) => return Err(OnceError::Publish(sentence)),
                        None if writes > 0 => return Ok(()),
                        None => Depth::Everything,
                    }
                }
                depth = self.wait(next) => depth,
            };
        }
    }

    /// Scans once and processes the result.
    async fn turn(&mut self, mut depth: Depth) -> Next {
        let turn = self.bucket.take(Instant::now());
        self.rest(turn).await;
        let (now, used) = (Instant::now(), pace::cpu_time());
        // Nothing that was read from a kubelet while it was starting is reliable.
        if now >= self.everything_due || self.settling.is_waiting() || self.promise.is_doubting() {
            depth = Depth::Everything;
        }
        self.view = self.accord.pods.now();
        // A pod that a later list still reports as terminated has not been replaced.
        self.returned.retain(|name, (uid, at)| {
            self.view.terminal.get(name) == Some(uid) && !self.accord.pods.listed_since(*at)
        });
        self.scanner.set_terminal(self.terminal());
        let scan = tokio::select! {
            scan = self.scanner.scan(depth) => scan,
            never = self.accord.follow_on() => match never {},
        };
        self.metrics.scan_took(now.elapsed());
        debug!("read {depth:?} in {:?}", now.elapsed());
        if self.settling.is_waiting() {
            self.check_api_server().await;
        } else {
            self.api_server_check = None;
        }
        // The calls that a scan made beyond the List count against the rate limit, too.
        for _ in 1..self.scanner.take_calls() {
            let _ = self.bucket.take(now);
        }
        let next = match scan {
            Ok(scan) => {
                if depth == Depth::Everything {
                    self.everything_due = now + jittered(self.settings.poll);
                }
                self.digest(scan)
            }
            Err(error) => {
                self.metrics.scanned(Outcome::Failed);
                let next = self.fail(error.to_string());
                self.failed = Some(error);
                next
            }
        };
        if depth == Depth::Usage {
            self.pace.paid(pace::cpu_time().saturating_sub(used));
        }
        next
    }

    /// Checks whether the API server responds, unless that was checked lately: all agents of a cluster may be
    /// waiting for their kubelets at the same time. The pods are followed meanwhile.
    async fn check_api_server(&mut self) {
        if self.api_server_check.is_some_and(|(_, at)| at.elapsed() < CHECKED) {
            return;
        }
        let (cluster, node) = (self.cluster.clone(), self.settings.node.clone());
        let answer = tokio::select! {
            answer = cluster.node_uid(&node) => answer,
            never = self.accord.follow_on() => match never {},
        };
        let failed = matches!(answer, Err(ClusterError::Unreachable { .. } | ClusterError::Deadline { .. }));
        self.api_server_check = Some((failed, Instant::now()));
    }

    /// Waits for the next reason to scan, and merges a burst of triggers into one.
    async fn wait(&mut self, next: Next) -> Depth {
        let (trigger, depth) = tokio::select! {
            reasons = self.triggers.next() => return self.fold(reasons).await,
            asked = self.accord.follow(&self.view) => match asked {
                Asked::Departed => {
                    self.rest(PARTING).await;
                    ("pods", Depth::Usage)
                }
                Asked::Bound => ("bound", Depth::Usage),
            },
            Ok(()) = self.new_rules.changed() => ("configuration", Depth::Usage),
            () = self.scanner.configured() => ("configuration", Depth::Everything),
            Ok(()) = self.standing.changed() => ("live_object", Depth::Usage),
            () = sleep_until(next.at) => ("poll", next.depth),
        };
        self.metrics.triggered(trigger);
        depth
    }

    /// Delays a scan, and follows the pods meanwhile.
    async fn rest(&mut self, time: Duration) {
        // Even a sleep of zero lasts until the timer's next millisecond.
        if time.is_zero() {
            return;
        }
        tokio::select! {
            () = sleep(time) => {}
            never = self.accord.follow_on() => match never {},
        }
    }

    /// Waits for the end of a burst.
    async fn fold(&mut self, mut reasons: Trigger) -> Depth {
        self.pace.stir(Instant::now());
        let cut = Instant::now() + FOLD;
        // A new kubelet and a completed admission are scanned at once.
        while !reasons.has(Trigger::EVERYTHING) && !reasons.has(Trigger::ADMITTED) {
            let quiet = (Instant::now() + QUIET).min(cut);
            tokio::select! {
                more = self.triggers.more() => reasons = reasons.and(more),
                () = sleep_until(quiet) => break,
                never = self.accord.follow_on() => match never {},
            }
        }
        reasons.names().for_each(|trigger| self.metrics.triggered(trigger));
        if reasons.has(Trigger::EVERYTHING) {
            Depth::Everything
        } else if reasons.has(Trigger::DEVICES) {
            Depth::Allocatable
        } else {
            Depth::Usage
        }
    }

    fn digest(&mut self, mut scan: Scan) -> Next {
        let now = Instant::now();
        self.tell_returned(&mut scan, now);
        let doubt = match self.settle(&mut scan, now) {
            Ok(doubt) => doubt,
            Err(reason) => return self.wait_to_settle(reason),
        };
        self.previous = Arc::clone(&scan.usage);
        self.previous_terminal = Arc::clone(&self.view.terminal);
        if self.still_being_admitted(&scan) {
            self.metrics.scanned(Outcome::PodAdmission);
            return Next { at: now + FOLD, depth: Depth::Usage };
        }
        if !self.knows_what_stood(scan.socket_age, now) {
            // Nothing can be published yet, and what to carry over is not known.
            self.metrics.scanned(Outcome::ObjectUnknown);
            return Next { at: self.everything_due, depth: Depth::Everything };
        }
        if self.waits_for_configuration(&scan, now) {
            // The response starts the next scan.
            self.metrics.scanned(Outcome::ObjectUnknown);
            return Next { at: self.started + AT_ONCE, depth: Depth::Everything };
        }
        if self.carried.waits(certainty(&self.scanner, &scan), now) {
            let why =
                self.scanner.config_problem().unwrap_or("the kubelet is being asked how it is configured");
            return self.wait_to_settle(format!("{why}; the object waits for its policies"));
        }
        let topology = match self.account(&scan, now) {
            Ok(topology) => topology,
            Err(reason) => return self.wait_to_settle(reason),
        };
        self.report(&scan, &topology, doubt.as_deref());
        if self.accord.take(&scan, topology, &self.known.names()) {
            self.pace.stir(now);
        }
        match doubt {
            Some(_) => Next { at: now + RETRY, depth: Depth::Everything },
            None => self.next(&scan, now),
        }
    }

    /// Returns true if the agent has just started and its first request for the kubelet's configuration is in
    /// flight. Without it, reserved CPUs would look free for a moment.
    fn waits_for_configuration(&self, scan: &Scan, now: Instant) -> bool {
        scan.inventory.config.is_none()
            && self.scanner.is_asking_for_config()
            && now.duration_since(self.started) < AT_ONCE
    }

    /// Returns the terminated pods without the names that a new pod has taken.
    fn terminal(&self) -> TerminalPods {
        let names = self.view.terminal.keys().filter(|name| !self.returned.contains_key(*name));
        Arc::new(names.cloned().collect())
    }

    /// Removes from `scan.terminal` the names that a new pod has taken, which the API server has not reported
    /// yet. A terminated pod only releases resources: if it had terminated before the last accepted List and
    /// its name is allocated more now, that is by another pod. Lists of a kubelet that is still starting are
    /// not compared: they may be incomplete.
    fn tell_returned(&mut self, scan: &mut Scan, now: Instant) {
        if scan.terminal.is_empty() {
            return;
        }
        let known = self.returned.len();
        for pod in &scan.usage.pods {
            let name = pod.full_name();
            let Some(uid) = self.view.terminal.get(&name).filter(|_| scan.terminal.contains(&name)) else {
                continue;
            };
            let earlier = |old: &&PodUsage| old.name == pod.name && old.namespace == pod.namespace;
            let reused = match self.previous.pods.iter().find(earlier) {
                Some(old) => pod.has_gained_since(old) && self.previous_terminal.get(&name) == Some(uid),
                // It was not listed before. A live pod source knows which pods have terminated.
                None => !self.view.follows && pod.has_allocations(),
            };
            if reused {
                self.returned.insert(name, (uid.clone(), now));
            }
        }
        if self.returned.len() > known {
            scan.terminal = self.terminal();
        }
    }

    /// Decides whether a scan is complete. Returns what is still missing from one that may be published, or
    /// why it may not be.
    fn settle(&mut self, scan: &mut Scan, now: Instant) -> Result<Option<String>, String> {
        let check_failed = self.api_server_check.is_some_and(|(failed, _)| failed);
        let api_server_down = check_failed || self.accord.publisher.is_failing();
        let lives = |name: &PodName| self.accord.pods.knows_living(name);
        let went = |name: &PodName| self.accord.pods.knows_gone(name);
        let lacks = |name: &PodName, after| self.accord.pods.lacks_since(name, after);
        let told = self.view.follows.then_some(Told { lives: &lives, went: &went, lacks: &lacks });
        match self.settling.judge(scan, now, api_server_down, told) {
            Verdict::Settled => Ok(None),
            Verdict::Joined(usage, reason) => {
                scan.usage = usage;
                Ok(Some(format!("{reason}; what was held before counts until then")))
            }
            Verdict::Wait(reason) => Err(format!("{reason}; the last good object stays")),
            Verdict::GivenUp(reason) => {
                let sentence = format!("{reason}; that is taken for the truth now");
                warn!("{sentence}");
                self.notices.post(Reason::KubeletNotSettled, sentence);
                Ok(None)
            }
        }
    }

    /// Schedules the next scan of a kubelet that responds and is about to be ready: soon.
    fn wait_to_settle(&mut self, reason: String) -> Next {
        self.metrics.scanned(Outcome::KubeletNotReady);
        let next = self.fail(reason);
        Next { at: next.at.min(Instant::now() + jittered(SETTLE_RETRY)), ..next }
    }

    /// Computes the topology of a scan and adds what is carried over; returns why if it is not accepted yet.
    fn account(&mut self, scan: &Scan, now: Instant) -> Result<Topology, String> {
        let known = self.known.after(scan, now);
        let mut topology = account(scan, &known, &self.rules.borrow());
        if self.promise.is_doubting()
            && let Some(reason) = self.doubt_promise(&scan.usage, &topology, now)
        {
            return Err(reason);
        }
        let certainty = certainty(&self.scanner, scan);
        if let Some(sentence) = self.carried.complete(&mut topology, certainty, now) {
            warn!("{sentence}");
            self.notices.post(Reason::PoliciesUnknown, sentence);
        }
        Ok(topology)
    }

    /// Returns why the topology from a recently started kubelet is not accepted yet.
    fn doubt_promise(&mut self, usage: &Usage, topology: &Topology, now: Instant) -> Option<String> {
        let bound = self.settings.settle * if usage.has_allocations() { 1 } else { PATIENCE };
        let wait_for_source =
            !self.settings.pods.order.is_empty() && now.duration_since(self.started) < AT_ONCE;
        let (pods, view) = (&self.accord.pods, &self.view);
        let others = || match view.follows {
            true => unlisted(usage, pods).map_or(Others::Agree, Others::Miss),
            false if wait_for_source => Others::Miss("nobody has told yet which pods there are".to_owned()),
            false => Others::Silent,
        };
        self.promise.doubt(topology, others, now, bound)
    }

    /// Reports a topology, and that scans work, in logs, metrics and the status.
    fn report(&mut self, scan: &Scan, topology: &Topology, doubt: Option<&str>) {
        self.metrics.accounted(&scan.usage, scan.problems().count(), topology);
        let findings = topology.findings.iter().map(ToString::to_string);
        let sentences = scan.problems().cloned().chain(findings).chain(doubt.map(str::to_owned));
        if self.tell(sentences.collect()) {
            self.post_unpublished(&topology.findings);
        }
        if doubt.is_some() {
            return;
        }
        self.unreadable_since = None;
        if self.failures > 0 {
            info!("the node can be read again");
            self.failures = 0;
        }
        self.status.send_modify(|status| {
            status.scans += 1;
            status.trouble = None;
        });
    }

    fn post_unpublished(&self, findings: &BTreeSet<Finding>) {
        for finding in findings {
            if let Finding::UnpublishedNodes(ids) = finding {
                let note =
                    format!("NUMA nodes {ids} are in no zone: the scheduler plugin takes ids up to 63 only");
                self.notices.post(Reason::NodesNotPublished, note);
            }
        }
    }

    /// Returns when to scan next if nothing happens before.
    fn next(&mut self, scan: &Scan, now: Instant) -> Next {
        let everything = Next { at: self.everything_due, depth: Depth::Everything };
        let wait = if self.lists_what_is_gone(&scan.usage, now) {
            back_off(&mut self.lingering, LINGERING, LINGERING_LIMIT)
        } else {
            self.lingering = 0;
            // A live pod source reports bound and deleted pods. Without one, only a scan finds what was
            // released, and what was allocated if the checkpoints cannot be watched.
            if self.view.follows || scan.files_tell && !scan.usage.has_allocations() {
                return everything;
            }
            jittered(self.pace.wait(now))
        };
        match now + wait {
            at if at < everything.at => Next { at, depth: Depth::Usage },
            _ => everything,
        }
    }

    /// Returns true if the List still shows allocations of a pod that is gone.
    fn lists_what_is_gone(&self, usage: &Usage, now: Instant) -> bool {
        let gone = |pod: &&PodUsage| {
            self.view.gone.get(&pod.full_name()).is_some_and(|at| now.duration_since(*at) < LINGER)
        };
        !self.view.gone.is_empty() && usage.pods.iter().filter(gone).any(PodUsage::has_allocations)
    }

    /// Carries over the content of the live object once that is known. Returns whether it is.
    fn knows_what_stood(&mut self, socket_age: Duration, now: Instant) -> bool {
        let standing = self.standing.borrow();
        // Once known, it does not change any more.
        if !self.knows && standing.is_known() {
            self.known.carry(standing.devices(), now);
            self.carried.take(&standing);
            // If we waited for the API server, the kubelet did too.
            let waited = now.duration_since(self.started) > AT_ONCE;
            let age = if waited { Duration::ZERO } else { socket_age };
            self.promise = Promise::of(&standing, now, age);
            self.knows = true;
        }
        self.knows
    }

    /// Returns true if the kubelet is in the middle of admitting a pod that was not waited for yet. Each pod
    /// is waited for once.
    fn still_being_admitted(&mut self, scan: &Scan) -> bool {
        let memory = &scan.inventory.allocatable.memory;
        let half = |pod: &&PodUsage| !memory.is_empty() && is_half_admitted(pod);
        let halves = scan.usage.pods.iter().filter(half);
        let halves: BTreeSet<PodName> = halves.map(PodUsage::full_name).collect();
        let fresh = !halves.is_subset(&self.waited_for);
        self.waited_for = halves;
        fresh
    }

    /// Keeps the last good object and reports why, once.
    fn fail(&mut self, sentence: String) -> Next {
        self.accord.silent();
        let since = *self.unreadable_since.get_or_insert_with(Instant::now);
        if since.elapsed() > UNREADABLE {
            self.notices.post(Reason::NodeUnreadable, sentence.clone());
        }
        self.status.send_modify(|status| status.trouble = Some(sentence.clone()));
        self.tell([sentence].into());
        let wait = back_off(&mut self.failures, RETRY, RETRY_LIMIT);
        Next { at: Instant::now() + wait, depth: Depth::Everything }
    }

    /// Logs the warnings that were not there in the previous iteration. Returns true if there are any.
    fn tell(&mut self, sentences: BTreeSet<String>) -> bool {
        let mut any = false;
        for sentence in sentences.difference(&self.told) {
            warn!("{sentence}");
            any = true;
        }
        self.told = sentences;
        any
    }
}

/// Describes what the List lacks of the live pods in `pods`; `None` if nothing.
fn unlisted(usage: &Usage, pods: &PodSource) -> Option<String> {
    let missing = pods.living_besides(&usage.pods.iter().map(PodUsage::full_name).collect());
    (missing > 0).then(|| format!("does not list {missing} pods that the API server has for this node"))
}

/// Returns true if the kubelet is in the middle of admitting the pod. With the static Memory Manager policy,
/// a container that is allocated exclusive CPUs is allocated memory right after them, and so is every
/// container of a pod if one is: all of that is for Guaranteed pods only.
fn is_half_admitted(pod: &PodUsage) -> bool {
    let any_memory = pod.containers.iter().any(|container| !container.memory.is_empty());
    pod.containers.iter().any(|c| c.memory.is_empty() && (any_memory || !c.cpus.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::{ContainerUsage, MemoryBlock};

    #[test]
    fn a_pod_is_half_admitted_until_every_container_has_its_memory() {
        let container = |cpus: &str, memory: bool| ContainerUsage {
            cpus: cpus.parse().unwrap(),
            memory: vec![MemoryBlock::default(); usize::from(memory)],
            ..ContainerUsage::default()
        };
        let pod = |containers: &[ContainerUsage]| PodUsage {
            containers: containers.to_vec(),
            ..PodUsage::default()
        };
        assert!(!is_half_admitted(&pod(&[container("", false)])), "it may never get anything");
        assert!(is_half_admitted(&pod(&[container("1", false)])));
        assert!(!is_half_admitted(&pod(&[container("1", true)])));
        assert!(!is_half_admitted(&pod(&[container("", true)])), "a fraction of a CPU is never exclusive");
        assert!(is_half_admitted(&pod(&[container("1", true), container("", false)])));
        assert!(!is_half_admitted(&pod(&[container("1", true), container("", true)])));
    }
}
