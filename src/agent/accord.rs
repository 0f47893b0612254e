//! Combines the newest topology with the pods that the cluster knows: decides what is published, and when.
//!
//! Pods change between two scans, and a scan takes as long as the kubelet needs. Meanwhile the object is held
//! if necessary, and what bound pods will be allocated is reserved at once if the zones include reservations.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::Settings;
use super::changes::{self, Footprints};
use super::joining::Joining;
use super::notices::{Notices, Reason};
use super::publish::Publisher;
use super::scan::Scan;
use super::status_file::StatusFile;
use crate::backoff::back_off;
use crate::pod::PodName;
use crate::pod_source::{PodSource, PodView};
use crate::scheduler::{self, Contract, Reading, Requirements, Reservation, Stance, Terms, Verdict, View};
use crate::telemetry::metrics::Metrics;
use crate::topology::{Placement, Rules, Topology};

/// How long the first object waits for the node's pods to be synced.
const FIRST_LIST: Duration = Duration::from_secs(2);
/// Like [`FIRST_LIST`], if only reservations protect a pod that was bound before: longer than the backoff
/// after one failed list.
const FIRST_LIST_TO_RESERVE: Duration = Duration::from_secs(12);
/// A warning is logged if no source has listed the node's pods after this time.
const WARN_AFTER: Duration = Duration::from_secs(60);

/// The delay from a pod's binding to the first List that may show it.
const LOOK: Duration = Duration::from_millis(5);
/// The longest delay between the first Lists: a kubelet admits a pod within 5 ms, or within 30 ms on a large
/// node.
const FIRST_LIMIT: Duration = Duration::from_millis(10);
/// The number of first Lists. They end when the object is held for the pod.
const FIRST: u32 = 5;
/// Like [`LOOK`], if the kubelet's checkpoints show when it has admitted a pod.
const LATER_LOOK: Duration = Duration::from_millis(200);
/// Maximum delay between two such scans.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// Maximum delay in the first second, if the checkpoints are not visible: a kubelet under load takes longer,
/// and what it has allocated should not wait for as long again. The rate limit of Lists is no faster.
const SOON_LIMIT: Duration = Duration::from_millis(100);
/// The number of scans in that second.
const SOON: u32 = 14;

/// Why a scan is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A pod released resources, or may have.
    Departed,
    /// A pod that was bound may have been admitted.
    Bound,
}

/// Why a wait ended.
enum Woken {
    /// The pods changed.
    Pods,
    /// The contract is due to be evaluated again.
    Ask,
    /// It is time to scan for a bound pod.
    Look,
}

/// The topology computed from a scan.
#[derive(Debug)]
struct Account {
    topology: Topology,
    scan: Scan,
    requirements: Requirements,
}

impl Account {
    /// Returns the input of the contract.
    fn reading(&self, number: u64, answers: bool) -> Reading<'_> {
        let Self { topology, scan, requirements } = self;
        let unlisted = Some(scan.unlisted());
        Reading { usage: &scan.usage, number, requirements, zones: &topology.zones, answers, unlisted }
    }
}

/// What a verdict depends on. The same input has the same verdict until the contract is due to be evaluated
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Question {
    /// The version of the pods.
    pods: u64,
    /// The number of the topology.
    account: u64,
    /// Whether the kubelet responded.
    answers: bool,
}

/// Publishes topologies as the scheduler's contract allows.
#[derive(Debug)]
pub(super) struct Accord {
    node: String,
    pub(super) pods: PodSource,
    pub(super) publisher: Publisher,
    metrics: Arc<Metrics>,
    notices: Notices,
    status_file: Option<StatusFile>,
    /// Whether to publish on which zones the containers are.
    places: bool,
    contract: Contract,
    /// The current rules. They may exclude pods.
    rules: watch::Receiver<Rules>,
    started: Instant,
    newest: Option<Account>,
    /// What was last offered to the publisher.
    last: Option<(Topology, Footprints)>,
    /// Whether the kubelet responds.
    answers: bool,
    /// The number of topologies so far.
    taken: u64,
    /// Whether the kubelet's checkpoints show what it admits.
    files_tell: bool,
    /// Pods that the zones do not account for.
    unaccounted: BTreeSet<PodName>,
    /// The number of consecutive scans for them.
    looks: u32,
    /// When to scan for them.
    look_at: Option<Instant>,
    /// The last input of the contract, and whether its whole verdict was offered or waits to be.
    asked: Option<(Question, bool)>,
    /// When to evaluate the contract again if nothing happens.
    ask_at: Option<Instant>,
    /// A change that is delayed, to be written together with the next one.
    joining: Joining,
    /// The reservations of the last offer.
    reserved: Vec<Reservation>,
    /// The unaccounted pods that were last reported.
    told_of: Vec<PodName>,
    /// Whether it was warned that the pods are unknown.
    told_untold: bool,
}

