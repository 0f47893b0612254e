//! Selects the agent's source of pods. If several are possible, it is the first that works.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream, pending};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, info, warn};

use crate::cluster::Cluster;
use crate::kubelet;
use crate::pod::{Pod, PodEvent, Wanted};
use crate::pod::annotation::{MAX_ANNOTATION_BYTES, drop_longest_annotations};
use crate::util::backoff::{back_off, jittered};

use super::{KubeletPort, Relay};

/// How long a source may take for its first list before the next one is tried: a kubelet's first lists are
/// not accepted for a while.
const TRIAL: Duration = Duration::from_secs(30);
/// How long the selected source may fail before all are tried again.
const FORSAKEN: Duration = Duration::from_secs(300);
/// Initial backoff before the next round if no source worked.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum backoff between two such rounds.
const RETRY_LIMIT: Duration = Duration::from_secs(60);
/// How often the sources before the selected one are tried again.
const BETTER: Duration = Duration::from_secs(300);

const NO_CREDENTIALS: &str =
    "nobody said how to reach the API server: set --kubeconfig";

/// A source of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodTeller {
    /// The API server.
    ApiServer,
    /// The kubelet's Pods API.
    PodsApi,
    /// The kubelet's `/pods`.
    Kubelet,
}

impl PodTeller {
    /// Returns its label in the metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::ApiServer => "api_server",
            Self::PodsApi => "pods_api",
            Self::Kubelet => "kubelet",
        }
    }

    /// Returns true if it reports changes at once, so that the agent need not poll for releases.
    pub(super) const fn is_prompt(self) -> bool {
        !matches!(self, Self::Kubelet)
    }
}

impl fmt::Display for PodTeller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ApiServer => "the API server",
            Self::PodsApi => "the kubelet's Pods API",
            Self::Kubelet => "the kubelet's /pods",
        })
    }
}

/// The sources to use, and how to reach them.
#[derive(Clone, Debug, Default)]
pub struct PodTellers {
    /// The sources, in order of preference.
    pub order: Vec<PodTeller>,
    /// The socket of the Pods API.
    pub socket: PathBuf,
    /// The deadline of a call to the kubelet.
    pub timeout: Duration,
    /// How often `/pods` is read.
    pub interval: Duration,
    /// The address of `/pods`.
    pub port: KubeletPort,
    /// The optional parts of a pod to keep.
    pub wanted: Wanted,
    /// Shares the sources with others in this process, if set.
    pub relay: Option<Relay>,
}

impl PodTellers {
    /// Watches the pods of `node`. There must be at least one source; without a cluster only the kubelet's
    /// Pods API works.
    #[must_use]
    pub fn tell(self, node: String, cluster: Option<Cluster>) -> Telling {
        Telling::new(self, node, cluster)
    }
}

type Events = BoxStream<'static, Result<PodEvent, String>>;

/// Selects a source and yields its events.
pub struct Telling {
    tellers: PodTellers,
    node: String,
    cluster: Option<Cluster>,
    /// The index of the current source.
    turn: usize,
    events: Events,
    /// Whether it has listed all pods. If so, it stays.
    chosen: bool,
    /// Its deadline for that. Then, since when it has been failing, if it was selected.
    tries_until: Instant,
    lost: Option<Instant>,
    /// Why the other sources of this round do not work.
    reasons: Vec<String>,
    failures: u32,
    not_before: Instant,
    /// Notified to read `/pods` ahead of its time.
    prompt: Arc<Notify>,
    better: Better,
    /// Events that the current source sent before it was switched to.
    backlog: VecDeque<PodEvent>,
}

/// The trial of a source that is preferred to the selected one and may work by now.
struct Better {
    turn: usize,
    /// `None` while none is tried.
    events: Option<Events>,
    told: VecDeque<PodEvent>,
    /// How many bytes of annotations are in them.
    texts: usize,
    /// When to try the first; the deadline for the one that is tried to list all pods.
    until: Instant,
}

impl Better {
    fn later() -> Self {
        let until = Instant::now() + jittered(BETTER);
        Self { turn: 0, events: None, told: VecDeque::new(), texts: 0, until }
    }

    fn try_one(turn: usize, events: Events) -> Self {
        let until = Instant::now() + TRIAL;
        Self { turn, events: Some(events), told: VecDeque::new(), texts: 0, until }
    }

