//! The proxied podresources API: the kubelet's responses with the devices from annotations.

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tonic::{Code, Status};
use tracing::{info, warn};

use super::allocations::Allocations;
use super::annotation_state::{AnnotationState, SourceFreshness};
use super::merge::{Merged, Omitted, PodResourcesVersion, WireError};
use super::metrics::Metrics;
use super::{V1, V1ALPHA1};
use crate::grpc::{self, Call, Peer, Reply};
use crate::kubelet::proto::v1::GetPodResourcesRequest;
use crate::kubelet::{Caller, Request, SharedClient};
use crate::util::log_throttle::LastLogged;
use crate::util::sync::lock;

pub(super) struct Service {
    pub(super) kubelet: SharedClient,
    /// `None` if nothing is merged.
    pub(super) annotations: Option<Arc<AnnotationState>>,
    pub(super) fail_closed: bool,
    /// Merge the node's devices into `GetAllocatableResources`.
    pub(super) allocatable: bool,
    pub(super) metrics: Metrics,
    pub(super) log: ServiceLog,
}

/// Clients with gRPC's default limit accept no more bytes.
const CLIENT_LIMIT: usize = 4 << 20;
/// A response above this size is logged as large, which leaves an eighth for more pods.
const LARGE: usize = CLIENT_LIMIT / 8 * 7;
/// Below this size it no longer counts as large; the gap keeps a fluctuating size from flooding the log.
const NOT_LARGE: usize = CLIENT_LIMIT / 8 * 6;

#[derive(Default)]
struct Shared {
    merged: OnceCell<Result<Bytes, Status>>,
    /// Until when the response may wait for pods, whichever caller makes it.
    deadline: OnceLock<Instant>,
}

impl grpc::Service for Arc<Service> {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>> {
        let service = Self::clone(self);
        async move { Ok(Reply::One(service.respond(decode(&call)?).await?.into())) }.boxed()
    }

    fn finished(&self, path: &str, peer: &Peer, code: Code, took: Duration) {
        self.metrics.finished(path, peer, code, took);
    }
}

fn decode(call: &Call) -> Result<Request, Status> {
    match call.names() {
        (V1, "List") => Ok(Request::List),
        (V1ALPHA1, "List") => Ok(Request::ListV1alpha1),
        (V1, "GetAllocatableResources") => Ok(Request::Allocatable),
        (V1, "Get") => {
            let request = GetPodResourcesRequest::decode(call.message.clone())
                .map_err(|error| Status::internal(format!("grpc: error unmarshalling request: {error}")))?;
            Ok(Request::Get { namespace: request.pod_namespace, name: request.pod_name })
        }
        (V1 | V1ALPHA1, _) => Err(call.unknown_method()),
        _ => Err(call.unknown_service()),
    }
}

impl Service {
    /// Returns the response of a kubelet call that started after this one, merged with what is known by then.
    async fn respond(&self, request: Request) -> Result<Bytes, Status> {
        let response = self.kubelet.request(request.clone(), Caller::Proxy).await;
        let response = response.map_err(|error| error.status)?;
        let Some(annotations) = &self.annotations else {
            return Ok(self.pass_through(&request, &response.bytes));
        };
        let shared = response.slot::<Shared>();
        // The caller that merges may be cancelled: then the next one does it.
        let deadline = *shared.deadline.get_or_init(|| annotations.deadline());
        let merge = || self.merge(&request, &response.bytes, annotations, deadline);
        shared.merged.get_or_init(merge).await.clone()
    }

