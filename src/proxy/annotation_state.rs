//! What is known of the node's pods and devices, and the plan made from it: what to merge into responses.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use prost::bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, warn};

use super::devices::Follower;
use super::merge::{Merged, Node, Plan, Rules, Version, WireError};
use crate::cluster::Cluster;
use crate::pod::{Pod, PodName, Wanted};
use crate::pod::texts::shorten;
use crate::pod_source::PodSource;
use crate::telemetry::proxy::Metrics;
use crate::util::token_bucket::TokenBucket;

/// How long the result of looking up a pod by name is valid; it doubles each time the result is the same...
const FRESH: Duration = Duration::from_millis(250);
/// ...the same for a lookup that failed...
const IN_VAIN: Duration = Duration::from_secs(1);
/// ...and the limit of both.
const LONGEST: Duration = Duration::from_secs(30);
/// How many pods are looked up by name for one response, and how many concurrently. A node admits a few at a
/// time.
const MOST: usize = 64;
const AT_ONCE: usize = 8;
/// Maximum number of lookup results that are cached.
const MOST_REMEMBERED: usize = 4096;

/// How often a response is merged again at most because something changed meanwhile.
const PLANS: usize = 3;

/// A recurring problem of a pod is logged again after this time at the earliest.
const TOLD: Duration = Duration::from_secs(600);
/// Log lines about annotations per second, and burst: the pods' creators must not be able to flood the log.
const LINES: (f64, f64) = (0.2, 20.0);

/// Where single pods are looked up: the API server, if the pod source is a watch on it.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub(super) cluster: Cluster,
    pub(super) node: String,
    pub(super) wanted: Wanted,
}

/// Whether what is known may be merged into responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// A pod source is synced, or was not long ago.
    Good,
    /// The pods were never listed, or the node's devices never read.
    Untold,
    /// No pod source has been synced for longer than `proxy.lastKnown`.
    Stale,
}

/// The state of the node's pods and devices.
pub(super) struct Knowledge {
    rules: Rules,
    /// The rules for the agent's zones, in which parts of a device have the device's own id.
    rules_of_zones: Rules,
    pods: PodSource,
    asking: Option<Asking>,
    devices: Option<Follower>,
    wait: Duration,
    last_known: Duration,
    state: Mutex<State>,
    /// Serializes the lookups of unknown pods: the next caller finds the results of the first.
    learning: tokio::sync::Mutex<()>,
    metrics: Metrics,
}

struct State {
    node: watch::Receiver<Node>,
    /// Incremented when the devices change.
    looks: u64,
    for_clients: Made,
    for_zones: Made,
    /// Pods that were looked up by name because the pod source lacks them or has only a terminating pod of
    /// that name.
    asked: BTreeMap<PodName, Answer>,
    /// Incremented when any of them changes.
    asks: u64,
    /// When the last problem with an unknown device appeared; `None` once a response has waited for a newer
    /// read.
    missing_since: Option<Instant>,
    told: Told,
}

/// A plan, and the versions it was made from: of the pods, of the devices, and of the pods looked up.
#[derive(Default)]
struct Made {
    of: Option<(u64, u64, u64)>,
    plan: Arc<Plan>,
}

/// The result of looking up a pod.
struct Answer {
    /// `None`: the lookup failed. `Some(None)`: there is no such pod.
    pod: Option<Option<Pod>>,
    until: Instant,
    /// How often in a row the result was the same before.
    times: u32,
}