    /// Keeps an event, and no more annotations than fit.
    fn keep(&mut self, event: PodEvent) {
        if event == PodEvent::Listing {
            self.told.clear();
            self.texts = 0;
        }
        self.texts += event.object().map_or(0, Pod::annotation_bytes);
        self.told.push_back(event);
        if self.texts > MAX_ANNOTATION_BYTES {
            self.texts = drop_longest_annotations(self.told.iter_mut().filter_map(PodEvent::object_mut));
        }
    }

    /// Returns the next event of the source that is tried; `None` if none is and it is time to. A timeout is
    /// an error.
    async fn next(&mut self) -> Option<Result<PodEvent, String>> {
        let Some(events) = &mut self.events else {
            sleep_until(self.until).await;
            return None;
        };
        let told = timeout_at(self.until, events.next()).await.ok().flatten();
        Some(told.unwrap_or_else(|| Err("it did not list the pods".to_owned())))
    }
}

impl Telling {
    /// Opens the first source. There must be one.
    pub(super) fn new(tellers: PodTellers, node: String, cluster: Option<Cluster>) -> Self {
        let now = Instant::now();
        let prompt = tellers.relay.as_ref().map_or_else(Arc::default, Relay::prompt);
        let mut telling = Self {
            tellers,
            node,
            cluster,
            turn: 0,
            events: pending().boxed(),
            chosen: false,
            tries_until: now,
            lost: None,
            reasons: Vec::new(),
            failures: 0,
            not_before: now,
            prompt,
            better: Better::later(),
            backlog: VecDeque::new(),
        };
        telling.ask(0);
        telling
    }

    /// Returns what to notify to read `/pods` ahead of its time. It has no effect on the other sources.
    pub(super) fn prompt(&self) -> Arc<Notify> {
        Arc::clone(&self.prompt)
    }

    /// Returns the current source.
    #[must_use]
    pub fn teller(&self) -> PodTeller {
        self.tellers.order.get(self.turn).copied().unwrap_or(PodTeller::ApiServer)
    }

    /// Returns the next event. Cancel-safe.
    ///
    /// # Errors
    /// One sentence; it continues after a backoff.
    pub async fn next(&mut self) -> Result<PodEvent, String> {
        loop {
            if let Some(event) = self.backlog.pop_front() {
                return Ok(event);
            }
            sleep_until(self.not_before).await;
            if self.chosen || self.is_only_one() {
                match self.hear().await {
                    Some(told) => return told,
                    None => continue,
                }
            }
            let reason = match timeout_at(self.tries_until, self.events.next()).await {
                Ok(Some(Ok(event))) => {
                    if event == PodEvent::Complete {
                        self.choose();
                    }
                    return Ok(event);
                }
                Ok(Some(Err(reason))) => reason,
                Ok(None) | Err(_) => format!("{} did not list the pods within {TRIAL:?}", self.teller()),
            };
            debug!("{reason}; asking another for pods");
            self.reasons.push(reason);
            if let Some(sentence) = self.pass_on() {
                return Err(sentence);
            }
        }
    }

    /// Polls the selected source and the trial of a preferred one. Events of the trial are kept back until it
    /// is switched to.
    async fn hear(&mut self) -> Option<Result<PodEvent, String>> {
        tokio::select! {
            told = self.events.next() => {
                let told = told.unwrap_or_else(|| Err("nobody tells any more".to_owned()));
                self.note(&told);
                Some(told)
            }
            told = self.better.next(), if self.turn > 0 => {
                self.weigh(told);
                None
            }
        }
    }

    /// Processes an event of the trial. Once that source has listed all pods, it is switched to.
    fn weigh(&mut self, told: Option<Result<PodEvent, String>>) {
        match told {
            None => self.better = Better::try_one(0, self.open(self.tellers.order[0])),
            Some(Ok(event)) => {
                let complete = event == PodEvent::Complete;
                self.better.keep(event);
                if complete {
                    self.change_over();
                }
            }
            Some(Err(_)) => {
                let next = self.better.turn + 1;
                self.better = match next < self.turn {
                    true => Better::try_one(next, self.open(self.tellers.order[next])),
                    false => Better::later(),
                };
            }
        }
    }

    fn change_over(&mut self) {
        let Better { turn, events, told, .. } = std::mem::replace(&mut self.better, Better::later());
        if let Some(events) = events {
            (self.turn, self.events, self.backlog) = (turn, events, told);
            self.choose();
        }
    }

    fn is_only_one(&self) -> bool {
        self.tellers.order.len() == 1
    }

