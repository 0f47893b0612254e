//! The podresources proxy (DESIGN section 7): the kubelet's answers once more, from a socket of our own, for any number of
//! clients, with the devices that pods have by annotation.
//!
//! `service` answers, `knowledge` knows what has to be put into answers, `merge` puts it there; `crate::kubelet::Upstream`
//! asks the kubelet once for all who ask together, and `crate::grpc` serves them.

pub mod devices;
pub mod merge;

mod counted;
mod knowledge;
mod notices;
mod service;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use crate::backoff::back_off;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::grpc::{Limits, ServeError, Server, Socket};
use crate::kubelet::{Ask, Asker, Upstream};
use crate::pod::Wanted;
use crate::pod_source::{PodSource, PodTeller, PodTellers, Tally};
use crate::telemetry::proxy::{Health, Metrics};

use counted::Counted;
use knowledge::{Asking, Knowledge, Standing};
use merge::{Merged, Plan, Rules, WireError};
use notices::Notices;
use service::Service;

/// How often it is looked whether all is well.
const LOOK: Duration = Duration::from_secs(5);
/// A kubelet that nobody has asked for so long is asked, to know whether it answers: readiness goes by 30 s.
const UNASKED: Duration = Duration::from_secs(10);
/// How soon to try again when the socket cannot be served.
const RETRY: Duration = Duration::from_secs(1);
/// The longest wait between two such attempts.
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// What the proxy needs of the configuration, paths resolved.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name in the cluster.
    pub node: String,
    /// Where to serve.
    pub socket: Socket,
    /// The kubelet's socket.
    pub kubelet: PathBuf,
    /// The deadline of one call to it.
    pub timeout: Duration,
    /// How long an answer waits for a pod that nobody has told about.
    pub wait: Duration,
    /// How long what was told is believed while nobody tells.
    pub last_known: Duration,
    /// Refuse what may lack devices.
    pub fail_closed: bool,
    /// Put the node's devices into `GetAllocatableResources`.
    pub allocatable: bool,
    /// The agent counts what is merged.
    pub zones: bool,
    /// What is merged; `None`: nothing.
    pub rules: Option<Rules>,
    /// Koordinator's Device object is read.
    pub reads_devices: bool,
    /// Single pods may be asked for from the API server.
    pub asks_for_pods: bool,
    /// Stands for `/sys`.
    pub sys: PathBuf,
}

/// A proxy that is not served yet.
pub struct Proxy {
    settings: Settings,
    upstream: Upstream,
    knowledge: Option<Arc<Knowledge>>,
    metrics: Metrics,
}

impl Settings {
    /// The proxy's part of a resolved configuration.
    #[must_use]
    pub fn from_config(config: &Config, tellers: &[PodTeller]) -> Self {
        let config = config.clone().resolved();
        let paths = config.paths();
        let annotations = &config.proxy.annotations;
        let socket = config.proxy.served().into();
        let rules = match annotations.are_wanted() {
            true => Some(Rules::new(annotations, config.proxy.zones || config.proxy.allocatable)),
            false => None,
        };
        Self {
            node: config.node_name.clone(),
            socket,
            kubelet: paths.socket,
            timeout: config.proxy.timeout.get(),
            wait: config.proxy.wait.get(),
            last_known: config.proxy.last_known.get(),
            fail_closed: config.proxy.fail_closed,
            allocatable: config.proxy.allocatable,
            zones: config.proxy.zones,
            reads_devices: annotations.koordinator,
            asks_for_pods: tellers.contains(&PodTeller::ApiServer),
            rules,
            sys: paths.sys,
        }
    }

    /// The annotations that a source of pods has to keep.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        self.rules.as_ref().map_or_else(Wanted::default, |rules| Wanted::of(rules.wanted()))
    }
}

impl Proxy {
    /// A proxy that knows the pods from `pods`, and asks `cluster` for what else it needs.
    #[must_use]
    pub fn new(settings: Settings, pods: PodSource, cluster: Option<Cluster>) -> Self {
        let metrics = Metrics::new(Arc::new(Health::new(settings.rules.is_some())));
        let counted = Arc::new(Counted::new(metrics.clone()));
        let upstream = Upstream::start(settings.kubelet.clone(), settings.timeout, counted);
        let node = devices::follow(&settings, cluster.clone(), &metrics);
        let asking = cluster.filter(|_| settings.asks_for_pods).map(|cluster| Asking {
            cluster,
            node: settings.node.clone(),
            wanted: settings.wanted(),
        });
        let times = (settings.wait, settings.last_known);
        let knowledge = settings
            .rules
            .clone()
            .map(|rules| Arc::new(Knowledge::new(rules, pods, asking, node, times, metrics.clone())));
        Self { settings, upstream, knowledge, metrics }
    }