/// What was logged.
struct Told {
    /// When each kind of problem of a pod was last logged.
    problems: BTreeMap<(PodName, &'static str), Instant>,
    lines: TokenBucket,
    complaints: Vec<String>,
}

impl Knowledge {
    pub(super) fn new(
        rules: Rules,
        pods: PodSource,
        asking: Option<Asking>,
        (node, devices): (watch::Receiver<Node>, Option<Follower>),
        (wait, last_known): (Duration, Duration),
        metrics: Metrics,
    ) -> Self {
        let lines = TokenBucket::new(LINES.0, LINES.1, Instant::now());
        let state = Mutex::new(State {
            node,
            looks: 0,
            for_clients: Made::default(),
            for_zones: Made::default(),
            asked: BTreeMap::new(),
            asks: 0,
            missing_since: None,
            told: Told { problems: BTreeMap::new(), lines, complaints: Vec::new() },
        });
        let rules_of_zones = rules.without_shared_ids();
        let learning = tokio::sync::Mutex::default();
        Self { rules, rules_of_zones, pods, asking, devices, wait, last_known, state, learning, metrics }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all pods were listed once.
    pub(super) fn has_told(&self) -> bool {
        self.pods.has_told()
    }

    /// Returns whether what is known may be merged into responses.
    pub(super) fn standing(&self) -> Standing {
        let looked = self.devices.as_ref().is_none_or(Follower::was_answered);
        match self.pods.silent_for() {
            _ if !self.pods.has_told() || !looked => Standing::Untold,
            Some(silent) if silent > self.last_known => Standing::Stale,
            _ => Standing::Good,
        }
    }

    /// Returns the deadline of a response that starts now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.wait
    }

    /// Waits for the first list of pods and for the first read of the node's devices, until `deadline`.
    pub(super) async fn first_words(&self, deadline: Instant) {
        let mut pods = self.pods.clone();
        let told = async {
            while !pods.has_told() {
                pods.changed().await;
            }
            if let Some(devices) = &self.devices {
                devices.first_look().await;
            }
        };
        let _ = timeout_at(deadline, told).await;
    }

    /// Returns what to merge into responses now.
    pub(super) fn plan(&self) -> Arc<Plan> {
        let mut state = self.state();
        let of = self.look(&mut state);
        if state.for_clients.of == Some(of) {
            return Arc::clone(&state.for_clients.plan);
        }
        let plan = self.make(&self.rules, &mut state);
        self.report(&mut state, &plan);
        state.for_clients = Made { of: Some(of), plan: Arc::clone(&plan) };
        plan
    }

    /// Returns what the agent has to count now; `None` as long as it is unknown: no zone may look free until
    /// then.
    pub(super) fn plan_of_zones(&self) -> Option<Arc<Plan>> {
        if self.standing() == Standing::Untold {
            return None;
        }
        let mut state = self.state();
        let of = self.look(&mut state);
        if state.for_zones.of != Some(of) {
            let plan = self.make(&self.rules_of_zones, &mut state);
            state.for_zones = Made { of: Some(of), plan };
        }
        Some(Arc::clone(&state.for_zones.plan))
    }

    /// Returns the versions that a plan would be made from now.
    fn look(&self, state: &mut State) -> (u64, u64, u64) {
        // Reading the devices marks them as seen.
        if state.node.has_changed().unwrap_or(false) {
            drop(state.node.borrow_and_update());
            state.looks += 1;
        }
        let before = state.asked.len();
        // Results are kept a little longer than they are valid, to count how often they were the same.
        let now = Instant::now();
        state.asked.retain(|name, answer| now < answer.until + LONGEST && !self.pods.knows_settled(name));
        if state.asked.len() != before {
            state.asks += 1;
        }
        (self.pods.version(), state.looks, state.asks)
    }

    fn make(&self, rules: &Rules, state: &mut State) -> Arc<Plan> {
        let node = state.node.borrow().clone();
        // There are only a few, for a moment. They are newer than the pod source's pods of the same name.
        let asked: Vec<Pod> = state.asked.values().filter_map(|answer| answer.pod.clone()?).collect();
        let told: Vec<Pod> = self.pods.with(|pods| {
            let pods = pods.into_iter().flatten();
            let annotated = pods.filter(|pod| !pod.annotations.is_empty());
            annotated.filter(|pod| !overruled(&state.asked, pod)).cloned().collect()
        });
        Arc::new(rules.plan(told.iter().chain(&asked), &node))
    }

