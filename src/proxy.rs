//! The podresources proxy: serves the kubelet's podresources API again, on a socket of its own, to any number
//! of clients, with the devices that pods are allocated by annotation.
//!
//! `annotations` parses the pods' annotations into `allocations`, `merge` adds these to the kubelet's
//! responses, `annotation_state` keeps both current, and `service` handles the requests.
//! `crate::kubelet::SharedClient` makes one kubelet call for all concurrent callers, and `crate::grpc` runs
//! the server.

pub mod annotations;
pub mod merge;
pub(crate) mod metrics;

mod allocations;
mod annotation_state;
mod device_poller;
mod service;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;
use tracing::info;

use crate::cluster::Cluster;
use crate::grpc::{Limits, ServeError, Server, Socket, keep_serving};
use crate::kubelet::{Caller, Request, SharedClient};
use crate::pod::Wanted;
use crate::pod_source::{PodCache, PodSourceMetrics, PodSources};
use crate::telemetry::health::{Probes, Recent};
use crate::telemetry::registry::Registry;

pub use allocations::Allocations;
use annotation_state::{AnnotationState, PodLookup, SourceFreshness};
use annotations::Rules;
use merge::{Merged, PodResourcesVersion, WireError};
use metrics::Metrics;
use service::{Service, ServiceLog};

/// The name of the v1 service.
const V1: &str = "v1.PodResourcesLister";
/// The name of the v1alpha1 service.
const V1ALPHA1: &str = "v1alpha1.PodResourcesLister";

/// A kubelet that has not responded for this long is called, well before `metrics::MAX_RESPONSE_AGE`.
const PROBE_KUBELET_AFTER: Duration = Duration::from_secs(10);

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
    pub looks_up_pods: bool,
    /// The path used as `/sys`.
    pub sys: PathBuf,
}

/// A proxy that does not serve yet.
pub struct Proxy {
    settings: Settings,
    client: SharedClient,
    annotations: Option<Arc<AnnotationState>>,
    metrics: Metrics,
}

impl Settings {
    /// Returns the annotations that a pod source has to keep.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        self.rules.as_ref().map_or_else(Wanted::default, |rules| Wanted::of(rules.keys()))
    }
}

impl Proxy {
    /// Creates a proxy that takes the pods from `pods` and reads everything else from `cluster`.
    #[must_use]
    pub fn new(
        settings: Settings,
        pods: PodCache,
        cluster: Option<Cluster>,
        registry: &mut Registry,
    ) -> Self {
        let metrics = Metrics::register(registry, settings.rules.is_some());
        let observed = metrics.clone();
        let client = SharedClient::start(
            settings.kubelet.clone(),
            settings.timeout,
            Arc::new(move |request, took, error| observed.kubelet_called(request, took, error)),
        );
        let devices = device_poller::start(&settings, cluster.clone(), &metrics);
        let lookup = cluster.filter(|_| settings.looks_up_pods).map(|cluster| PodLookup {
            cluster,
            node: settings.node.clone(),
            wanted: settings.wanted(),
        });
        let annotations = settings.rules.clone().map(|rules| {
            Arc::new(AnnotationState::new(rules, &settings, pods, lookup, devices, metrics.clone()))
        });
        Self { settings, client, annotations, metrics }
    }

    /// Creates a proxy that follows the pod sources itself, with the annotations that it needs; none if nothing is merged.
    #[must_use]
    pub fn with_pod_sources(
        settings: Settings,
        sources: PodSources,
        cluster: Cluster,
        registry: &mut Registry,
    ) -> Self {
        if settings.rules.is_none() {
            return Self::new(settings, PodCache::none(), None, registry);
        }
        let sources = PodSources { wanted: settings.wanted(), ..sources };
        let metrics = PodSourceMetrics::register(registry, metrics::COMPONENT);
        let pods = PodCache::start(sources, settings.node.clone(), Some(cluster.clone()), metrics);
        Self::new(settings, pods, Some(cluster), registry)
    }