    fn choose(&mut self) {
        info!("{} tells about pods", self.teller());
        self.chosen = true;
        self.failures = 0;
        self.lost = None;
        self.reasons.clear();
    }

    /// Deselects a source that has been failing for long.
    fn note(&mut self, told: &Result<PodEvent, String>) {
        match told {
            Ok(event) if event.is_proof() => self.lost = None,
            Ok(_) => {}
            Err(_) => {
                let since = *self.lost.get_or_insert_with(Instant::now);
                if since.elapsed() > FORSAKEN && !self.is_only_one() {
                    warn!("{} has not told about pods for {FORSAKEN:?}: asking all again", self.teller());
                    self.chosen = false;
                    self.ask(0);
                }
            }
        }
    }

    /// Opens the next source. After a round in which none worked, returns one sentence; the next round begins
    /// after a backoff.
    fn pass_on(&mut self) -> Option<String> {
        let next = self.turn + 1;
        if next < self.tellers.order.len() {
            self.ask(next);
            return None;
        }
        self.not_before = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
        self.ask(0);
        self.tries_until = self.not_before + TRIAL;
        Some(format!("nobody tells about pods: {}", std::mem::take(&mut self.reasons).join("; ")))
    }

    fn ask(&mut self, turn: usize) {
        self.turn = turn;
        self.events = self.open(self.teller());
        self.tries_until = Instant::now() + TRIAL;
        self.better = Better::later();
    }

    fn open(&self, teller: PodTeller) -> Events {
        let wanted = self.tellers.wanted.clone();
        match &self.tellers.relay {
            Some(relay) => relay.listen(teller, wanted, |wanted| self.open_for(teller, wanted)),
            None => self.open_for(teller, wanted),
        }
    }

