//! What is known of the node's pods and devices, and the plan that follows from it: what has to be put into answers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use prost::bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, warn};

use super::devices::Follower;
use super::merge::{Merged, Node, Plan, Rules, Version, WireError};
use crate::cluster::Cluster;
use crate::pod::{Pod, PodName, Wanted};
use crate::pod_source::PodSource;
use crate::telemetry::proxy::Metrics;

/// What was asked for by name is that fresh for so long; the source tells the same within milliseconds.
const FRESH: Duration = Duration::from_secs(2);
/// How soon a pod is asked for again, or waited for, that nobody could tell of.
const AGAIN: Duration = Duration::from_secs(30);
/// So many pods are asked for by name for one answer, so many of them at once. A node admits a few at a time.
const MOST: usize = 64;
const AT_ONCE: usize = 8;
/// So many pods that nobody knows are remembered.
const MOST_REMEMBERED: usize = 4096;

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
    /// What the plan was made of: the version of the pods, that of the devices, and the number of pods asked for.
    made_of: Option<(u64, u64, u64)>,
    plan: Arc<Plan>,
    /// Grows when the devices are others.
    looks: u64,
    /// Pods that the source has not told of and that were asked for by name.
    asked: BTreeMap<PodName, Answer>,
    /// Grows with each that is asked for.
    asks: u64,
    told: Vec<String>,
}

