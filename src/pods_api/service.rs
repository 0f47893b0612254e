//! The handlers. Codes and messages are the kubelet's (`pkg/kubelet/apis/pods/server.go` of 1.36 and 1.37),
//! or grpc-go's if a call fails before its handler.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use prost::Message;
use tokio::time::Instant;
use tonic::Status;

use super::board::{Missing, Shared, Watch, lock};
use super::metrics::Metrics;
use crate::grpc::{self, Call, Peer, Reply};
use crate::kubelet::proto::pods::GetPodRequest;
use crate::util::token_bucket::TokenBucket;
use crate::util::wire;

/// The kubelet's service.
pub(super) const PODS: &str = "v1alpha1.Pods";
/// numacast's own service.
pub(super) const INFO: &str = "podinfo.v1alpha1.PodInfo";

/// `List` and `Get` calls per second, and in a burst (`pkg/kubelet/apis/pods/constants.go`). The kubelet has
/// one limit for all clients; here each client has its own.
const QPS: f64 = 100.0;
const BURST: f64 = 10.0;
/// Maximum bytes of a UID in an error message. UIDs have 36 characters, those of static pods 32.
const LONGEST: usize = 256;

/// Number of clients' buckets above which full ones are dropped.
const BUCKETS: usize = 256;

/// The call handlers.
pub(super) struct Service {
    pub(super) pods: Shared,
    pub(super) infos: Shared,
    /// Whether the kubelet's `/pods` is the only source that works, and no other is expected to.
    pub(super) page_alone: Arc<AtomicBool>,
    pub(super) limiter: Limiter,
    pub(super) metrics: Metrics,
}

/// A decoded request.
enum Question {
    List,
    Get(String),
    Watch,
}

impl grpc::Service for Arc<Service> {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>> {
        ready(self.answer(&call)).boxed()
    }
}

impl Question {
    fn read(call: &Call) -> Result<(Self, bool), Status> {
        let (service, method) = call.names();
        let infos = match service {
            PODS => false,
            INFO => true,
            _ => return Err(call.unknown_service()),
        };
        let question = match method {
            "ListPods" if !infos => Self::list(call),
            "ListPodConditions" if infos => Self::list(call),
            "GetPod" if !infos => Self::get(call),
            "GetPodConditions" if infos => Self::get(call),
            "WatchPods" if !infos => Self::watch(call),
            "WatchPodConditions" if infos => Self::watch(call),
            _ => Err(call.unknown_method()),
        };
        Ok((question?, infos))
    }

    fn list(call: &Call) -> Result<Self, Status> {
        readable(call).map_err(unary)?;
        Ok(Self::List)
    }

    fn get(call: &Call) -> Result<Self, Status> {
        // The requests of both services have one field, the UID.
        let request = GetPodRequest::decode(call.message.clone());
        Ok(Self::Get(request.map_err(unary)?.pod_uid))
    }

    fn watch(call: &Call) -> Result<Self, Status> {
        let explain =
            |error| Status::internal(format!("grpc: failed to unmarshal the received message: {error}"));
        readable(call).map_err(explain)?;
        Ok(Self::Watch)
    }
}

/// Truncates a UID for an error message: a status is encoded several times over.
fn shown(uid: &str) -> &str {
    let end = (0..=LONGEST.min(uid.len())).rev().find(|at| uid.is_char_boundary(*at));
    &uid[..end.unwrap_or(0)]
}

/// Checks that a request without known fields is a valid message.
fn readable(call: &Call) -> Result<(), wire::WireError> {
    wire::fields(&call.message).try_for_each(|field| field.map(drop))
}

fn unary(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("grpc: error unmarshalling request: {error}"))
}

impl Service {
    fn answer(&self, call: &Call) -> Result<Reply, Status> {
        let (question, infos) = Question::read(call)?;
        if !matches!(question, Question::Watch) && !self.limiter.admit(&call.peer, Instant::now()) {
            self.metrics.rejected();
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        let board = if infos { &self.infos } else { &self.pods };
        if !lock(board).has_told() {
            return Err(self.untold(infos));
        }
        match question {
            Question::List => Ok(Reply::One(lock(board).list().into())),
            Question::Get(uid) => match lock(board).get(&uid) {
                Ok(pod) => Ok(Reply::One(pod)),
                Err(Missing::TooLarge(pod)) => Err(Status::resource_exhausted(format!("numacast: {pod}"))),
                Err(Missing::Unknown) => {
                    Err(Status::not_found(format!("pod with UID {} not found", shown(&uid))))
                }
            },
            Question::Watch => Ok(Reply::Many(Box::pin(Watch::new(Arc::clone(board))))),
        }
    }

    /// Returns the status while no list was completed. If `/pods` is the only source, `Pods` never has one.
    fn untold(&self, infos: bool) -> Status {
        match self.page_alone.load(Ordering::Relaxed) && !infos {
            true => Status::unimplemented(
                "numacast: only the kubelet's /pods tells of this node's pods, of which whole pods cannot be served: ask \
                 podinfo.v1alpha1.PodInfo, or see podsApi.source",
            ),
            false => Status::failed_precondition("Kubelet is initializing"),
        }
    }
}

/// Limits `List` and `Get` calls per client.
#[derive(Default)]
pub(super) struct Limiter(Mutex<HashMap<u64, TokenBucket>>);

impl Limiter {
    /// Returns true if the client may make a call now.
    fn admit(&self, peer: &Peer, now: Instant) -> bool {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS {
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
    fn a_client_that_connects_again_has_the_same_budget() {
        let (limiter, now) = (Limiter::default(), Instant::now());
        // The kernel shows no process of another PID namespace.
        let peer = |client| Peer { pid: None, uid: 0, name: "test".into(), client };
        let admitted = (0..100).filter(|_| limiter.admit(&peer(1), now)).count();
        assert_eq!(admitted, BURST as usize);
        assert!(limiter.admit(&peer(2), now), "another client has its own");
    }
}
