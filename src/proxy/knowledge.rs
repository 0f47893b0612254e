//! What is known of the node's pods and devices, and the plan that follows from it: what has to be put into answers.

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
use crate::bucket::Bucket;
use crate::cluster::Cluster;
use crate::pod::{Pod, PodName, Wanted};
use crate::pod_source::PodSource;
use crate::telemetry::proxy::Metrics;

/// What came of asking for a pod by its name holds for so long, twice as long each time it is the same...
const FRESH: Duration = Duration::from_millis(250);
/// ...and so does it that nobody could tell...
const IN_VAIN: Duration = Duration::from_secs(1);
/// ...but never longer than this.
const LONGEST: Duration = Duration::from_secs(30);
/// So many pods are asked for by name for one answer, so many of them at once. A node admits a few at a time.
const MOST: usize = 64;
const AT_ONCE: usize = 8;
/// So many pods that nobody has told about are remembered.
const MOST_REMEMBERED: usize = 4096;

/// An answer is merged anew so often at most because something was told meanwhile.
const PLANS: usize = 3;

/// A problem of a pod that comes and goes is told again after this at the soonest.
const TOLD: Duration = Duration::from_secs(600);
/// So many lines about annotations in a second, and at once: whoever makes pods must not write the log.
const LINES: (f64, f64) = (0.2, 20.0);

/// Who is asked for single pods: the API server, where the source of pods is a watch on it.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub(super) cluster: Cluster,
    pub(super) node: String,
    pub(super) wanted: Wanted,
}

/// May what is known be put into answers?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Somebody tells, or did not long ago.
    Good,
    /// Nobody has told yet.
    Untold,
    /// Nobody has told for too long.
    Stale,
}

/// What is known of the node's pods and devices.
pub(super) struct Knowledge {
    rules: Rules,
    /// Those of the agent's zones: no id is written in another way there.
    rules_of_zones: Rules,
    pods: PodSource,
    asking: Option<Asking>,
    devices: Option<Follower>,
    wait: Duration,
    last_known: Duration,
    state: Mutex<State>,
    /// One at a time asks for pods that nobody has told about: the next finds what the first one learnt.
    learning: tokio::sync::Mutex<()>,
    metrics: Metrics,
}

struct State {
    node: watch::Receiver<Node>,
    /// Grows when the devices are others.
    looks: u64,
    for_clients: Made,
    for_zones: Made,
    /// Pods that were asked for by name, for the source does not have them, or only as ones that go.
    asked: BTreeMap<PodName, Answer>,
    /// Grows when any of them is another.
    asks: u64,
    /// Since when an annotation names a device that the node was not known to have.
    missing_since: Option<Instant>,
    told: Told,
}

/// A plan, and what it was made of: the version of the pods, that of the devices, and that of the pods asked for.
#[derive(Default)]
struct Made {
    of: Option<(u64, u64, u64)>,
    plan: Arc<Plan>,
}

/// What came of asking for a pod.
struct Answer {
    /// `None`: nobody could tell. `Some(None)`: there is no such pod.
    pod: Option<Option<Pod>>,
    until: Instant,
    /// How often in a row it was this.
    times: u32,
}

/// What the log says.
struct Told {
    /// When each kind of problem of a pod was told.
    problems: BTreeMap<(PodName, &'static str), Instant>,
    lines: Bucket,
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
        let lines = Bucket::new(LINES.0, LINES.1, Instant::now());
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

    /// Were all pods listed once?
    pub(super) fn has_told(&self) -> bool {
        self.pods.has_told()
    }

    /// May what is known be put into answers?
    pub(super) fn standing(&self) -> Standing {
        let looked = self.devices.as_ref().is_none_or(Follower::was_answered);
        match self.pods.silent_for() {
            _ if !self.pods.has_told() || !looked => Standing::Untold,
            Some(silent) if silent > self.last_known => Standing::Stale,
            _ => Standing::Good,
        }
    }

    /// How long an answer may wait that is begun now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.wait
    }

    /// Waits for the first list of pods and for the first look at the node's devices, but not for ever.
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

    /// What has to be put into answers now.
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

    /// What the agent has to count now; `None` as long as nobody knows: no zone is to look free until then.
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

    /// What a plan would be made of now.
    fn look(&self, state: &mut State) -> (u64, u64, u64) {
        // Who looks marks it as seen.
        if state.node.has_changed().unwrap_or(false) {
            drop(state.node.borrow_and_update());
            state.looks += 1;
        }
        let before = state.asked.len();
        // It is remembered a little longer, to know how often it was the same.
        let now = Instant::now();
        state.asked.retain(|name, answer| now < answer.until + LONGEST && !self.pods.knows_living(name));
        if state.asked.len() != before {
            state.asks += 1;
        }
        (self.pods.version(), state.looks, state.asks)
    }