impl Accord {
    pub(super) fn new(
        settings: &Settings,
        pods: PodSource,
        publisher: Publisher,
        rules: watch::Receiver<Rules>,
        metrics: Arc<Metrics>,
        notices: Notices,
    ) -> Self {
        Self {
            node: settings.node.clone(),
            pods,
            publisher,
            metrics,
            notices,
            status_file: settings.status_file.clone().map(StatusFile::start),
            places: settings.placement,
            contract: Contract::new(settings.terms.clone()),
            rules,
            started: Instant::now(),
            newest: None,
            last: None,
            answers: false,
            taken: 0,
            files_tell: false,
            unaccounted: BTreeSet::new(),
            looks: 0,
            look_at: None,
            asked: None,
            ask_at: None,
            joining: Joining::default(),
            reserved: Vec::new(),
            told_of: Vec::new(),
            told_untold: false,
        }
    }

    /// Waits until the pods are synced and it is known which have terminated, if a source is `expected`; for
    /// a limited time.
    pub(super) async fn first_pods(&mut self, expected: bool) {
        let told = async {
            while !self.pods.now().complete {
                self.pods.changed().await;
            }
        };
        if expected && timeout(FIRST_LIST, told).await.is_err() {
            debug!("nobody has told yet which pods there are on the node");
        }
    }

    /// Records that a scan failed or is incomplete. Publishes the pod changes that [`Accord::hold`] deferred to
    /// its result, because the following scans may fail too.
    pub(super) fn silent(&mut self) {
        self.answers = false;
        self.agree();
        self.look_at = None;
    }

    /// Takes the topology of a scan. Returns true if it differs from what was last offered.
    pub(super) fn take(&mut self, scan: &Scan, topology: Topology, known: &BTreeSet<String>) -> bool {
        self.answers = true;
        self.taken += 1;
        self.files_tell = scan.files_tell;
        self.look_at = None;
        let requirements = Requirements::of(&scan.inventory.allocatable, known);
        self.newest = Some(Account { topology, scan: scan.clone(), requirements });
        self.agree()
    }

    /// Follows the pods and the clock until a scan is needed. `before` is the view of the pods at the last
    /// scan.
    pub(super) async fn follow(&mut self, before: &PodView) -> Asked {
        loop {
            // The change is published with the result of the scan, unless it is a reason to hold the object.
            if self.pods.peek().asks_for_a_look(before) {
                self.hold();
                return Asked::Departed;
            }
            match self.wait().await {
                Woken::Look => {
                    self.looks = self.looks.saturating_add(1);
                    return Asked::Bound;
                }
                Woken::Pods if self.pods.peek().asks_for_a_look(before) => {}
                Woken::Pods | Woken::Ask => drop(self.agree()),
            }
        }
    }

    /// Follows them while a scan runs; the caller drops the future then.
    pub(super) async fn follow_on(&mut self) -> Infallible {
        // Other code may have marked changes of the pods as seen since the contract was evaluated.
        self.hold();
        loop {
            match self.wait().await {
                // The running scan is the one that is due.
                Woken::Look => self.look_at = None,
                Woken::Pods | Woken::Ask => drop(self.agree()),
            }
        }
    }

    async fn wait(&mut self) -> Woken {
        let (ask, look) = (self.ask_at, self.look_at);
        tokio::select! {
            () = self.pods.changed() => {
                self.pods.now();
                Woken::Pods
            }
            () = sleep_until(ask.unwrap_or_else(Instant::now)), if ask.is_some() => Woken::Ask,
            () = sleep_until(look.unwrap_or_else(Instant::now)), if look.is_some() => Woken::Look,
        }
    }

    /// Offers the newest topology to the publisher with the contract's verdict on the pods, unless its input
    /// is unchanged. Returns true if the offer is new.
    fn agree(&mut self) -> bool {
        if self.knows_the_answer(true) {
            return false;
        }
        let Some(verdict) = self.consult() else { return false };
        self.asked = Some((self.question(), true));
        verdict.stance != Stance::Wait && self.offer(&verdict)
    }