    /// Reports problems with annotations: each is logged once, and the metrics show the current ones.
    fn report(&self, state: &mut State, plan: &Plan) {
        let mut kinds: BTreeMap<&'static str, usize> = BTreeMap::new();
        for problem in plan.problems() {
            *kinds.entry(problem.kind.name()).or_default() += 1;
        }
        self.metrics.problems(&kinds);
        let now = Instant::now();
        let earlier = Arc::clone(&state.for_clients.plan);
        if plan.new_problems(&earlier).any(|problem| problem.kind.is_about_devices()) {
            state.missing_since = Some(now);
        }
        let told = &mut state.told;
        told.problems.retain(|_, at| now.duration_since(*at) < TOLD);
        for problem in plan.new_problems(&earlier) {
            let key = (problem.pod.clone(), problem.kind.name());
            if !told.problems.contains_key(&key) && told.lines.take_now(now) {
                warn!("{}", problem.sentence);
                told.problems.insert(key, now);
            }
        }
        if let Some(devices) = self.devices.as_ref().filter(|_| plan.misses_devices()) {
            devices.prompt();
        }
    }

    /// Merges what is known into a `List`. Unknown pods in it are looked up until `deadline`; also returns
    /// how many are still unknown.
    pub(super) async fn merge_list(
        &self,
        bytes: &Bytes,
        version: Version,
        deadline: Instant,
    ) -> Result<(Merged, usize), WireError> {
        self.merge(deadline, |plan| plan.list(bytes, version)).await
    }

    /// As [`Knowledge::merge_list`], for the response to `Get` about one pod.
    pub(super) async fn merge_get(
        &self,
        bytes: &Bytes,
        deadline: Instant,
    ) -> Result<(Merged, usize), WireError> {
        self.merge(deadline, |plan| plan.get(bytes)).await
    }

    async fn merge(
        &self,
        deadline: Instant,
        merge: impl Fn(&Plan) -> Result<Merged, WireError>,
    ) -> Result<(Merged, usize), WireError> {
        let mut plan = self.plan();
        let mut merged = merge(&plan)?;
        if !self.unknown(&merged).is_empty() {
            self.learn(&merged, deadline).await;
        }
        self.look_for_devices(deadline).await;
        // Pods that were looked up or received while merging are in a newer plan. No pod counts as known
        // unless the plan that was merged knows it.
        for _ in 0..PLANS {
            let unknown = self.untold(&merged);
            let newer = self.plan();
            if Arc::ptr_eq(&newer, &plan) {
                return Ok((merged, unknown));
            }
            merged = merge(&newer)?;
            plan = newer;
        }
        let unknown = self.untold(&merged);
        Ok((merged, unknown))
    }

    /// Reads the node's devices once more if an annotation names one that the node is not known to have.
    async fn look_for_devices(&self, deadline: Instant) {
        let Some(devices) = &self.devices else { return };
        let since = self.state().missing_since;
        if let Some(since) = since.filter(|since| !devices.looked_since(*since)) {
            let _ = timeout_at(deadline, devices.look_now()).await;
            let mut state = self.state();
            // Whatever the result: no response waits twice for the same devices.
            if state.missing_since == Some(since) {
                state.missing_since = None;
            }
        }
    }

    /// Returns the pods of a response that the pod source lacks or has only as terminating: there may be a
    /// new pod of that name.
    fn listed_unknown(&self, merged: &Merged) -> Vec<PodName> {
        let names = merged.listed.names().map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        names.filter(|name| !self.pods.knows_settled(name)).collect()
    }

    /// Returns those of them that need a lookup.
    fn unknown(&self, merged: &Merged) -> Vec<PodName> {
        let unknown = self.listed_unknown(merged);
        let state = self.state();
        unknown.into_iter().filter(|name| !state.has_asked(name)).collect()
    }

