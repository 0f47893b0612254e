//! triggers -> scan -> account -> publish.
//!
//! One scan is one `List`, with the slower moving inventory (hardware, allocatable, kubelet configuration) read
//! when it may have changed. Zones come from that one List and go out in one write. A scan that failed, or that
//! the kubelet cannot answer truly yet, publishes nothing: the last good object stays.

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

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::backoff::{back_off, jittered};
use crate::bucket::Bucket;
use crate::cluster::{Cluster, ClusterError};
use crate::kubelet::{PodUsage, Upstream, Usage};
use crate::pod::{Pod, PodEvent, PodName, Wanted};
use crate::pod_source::{LINGER, PodSource, PodView};
use crate::scheduler::{self, Contract, Reading, Requirements, Reservation};
use crate::telemetry::health::{Bounds, Health};
use crate::telemetry::metrics::{Metrics, Outcome};
use crate::topology::{self, Finding, Rules, Topology};

pub use kubelet_config::ConfigSources;
pub use notices::Reason;
pub use object::object;
pub use publish::Published;
pub use recording::{Answer, Recording, RecordingError};
pub use scan::{Depth, Inventory, Merge, MergeAnswer, Scan, ScanError, Scanner};
pub use settings::Settings;
pub use standing::Standing;

use accord::{Accord, Asked};
use known::KnownDevices;
use notices::Notices;
use pace::Pace;
use publish::Publisher;
use settle::{PATIENCE, Settling, Told, Verdict};
use standing::{Carried, Known, Others, Promise};
use triggers::{Directories, Trigger, Triggers};

/// List calls: a tenth of what the kubelet allows all its clients together (DESIGN section 10).
const LISTS_PER_SECOND: f64 = 10.0;
/// A pod's admission may cost a few Lists at once.
const LIST_BURST: f64 = 4.0;

/// The kubelet writes its state files up to eight times for one pod (what an earlier pod left is freed first, then
/// devices, CPUs and memory are taken), some 0.5 ms apart. A burst has ended when nothing came for this long, or when
/// the kubelet says that the pod is admitted.
const QUIET: Duration = Duration::from_millis(2);
/// A burst that does not end is cut here; nor does a pod that is being admitted get longer than this.
const FOLD: Duration = Duration::from_millis(10);

/// How long the first scan waits for the watches on the kubelet's directories, which are set at once if at all.
const WATCHES: Duration = Duration::from_millis(20);

/// The API server hears that a pod's containers have ended a moment before the kubelet lets its resources go: so long is
/// waited before the first look, which others who go at the same time share...
const PARTING: Duration = Duration::from_millis(15);
/// ...and so long before the next, if the List still shows the pod.
const LINGERING: Duration = Duration::from_millis(30);
/// The longest wait between two such looks.
const LINGERING_LIMIT: Duration = Duration::from_secs(1);

/// An API server that takes longer than this to tell what it has of our object was away.
const AT_ONCE: Duration = Duration::from_secs(2);

/// How soon to look again after a scan failed or the kubelet was not ready.
const RETRY: Duration = Duration::from_millis(100);
/// The longest wait between two failed scans.
const RETRY_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait between two scans of a kubelet that does not know everything yet.
const SETTLE_RETRY: Duration = Duration::from_secs(1);

/// How many times [`Settings::settle`] the policies of the standing object are carried before that is reported.
const CARRIED_UNREPORTED: u32 = 10;

/// How long the node may be unreadable before that is a matter for a person.
const UNREADABLE: Duration = Duration::from_secs(60);

/// Why a single pass ended without an object in the cluster.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// The node could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The object could not be written; why, in a sentence.
    #[error("{0}")]
    Publish(String),
}

/// What a person following the agent may want to know.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Scans that gave an account.
    pub scans: u64,
    /// The sentence of the last failure, until a scan succeeds.
    pub trouble: Option<String>,
}

