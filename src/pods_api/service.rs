//! The handlers. Codes and messages are the kubelet's (`pkg/kubelet/apis/pods/server.go` of 1.36 and 1.37),
//! or grpc-go's if a call fails before its handler.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use super::metrics::Metrics;
use super::watch_cache::{GetError, SharedCache, Watch, lock};
use super::{INFO, PODS};
use crate::grpc::{self, Call, Peer, Reply};
use crate::kubelet::Refresh;
use crate::kubelet::proto::pods::GetPodRequest;
use crate::util::text::truncate;
use crate::util::token_bucket::TokenBucket;
use crate::util::wire;

/// `List` and `Get` calls per second, and in a burst (`pkg/kubelet/apis/pods/constants.go`). The kubelet has
/// one limit for all clients; here each client has its own.
const QPS: f64 = 100.0;
const BURST: f64 = 10.0;
/// Maximum bytes of a UID in an error message. UIDs have 36 characters, those of static pods 32.
const MAX_UID_BYTES: usize = 256;

/// How long a response may wait for the kubelet's `/pods`. After that, the last known pods are served.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of clients' buckets above which full ones are dropped.
const MAX_BUCKETS: usize = 256;

pub(super) struct Service {
    pub(super) pods: SharedCache,
    pub(super) infos: SharedCache,
    /// Whether the kubelet's `/pods` is the only source that works, and no other is expected to.
    pub(super) has_only_kubelet_pods: Arc<AtomicBool>,
    pub(super) kubelet_reads: Arc<KubeletReads>,
    pub(super) limiter: Limiter,
    pub(super) metrics: Metrics,
}

/// Reads of the kubelet's `/pods` for `PodInfo`.
#[derive(Debug, Default)]
pub(super) struct KubeletReads {
    /// Whether `PodInfo` is served from `/pods`.
    pub(super) are_served: AtomicBool,
    pub(super) refresh: Arc<Refresh>,
    /// When the read began that is served.
    pub(super) served: watch::Sender<Option<Instant>>,
}

impl KubeletReads {
    /// Waits for a read that begins from now on, for a limited time.
    async fn refresh(&self) {
        if !self.are_served.load(Ordering::Relaxed) {
            return;
        }
        let (now, mut served) = (Instant::now(), self.served.subscribe());
        self.refresh.request();
        let _ = timeout(REFRESH_TIMEOUT, served.wait_for(|at| at.is_some_and(|at| at >= now))).await;
    }
}

enum Request {
    List,
    Get(String),
    Watch,
}

impl grpc::Service for Arc<Service> {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>> {
        let service = Arc::clone(self);
        async move {
            let (request, is_info) = service.admit(&call)?;
            if is_info && !matches!(request, Request::Watch) {
                service.kubelet_reads.refresh().await;
            }
            service.respond(request, is_info)
        }
        .boxed()
    }

    fn finished(&self, path: &str, _: &Peer, code: Code, _: Duration) {
        self.metrics.finished(path, code);
    }
}

/// Serves `PodInfo` and nothing else: its clients may not read specs.
pub(super) struct OnlyInfo(pub(super) Arc<Service>);

impl grpc::Service for OnlyInfo {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>> {
        match call.names() {
            (INFO, _) => grpc::Service::call(&self.0, call),
            _ => ready(Err(call.unknown_service())).boxed(),
        }
    }

    fn finished(&self, path: &str, peer: &Peer, code: Code, took: Duration) {
        self.0.finished(path, peer, code, took);
    }
}

/// Decodes a request. Returns whether it is one of `PodInfo`.
fn decode(call: &Call) -> Result<(Request, bool), Status> {
    let (service, method) = call.names();
    let is_info = match service {
        PODS => false,
        INFO => true,
        _ => return Err(call.unknown_service()),
    };
    // A request without known fields must be a valid message.
    let check = || wire::fields(&call.message).try_for_each(|field| field.map(drop));
    let request = match (method, is_info) {
        ("ListPods", false) | ("ListPodConditions", true) => {
            check().map_err(invalid)?;
            Request::List
        }
        ("GetPod", false) | ("GetPodConditions", true) => {
            // The requests of both services have one field, the UID.
            let request = GetPodRequest::decode(call.message.clone()).map_err(invalid)?;
            Request::Get(request.pod_uid)
        }
        ("WatchPods", false) | ("WatchPodConditions", true) => {
            check().map_err(|error| {
                Status::internal(format!("grpc: failed to unmarshal the received message: {error}"))
            })?;
            Request::Watch
        }
        _ => return Err(call.unknown_method()),
    };
    Ok((request, is_info))
}

fn invalid(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("grpc: error unmarshalling request: {error}"))
}

impl Service {
    pub(super) fn caches(&self) -> [&SharedCache; 2] {
        [&self.pods, &self.infos]
    }

    /// Decodes a request, and rejects it if its client has sent too many.
    fn admit(&self, call: &Call) -> Result<(Request, bool), Status> {
        let (request, is_info) = decode(call)?;
        if !matches!(request, Request::Watch) && !self.limiter.admit(&call.peer, Instant::now()) {
            self.metrics.server.limit_exceeded("rate_limit");
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        Ok((request, is_info))
    }

    fn respond(&self, request: Request, is_info: bool) -> Result<Reply, Status> {
        let cache = if is_info { &self.infos } else { &self.pods };
        if !lock(cache).is_synced {
            return Err(self.unsynced(is_info));
        }
        match request {
            Request::List => Ok(Reply::One(lock(cache).list().into())),
            Request::Get(uid) => match lock(cache).get(&uid) {
                Ok(pod) => Ok(Reply::One(pod)),
                Err(GetError::TooLarge(pod)) => Err(Status::resource_exhausted(format!("numacast: {pod}"))),
                Err(GetError::NotFound) => Err(Status::not_found(format!(
                    "pod with UID {} not found",
                    truncate(&uid, MAX_UID_BYTES)
                ))),
            },
            Request::Watch => Ok(Reply::Many(Box::pin(Watch::new(Arc::clone(cache))))),
        }
    }

    /// Returns the status while no list was completed. If `/pods` is the only source, `Pods` never has one.
    fn unsynced(&self, is_info: bool) -> Status {
        match self.has_only_kubelet_pods.load(Ordering::Relaxed) && !is_info {
            true => Status::unimplemented(
                "numacast: pods are read only from the kubelet's /pods, which has no full pods to serve: use \
                 podinfo.v1alpha1.PodInfo, or see podsApi.source",
            ),
            false => Status::failed_precondition("Kubelet is initializing"),
        }
    }
}

#[derive(Default)]
pub(super) struct Limiter(Mutex<HashMap<u64, TokenBucket>>);

impl Limiter {
    fn admit(&self, peer: &Peer, now: Instant) -> bool {
        let mut buckets = lock(&self.0);
        if buckets.len() >= MAX_BUCKETS {
            // A full bucket is the same as a new one.
            buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        buckets.entry(peer.client).or_insert_with(|| TokenBucket::new(QPS, BURST, now)).take_now(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_reconnects_has_the_same_budget() {
        let (limiter, now) = (Limiter::default(), Instant::now());
        // The kernel shows no process of another PID namespace.
        let peer = |client| Peer { pid: None, uid: 0, name: "test".into(), client };
        let admitted = (0..100).filter(|_| limiter.admit(&peer(1), now)).count();
        assert_eq!(admitted, BURST as usize);
        assert!(limiter.admit(&peer(2), now), "another client has its own");
    }
}