    /// Returns the connection to the kubelet, for other callers.
    #[must_use]
    pub fn client(&self) -> SharedClient {
        self.client.clone()
    }

    /// Returns the proxy's health, to be served.
    #[must_use]
    pub fn health(&self) -> Arc<dyn Probes> {
        self.metrics.health.clone()
    }

    /// Waits until the pods and the node's devices are known, at most as long as a response may wait.
    pub async fn wait_until_synced(&self) {
        if let Some(annotations) = &self.annotations {
            annotations.wait_until_synced(annotations.deadline()).await;
        }
    }

    /// Returns a function that merges the annotated devices into a `List` response; it returns `None` until
    /// these are known, and an invalid response unchanged. `None` if nothing is merged.
    #[must_use]
    pub fn list_merger(&self) -> Option<impl Fn(&Bytes) -> Option<Bytes> + Send + Sync + use<>> {
        self.merger(|allocations, bytes| allocations.merge_list(bytes, PodResourcesVersion::V1))
    }

    /// As [`Proxy::list_merger`], for the node's devices in a `GetAllocatableResources` response.
    #[must_use]
    pub fn allocatable_merger(&self) -> Option<impl Fn(&Bytes) -> Option<Bytes> + Send + Sync + use<>> {
        self.merger(Allocations::merge_allocatable)
    }

    fn merger(
        &self,
        merge: fn(&Allocations, &Bytes) -> Result<Merged, WireError>,
    ) -> Option<impl Fn(&Bytes) -> Option<Bytes> + Send + Sync + use<>> {
        let annotations = Arc::clone(self.annotations.as_ref()?);
        Some(move |bytes: &Bytes| {
            let allocations = annotations.zone_allocations()?;
            Some(merge(&allocations, bytes).map_or_else(|_| bytes.clone(), |merged| merged.bytes))
        })
    }

    /// Starts to listen; requests are served by tasks of their own.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn start(&self) -> Result<Server, ServeError> {
        let service = Arc::new(Service {
            kubelet: self.client.clone(),
            annotations: self.annotations.clone(),
            fail_closed: self.settings.fail_closed,
            allocatable: self.settings.allocatable,
            metrics: self.metrics.clone(),
            log: ServiceLog::default(),
        });
        // The wait for the call to the kubelet, the call itself, and the wait for pods and devices.
        let response_timeout = 2 * self.settings.timeout + self.settings.wait;
        let limits = Limits { response_timeout, ..Limits::default() };
        let (socket, metrics) = (self.settings.socket.clone(), self.metrics.server.clone());
        let server = Server::start(socket, limits, Arc::new(service), metrics)?;
        info!("podresources proxy at {}", self.settings.socket.path.display());
        Ok(server)
    }

    /// Monitors `server` until `shutdown` completes. If there is none, starts it, retrying until that
    /// succeeds.
    pub async fn run(self, mut server: Option<Server>, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            () = keep_serving(&mut server, || self.start(), |is_serving| self.check(is_serving)) => {}
            () = shutdown => {}
        }
        if let Some(server) = server {
            server.stop().await;
        }
    }

    /// Reports health, and calls the kubelet if there is a server and no client calls. `is_serving` is `None`
    /// if there is no server.
    async fn check(&self, is_serving: Option<bool>) {
        let is_synced = self.annotations.as_ref().is_none_or(|annotations| annotations.is_synced());
        self.metrics.health.checked(is_serving == Some(true), is_synced);
        if let Some(annotations) = &self.annotations {
            self.metrics.annotations_unavailable(annotations.freshness() != SourceFreshness::Fresh);
        }
        let age = self.metrics.health.response.as_ref().and_then(Recent::age);
        if is_serving.is_some() && age.is_none_or(|age| age > PROBE_KUBELET_AFTER) {
            // The observer of the calls records the result.
            let _ = self.client.request(Request::List, Caller::Proxy).await;
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("settings", &self.settings).finish_non_exhaustive()
    }
}
