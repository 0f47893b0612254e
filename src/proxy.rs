//! The podresources proxy (DESIGN section 7): serves the kubelet's podresources API again, on a socket of its
//! own, to any number of clients, with the devices that pods are allocated by annotation.
//!
//! `service` handles the requests, `knowledge` knows what to merge into the responses, `merge` merges it;
//! `crate::kubelet::Upstream` makes one kubelet call for all concurrent callers, and `crate::grpc` runs the
//! server.

pub mod devices;
pub mod health;
pub mod merge;
pub mod metrics;

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

use crate::cluster::Cluster;
use crate::grpc::{Limits, ServeError, Server, Socket};
use crate::kubelet::{Ask, Asker, Upstream};
use crate::pod::Wanted;
use crate::pod_source::{PodSource, PodSourceMetrics, PodTellers};
use crate::telemetry::registry::Registry;
use crate::util::backoff::back_off;

use health::Health;
use knowledge::{Asking, Knowledge, Standing};
use merge::{Merged, Plan, Rules, WireError};
use metrics::Metrics;
use notices::Notices;
use service::Service;

/// Interval of the health reports.
const LOOK: Duration = Duration::from_secs(5);
/// A kubelet that was not called for this long is called to check that it responds: readiness allows 30 s.
const UNASKED: Duration = Duration::from_secs(10);
/// Delay of the first retry if the socket cannot be served.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum delay between two retries.
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// The proxy's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name in the cluster.
    pub node: String,
    /// The socket to serve.
    pub socket: Socket,
    /// The kubelet's socket.
    pub kubelet: PathBuf,
    /// The timeout of one call to the kubelet.
    pub timeout: Duration,
    /// How long a response waits for a pod that is not known yet.
    pub wait: Duration,
    /// How long the last known pods are used while no pod source is synced.
    pub last_known: Duration,
    /// Reject requests if the response may lack devices.
    pub fail_closed: bool,
    /// Merge the node's devices into `GetAllocatableResources`.
    pub allocatable: bool,
    /// The agent's zones count what is merged.
    pub zones: bool,
    /// What is merged; `None`: nothing.
    pub rules: Option<Rules>,
    /// Whether Koordinator's Device object is read.
    pub reads_devices: bool,
    /// Whether single pods may be read from the API server.
    pub asks_for_pods: bool,
    /// The path used as `/sys`.
    pub sys: PathBuf,
}

/// A proxy that does not serve yet.
pub struct Proxy {
    settings: Settings,
    upstream: Upstream,
    knowledge: Option<Arc<Knowledge>>,
    metrics: Metrics,
}

impl Settings {
    /// Returns the annotations that a pod source has to keep.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        self.rules.as_ref().map_or_else(Wanted::default, |rules| Wanted::of(rules.wanted()))
    }
}

impl Proxy {
    /// Creates a proxy that takes the pods from `pods` and reads everything else from `cluster`.
    #[must_use]
    pub fn new(
        settings: Settings,
        pods: PodSource,
        cluster: Option<Cluster>,
        registry: &mut Registry,
    ) -> Self {
        let health = Arc::new(Health::new(settings.rules.is_some()));
        let metrics = Metrics::register(registry, health);
        let upstream = Upstream::start(settings.kubelet.clone(), settings.timeout, Arc::new(metrics.clone()));
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

    /// Creates a proxy that follows the pod sources in `tellers` itself, with the annotations that it needs.
    #[must_use]
    pub fn asking(
        settings: Settings,
        tellers: PodTellers,
        cluster: Cluster,
        registry: &mut Registry,
    ) -> Self {
        let tellers = PodTellers { wanted: settings.wanted(), ..tellers };
        let metrics = PodSourceMetrics::register(registry, metrics::COMPONENT);
        let pods = PodSource::follow(tellers, settings.node.clone(), cluster.clone(), metrics);
        Self::new(settings, pods, Some(cluster), registry)
    }

    /// Returns the connection to the kubelet, for other callers.
    #[must_use]
    pub fn upstream(&self) -> Upstream {
        self.upstream.clone()
    }

    /// Returns the proxy's health, to be served.
    #[must_use]
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(self.metrics.health())
    }

    /// Waits until the pods and the node's devices are known, at most as long as a response may wait.
    pub async fn first_words(&self) {
        if let Some(knowledge) = &self.knowledge {
            knowledge.first_words(knowledge.deadline()).await;
        }
    }

    /// Returns a function that merges the annotated devices into a `List` response; it returns `None` until
    /// these are known, and an invalid response unchanged. `None` if nothing is merged.
    #[must_use]
    pub fn merging_lists(&self) -> Option<impl Fn(&Bytes) -> Option<Bytes> + Send + Sync + use<>> {
        self.merging(|plan, bytes| plan.list(bytes, merge::Version::V1))
    }

    /// As [`Proxy::merging_lists`], for the node's devices in a `GetAllocatableResources` response.
    #[must_use]
    pub fn merging_allocatable(&self) -> Option<impl Fn(&Bytes) -> Option<Bytes> + Send + Sync + use<>> {
        self.merging(Plan::allocatable)
    }

    fn merging(
        &self,
        merge: fn(&Plan, &Bytes) -> Result<Merged, WireError>,
    ) -> Option<impl Fn(&Bytes) -> Option<Bytes> + Send + Sync + use<>> {
        let knowledge = Arc::clone(self.knowledge.as_ref()?);
        Some(move |bytes: &Bytes| {
            let plan = knowledge.plan_of_zones()?;
            Some(merge(&plan, bytes).map_or_else(|_| bytes.clone(), |merged| merged.bytes))
        })
    }

    /// Starts to listen; requests are served by tasks of their own.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn start(&self) -> Result<Server, ServeError> {
        let service = Arc::new(Service {
            upstream: self.upstream.clone(),
            knowledge: self.knowledge.clone(),
            fail_closed: self.settings.fail_closed,
            allocatable: self.settings.allocatable,
            metrics: self.metrics.clone(),
            notices: Notices::default(),
        });
        // The wait for the call to the kubelet, and the call itself.
        let limits = Limits { answer: 2 * self.settings.timeout, ..Limits::default() };
        let (socket, observer) = (self.settings.socket.clone(), Arc::new(self.metrics.clone()));
        let server = Server::start(socket, limits, Arc::new(service), observer)?;
        info!("podresources proxy at {}", self.settings.socket.path.display());
        Ok(server)
    }

    /// Monitors `server` until `shutdown` completes. If there is none, starts it, retrying until that
    /// succeeds.
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
        self.metrics.health().checked(served, told);
        if let Some(knowledge) = &self.knowledge {
            self.metrics.passing_through(knowledge.standing() != Standing::Good);
        }
    }

    /// Reports health periodically, and calls the kubelet if no client does.
    async fn look_after(&self, server: Option<&Server>) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            self.beat(server.is_some_and(Server::serves));
            if self.metrics.health().kubelet_age().is_none_or(|age| age > UNASKED) {
                // The observer of the calls records the result.
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
