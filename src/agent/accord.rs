//! The newest account and the pods that the cluster knows, brought to accord: what may be published, and when.
//!
//! Pods come and go between two scans, and a scan may take as long as the kubelet lets it: the object is held meanwhile
//! where it has to be, and what pods will have that were bound is reserved at once where the zones are to say so.

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

/// How long the first object waits for whoever knows the node's pods.
const FIRST_LIST: Duration = Duration::from_secs(2);
/// As [`FIRST_LIST`], where nothing but reservations protects a pod that was bound before: longer than the wait after one list
/// that failed.
const FIRST_LIST_TO_RESERVE: Duration = Duration::from_secs(12);
/// A warning is logged if no source has listed the node's pods after this time.
const WARN_AFTER: Duration = Duration::from_secs(60);

/// The delay from a pod's binding to the first List that may show it.
const LOOK: Duration = Duration::from_millis(5);
/// The longest delay between the first Lists: a kubelet admits a pod within 5 ms, or within 30 ms on a large node.
const FIRST_LIMIT: Duration = Duration::from_millis(10);
/// The number of first Lists. They end when the object is held for the pod.
const FIRST: u32 = 5;
/// As [`LOOK`], where the kubelet's files tell when it has admitted one.
const LATER_LOOK: Duration = Duration::from_millis(200);
/// The longest wait between two such looks.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// That wait in the first second, where the files do not tell: a kubelet under load takes longer, and what it has given
/// away should not wait for as long again. The bucket of Lists is no faster.
const SOON_LIMIT: Duration = Duration::from_millis(100);
/// So many looks are that second.
const SOON: u32 = 14;

/// Why a scan is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A pod gave something back, or may have.
    Departed,
    /// A pod that was bound may have been admitted.
    Bound,
}

/// What ended a wait.
enum Woken {
    /// The pods are others.
    Pods,
    /// The contract wanted to be asked again.
    Ask,
    /// It is time to look for a pod that was bound.
    Look,
}

/// An account as a scan gave it.
#[derive(Debug)]
struct Account {
    topology: Topology,
    scan: Scan,
    requirements: Requirements,
}

impl Account {
    /// What the contract looks at.
    fn reading(&self, number: u64, answers: bool) -> Reading<'_> {
        let Self { topology, scan, requirements } = self;
        let unlisted = Some(scan.unlisted());
        Reading { usage: &scan.usage, number, requirements, zones: &topology.zones, answers, unlisted }
    }
}

/// What a verdict is about. The same question has the same answer until the contract wants to be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Question {
    /// The version of the pods.
    pods: u64,
    /// The number of the account.
    account: u64,
    /// Did the kubelet answer?
    answers: bool,
}

/// Publishes accounts as the scheduler's contract allows.
#[derive(Debug)]
pub(super) struct Accord {
    node: String,
    pub(super) pods: PodSource,
    pub(super) publisher: Publisher,
    metrics: Arc<Metrics>,
    notices: Notices,
    status_file: Option<StatusFile>,
    /// Say on which zones the containers are.
    places: bool,
    contract: Contract,
    /// Pods may be left out.
    rules: watch::Receiver<Rules>,
    started: Instant,
    newest: Option<Account>,
    /// What was offered to the publisher last.
    last: Option<(Topology, Footprints)>,
    /// Does the kubelet answer?
    answers: bool,
    /// How many accounts there were.
    taken: u64,
    /// Do the kubelet's files tell what it admits?
    files_tell: bool,
    /// Pods that the zones do not account for.
    unaccounted: BTreeSet<PodName>,
    /// How often in a row they were looked for.
    looks: u32,
    /// When to look for them.
    look_at: Option<Instant>,
    /// What the contract was asked last, and whether everything that it answered was published or waits to be.
    asked: Option<(Question, bool)>,
    /// When to ask the contract again if nothing happens.
    ask_at: Option<Instant>,
    /// What is new and waits for what follows.
    joining: Joining,
    /// What was reserved with the last offer.
    reserved: Vec<Reservation>,
    /// Pods that people were told of.
    told_of: Vec<PodName>,
    /// That nobody tells was told.
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

    /// Waits until it is known which pods there are and which of them have ended, if somebody is to tell, but not for ever.
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

    /// A scan failed, or is not the whole truth yet.
    pub(super) fn silent(&mut self) {
        self.answers = false;
        self.hold();
        self.look_at = None;
    }

    /// A scan gave this account; `true` if it says something new.
    pub(super) fn take(&mut self, scan: &Scan, topology: Topology, known: &BTreeSet<String>) -> bool {
        self.answers = true;
        self.taken += 1;
        self.files_tell = scan.files_tell;
        self.look_at = None;
        let requirements = Requirements::of(&scan.inventory.allocatable, known);
        self.newest = Some(Account { topology, scan: scan.clone(), requirements });
        self.agree()
    }

    /// Follows the pods and the clock until only a scan can tell what follows. `before` is what the last scan knew of
    /// the pods.
    pub(super) async fn follow(&mut self, before: &PodView) -> Asked {
        loop {
            // What the pods say now goes out with what the scan finds, unless it is a reason to hold.
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

    /// Follows them while a scan runs; whoever calls drops it then.
    pub(super) async fn follow_on(&mut self) -> Infallible {
        // Others may have taken notice of the pods since the contract was asked.
        self.hold();
        loop {
            match self.wait().await {
                // The scan that runs is the look.
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

    /// Offers the newest account to the publisher with what the contract says of the pods, unless that is known; is it new?
    fn agree(&mut self) -> bool {
        if self.knows_the_answer(true) {
            return false;
        }
        let Some(verdict) = self.consult() else { return false };
        self.asked = Some((self.question(), true));
        verdict.stance != Stance::Wait && self.offer(&verdict)
    }

    /// The same, if the object has to be held or something is reserved: what else there is to say can wait for the scan.
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

    /// Was the contract asked this already, and is it too early to ask again? `said`: and was all of its answer said?
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

    /// Until the pods are known nothing can agree, or be reserved: the first object waits for them, but not for long.
    fn waits_for_the_first_list(&mut self, now: Instant) -> bool {
        let Terms { view, reserve, .. } = self.contract.terms();
        let needed = *view == View::Scheduler || *reserve;
        if !needed || self.pods.has_told() {
            return false;
        }
        // In the scheduler's view an object that is written without the pods is held.
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

    /// Plans the next look and tells of pods that are let go.
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
            // It counts when it is made: until then it may be planned several times.
            let mut looks = self.looks;
            self.look_at = Some(now + back_off(&mut looks, first, limit));
        }
        self.metrics.unaccounted(self.unaccounted.len());
        for pod in &verdict.released {
            self.let_go(pod);
        }
    }

    /// The kubelet had time enough for this pod. Where nothing in the object waits for it that is nobody's concern.
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

    /// Publishes what differs from the last offer in what the object says.
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

    /// Does what is new wait for what follows? Where the object is read directly nothing waits.
    fn waits(&mut self, topology: &Topology) -> bool {
        let Terms { view, reserve, .. } = self.contract.terms();
        let (View::Scheduler, false, Some((last, _))) = (view, reserve, &self.last) else { return false };
        let now = Instant::now();
        let waits = self.joining.waits(last, topology, now);
        self.ask_at = [self.ask_at, self.joining.due(now)].into_iter().flatten().min();
        waits
    }

    /// Says what is reserved now and was not before.
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

    /// For whom the object is held, and of which pods it is.
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

    /// Where the containers are, if the plugin can agree and is to know.
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