/// What came of asking for a pod.
struct Answer {
    /// `None`: nobody could tell. `Some(None)`: there is no such pod.
    pod: Option<Option<Pod>>,
    until: Instant,
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
        let state = Mutex::new(State {
            node,
            made_of: None,
            plan: Arc::default(),
            looks: 0,
            asked: BTreeMap::new(),
            asks: 0,
            told: Vec::new(),
        });
        let learning = tokio::sync::Mutex::default();
        Self { rules, pods, asking, devices, wait, last_known, state, learning, metrics }
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
        match self.pods.silent_for() {
            _ if !self.pods.has_told() => Standing::Untold,
            Some(silent) if silent > self.last_known => Standing::Stale,
            _ => Standing::Good,
        }
    }

    /// Waits for the first list of pods and for the first look at the node's devices, but not for ever.
    pub(super) async fn first_words(&self) {
        let mut pods = self.pods.clone();
        let told = async {
            while !pods.has_told() {
                pods.changed().await;
            }
            if let Some(devices) = &self.devices {
                devices.first_look().await;
            }
        };
        let _ = timeout(self.wait, told).await;
    }

    /// What has to be put into answers now.
    pub(super) fn plan(&self) -> Arc<Plan> {
        let mut state = self.state();
        if state.node.has_changed().unwrap_or(false) {
            state.looks += 1;
        }
        let now = Instant::now();
        let before = state.asked.len();
        state.asked.retain(|name, answer| now < answer.until && !self.pods.knows(name));
        if state.asked.len() != before {
            state.asks += 1;
        }
        let made_of = (self.pods.version(), state.looks, state.asks);
        if state.made_of == Some(made_of) {
            return Arc::clone(&state.plan);
        }
        let node = state.node.borrow_and_update().clone();
        // There are some for a moment at most.
        let asked: Vec<Pod> = state.asked.values().filter_map(|answer| answer.pod.clone()?).collect();
        let plan = self.pods.with(|pods| match pods {
            Some(pods) => {
                let told: Vec<&Pod> = pods.collect();
                self.rules.plan(told.into_iter().chain(&asked), &node)
            }
            None => self.rules.plan(asked.iter(), &node),
        });
        let plan = Arc::new(plan);
        self.report(&mut state, &plan);
        if let Some(devices) = self.devices.as_ref().filter(|_| plan.misses_devices()) {
            devices.prompt();
        }
        state.made_of = Some(made_of);
        state.plan = Arc::clone(&plan);
        plan
    }

    /// Tells of what is wrong with annotations: the log each once, the metrics what is so now.
    fn report(&self, state: &mut State, plan: &Plan) {
        let mut kinds: BTreeMap<&'static str, usize> = BTreeMap::new();
        for problem in plan.problems() {
            *kinds.entry(problem.kind.name()).or_default() += 1;
        }
        self.metrics.problems(&kinds);
        for problem in plan.new_problems(&state.plan) {
            warn!("{}", problem.sentence);
        }
    }

    /// Puts into a `List` what is known. Of pods in it that nobody has told about the source is asked, for a while; returns
    /// how many are unknown still.
    pub(super) async fn merge_list(
        &self,
        bytes: &Bytes,
        version: Version,
    ) -> Result<(Merged, usize), WireError> {
        let merged = self.plan().list(bytes, version)?;
        if self.unknown(&merged).is_empty() {
            return Ok((merged, 0));
        }
        self.learn(&merged).await;
        let merged = self.plan().list(bytes, version)?;
        let unknown = self.untold(&merged);
        Ok((merged, unknown))
    }

    /// As [`Knowledge::merge_list`], for the answer to `Get` about one pod.
    pub(super) async fn merge_get(&self, bytes: &Bytes) -> Result<(Merged, usize), WireError> {
        let merged = self.plan().get(bytes)?;
        if self.unknown(&merged).is_empty() {
            return Ok((merged, 0));
        }
        self.learn(&merged).await;
        let merged = self.plan().get(bytes)?;
        let unknown = self.untold(&merged);
        Ok((merged, unknown))
    }

    /// The pods of an answer that nobody has told about and that are worth asking for.
    fn unknown(&self, merged: &Merged) -> Vec<PodName> {
        let names = merged.listed.names().map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        let unknown: Vec<PodName> = names.filter(|name| !self.pods.knows(name)).collect();
        let state = self.state();
        unknown.into_iter().filter(|name| !state.asked.contains_key(name)).collect()
    }

    /// How many pods of an answer nobody could tell of. Of one that does not exist there is nothing to tell.
    fn untold(&self, merged: &Merged) -> usize {
        let names = merged.listed.names().map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        let unknown: Vec<PodName> = names.filter(|name| !self.pods.knows(name)).collect();
        let state = self.state();
        let told = |name: &PodName| state.asked.get(name).is_some_and(|answer| answer.pod.is_some());
        unknown.iter().filter(|name| !told(name)).count()
    }

    /// Asks for pods that nobody has told about, and waits for whoever tells.
    async fn learn(&self, merged: &Merged) {
        let deadline = Instant::now() + self.wait;
        let _alone = self.learning.lock().await;
        let unknown = self.unknown(merged);
        if unknown.is_empty() {
            return;
        }
        debug!("{} pods are listed that nobody has told about: asking for them", unknown.len());
        let mut source = self.pods.clone();
        let told = async {
            source.hurry();
            while !unknown.iter().all(|name| source.knows(name)) {
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
        self.give_up(unknown);
    }

    /// Asks for each by its name; waits on where one could not be told of.
    async fn ask(&self, asking: &Asking, unknown: &[PodName]) {
        let Asking { cluster, node, wanted } = asking;
        let mut failed = unknown.len() > MOST;
        for some in unknown.get(..MOST).unwrap_or(unknown).chunks(AT_ONCE) {
            let answers = join_all(some.iter().map(|name| cluster.pod_of(node, name, wanted))).await;
            for (name, answer) in some.iter().zip(answers) {
                match answer {
                    Ok(pod) => self.remember(name.clone(), Some(pod), FRESH),
                    Err(error) => {
                        failed = true;
                        self.complain(&error);
                    }
                }
            }
        }
        if failed {
            std::future::pending::<()>().await;
        }
    }

    /// Those that nobody could tell of are not waited for again so soon.
    fn give_up(&self, unknown: Vec<PodName>) {
        for name in unknown {
            if !self.pods.knows(&name) && !self.state().asked.contains_key(&name) {
                self.remember(name, None, AGAIN);
            }
        }
    }

    fn remember(&self, name: PodName, pod: Option<Option<Pod>>, time: Duration) {
        let mut state = self.state();
        if state.asked.len() < MOST_REMEMBERED {
            state.asked.insert(name, Answer { pod, until: Instant::now() + time });
            state.asks += 1;
        }
    }

    /// Says a sentence once.
    fn complain(&self, error: &impl fmt::Display) {
        let sentence = format!("a pod that the kubelet lists cannot be asked for: {error}");
        let mut state = self.state();
        if !state.told.contains(&sentence) {
            warn!("{sentence}");
            // Of a few the latest are known.
            state.told.truncate(3);
            state.told.insert(0, sentence);
        }
    }
}