    /// Returns how many pods of a response are unknown. A pod that does not exist is not unknown.
    fn untold(&self, merged: &Merged) -> usize {
        let unknown = self.listed_unknown(merged);
        let state = self.state();
        let answered = |name: &PodName| state.asked.get(name).is_some_and(|answer| answer.pod.is_some());
        let told = |name: &PodName| answered(name) || self.pods.knows(name);
        unknown.iter().filter(|name| !told(name)).count()
    }

    /// Looks up unknown pods, and waits until the lookups or the pod source provide them, or until
    /// `deadline`.
    async fn learn(&self, merged: &Merged, deadline: Instant) {
        let Ok(_alone) = timeout_at(deadline, self.learning.lock()).await else { return };
        let mut unknown = self.unknown(merged);
        // The others are looked up for the next response.
        unknown.truncate(MOST);
        if unknown.is_empty() {
            return;
        }
        debug!("{} pods are listed that nobody has told about: asking for them", unknown.len());
        let mut source = self.pods.clone();
        let told = async {
            source.hurry();
            while !unknown.iter().all(|name| source.knows_settled(name)) {
                source.changed().await;
            }
        };
        let asked = async {
            match &self.asking {
                Some(asking) => self.ask(asking, &unknown).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = told => {}
            () = asked => {}
            () = sleep_until(deadline) => {}
        }
        // Caches the failed lookups, so that no response waits for these pods again too soon.
        for name in unknown {
            if !self.pods.knows_settled(&name) && !self.state().has_asked(&name) {
                self.remember(name, None);
            }
        }
    }

    /// Looks up each pod by its name; waits forever if any lookup failed.
    async fn ask(&self, asking: &Asking, unknown: &[PodName]) {
        let mut failed = false;
        for some in unknown.chunks(AT_ONCE) {
            let answers = join_all(some.iter().map(|name| self.ask_for(asking, name))).await;
            failed |= answers.contains(&false);
        }
        if failed {
            std::future::pending::<()>().await;
        }
    }

    /// Looks up one pod, and returns false if that failed. The result is cached at once: the caller may give
    /// up while it waits for the others.
    async fn ask_for(&self, asking: &Asking, name: &PodName) -> bool {
        let Asking { cluster, node, wanted } = asking;
        match cluster.pod_of(node, name, wanted).await {
            Ok(pod) => {
                self.remember(name.clone(), Some(pod));
                true
            }
            Err(error) => {
                self.complain(&error);
                false
            }
        }
    }

    fn remember(&self, name: PodName, pod: Option<Option<Pod>>) {
        let mut state = self.state();
        let before = state.asked.get(&name);
        let same = before.is_some_and(|before| before.pod == pod);
        let times = before.filter(|_| same).map_or(0, |before| before.times + 1);
        let first = if pod.is_some() { FRESH } else { IN_VAIN };
        let time = first.saturating_mul(1 << times.min(16)).min(LONGEST);
        if state.asked.len() < MOST_REMEMBERED || state.asked.contains_key(&name) {
            state.asked.insert(name, Answer { pod, until: Instant::now() + time, times });
            shorten(state.asked.values_mut().filter_map(|answer| answer.pod.as_mut()?.as_mut()));
            if !same {
                state.asks += 1;
            }
        }
    }

    /// Logs a message once.
    fn complain(&self, error: &impl fmt::Display) {
        let sentence = format!("a pod that the kubelet lists cannot be asked for: {error}");
        let complaints = &mut self.state().told.complaints;
        if !complaints.contains(&sentence) {
            warn!("{sentence}");
            // Only the latest few are remembered.
            complaints.truncate(3);
            complaints.insert(0, sentence);
        }
    }
}

impl State {
    /// Whether this pod was looked up and the result is still valid.
    fn has_asked(&self, name: &PodName) -> bool {
        self.asked.get(name).is_some_and(|answer| Instant::now() < answer.until)
    }
}

/// Whether the result of a lookup replaces this pod.
fn overruled(asked: &BTreeMap<PodName, Answer>, pod: &Pod) -> bool {
    !asked.is_empty() && asked.get(&pod.full_name()).is_some_and(|answer| answer.pod.is_some())
}