    fn make(&self, rules: &Rules, state: &mut State) -> Arc<Plan> {
        let node = state.node.borrow().clone();
        // There are some for a moment at most. What they say is newer than what the source says of the same name.
        let asked: Vec<Pod> = state.asked.values().filter_map(|answer| answer.pod.clone()?).collect();
        let told: Vec<Pod> = self.pods.with(|pods| {
            let pods = pods.into_iter().flatten();
            let annotated = pods.filter(|pod| !pod.annotations.is_empty());
            annotated.filter(|pod| !overruled(&state.asked, pod)).cloned().collect()
        });
        Arc::new(rules.plan(told.iter().chain(&asked), &node))
    }

    /// Tells of what is wrong with annotations: the log each once, the metrics what is so now.
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

    /// Puts into a `List` what is known. Of pods in it that nobody has told about the source is asked, until `deadline`;
    /// returns how many are unknown still.
    pub(super) async fn merge_list(
        &self,
        bytes: &Bytes,
        version: Version,
        deadline: Instant,
    ) -> Result<(Merged, usize), WireError> {
        self.merge(deadline, |plan| plan.list(bytes, version)).await
    }

    /// As [`Knowledge::merge_list`], for the answer to `Get` about one pod.
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
        // What was learnt, or told while it was merged, is in another plan. A pod is never taken for known that the plan
        // which was put in does not know.
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

    /// Where an annotation names a device that the node is not known to have, the node is looked at once more.
    async fn look_for_devices(&self, deadline: Instant) {
        let Some(devices) = &self.devices else { return };
        let since = self.state().missing_since;
        if let Some(since) = since.filter(|since| !devices.looked_since(*since)) {
            let _ = timeout_at(deadline, devices.look_now()).await;
            let mut state = self.state();
            // Whatever came of it: nobody waits twice for the same.
            if state.missing_since == Some(since) {
                state.missing_since = None;
            }
        }
    }

    /// The pods of an answer that nobody has told about, or only as ones that go: one of the same name may have come.
    fn listed_unknown(&self, merged: &Merged) -> Vec<PodName> {
        let names = merged.listed.names().map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        names.filter(|name| !self.pods.knows_living(name)).collect()
    }

    /// Those of them that are worth asking for.
    fn unknown(&self, merged: &Merged) -> Vec<PodName> {
        let unknown = self.listed_unknown(merged);
        let state = self.state();
        unknown.into_iter().filter(|name| !state.has_asked(name)).collect()
    }

    /// How many pods of an answer nobody could tell of. Of one that does not exist there is nothing to tell.
    fn untold(&self, merged: &Merged) -> usize {
        let unknown = self.listed_unknown(merged);
        let state = self.state();
        let answered = |name: &PodName| state.asked.get(name).is_some_and(|answer| answer.pod.is_some());
        let told = |name: &PodName| answered(name) || self.pods.knows(name);
        unknown.iter().filter(|name| !told(name)).count()
    }

    /// Asks for pods that nobody has told about, and waits for whoever tells.
    async fn learn(&self, merged: &Merged, deadline: Instant) {
        let Ok(_alone) = timeout_at(deadline, self.learning.lock()).await else { return };
        let mut unknown = self.unknown(merged);
        // The others' turn comes with the next answer.
        unknown.truncate(MOST);
        if unknown.is_empty() {
            return;
        }
        debug!("{} pods are listed that nobody has told about: asking for them", unknown.len());
        let mut source = self.pods.clone();
        let told = async {
            source.hurry();
            while !unknown.iter().all(|name| source.knows_living(name)) {
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
        // Those that nobody could tell of are not waited for again so soon.
        for name in unknown {
            if !self.pods.knows_living(&name) && !self.state().has_asked(&name) {
                self.remember(name, None);
            }
        }
    }

    /// Asks for each by its name; waits on where one could not be told of.
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

    /// Asks for one. What came of it is kept at once: who waits for the others may give up.
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
            if !same {
                state.asks += 1;
            }
        }
    }

    /// Says a sentence once.
    fn complain(&self, error: &impl fmt::Display) {
        let sentence = format!("a pod that the kubelet lists cannot be asked for: {error}");
        let complaints = &mut self.state().told.complaints;
        if !complaints.contains(&sentence) {
            warn!("{sentence}");
            // Of a few the latest are known.
            complaints.truncate(3);
            complaints.insert(0, sentence);
        }
    }
}

impl State {
    /// Was this pod asked for, so lately that what came of it holds?
    fn has_asked(&self, name: &PodName) -> bool {
        self.asked.get(name).is_some_and(|answer| Instant::now() < answer.until)
    }
}

/// Is there newer word of a pod of this name?
fn overruled(asked: &BTreeMap<PodName, Answer>, pod: &Pod) -> bool {
    !asked.is_empty() && asked.get(&pod.full_name()).is_some_and(|answer| answer.pod.is_some())
}
