//! The Pods API (DESIGN section 8), which kubelets serve from 1.36 on: served here for older kubelets, and
//! for many clients of newer ones, together with `PodInfo`.
//!
//! `store` holds the node's pods as last reported; `board` is one list as it is served, `records` its
//! contents within a budget of bytes, and `watchers` its watchers. `info` builds the messages of `PodInfo`,
//! `service` handles the calls, and `crate::grpc` is the server.

pub(crate) mod health;
pub(crate) mod metrics;
pub mod proto;

mod board;
mod info;
mod records;
mod service;
mod store;
mod watchers;

use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{info, warn};

use crate::cluster::Cluster;
use crate::grpc::{Limits, ServeError, Server, Socket};
use crate::pod::{PodEvent, Wanted};
use crate::pod_source::{PodTeller, PodTellers, Telling};
use crate::telemetry::health::Probes;
use crate::telemetry::registry::Registry;
use crate::util::backoff::back_off;

use board::{Shared, lock};
use metrics::{INFO_VERSION, Metrics, PODS_VERSION, WatcherMetrics};
use service::{Limiter, Service};
use store::{LeftOut, Store};

/// Interval of the health check.
const LOOK: Duration = Duration::from_secs(5);
/// Initial backoff if the socket cannot be served.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum backoff between two such attempts.
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// How long the sources of full pods may take for their first list before `/pods` is read.
const HEAD_START: Duration = Duration::from_secs(5);
/// How long these sources may have failed without an event before `/pods` is read.
const SILENT: Duration = Duration::from_secs(30);
/// File descriptors to ask for: one per connection, including those being closed, and some for everything
/// else.
const DESCRIPTORS: u64 = 4096;
/// How long after the start full pods are still expected if only `/pods` was read. They may still come later.
const EXPECTED: Duration = Duration::from_secs(60);

/// The server's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The socket to serve on.
    pub socket: Socket,
    /// The pod sources, best first.
    pub order: Vec<PodTeller>,
}

/// A server of the Pods API, not yet serving.
pub struct PodsApi {
    settings: Settings,
    tellers: PodTellers,
    node: String,
    cluster: Option<Cluster>,
    store: Store,
    service: Arc<Service>,
    metrics: Metrics,
}

impl PodsApi {
    /// Serves the pods of `node`, read from `tellers` in the order of the settings; without a cluster, only
    /// from the kubelet's own Pods API.
    #[must_use]
    pub fn new(
        settings: Settings,
        tellers: PodTellers,
        node: String,
        cluster: Option<Cluster>,
        registry: &mut Registry,
    ) -> Self {
        let metrics = Metrics::register(registry, Arc::default());
        let watchers = |version| Arc::new(WatcherMetrics { version, metrics: metrics.clone() });
        let store = Store::new(watchers(PODS_VERSION), watchers(INFO_VERSION));
        let service = Arc::new(Service {
            pods: Arc::clone(&store.pods),
            infos: Arc::clone(&store.infos),
            page_alone: Arc::default(),
            limiter: Limiter::default(),
            metrics: metrics.clone(),
        });
        let tellers = PodTellers { wanted: Wanted::default().with_raw(), ..tellers };
        Self { settings, tellers, node, cluster, store, service, metrics }
    }

    /// Returns the server's health, to be served.
    #[must_use]
    pub fn health(&self) -> Arc<dyn Probes> {
        self.metrics.health().clone()
    }

    /// Starts listening, and serves in tasks of its own.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn start(&self) -> Result<Server, ServeError> {
        start(&self.settings, &self.service)
    }

    /// Follows the pods and keeps `server` running until `shutdown` completes. If there is no server, tries
    /// to start one until it succeeds.
    pub async fn run(self, server: Option<Server>, shutdown: impl Future<Output = ()>) {
        let Self { settings, tellers, node, cluster, store, service, metrics } = self;
        let boards = [Arc::clone(&store.pods), Arc::clone(&store.infos)];
        let mut server = server;
        let follow = Follow {
            order: settings.order.clone(),
            tellers,
            node,
            cluster,
            store,
            page_alone: Arc::clone(&service.page_alone),
            metrics: metrics.clone(),
            started: Instant::now(),
            teller: None,
            silent: None,
            troubled: [None, None],
            left_out: Vec::new(),
            again: None,
            told_again: None,
        };
        tokio::select! {
            () = follow.run() => {}
            () = keep_served(&settings, &service, &boards, &mut server) => {}
            () = shutdown => {}
        }
        // Watchers get a final status; the server waits until it is sent.
        boards.iter().for_each(|board| lock(board).close());
        if let Some(server) = server {
            server.stop().await;
        }
    }
}