/// What these zones are to lack for pods that are bound, and that the List of `scan` does not show yet. Asks the API server
/// for the pods of the node; nothing if it does not tell, or nothing is to be reserved.
pub async fn reserved(
    settings: &Settings,
    cluster: &Cluster,
    scan: &Scan,
    topology: &Topology,
) -> Vec<Reservation> {
    if !settings.terms.reserve {
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
    let verdict = Contract::new(settings.terms.clone()).judge(pods.as_deref(), &reading, Duration::ZERO);
    scheduler::allowed(&verdict.reserved, &settings.rules.exclude, &topology.zones)
}

/// The node's pods, if the API server tells.
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

/// What is known of how the kubelet is configured.
fn certainty(scanner: &Scanner, scan: &Scan) -> Known {
    match scan.inventory.config {
        None => Known::Nothing,
        Some(_) if scanner.is_config_certain() => Known::Certain,
        Some(_) => Known::Doubtful,
    }
}

/// Draws up the account of a scan.
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

/// When to look again if nothing happens before, and how deep.
#[derive(Clone, Copy, Debug)]
struct Next {
    at: Instant,
    depth: Depth,
}

/// An agent that keeps one object true until it is told to stop.
pub struct Agent {
    settings: Settings,
    scanner: Scanner,
    settling: Settling,
    triggers: Triggers,
    bucket: Bucket,
    /// The pods, and what is published of them and of accounts.
    accord: Accord,
    /// What the last scan knew of the pods.
    view: PodView,
    pace: Pace,
    /// How often in a row the List still showed a pod that is gone.
    lingering: u32,
    /// The object as it stood before this agent wrote.
    standing: watch::Receiver<Standing>,
    /// It is known, and what it says was carried over.
    knows: bool,
    carried: Carried,
    promise: Promise,
    /// The API server, from which the kubelet has its pods, did not answer just now.
    cut_off: bool,
    /// For asking whether it answers.
    cluster: Cluster,
    started: Instant,
    known: KnownDevices,
    /// Pods that were given time to be admitted completely.
    waited_for: BTreeSet<PodName>,
    /// The List of the last scan that was believed.
    previous: Arc<Usage>,
    /// Names of pods that have ended which others have now.
    returned: BTreeSet<PodName>,
    /// What was told in the turn before.
    told: BTreeSet<String>,
    failures: u32,
    /// Why the last scan failed, if it did.
    failed: Option<ScanError>,
    /// Since when no scan has given an account.
    unreadable_since: Option<Instant>,
    /// When everything has to be read again, whatever happens in between.
    everything_due: Instant,
    status: watch::Sender<Status>,
    /// How to draw up accounts from now on.
    rules: watch::Sender<Rules>,
    new_rules: watch::Receiver<Rules>,
    metrics: Arc<Metrics>,
    notices: Notices,
}

impl Agent {
    /// An agent for this node and cluster. It starts with [`Agent::run`].
    #[must_use]
    pub fn new(settings: Settings, cluster: Cluster) -> Self {
        let cluster = cluster.in_form(settings.form);
        let bounds = Bounds::new(settings.poll, settings.kubelet_timeout, settings.refresh);
        let metrics = Arc::new(Metrics::new(Arc::new(Health::new(bounds))));
        let tally = metrics.pod_source();
        let pods = PodSource::follow(settings.pods.clone(), settings.node.clone(), cluster.clone(), tally);
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
            bucket: Bucket::new(LISTS_PER_SECOND, LIST_BURST, now),
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
            cut_off: false,
            cluster,
            started: now,
            view: PodView::default(),
            pace: Pace::new(settings.poll),
            lingering: 0,
            known: KnownDevices::default(),
            waited_for: BTreeSet::new(),
            previous: Arc::default(),
            returned: BTreeSet::new(),
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

    /// Who tells the agent about pods, for others who want to know.
    #[must_use]
    pub fn pods(&self) -> PodSource {
        self.accord.pods.clone()
    }

    /// Asks the kubelet together with others, from now on.
    pub fn share(&mut self, kubelet: Upstream) {
        self.scanner.share(kubelet);
    }

    /// Reads the kubelet's answers with this in them, from now on.
    pub fn merge_with(&mut self, merge: Merge) {
        self.scanner.merge_with(merge);
    }

    /// Follows the agent's scans.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Follows the agent's writes.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Published> {
        self.accord.publisher.published()
    }

    /// Takes other rules than those of the settings, at any time.
    #[must_use]
    pub fn rules(&self) -> watch::Sender<Rules> {
        self.rules.clone()
    }

    /// What the agent counts, and its health, for whoever serves them.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Turns the loop until `shutdown` completes, then gives a write in flight a moment to end.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut depth = Depth::Everything;
        // Setting the watches asks for a look at everything: wait for it, and the first scan is that look. Where
        // nothing can be watched, nothing comes.
        tokio::select! {
            _ = self.triggers.next() => {}
            () = sleep(WATCHES) => {}
        }
        loop {
            self.metrics.health().beat();
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

    /// Turns the loop until the object is written once.
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

    /// One scan and what follows from it.
    async fn turn(&mut self, mut depth: Depth) -> Next {
        let turn = self.bucket.take(Instant::now());
        self.rest(turn).await;
        let (now, used) = (Instant::now(), pace::cpu_time());
        // Of a kubelet that is still starting nothing that was read before holds.
        if now >= self.everything_due || self.settling.is_waiting() || self.promise.is_doubting() {
            depth = Depth::Everything;
        }
        self.view = self.accord.pods.now();
        self.scanner.set_terminal(Arc::clone(&self.view.terminal));
        let scan = tokio::select! {
            scan = self.scanner.scan(depth) => scan,
            never = self.accord.follow_on() => match never {},
        };
        self.metrics.scan_took(now.elapsed());
        debug!("read {depth:?} in {:?}", now.elapsed());
        self.cut_off = self.settling.is_waiting() && self.is_cut_off().await;
        // A scan that asked for more than a List owes the bucket for it.
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

    /// Is the API server away? A kubelet that started meanwhile cannot know its pods.
    async fn is_cut_off(&self) -> bool {
        let answer = self.cluster.node_uid(&self.settings.node).await;
        matches!(answer, Err(ClusterError::Unreachable { .. } | ClusterError::Deadline { .. }))
    }

    /// Waits for the next reason to look, and folds a burst of them into one.
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
            Ok(()) = self.standing.changed() => ("standing", Depth::Usage),
            () = sleep_until(next.at) => ("poll", next.depth),
        };
        self.metrics.triggered(trigger);
        depth
    }

    /// Lets so much time pass before a scan, in which the pods are followed.
    async fn rest(&mut self, time: Duration) {
        // Even a sleep of no time lasts until the timer's next millisecond.
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
        // A new kubelet is looked at once.
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
        self.tell_returned(&mut scan);
        let doubt = match self.settle(&mut scan, now) {
            Ok(doubt) => doubt,
            Err(reason) => return self.wait_to_settle(reason),
        };
        self.previous = Arc::clone(&scan.usage);
        if self.still_being_admitted(&scan) {
            self.metrics.scanned(Outcome::Admitting);
            return Next { at: now + FOLD, depth: Depth::Usage };
        }
        if !self.knows_what_stood(scan.socket_age, now) {
            // Nothing can be published yet, and what is to be carried over is not known.
            self.metrics.scanned(Outcome::Early);
            return Next { at: self.everything_due, depth: Depth::Everything };
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

    /// A pod that has ended only gives back. One that holds more than in the last List that was believed is another, whose name
    /// the API server has not told us yet. Lists of a kubelet that is still starting are not compared: they may be incomplete.
    fn tell_returned(&mut self, scan: &mut Scan) {
        let before = Arc::clone(&self.previous);
        self.returned.retain(|name| scan.terminal.contains(name));
        if scan.terminal.is_empty() {
            return;
        }
        let follows = self.view.follows;
        let grew = |pod: &&PodUsage| {
            let earlier = |old: &&PodUsage| old.name == pod.name && old.namespace == pod.namespace;
            match before.pods.iter().find(earlier) {
                Some(old) => pod.holds_more_than(old),
                // It was not even listed. Who follows the pods knows which ones these are.
                None => !follows && pod.holds_anything(),
            }
        };
        let ended = |pod: &&PodUsage| scan.terminal.contains(&pod.full_name());
        let returned = scan.usage.pods.iter().filter(ended).filter(grew);
        self.returned.extend(returned.map(PodUsage::full_name));
        if !self.returned.is_empty() {
            scan.terminal = Arc::new(&*scan.terminal - &self.returned);
        }
    }

    /// Is this scan the whole truth yet? Says what is doubtful about one that may be published, and why one may not.
    fn settle(&mut self, scan: &mut Scan, now: Instant) -> Result<Option<String>, String> {
        let cut_off = self.cut_off || self.accord.publisher.in_trouble();
        let lives = |name: &PodName| self.accord.pods.knows_living(name);
        let went = |name: &PodName| self.accord.pods.knows_gone(name);
        let lacks = |name: &PodName, after| self.accord.pods.lacks_since(name, after);
        let told = self.view.follows.then_some(Told { lives: &lives, went: &went, lacks: &lacks });
        match self.settling.judge(scan, now, cut_off, told) {
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

    /// The kubelet answers and is about to know everything: it is not left alone for long.
    fn wait_to_settle(&mut self, reason: String) -> Next {
        self.metrics.scanned(Outcome::Unsettled);
        let next = self.fail(reason);
        Next { at: next.at.min(Instant::now() + jittered(SETTLE_RETRY)), ..next }
    }

    /// The account of a scan with what is carried over, or why it is not believed yet.
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

    /// Why an account is not believed yet of a kubelet that started lately.
    fn doubt_promise(&mut self, usage: &Usage, topology: &Topology, now: Instant) -> Option<String> {
        let bound = self.settings.settle * if usage.holds_anything() { 1 } else { PATIENCE };
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

    /// Tells of an account, and that scans work.
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

    /// When to look again if nothing happens before.
    fn next(&mut self, scan: &Scan, now: Instant) -> Next {
        let everything = Next { at: self.everything_due, depth: Depth::Everything };
        let wait = if self.lists_what_is_gone(&scan.usage, now) {
            back_off(&mut self.lingering, LINGERING, LINGERING_LIMIT)
        } else {
            self.lingering = 0;
            // Who follows the pods hears of what is bound and of what goes. Otherwise only a look finds what was released,
            // and what was allocated where no file of the kubelet tells.
            if self.view.follows || scan.files_tell && !scan.usage.holds_anything() {
                return everything;
            }
            jittered(self.pace.wait(now))
        };
        match now + wait {
            at if at < everything.at => Next { at, depth: Depth::Usage },
            _ => everything,
        }
    }

    /// Does the List still show what a pod holds that is gone?
    fn lists_what_is_gone(&self, usage: &Usage, now: Instant) -> bool {
        let gone = |pod: &&PodUsage| {
            self.view.gone.get(&pod.full_name()).is_some_and(|at| now.duration_since(*at) < LINGER)
        };
        !self.view.gone.is_empty() && usage.pods.iter().filter(gone).any(PodUsage::holds_anything)
    }

    /// Carries over what the standing object says, once that is known; is it?
    fn knows_what_stood(&mut self, socket_age: Duration, now: Instant) -> bool {
        let standing = self.standing.borrow();
        // Once it is known it does not change any more.
        if !self.knows && standing.is_known() {
            self.known.carry(standing.devices(), now);
            self.carried.take(&standing);
            // Had we to wait for the API server, so had the kubelet.
            let waited = now.duration_since(self.started) > AT_ONCE;
            let age = if waited { Duration::ZERO } else { socket_age };
            self.promise = Promise::of(&standing, now, age);
            self.knows = true;
        }
        self.knows
    }

    /// Is a pod new among those that the kubelet is in the middle of admitting? Each is waited for once.
    fn still_being_admitted(&mut self, scan: &Scan) -> bool {
        let memory = &scan.inventory.allocatable.memory;
        let half = |pod: &&PodUsage| !memory.is_empty() && is_half_admitted(pod);
        let halves = scan.usage.pods.iter().filter(half);
        let halves: BTreeSet<PodName> = halves.map(PodUsage::full_name).collect();
        let fresh = !halves.is_subset(&self.waited_for);
        self.waited_for = halves;
        fresh
    }

    /// Keeps the last good object and says why, once.
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

    /// Warns of everything that was not true in the turn before; is there anything of this kind?
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

/// What the List lacks of the pods that live as `pods` says.
fn unlisted(usage: &Usage, pods: &PodSource) -> Option<String> {
    let missing = pods.living_besides(&usage.pods.iter().map(PodUsage::full_name).collect());
    (missing > 0).then(|| format!("does not list {missing} pods that the API server has for this node"))
}

/// With a static Memory Manager, who gets exclusive CPUs gets memory right after them, and so does every container
/// of a pod of which one has memory: all of that is for Guaranteed pods only.
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