    /// Like [`Accord::agree`], if the object has to be held or resources are reserved: everything else can
    /// wait for the scan.
    fn hold(&mut self) {
        if self.knows_the_answer(false) {
            return;
        }
        let Some(verdict) = self.consult() else { return };
        let says = self.contract.terms().reserve || verdict.stance == Stance::Held;
        self.asked = Some((self.question(), says));
        if says {
            self.offer(&verdict);
        }
    }

    fn question(&self) -> Question {
        Question { pods: self.pods.version(), account: self.taken, answers: self.answers }
    }

    /// Returns true if the contract was evaluated with this input and is not due yet. `said`: its whole
    /// verdict must have been offered, too.
    fn knows_the_answer(&self, said: bool) -> bool {
        let is_early = self.ask_at.is_none_or(|at| Instant::now() < at);
        is_early && self.asked.is_some_and(|(question, all)| (all || !said) && question == self.question())
    }

    fn consult(&mut self) -> Option<Verdict> {
        self.ask_at = None;
        let now = Instant::now();
        if self.newest.is_none() || self.waits_for_the_first_list(now) {
            return None;
        }
        let verdict = self.judge(now)?;
        self.heed(&verdict, now);
        Some(verdict)
    }

    fn judge(&mut self, now: Instant) -> Option<Verdict> {
        let reading = self.newest.as_ref()?.reading(self.taken, self.answers);
        let (contract, at) = (&mut self.contract, now.duration_since(self.started));
        Some(self.pods.with(|pods| contract.judge(pods, &reading, at)))
    }

    /// Returns true while the first object waits for the pods: until they are known, no fingerprint can match
    /// and nothing can be reserved. The wait is limited.
    fn waits_for_the_first_list(&mut self, now: Instant) -> bool {
        let Terms { view, reserve, .. } = self.contract.terms();
        let needed = *view == View::Scheduler || *reserve;
        if !needed || self.pods.has_told() {
            return false;
        }
        // In the scheduler's view, an object that is written without the pods is held.
        let limit = if *view == View::Scheduler { FIRST_LIST } else { FIRST_LIST_TO_RESERVE };
        let deadline = self.started + limit;
        let warn_at = self.started + WARN_AFTER;
        if now < deadline {
            self.ask_at = Some(deadline);
            return true;
        }
        if now < warn_at {
            self.ask_at = Some(warn_at);
        } else if !self.told_untold {
            self.told_untold = true;
            let lacks = match view {
                View::Scheduler => "the scheduler plugin cannot believe its NodeResourceTopology",
                View::Kubelet | View::None => {
                    "its NodeResourceTopology reserves nothing for pods that are bound"
                }
            };
            let sentence = format!(
                "nobody has told yet which pods there are on the node, so {lacks}: allow the agent to list and watch \
                 pods"
            );
            warn!("{sentence}");
            self.notices.post(Reason::PodsUnknown, sentence);
        }
        false
    }

    /// Schedules the next evaluation and the next scan, and reports pods that are not waited for any longer.
    fn heed(&mut self, verdict: &Verdict, now: Instant) {
        let asked = verdict.again.map(|at| self.started + at);
        self.ask_at = [self.ask_at, asked, self.joining.due(now)].into_iter().flatten().min();
        let unaccounted: BTreeSet<PodName> = verdict.unaccounted.iter().cloned().collect();
        if !unaccounted.is_subset(&self.unaccounted) {
            self.looks = 0;
            self.look_at = None;
        }
        self.unaccounted = unaccounted;
        if self.unaccounted.is_empty() {
            self.look_at = None;
        } else if self.answers && self.look_at.is_none() {
            let (first, limit) = match self.files_tell {
                true => (LATER_LOOK, LOOK_LIMIT),
                false if self.looks < FIRST => (LOOK, FIRST_LIMIT),
                false if self.looks < SOON => (LOOK, SOON_LIMIT),
                false => (LOOK, LOOK_LIMIT),
            };
            // It is counted when the scan is made: before, it may be scheduled several times.
            let mut looks = self.looks;
            self.look_at = Some(now + back_off(&mut looks, first, limit));
        }
        self.metrics.unaccounted(self.unaccounted.len());
        for pod in &verdict.released {
            self.let_go(pod);
        }
    }