/// Raises the limit of file descriptors. Many systems set the soft limit to 1,024 and the hard limit higher.
fn ask_for_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    if limit.current.is_some_and(|current| current < wanted) {
        // If this fails, there are fewer connections, and the log reports it when they run out.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
}

fn start(settings: &Settings, service: &Arc<Service>) -> Result<Server, ServeError> {
    ask_for_descriptors();
    let observer = Arc::new(service.metrics.clone());
    let server = Server::start(settings.socket.clone(), limits(), Arc::new(Arc::clone(service)), observer)?;
    info!("Pods API at {}", settings.socket.path.display());
    Ok(server)
}

/// Returns the server's limits. A watch is a call that does not end, so many open calls are allowed. A client
/// that does not read is cut off by the number of events that wait for it; one that works on an event for a
/// while is not.
fn limits() -> Limits {
    Limits {
        connections: 2048,
        connections_each: 1536,
        open: 8192,
        open_each: 4096,
        unread: Duration::from_secs(60),
        ..Limits::default()
    }
}

/// Updates the health state, and starts the server if there is none.
async fn keep_served(
    settings: &Settings,
    service: &Arc<Service>,
    boards: &[Shared; 2],
    server: &mut Option<Server>,
) {
    let mut failures = 0;
    while server.is_none() {
        beat(&service.metrics, boards, false);
        match start(settings, service) {
            Ok(started) => *server = Some(started),
            Err(error) => {
                if failures == 0 {
                    warn!("{error}; trying again");
                }
                sleep(back_off(&mut failures, RETRY, RETRY_LIMIT)).await;
            }
        }
    }
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        beat(&service.metrics, boards, server.as_ref().is_some_and(Server::serves));
        boards.iter().for_each(|board| lock(board).tidy());
    }
}

fn beat(metrics: &Metrics, boards: &[Shared; 2], served: bool) {
    let told = boards.iter().any(|board| lock(board).has_told());
    metrics.health().checked(served, told);
}

/// Follows the pod sources and updates the store.
struct Follow {
    order: Vec<PodTeller>,
    tellers: PodTellers,
    node: String,
    cluster: Option<Cluster>,
    store: Store,
    page_alone: Arc<AtomicBool>,
    metrics: Metrics,
    started: Instant,
    /// The source that last completed a list of full pods, and since when the sources fail.
    teller: Option<PodTeller>,
    silent: Option<Instant>,
    /// The last error logged of the sources of full pods, and of `/pods`.
    troubled: [Option<String>; 2],
    /// Invalid pods that were logged. Sources report them repeatedly.
    left_out: Vec<LeftOut>,
    /// When to relist because a pod that was left out fits again, and when that last happened.
    again: Option<Instant>,
    told_again: Option<Instant>,
}

/// How long after a left-out pod fits again all pods are relisted, and the minimum interval between two such
/// relists. Pods come and go in groups, at times their creators choose.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_AT_MOST: Duration = Duration::from_secs(30);

/// Maximum number of invalid pods that are logged.
const LEFT_OUT: usize = 64;

async fn next(telling: &mut Option<Telling>) -> Result<PodEvent, String> {
    match telling {
        Some(telling) => telling.next().await,
        None => pending().await,
    }
}