    async fn merge(
        &self,
        request: &Request,
        bytes: &Bytes,
        annotations: &AnnotationState,
        deadline: Instant,
    ) -> Result<Bytes, Status> {
        if *request == Request::Allocatable && !self.allocatable {
            return Ok(bytes.clone());
        }
        if !self.can_merge(annotations, deadline).await? {
            return Ok(self.pass_through(request, bytes));
        }
        let merged = match request {
            Request::Allocatable => {
                annotations.allocations().merge_allocatable(bytes).map(|merged| (merged, 0))
            }
            _ => {
                let merge = |allocations: &Allocations| match request {
                    Request::Get { .. } => allocations.merge_get(bytes),
                    Request::ListV1alpha1 => allocations.merge_list(bytes, PodResourcesVersion::V1alpha1),
                    _ => allocations.merge_list(bytes, PodResourcesVersion::V1),
                };
                annotations.merge(deadline, merge).await
            }
        };
        self.finish(request, bytes, merged)
    }

    /// Returns whether merging is possible. If it is not, the request is rejected if `fail_closed` is set.
    async fn can_merge(&self, annotations: &AnnotationState, deadline: Instant) -> Result<bool, Status> {
        annotations.wait_until_synced(deadline).await;
        let freshness = annotations.freshness();
        self.metrics.annotations_unavailable(freshness != SourceFreshness::Fresh);
        self.log.freshness(freshness, self.fail_closed);
        match freshness {
            SourceFreshness::Fresh => Ok(true),
            _ if !self.fail_closed => Ok(false),
            SourceFreshness::Unsynced => Err(rejection("the node's pods and devices are not known yet")),
            SourceFreshness::Stale => Err(rejection("all pod sources have been failing for too long")),
        }
    }

    fn finish(
        &self,
        request: &Request,
        bytes: &Bytes,
        merged: Result<(Merged, usize), WireError>,
    ) -> Result<Bytes, Status> {
        let (merged, unknown) = match merged {
            Ok(merged) => {
                self.log.decoded(request);
                merged
            }
            Err(error) => {
                self.log.malformed(request, &error, self.fail_closed);
                if self.fail_closed {
                    return Err(rejection("the kubelet's response cannot be decoded"));
                }
                // The client may understand it.
                return Ok(bytes.clone());
            }
        };
        if *request == Request::List {
            self.record_list(merged.bytes.len(), merged.devices, merged.omitted, unknown);
        }
        if unknown > 0 && self.fail_closed {
            return Err(rejection(&format!("the kubelet lists {unknown} unknown pods")));
        }
        Ok(merged.bytes)
    }

    fn pass_through(&self, request: &Request, bytes: &Bytes) -> Bytes {
        if *request == Request::List {
            self.record_list(bytes.len(), 0, Omitted::default(), 0);
        }
        bytes.clone()
    }

    fn record_list(&self, bytes: usize, merged: usize, omitted: Omitted, unknown: usize) {
        self.metrics.listed(bytes, merged, omitted, unknown);
        self.log.size(bytes);
    }
}

fn rejection(why: &str) -> Status {
    Status::unavailable(format!("numacast: {why}, and the response may lack devices (proxy.failClosed)"))
}

/// What was logged: each message is logged once, and again only after the state changed.
#[derive(Debug, Default)]
pub(super) struct ServiceLog {
    large: LastLogged,
    freshness: LastLogged<SourceFreshness>,
    /// The kinds of requests whose last response could not be decoded.
    malformed: Mutex<HashSet<Discriminant<Request>>>,
}

impl ServiceLog {
    pub(super) fn size(&self, bytes: usize) {
        if self.is_newly_large(bytes) {
            warn!(
                "the List has {bytes} bytes; clients that accept at most {CLIENT_LIMIT} (gRPC's default, as in \
                 dcgm-exporter) fail when it grows above that"
            );
        }
    }

    fn is_newly_large(&self, bytes: usize) -> bool {
        if bytes < NOT_LARGE {
            self.large.reset();
        }
        bytes > LARGE && self.large.is_new(())
    }

    pub(super) fn freshness(&self, freshness: SourceFreshness, fail_closed: bool) {
        if !self.freshness.is_new(freshness) {
            return;
        }
        let consequence = match fail_closed {
            true => "requests are rejected meanwhile (proxy.failClosed)",
            false => "responses lack the devices from annotations meanwhile",
        };
        match freshness {
            SourceFreshness::Fresh => info!("devices from annotations are merged into responses"),
            SourceFreshness::Unsynced => warn!("pods and devices are not known yet: {consequence}"),
            SourceFreshness::Stale => warn!("all pod sources have been failing for too long: {consequence}"),
        }
    }