    /// Reports a pod that the kubelet had enough time to admit; at debug level if nothing in the object waits
    /// for it.
    fn let_go(&self, (namespace, name): &PodName) {
        let Terms { view, hold_limit, reserve, .. } = self.contract.terms();
        let since = format!(
            "the kubelet has neither admitted nor refused the pod {namespace}/{name} within {hold_limit:?}"
        );
        let consequence = match view {
            View::Scheduler => "the object is not held for it any longer",
            View::Kubelet | View::None if *reserve => "nothing is reserved for it any longer",
            View::Kubelet | View::None => return debug!("{since}; it is not looked for any longer"),
        };
        let sentence = format!("{since}; {consequence}");
        warn!("{sentence}");
        self.metrics.let_go();
        self.notices.post(Reason::PodNotAccounted, sentence);
    }

    /// Offers the topology with the verdict to the publisher if it differs from the last offer. Returns true
    /// if it does.
    fn offer(&mut self, verdict: &Verdict) -> bool {
        let Some(account) = &self.newest else { return false };
        let mut topology = account.topology.clone();
        topology.pods = verdict.pods;
        let reserved = scheduler::allowed(&verdict.reserved, &self.rules.borrow().exclude, &topology.zones);
        scheduler::reserve(&mut topology.zones, &reserved);
        if let Some(placement) = self.placement(account, verdict) {
            placement.enter(&mut topology);
        }
        let same = self.last.as_ref().is_some_and(|(last, _)| says_the_same(last, &topology));
        if same {
            self.joining.is_said(&topology);
        } else if self.waits(&topology) {
            return false;
        }
        let Some(account) = &self.newest else { return false };
        if !same || self.told_of != verdict.unaccounted {
            self.tell_people(account, verdict);
            self.told_of.clone_from(&verdict.unaccounted);
        }
        let holders = (!same).then(|| Footprints::of(&account.scan.usage, &account.scan.inventory.machine));
        self.tell_reserved(reserved);
        let Some(holders) = holders else { return false };
        let last = self.last.as_ref().map(|(topology, holders)| (topology, holders));
        for line in changes::between(last, (&topology, &holders)) {
            info!("{line}");
        }
        self.metrics.changed(&topology);
        self.publisher.offer(topology.clone());
        self.last = Some((topology, holders));
        true
    }

    /// Returns true if the change is delayed. Nothing is delayed if consumers use the object without the
    /// scheduler plugin's cache, or with reservations.
    fn waits(&mut self, topology: &Topology) -> bool {
        let Terms { view, reserve, .. } = self.contract.terms();
        let (View::Scheduler, false, Some((last, _))) = (view, reserve, &self.last) else { return false };
        let now = Instant::now();
        let waits = self.joining.waits(last, topology, now);
        self.ask_at = [self.ask_at, self.joining.due(now)].into_iter().flatten().min();
        waits
    }

    /// Logs new reservations.
    fn tell_reserved(&mut self, reserved: Vec<Reservation>) {
        if reserved == self.reserved {
            return;
        }
        let was = |pod: &PodName| self.reserved.iter().any(|before| before.pod == *pod);
        for new in reserved.iter().filter(|of| !was(&of.pod)) {
            info!("reserved for the pod {new}");
        }
        let pods: BTreeSet<&PodName> = reserved.iter().map(|of| &of.pod).collect();
        self.metrics.reserved(pods.len(), &scheduler::totals(&reserved));
        self.reserved = reserved;
    }

    /// Reports which pods the object covers and which ones it is held for.
    fn tell_people(&self, account: &Account, verdict: &Verdict) {
        if verdict.stance == Stance::Held {
            debug!("held for {:?}", verdict.unaccounted);
        }
        if let (Some(file), Some(set)) = (&self.status_file, verdict.pods) {
            let zones = &account.topology.zones;
            let counted = self.pods.with(|pods| self.contract.counted(pods, &account.scan.usage, zones));
            file.write(&self.node, set, counted, &verdict.unaccounted);
        }
    }

    /// Returns the placement of the containers, if it is enabled and the plugin's fingerprint can match.
    fn placement(&self, account: &Account, verdict: &Verdict) -> Option<Placement> {
        if !self.places || verdict.stance != Stance::Agreed || !Placement::is_read(&account.topology) {
            return None;
        }
        let reading = account.reading(self.taken, self.answers);
        self.pods.with(|pods| self.contract.placement(pods, &reading, &account.scan.inventory.machine))
    }
}

fn says_the_same(one: &Topology, other: &Topology) -> bool {
    one.zones == other.zones && one.attributes == other.attributes && one.pods == other.pods
}
