//! The proxied podresources API: the kubelet's responses with the devices from annotations.

use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use futures::future::BoxFuture;
use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tonic::Status;

use super::knowledge::{Knowledge, Standing};
use super::merge::{Merged, Version, WireError};
use super::notices::Notices;
use crate::grpc::{self, Call, Reply};
use crate::kubelet::proto::v1::GetPodResourcesRequest;
use crate::kubelet::{Ask, Asker, Flight, Upstream};
use crate::telemetry::proxy::{Listed, Metrics};

/// The name of the v1 service.
pub(super) const V1: &str = "v1.PodResourcesLister";
/// The name of the v1alpha1 service.
pub(super) const V1ALPHA1: &str = "v1alpha1.PodResourcesLister";

/// The gRPC service.
pub(super) struct Service {
    pub(super) upstream: Upstream,
    /// `None` if nothing is merged.
    pub(super) knowledge: Option<Arc<Knowledge>>,
    pub(super) fail_closed: bool,
    pub(super) allocatable: bool,
    pub(super) metrics: Metrics,
    pub(super) notices: Notices,
}

/// A decoded request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    List(Version),
    Get { namespace: String, name: String },
    Allocatable,
}

/// What all callers that share a kubelet response also share.
#[derive(Default)]
struct Shared {
    answer: OnceCell<Result<Bytes, Status>>,
    /// Until when the response may wait for pods, whichever caller makes it.
    deadline: OnceLock<Instant>,
}

impl grpc::Service for Arc<Service> {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>> {
        let service = Self::clone(self);
        async move {
            let question = Question::read(&call)?;
            Ok(Reply::One(service.answer(question).await?.into()))
        }
        .boxed()
    }
}

impl Question {
    fn read(call: &Call) -> Result<Self, Status> {
        match call.names() {
            (V1, "List") => Ok(Self::List(Version::V1)),
            (V1ALPHA1, "List") => Ok(Self::List(Version::V1alpha1)),
            (V1, "GetAllocatableResources") => Ok(Self::Allocatable),
            (V1, "Get") => {
                let request = GetPodResourcesRequest::decode(call.message.clone()).map_err(|error| {
                    Status::internal(format!("grpc: error unmarshalling request: {error}"))
                })?;
                Ok(Self::Get { namespace: request.pod_namespace, name: request.pod_name })
            }
            (V1 | V1ALPHA1, _) => Err(call.unknown_method()),
            _ => Err(call.unknown_service()),
        }
    }

    fn ask(&self) -> Ask {
        match self {
            Self::List(Version::V1) => Ask::List,
            Self::List(Version::V1alpha1) => Ask::ListV1alpha1,
            Self::Allocatable => Ask::Allocatable,
            Self::Get { namespace, name } => Ask::Get { namespace: namespace.clone(), name: name.clone() },
        }
    }
}

impl Service {
    /// Returns the response of a kubelet call that started after this one, merged with what is known by then.
    async fn answer(&self, question: Question) -> Result<Bytes, Status> {
        let flight =
            self.upstream.ask(question.ask(), Asker::Proxy).await.map_err(|refusal| refusal.status)?;
        let answer = match &self.knowledge {
            Some(knowledge) => self.merged_once(&question, &flight, knowledge).await?,
            None => {
                self.note_plain(&question, &flight.bytes);
                flight.bytes.clone()
            }
        };
        self.metrics.served(flight.started.elapsed());
        Ok(answer)
    }

    /// Merges once for all callers that share the kubelet's response.
    async fn merged_once(
        &self,
        question: &Question,
        flight: &Flight,
        knowledge: &Knowledge,
    ) -> Result<Bytes, Status> {
        let shared = flight.slot::<Shared>();
        // The caller that merges may be cancelled: then the next one does it.
        let deadline = *shared.deadline.get_or_init(|| knowledge.deadline());
        let merge = || self.merge(question, &flight.bytes, knowledge, deadline);
        shared.answer.get_or_init(merge).await.clone()
    }

    async fn merge(
        &self,
        question: &Question,
        bytes: &Bytes,
        knowledge: &Knowledge,
        deadline: Instant,
    ) -> Result<Bytes, Status> {
        if *question == Question::Allocatable && !self.allocatable {
            return Ok(bytes.clone());
        }
        if !self.may_merge(knowledge, deadline).await? {
            self.note_plain(question, bytes);
            return Ok(bytes.clone());
        }
        let merged = match question {
            Question::List(version) => knowledge.merge_list(bytes, *version, deadline).await,
            Question::Get { .. } => knowledge.merge_get(bytes, deadline).await,
            Question::Allocatable => knowledge.plan().allocatable(bytes).map(|merged| (merged, 0)),
        };
        self.digest(question, bytes, merged)
    }

