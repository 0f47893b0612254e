//! The Pods API (KEP-4188), which kubelets serve from 1.36 on: served here for older kubelets, and for many
//! clients of newer ones, together with `PodInfo`.
//!
//! `source_follower` follows the pod sources and updates `store`, which has a `watch_cache` of encoded pods
//! for each of the two services: its `entries` are within a budget of bytes, and its `watchers` get each
//! change. `pod_info` encodes the messages of `PodInfo`, `service` handles the calls, and `crate::grpc` is
//! the server.

pub(crate) mod metrics;
pub mod proto;

mod entries;
mod pod_info;
mod service;
mod source_follower;
mod store;
mod watch_cache;
mod watchers;

use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::info;

use crate::cluster::Cluster;
use crate::grpc::{Limits, ServeError, Server, ServerMetrics, Socket, keep_serving};
use crate::pod::Wanted;
use crate::pod_source::{PodSourceKind, PodSources};
use crate::telemetry::health::Probes;
use crate::telemetry::registry::Registry;

use metrics::{INFO_VERSION, Metrics, PODS_VERSION, WatcherMetrics};
use service::{Limiter, OnlyInfo, Service};
use source_follower::{SourceFollower, State};
use store::Store;
use watch_cache::lock;

/// The kubelet's service.
const PODS: &str = "v1alpha1.Pods";
/// numacast's own service.
const INFO: &str = "podinfo.v1alpha1.PodInfo";

/// Wanted limit of file descriptors: one per connection, including those being closed, and some for
/// everything else.
const DESCRIPTORS: u64 = 4096;

/// The server's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The socket to serve on.
    pub socket: Socket,
    /// A socket for `PodInfo` alone.
    pub info_socket: Option<Socket>,
    /// The pod sources, best first.
    pub order: Vec<PodSourceKind>,
}

/// A server of the Pods API, not yet serving.
pub struct PodsApi {
    socket: Socket,
    info: Option<InfoSocket>,
    follower: SourceFollower,
    service: Arc<Service>,
}

/// The socket of `PodInfo` alone.
struct InfoSocket {
    socket: Socket,
    metrics: ServerMetrics,
    is_serving: AtomicBool,
}

impl PodsApi {
    /// Serves the pods of `node`, read from `sources` in the order of the settings; without a cluster, only
    /// from the kubelet's own Pods API.
    #[must_use]
    pub fn new(
        settings: Settings,
        sources: PodSources,
        node: String,
        cluster: Option<Cluster>,
        registry: &mut Registry,
    ) -> Self {
        let Settings { socket, info_socket, order } = settings;
        let info = info_socket.map(|socket| InfoSocket {
            socket,
            metrics: ServerMetrics::register(registry, "pod_info"),
            is_serving: AtomicBool::new(false),
        });
        let metrics = Metrics::register(registry);
        let observer = |version| Arc::new(WatcherMetrics { version, metrics: metrics.clone() });
        let store = Store::new(observer(PODS_VERSION), observer(INFO_VERSION));
        let service = Arc::new(Service {
            pods: Arc::clone(&store.pods),
            infos: Arc::clone(&store.infos),
            has_only_kubelet_pods: Arc::default(),
            kubelet_reads: Arc::default(),
            limiter: Limiter::default(),
            metrics: metrics.clone(),
        });
        let kubelet_reads = Arc::clone(&service.kubelet_reads);
        let sources = PodSources { order, wanted: Wanted::default().with_raw(), ..sources };
        let has_only_kubelet_pods = Arc::clone(&service.has_only_kubelet_pods);
        let state = State::default();
        let follower = SourceFollower {
            sources,
            node,
            cluster,
            store,
            has_only_kubelet_pods,
            kubelet_reads,
            metrics,
            state,
        };
        Self { socket, info, follower, service }
    }

    /// Returns the server's health, to be served.
    #[must_use]
    pub fn health(&self) -> Arc<dyn Probes> {
        self.service.metrics.health.clone()
    }

    /// Starts listening, and serves in tasks of its own. The socket of `PodInfo` alone is served by [`PodsApi::run`].
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn start(&self) -> Result<Server, ServeError> {
        start(&self.socket, &self.service)
    }

    /// Follows the pods and keeps `server` running until `shutdown` completes. If there is no server, tries
    /// to start one until it succeeds.
    pub async fn run(self, mut server: Option<Server>, shutdown: impl Future<Output = ()>) {
        let Self { socket, info, follower, service } = self;
        let is_info_served = || info.as_ref().is_none_or(|info| info.is_serving.load(Ordering::Relaxed));
        let check = |is_serving: Option<bool>| {
            check(&service, is_serving.map(|is_serving| is_serving && is_info_served()))
        };
        let mut info_server = None;
        tokio::select! {
            () = follower.run() => {}
            () = keep_serving(&mut server, || start(&socket, &service), check) => {}
            () = keep_info_serving(&mut info_server, info.as_ref(), &service) => {}
            () = shutdown => {}
        }
        // Watchers get a final status; the servers wait until it is sent.
        service.caches().iter().for_each(|cache| lock(cache).watchers.close());
        let stopping = server.into_iter().chain(info_server).map(Server::stop);
        join_all(stopping).await;
    }
}

async fn keep_info_serving(server: &mut Option<Server>, info: Option<&InfoSocket>, service: &Arc<Service>) {
    let Some(info) = info else { return pending().await };
    let start = || {
        let only_info = Arc::new(OnlyInfo(Arc::clone(service)));
        let server = Server::start(info.socket.clone(), limits(), only_info, info.metrics.clone())?;
        info!("PodInfo at {}", info.socket.path.display());
        Ok(server)
    };
    let check = async |is_serving| info.is_serving.store(is_serving == Some(true), Ordering::Relaxed);
    keep_serving(server, start, check).await;
}

/// Raises the limit of file descriptors. Many systems set the soft limit to 1,024 and the hard limit higher.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(DESCRIPTORS, |maximum| maximum.min(DESCRIPTORS));
    if limit.current.is_some_and(|current| current < wanted) {
        // If this fails, there are fewer connections, and the log reports it when they run out.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
}

fn start(socket: &Socket, service: &Arc<Service>) -> Result<Server, ServeError> {
    raise_descriptor_limit();
    let metrics = service.metrics.server.clone();
    let server = Server::start(socket.clone(), limits(), Arc::new(Arc::clone(service)), metrics)?;
    info!("Pods API at {}", socket.path.display());
    Ok(server)
}

/// Returns the server's limits. A watch is a call that does not end, so many open calls are allowed. Slow
/// clients are cut off by their number of unread events (`watchers`), so the timeout is for dead ones only.
fn limits() -> Limits {
    Limits {
        connections: 2048,
        connections_per_client: 1536,
        open_calls: 8192,
        open_calls_per_client: 4096,
        read_timeout: Duration::from_secs(60),
        ..Limits::default()
    }
}

async fn check(service: &Service, is_serving: Option<bool>) {
    let is_synced = service.caches().iter().any(|cache| lock(cache).is_synced);
    service.metrics.health.checked(is_serving == Some(true), is_synced);
    service.caches().iter().for_each(|cache| lock(cache).drop_unused_list());
}

#[cfg(test)]
mod tests;