async fn reached(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

impl Follow {
    async fn run(mut self) {
        let (page, whole): (Vec<_>, Vec<_>) =
            self.order.iter().partition(|teller| **teller == PodTeller::Kubelet);
        whole.iter().for_each(|teller: &PodTeller| self.metrics.source_down(teller.label()));
        let tellers = whole;
        let mut whole = self.listen(tellers.clone());
        let mut pages: Option<Telling> = None;
        loop {
            let due = self.page_due(whole.is_some()).filter(|_| !page.is_empty() && pages.is_none());
            tokio::select! {
                told = next(&mut whole) => {
                    let teller = whole.as_ref().map_or(PodTeller::ApiServer, Telling::teller);
                    if self.take(told, teller) && pages.take().is_some() {
                        self.store.close_page();
                        self.metrics.source_down(PodTeller::Kubelet.label());
                    }
                }
                told = next(&mut pages) => self.take_page(told, whole.is_some()),
                () = reached(due) => pages = self.listen(page.clone()),
                () = reached(self.again) => {
                    if self.store.has_room_again() {
                        whole = self.listen(tellers.clone());
                        self.told_again = Some(Instant::now());
                    }
                    self.again = None;
                }
            }
            self.weigh();
        }
    }

    /// Updates the metrics, logs newly left-out pods, and schedules a relist if one of them fits again.
    fn weigh(&mut self) {
        let count = |board: &Shared| {
            let board = lock(board);
            (board.records().len() - board.records().left_out(), board.records().left_out())
        };
        self.metrics.pods(count(&self.store.pods), count(&self.store.infos));
        for pod in self.store.newly_left_out() {
            warn!("{pod}; this is told once of each pod");
        }
        if self.again.is_none() && self.store.has_room_again() {
            let next = self.told_again.map(|last| last + AGAIN_AT_MOST);
            self.again = Some((Instant::now() + AGAIN).max(next.unwrap_or_else(Instant::now)));
        }
    }

    fn listen(&self, order: Vec<PodTeller>) -> Option<Telling> {
        let tellers = PodTellers { order, ..self.tellers.clone() };
        (!tellers.order.is_empty()).then(|| tellers.tell(self.node.clone(), self.cluster.clone()))
    }

    /// Returns when to read `/pods`, if that is known.
    fn page_due(&self, others: bool) -> Option<Instant> {
        match lock(&self.store.pods).has_told() {
            true => self.silent.map(|since| since + SILENT),
            false if others => Some(self.started + HEAD_START),
            false => Some(self.started),
        }
    }

    /// Handles an event of a source of full pods. Returns true if it proves that the source works and all its
    /// pods are known.
    fn take(&mut self, told: Result<PodEvent, String>, teller: PodTeller) -> bool {
        let event = match told {
            Ok(event) => event,
            Err(sentence) => {
                self.silent.get_or_insert_with(Instant::now);
                self.fail(teller, sentence);
                return false;
            }
        };
        let proof = event.is_proof();
        if event == PodEvent::Complete
            && let Some(before) = self.teller.replace(teller).filter(|before| *before != teller)
        {
            self.metrics.source_down(before.label());
        }
        // A source that is being tried may report a pod before it has listed all.
        let leads = self.teller == Some(teller);
        self.store.lead(leads);
        let left_out = self.store.take(event, Instant::now()).err();
        let told = leads && proof;
        if told {
            self.silent = None;
            self.page_alone.store(false, Ordering::Relaxed);
        }
        self.note(teller, proof, told, left_out);
        told
    }

    fn take_page(&mut self, told: Result<PodEvent, String>, others: bool) {
        let event = match told {
            Ok(event) => event,
            Err(sentence) => return self.fail(PodTeller::Kubelet, sentence),
        };
        let proof = event.is_proof();
        let left_out = self.store.take_page(event, Instant::now()).err();
        let told = self.store.shows_page();
        let expected = others && self.started.elapsed() < EXPECTED;
        self.page_alone.store(told && !expected, Ordering::Relaxed);
        self.note(PodTeller::Kubelet, proof, told, left_out);
    }

    fn note(&mut self, teller: PodTeller, proof: bool, told: bool, left_out: Option<LeftOut>) {
        if proof {
            self.metrics.source_event(teller.label(), told);
            self.troubled[layer(teller)] = None;
        }
        if let Some(left_out) = left_out
            && self.left_out.len() < LEFT_OUT
            && !self.left_out.contains(&left_out)
        {
            warn!("{left_out}");
            self.left_out.push(left_out);
        }
    }

    fn fail(&mut self, teller: PodTeller, sentence: String) {
        self.metrics.source_failed(teller.label());
        let troubled = &mut self.troubled[layer(teller)];
        if troubled.as_ref() != Some(&sentence) {
            match lock(&self.store.infos).has_told() {
                true => warn!("{sentence}; what was told last is served meanwhile"),
                false => warn!("{sentence}; nothing can be served until somebody tells all pods"),
            }
            *troubled = Some(sentence);
        }
    }
}

/// Returns the index into `troubled`: 0 for sources of full pods, 1 for `/pods`.
fn layer(teller: PodTeller) -> usize {
    usize::from(teller == PodTeller::Kubelet)
}

#[cfg(test)]
mod budget_tests;
#[cfg(test)]
mod tests;