    /// Returns whether merging is possible. If it is not, the request is rejected if `fail_closed` is set.
    async fn may_merge(&self, knowledge: &Knowledge, deadline: Instant) -> Result<bool, Status> {
        knowledge.first_words(deadline).await;
        let standing = knowledge.standing();
        self.metrics.passing_through(standing != Standing::Good);
        self.notices.standing(standing, self.fail_closed);
        match standing {
            Standing::Good => Ok(true),
            _ if !self.fail_closed => Ok(false),
            Standing::Untold => Err(self.refusal("nobody has told about the node's pods and devices yet")),
            Standing::Stale => Err(self.refusal("nobody has told about the node's pods for too long")),
        }
    }

    fn refusal(&self, why: &str) -> Status {
        Status::unavailable(format!("numacast: {why}, and the answer may lack devices (proxy.failClosed)"))
    }

    /// Returns the response to send.
    fn digest(
        &self,
        question: &Question,
        bytes: &Bytes,
        merged: Result<(Merged, usize), WireError>,
    ) -> Result<Bytes, Status> {
        let (merged, unknown) = match merged {
            Ok(merged) => merged,
            Err(error) => {
                self.notices.malformed(question.ask().method(), &error);
                if self.fail_closed {
                    return Err(self.refusal("the kubelet's answer is not understood"));
                }
                // Pass the kubelet's response on: the client may understand it.
                return Ok(bytes.clone());
            }
        };
        if *question == Question::List(Version::V1) {
            self.note(&merged, unknown);
        }
        if unknown > 0 && self.fail_closed {
            let why = format!("the kubelet names {unknown} pods that nobody has told about yet");
            return Err(self.refusal(&why));
        }
        Ok(merged.bytes)
    }

    fn note(&self, merged: &Merged, unknown: usize) {
        let left_out = merged.left_out.reasons().into_iter().filter(|(_, count)| *count > 0);
        self.metrics.listed(&Listed {
            bytes: merged.bytes.len(),
            pods: merged.pods,
            devices: merged.devices,
            left_out: left_out.collect(),
            unknown,
        });
        self.notices.size(merged.bytes.len());
    }

    fn note_plain(&self, question: &Question, bytes: &Bytes) {
        if *question == Question::List(Version::V1) {
            self.metrics.listed(&Listed { bytes: bytes.len(), ..Listed::default() });
            self.notices.size(bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::grpc::Peer;

    fn call(path: &str, message: Bytes) -> Call {
        let peer = Arc::new(Peer { pid: None, uid: 0, name: "test".into(), client: 0 });
        Call { path: path.to_owned(), message, peer, deadline: None }
    }

    #[test]
    fn every_method_is_read_and_others_are_refused_as_the_kubelet_refuses_them() {
        let read = |path: &str| {
            let question = Question::read(&call(path, Bytes::new()));
            question.map_err(|status| (status.code(), status.message().to_owned()))
        };
        let nobody = Question::Get { namespace: String::new(), name: String::new() };
        for (path, question) in [
            ("/v1.PodResourcesLister/List", Question::List(Version::V1)),
            ("/v1alpha1.PodResourcesLister/List", Question::List(Version::V1alpha1)),
            ("/v1.PodResourcesLister/GetAllocatableResources", Question::Allocatable),
            ("/v1.PodResourcesLister/Get", nobody),
        ] {
            assert_eq!(read(path), Ok(question), "{path}");
        }
        for (path, text) in [
            ("/v1.PodResourcesLister/Watch", "unknown method Watch for service v1.PodResourcesLister"),
            (
                "/v1alpha1.PodResourcesLister/Get",
                "unknown method Get for service v1alpha1.PodResourcesLister",
            ),
            ("/v1.Pods/List", "unknown service v1.Pods"),
        ] {
            assert_eq!(read(path), Err((Code::Unimplemented, text.to_owned())), "{path}");
        }
        let request = GetPodResourcesRequest { pod_name: "a".into(), pod_namespace: "ns".into() };
        let get = Question::read(&call("/v1.PodResourcesLister/Get", request.encode_to_vec().into()));
        assert_eq!(get.unwrap(), Question::Get { namespace: "ns".into(), name: "a".into() });
        let garbage =
            Question::read(&call("/v1.PodResourcesLister/Get", Bytes::from_static(b"\xff\xff"))).unwrap_err();
        assert_eq!(garbage.code(), Code::Internal);
        assert!(garbage.message().starts_with("grpc: error unmarshalling request: "), "{garbage}");
    }
}
