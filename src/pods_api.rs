//! The Pods API (DESIGN section 8): the service that kubelets serve from 1.36 on, for those that do not and for many clients
//! of those that do, and `PodInfo` beside it.
//!
//! `store` knows the pods as they were told last, `board` is one list as it is served, `records` what is kept of it within a
//! budget of bytes, and `watchers` who listens to it, `info` is what `PodInfo` shows of a pod, `service` answers, and `crate::grpc` serves.

pub mod proto;

mod board;
mod counted;
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

use crate::backoff::back_off;
use crate::cluster::Cluster;
use crate::config::{Config, PodsApiSource};
use crate::grpc::{Limits, ServeError, Server, Socket};
use crate::pod::{PodEvent, Wanted};
use crate::pod_source::{PodTeller, PodTellers, Telling};
use crate::telemetry::pods_api::{Health, Metrics};

use board::{Shared, lock};
use counted::{Counted, Watching};
use service::{Limiter, Service};
use store::{LeftOut, Store};

/// How often it is looked whether all is well.
const LOOK: Duration = Duration::from_secs(5);
/// How soon to try again when the socket cannot be served.
const RETRY: Duration = Duration::from_secs(1);
/// The longest wait between two such attempts.
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// How long whoever tells of whole pods may take for the first list before `/pods` is read.
const HEAD_START: Duration = Duration::from_secs(5);
/// How long they may have told nothing, with trouble, before `/pods` is read.
const SILENT: Duration = Duration::from_secs(30);
/// One for each connection, those that were told to leave among them, and some for everything else.
const DESCRIPTORS: u64 = 4096;
/// If only `/pods` has told by then whole pods are not expected any more: they may come nevertheless.
const EXPECTED: Duration = Duration::from_secs(60);

/// What the server needs of the configuration, paths resolved.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to serve.
    pub socket: Socket,
    /// Who is asked for pods, best first.
    pub order: Vec<PodTeller>,
}

/// A server of the Pods API that is not served yet.
pub struct PodsApi {
    settings: Settings,
    tellers: PodTellers,
    node: String,
    cluster: Option<Cluster>,
    store: Store,
    service: Arc<Service>,
    metrics: Metrics,
}

impl Settings {
    /// The part of a resolved configuration.
    #[must_use]
    pub fn from_config(config: &Config) -> Self {
        use PodTeller::{ApiServer, Kubelet, PodsApi};
        let config = config.clone().resolved();
        let order = match config.pods_api.source {
            // The kubelet's own speaks first, and has static pods as they are.
            PodsApiSource::Auto => vec![PodsApi, ApiServer, Kubelet],
            PodsApiSource::PodsApi => vec![PodsApi],
            PodsApiSource::ApiServer => vec![ApiServer],
            PodsApiSource::Kubelet => vec![Kubelet],
        };
        Self { socket: config.pods_api.served().into(), order }
    }
}

impl PodsApi {
    /// Serves the pods of `node`, which it is told by `tellers` in the order of the settings; without a cluster by the
    /// kubelet's own Pods API alone.
    #[must_use]
    pub fn new(settings: Settings, tellers: PodTellers, node: String, cluster: Option<Cluster>) -> Self {
        let metrics = Metrics::new(Arc::new(Health::new()));
        let watching = |version| Arc::new(Watching { version, metrics: metrics.clone() });
        let store = Store::new(watching("v1alpha1"), watching("podinfo.v1alpha1"));
        let service = Arc::new(Service {
            pods: Arc::clone(&store.pods),
            infos: Arc::clone(&store.infos),
            page_alone: Arc::default(),
            limiter: Limiter::default(),
            metrics: metrics.clone(),
        });
        let tellers = PodTellers { wanted: Wanted::default().whole(), ..tellers };
        Self { settings, tellers, node, cluster, store, service, metrics }
    }

    /// What is counted.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Listens, and serves from tasks of its own.
    ///
    /// # Errors
    /// When the socket cannot be put where it belongs.
    pub fn start(&self) -> Result<Server, ServeError> {
        start(&self.settings, &self.service)
    }

    /// Follows the pods and looks after `server` until `shutdown` completes; starts it again and again where there is none
    /// yet.
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
        // Whoever watches is told so, and the server waits until that is said.
        boards.iter().for_each(|board| lock(board).close());
        if let Some(server) = server {
            server.stop().await;
        }
    }
}

/// Many systems give a process 1,024 descriptors, and more if it asks.
fn ask_for_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    if limit.current.is_some_and(|current| current < wanted) {
        // Without them there are fewer connections: the log says so then.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
}

fn start(settings: &Settings, service: &Arc<Service>) -> Result<Server, ServeError> {
    ask_for_descriptors();
    let counted = Arc::new(Counted(service.metrics.clone()));
    let server = Server::start(settings.socket.clone(), limits(), Arc::new(Arc::clone(service)), counted)?;
    info!("Pods API at {}", settings.socket.path.display());
    Ok(server)
}

/// A watch is a call that does not end: many of them are no offence. Who does not read is cut off by how many events wait; a
/// client that works on one for a while is not.
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

/// Stamps that all is well, and starts the server where there is none.
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
    metrics.health().beat(served, told);
}

/// Who is listened to, and what is made of it.
struct Follow {
    order: Vec<PodTeller>,
    tellers: PodTellers,
    node: String,
    cluster: Option<Cluster>,
    store: Store,
    page_alone: Arc<AtomicBool>,
    metrics: Metrics,
    started: Instant,
    /// Who told of all whole pods last, and since when nobody does.
    teller: Option<PodTeller>,
    silent: Option<Instant>,
    /// The last sentence of trouble with those who tell of whole pods, and with `/pods`.
    troubled: [Option<String>; 2],
    /// What was said of pods that are left out: they are told of again and again.
    left_out: Vec<LeftOut>,
    /// When all pods are to be told anew, for there is room again for one that is left out, and when they were last.
    again: Option<Instant>,
    told_again: Option<Instant>,
}

/// All pods are told anew no sooner than this after there is room again, and no more often than this: pods come and go together, and
/// whoever makes them decides when.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_AT_MOST: Duration = Duration::from_secs(30);

/// Of so many pods that are left out is said why.
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
        whole.iter().for_each(|teller: &PodTeller| self.metrics.left(teller.label()));
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
                        self.metrics.left(PodTeller::Kubelet.label());
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

    /// Tells how many pods are served and which are left out, and has those told anew for which there is room again.
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

    /// When `/pods` is to be read, as far as that is known.
    fn page_due(&self, others: bool) -> Option<Instant> {
        match lock(&self.store.pods).has_told() {
            true => self.silent.map(|since| since + SILENT),
            false if others => Some(self.started + HEAD_START),
            false => Some(self.started),
        }
    }

    /// Takes what is told of whole pods. Is it proof that they are told of?
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
            self.metrics.left(before.label());
        }
        // One that is tried out may tell of a pod before it has told all.
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
            self.metrics.told_by(teller.label(), told);
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
        self.metrics.lost(teller.label());
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

/// Whole pods, or those of `/pods`.
fn layer(teller: PodTeller) -> usize {
    usize::from(teller == PodTeller::Kubelet)
}

#[cfg(test)]
mod budget_tests;
#[cfg(test)]
mod tests;