    /// A proxy that knows the pods from `tellers`, whom it asks itself, with the annotations that it needs.
    #[must_use]
    pub fn asking(settings: Settings, tellers: PodTellers, cluster: Cluster, tally: Arc<dyn Tally>) -> Self {
        let tellers = PodTellers { wanted: settings.wanted(), ..tellers };
        let pods = PodSource::follow(tellers, settings.node.clone(), cluster.clone(), tally);
        Self::new(settings, pods, Some(cluster))
    }

    /// The connection to the kubelet, for others who ask it.
    #[must_use]
    pub fn upstream(&self) -> Upstream {
        self.upstream.clone()
    }

    /// What is counted.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Waits until the pods and the node's devices are known, but not for longer than an answer may wait.
    pub async fn first_words(&self) {
        if let Some(knowledge) = &self.knowledge {
            knowledge.first_words(knowledge.deadline()).await;
        }
    }

    /// Puts into an answer to `List` what is known now; as it came where that cannot be done.
    #[must_use]
    pub fn merging_lists(&self) -> Option<impl Fn(&Bytes) -> Bytes + Send + Sync + use<>> {
        self.merging(|plan, bytes| plan.list(bytes, merge::Version::V1))
    }

    /// Puts into an answer to `GetAllocatableResources` what the node has; as it came where that cannot be done.
    #[must_use]
    pub fn merging_allocatable(&self) -> Option<impl Fn(&Bytes) -> Bytes + Send + Sync + use<>> {
        self.merging(Plan::allocatable)
    }

    fn merging(
        &self,
        merge: fn(&Plan, &Bytes) -> Result<Merged, WireError>,
    ) -> Option<impl Fn(&Bytes) -> Bytes + Send + Sync + use<>> {
        let knowledge = Arc::clone(self.knowledge.as_ref()?);
        Some(move |bytes: &Bytes| {
            let merged = knowledge.plan_of_zones().map(|plan| merge(&plan, bytes));
            merged.and_then(Result::ok).map_or_else(|| bytes.clone(), |merged| merged.bytes)
        })
    }

    /// Listens, and serves from tasks of its own.
    ///
    /// # Errors
    /// When the socket cannot be put where it belongs.
    pub fn start(&self) -> Result<Server, ServeError> {
        let service = Arc::new(Service {
            upstream: self.upstream.clone(),
            knowledge: self.knowledge.clone(),
            fail_closed: self.settings.fail_closed,
            allocatable: self.settings.allocatable,
            metrics: self.metrics.clone(),
            notices: Notices::default(),
        });
        let counted = Arc::new(Counted::new(self.metrics.clone()));
        // The kubelet's turn to be asked, and its answer.
        let limits = Limits { answer: 2 * self.settings.timeout, ..Limits::default() };
        let server = Server::start(self.settings.socket.clone(), limits, Arc::new(service), counted)?;
        info!("podresources proxy at {}", self.settings.socket.path.display());
        Ok(server)
    }

    /// Looks after `server` until `shutdown` completes; starts it again and again where there is none yet.
    pub async fn run(self, mut server: Option<Server>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut failures = 0;
        while server.is_none() {
            self.beat(false);
            match self.start() {
                Ok(started) => server = Some(started),
                Err(error) => {
                    if failures == 0 {
                        warn!("{error}; trying again");
                    }
                    tokio::select! {
                        () = sleep(back_off(&mut failures, RETRY, RETRY_LIMIT)) => {}
                        () = &mut shutdown => return,
                    }
                }
            }
        }
        tokio::select! {
            () = self.look_after(server.as_ref()) => {}
            () = &mut shutdown => {}
        }
        if let Some(server) = server {
            server.stop().await;
        }
    }

    fn beat(&self, served: bool) {
        let told = self.knowledge.as_ref().is_some_and(|knowledge| knowledge.has_told());
        self.metrics.health().beat(served, told);
        if let Some(knowledge) = &self.knowledge {
            self.metrics.passing_through(knowledge.standing() != Standing::Good);
        }
    }

    /// Stamps that all is well, and asks the kubelet where nobody else does.
    async fn look_after(&self, server: Option<&Server>) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            self.beat(server.is_some_and(Server::serves));
            if self.metrics.health().kubelet_age().is_none_or(|age| age > UNASKED) {
                // What comes of it is counted and stamped by who counts calls.
                let _ = self.upstream.ask(Ask::List, Asker::Proxy).await;
            }
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("settings", &self.settings).finish_non_exhaustive()
    }
}