    fn open_for(&self, teller: PodTeller, wanted: Wanted) -> Events {
        let PodTellers { socket, timeout, interval, port, .. } = &self.tellers;
        match (teller, &self.cluster) {
            (PodTeller::PodsApi, _) => kubelet::follow_pods(socket.clone(), *timeout, wanted).boxed(),
            (_, None) => stream::once(async { Err(NO_CREDENTIALS.to_owned()) }).chain(pending()).boxed(),
            (PodTeller::ApiServer, Some(cluster)) => cluster.pods_of(&self.node, wanted).boxed(),
            (PodTeller::Kubelet, Some(cluster)) => {
                let (port, cluster) = (port.clone(), cluster.clone());
                let connect = move || {
                    let (port, cluster) = (port.clone(), cluster.clone());
                    async move { port.connect(&cluster).await }
                };
                kubelet::poll_pods(connect, *interval, wanted, Arc::clone(&self.prompt)).boxed()
            }
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::Annotation;
    use crate::pod::annotation::tests::annotated;
    use crate::sim::api_server::{ApiServer, PODS};
    use crate::sim::pods_api::SimPodsApi;

    /// Waits for a complete list, and returns its source and pods. Errors are collected in `trouble`.
    async fn listed(telling: &mut Telling, trouble: &mut Vec<String>) -> (PodTeller, Vec<String>) {
        let mut names = Vec::new();
        loop {
            match telling.next().await {
                Ok(PodEvent::Listing) => names.clear(),
                Ok(PodEvent::Listed(pod)) => names.push(pod.name),
                Ok(PodEvent::Complete) => return (telling.teller(), names),
                Ok(_) => {}
                Err(sentence) => trouble.push(sentence),
            }
        }
    }

    #[tokio::test]
    async fn a_trial_keeps_bounded_annotations_of_the_list_that_it_began_last() {
        let mut better = Better::later();
        for _ in 0..2 {
            better.keep(PodEvent::Listing);
            better.keep(PodEvent::Listed(annotated("small", 1000)));
            (0..500).for_each(|_| better.keep(PodEvent::Listed(annotated("large", Annotation::MAX_BYTES))));
            let sizes: Vec<_> =
                better.told.iter().filter_map(|event| Some(event.object()?.annotation_bytes())).collect();
            let bytes: usize = sizes.iter().sum();
            assert!((MAX_ANNOTATION_BYTES / 2..=MAX_ANNOTATION_BYTES).contains(&bytes) && better.texts == bytes, "{bytes}");
            assert_eq!((sizes.len(), sizes[0]), (501, 1000), "the longest go, and no pod");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_that_tells_is_asked_until_it_is_lost_for_long() {
        let server = ApiServer::start_anywhere(0).await.unwrap();
        server.set_denied("list", "pods", true);
        let metadata = json!({"name": "a", "namespace": "default", "uid": "u"});
        server.put(&PODS, json!({"metadata": metadata, "spec": {"nodeName": "worker"}})).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let tellers = PodTellers {
            order: vec![PodTeller::PodsApi, PodTeller::ApiServer, PodTeller::Kubelet],
            socket: dir.path().join("pods-api.sock"),
            timeout: Duration::from_secs(10),
            interval: Duration::from_secs(5),
            ..PodTellers::default()
        };
        let cluster = Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(10));
        let mut telling = Telling::new(tellers.clone(), "worker".to_owned(), Some(cluster));
        let mut trouble = Vec::new();
        for round in 1..3 {
            let sentence = loop {
                match telling.next().await {
                    Ok(event) => assert_eq!(event, PodEvent::Listing, "nobody tells"),
                    Err(sentence) => break sentence,
                }
            };
            for reason in
                ["nobody tells about pods", "cannot watch the node's pods", "Pods API socket", "credentials"]
            {
                assert!(sentence.contains(reason), "{round}: {sentence}");
            }
        }
        let mut kubelet = SimPodsApi::start(tellers.socket.clone()).unwrap();
        assert_eq!(listed(&mut telling, &mut trouble).await, (PodTeller::PodsApi, vec![]));
        // It fails for a while and recovers; no other source is tried, although one would work by now.
        server.set_denied("list", "pods", false);
        kubelet.stop();
        trouble.clear();
        while trouble.len() < 20 {
            trouble.extend(telling.next().await.err());
        }
        assert_eq!(telling.teller(), PodTeller::PodsApi);
        assert!(trouble.iter().all(|sentence| sentence.contains("pods-api.sock")), "{trouble:?}");
        kubelet.restart().unwrap();
        assert_eq!(listed(&mut telling, &mut trouble).await, (PodTeller::PodsApi, vec![]));
        // It fails for long.
        kubelet.stop();
        let before = Instant::now();
        assert_eq!(listed(&mut telling, &mut trouble).await, (PodTeller::ApiServer, vec!["a".to_owned()]));
        assert!(before.elapsed() >= FORSAKEN, "{:?}", before.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_better_one_takes_the_place_with_all_it_knows_when_it_tells() {
        let server = ApiServer::start_anywhere(0).await.unwrap();
        let metadata = json!({"name": "a", "namespace": "default", "uid": "u"});
        server.put(&PODS, json!({"metadata": metadata, "spec": {"nodeName": "worker"}})).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let tellers = PodTellers {
            order: vec![PodTeller::PodsApi, PodTeller::ApiServer],
            socket: dir.path().join("pods-api.sock"),
            timeout: Duration::from_secs(10),
            ..PodTellers::default()
        };
        let cluster = Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(10));
        let mut telling = tellers.clone().tell("worker".to_owned(), Some(cluster));
        let mut trouble = Vec::new();
        assert_eq!(listed(&mut telling, &mut trouble).await, (PodTeller::ApiServer, vec!["a".to_owned()]));
        // A source that is up but cannot list all pods is not switched to.
        let kubelet = SimPodsApi::start(tellers.socket.clone()).unwrap();
        kubelet.refuse(Some(tonic::Status::failed_precondition("Kubelet is initializing")));
        let before = Instant::now();
        while before.elapsed() < 3 * BETTER {
            let next = tokio::time::timeout(BETTER / 10, telling.next()).await;
            assert!(next.is_err(), "{next:?}");
        }
        assert!(kubelet.watches() > 0, "it was tried");
        assert_eq!(telling.teller(), PodTeller::ApiServer);
        kubelet.refuse(None);
        assert_eq!(listed(&mut telling, &mut trouble).await, (PodTeller::PodsApi, vec![]));
        assert!(trouble.is_empty(), "{trouble:?}");
    }

    #[tokio::test]
    async fn without_a_cluster_only_the_kubelets_own_api_tells() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("pods-api.sock");
        let _kubelet = SimPodsApi::start(socket.clone()).unwrap();
        let order = vec![PodTeller::ApiServer, PodTeller::Kubelet, PodTeller::PodsApi];
        let tellers = PodTellers { order, socket, timeout: Duration::from_secs(10), ..PodTellers::default() };
        let mut telling = tellers.tell("worker".to_owned(), None);
        assert_eq!(listed(&mut telling, &mut Vec::new()).await, (PodTeller::PodsApi, vec![]));
    }
}