    pub(super) fn malformed(&self, request: &Request, error: &WireError, fail_closed: bool) {
        if !self.is_newly_malformed(request) {
            return;
        }
        let consequence = match fail_closed {
            true => "requests are rejected (proxy.failClosed)",
            false => "it is returned unchanged, without the devices from annotations",
        };
        warn!("cannot decode the kubelet's response to {}: {error}: {consequence}", request.method());
    }

    fn is_newly_malformed(&self, request: &Request) -> bool {
        lock(&self.malformed).insert(discriminant(request))
    }

    pub(super) fn decoded(&self, request: &Request) {
        lock(&self.malformed).remove(&discriminant(request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(path: &str, message: Bytes) -> Call {
        let peer = Arc::new(Peer { pid: None, uid: 0, name: "test".into(), client: 0 });
        Call { path: path.to_owned(), message, peer }
    }

    #[test]
    fn every_method_is_decoded_and_others_are_rejected_as_by_the_kubelet() {
        let decoded = |path: &str| {
            decode(&call(path, Bytes::new())).map_err(|status| (status.code(), status.message().to_owned()))
        };
        let unnamed = Request::Get { namespace: String::new(), name: String::new() };
        for (path, request) in [
            ("/v1.PodResourcesLister/List", Request::List),
            ("/v1alpha1.PodResourcesLister/List", Request::ListV1alpha1),
            ("/v1.PodResourcesLister/GetAllocatableResources", Request::Allocatable),
            ("/v1.PodResourcesLister/Get", unnamed),
        ] {
            assert_eq!(decoded(path), Ok(request), "{path}");
        }
        for (path, text) in [
            ("/v1.PodResourcesLister/Watch", "unknown method Watch for service v1.PodResourcesLister"),
            (
                "/v1alpha1.PodResourcesLister/Get",
                "unknown method Get for service v1alpha1.PodResourcesLister",
            ),
            ("/v1.Pods/List", "unknown service v1.Pods"),
        ] {
            assert_eq!(decoded(path), Err((Code::Unimplemented, text.to_owned())), "{path}");
        }
        let request = GetPodResourcesRequest { pod_name: "a".into(), pod_namespace: "ns".into() };
        let get = decode(&call("/v1.PodResourcesLister/Get", request.encode_to_vec().into()));
        assert_eq!(get.unwrap(), Request::Get { namespace: "ns".into(), name: "a".into() });
        let garbage = decode(&call("/v1.PodResourcesLister/Get", Bytes::from_static(b"\xff\xff")));
        let garbage = garbage.unwrap_err();
        assert_eq!(garbage.code(), Code::Internal);
        assert!(garbage.message().starts_with("grpc: error unmarshalling request: "), "{garbage}");
    }

    #[test]
    fn a_large_response_is_logged_once_until_it_has_shrunk() {
        let log = ServiceLog::default();
        let sizes = [LARGE, LARGE + 1, LARGE + 1, NOT_LARGE, LARGE + 1, NOT_LARGE - 1, LARGE + 1];
        let logged = sizes.map(|bytes| log.is_newly_large(bytes));
        assert_eq!(logged, [false, true, false, false, false, false, true]);
    }

    #[test]
    fn a_malformed_response_is_logged_once_until_one_of_its_kind_is_decoded() {
        let log = ServiceLog::default();
        let is_logged = |request: Request| log.is_newly_malformed(&request);
        assert!(is_logged(Request::List) && !is_logged(Request::List));
        log.decoded(&Request::Allocatable);
        assert!(!is_logged(Request::List), "the response to another request was decoded");
        log.decoded(&Request::List);
        assert!(is_logged(Request::List));
    }
}
