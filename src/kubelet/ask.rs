//! One question to the kubelet, and its answer in bytes, as they came.

use std::borrow::Cow;

use prost::Message;
use prost::bytes::{Buf as _, BufMut as _, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::client::ClientError;
use super::proto::{v1, v1alpha1};
use super::types::{Allocatable, Usage};

/// The convention of every podresources client (Kubernetes' own e2e tests, Multus, NFD): 16 MiB. Answers of 5 MiB are
/// real; whoever the proxy hands an answer on to could not take a larger one than this.
const MESSAGE_LIMIT: usize = 16 << 20;

/// A question to the kubelet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    /// `List` of v1: what every active pod holds.
    List,
    /// `List` of v1alpha1: devices only.
    ListV1alpha1,
    /// `GetAllocatableResources`.
    Allocatable,
    /// `Get`: what one pod holds.
    Get {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
    },
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// In our words.
    pub error: ClientError,
    /// For whoever is asked on behalf of somebody else: the kubelet's own code and text where it spoke, `Unavailable` and
    /// one sentence where it did not.
    pub status: Status,
}

impl Ask {
    /// The gRPC method, in the words of errors.
    #[must_use]
    pub const fn method(&self) -> &'static str {
        match self {
            Self::List | Self::ListV1alpha1 => "List",
            Self::Allocatable => "GetAllocatableResources",
            Self::Get { .. } => "Get",
        }
    }

    fn path(&self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Self::List => "/v1.PodResourcesLister/List",
            Self::ListV1alpha1 => "/v1alpha1.PodResourcesLister/List",
            Self::Allocatable => "/v1.PodResourcesLister/GetAllocatableResources",
            Self::Get { .. } => "/v1.PodResourcesLister/Get",
        })
    }

    /// The request's message; all but `Get` have an empty one.
    fn message(&self) -> Bytes {
        let Self::Get { namespace, name } = self else { return Bytes::new() };
        let request = v1::GetPodResourcesRequest { pod_name: name.clone(), pod_namespace: namespace.clone() };
        request.encode_to_vec().into()
    }

    /// Asks on `channel`. Everything that is needed is taken from `self` at once.
    pub(super) fn on(&self, channel: Channel) -> impl Future<Output = Result<Bytes, Status>> + Send + use<> {
        let (path, message) = (self.path(), self.message());
        async move {
            let mut client = Grpc::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
            let ready = client.ready().await;
            ready.map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
            client.unary(tonic::Request::new(message), path, Raw).await.map(tonic::Response::into_inner)
        }
    }
}

/// The longest name of a pod, and more than one of a namespace can have (RFC 1123; Kubernetes allows no longer ones).
const NAME_LIMIT: usize = 253;

impl Ask {
    /// The answer, where the kubelet need not be asked for it: a pod of such a name does not exist, and the kubelet's
    /// answer, which repeats the name, would not fit into its headers.
    pub(super) fn answer(&self) -> Option<Refusal> {
        match self {
            Self::Get { namespace, name } if name.len().max(namespace.len()) > NAME_LIMIT => {
                Some(not_found(namespace, name))
            }
            _ => None,
        }
    }
}

/// In the kubelet's words (kubelet.md 3.9), with no more of the names than there can be.
pub(super) fn not_found(namespace: &str, name: &str) -> Refusal {
    let message = format!("pod {} in namespace {} not found", cut(name), cut(namespace));
    let status = Status::unknown(message.clone());
    let code = format!("{:?}", Code::Unknown);
    Refusal { error: ClientError::Status { call: "Get", code, message }, status }
}

fn cut(name: &str) -> Cow<'_, str> {
    if name.len() <= NAME_LIMIT {
        return name.into();
    }
    let end = (0..=NAME_LIMIT).rev().find(|end| name.is_char_boundary(*end));
    format!("{}...", &name[..end.unwrap_or(0)]).into()
}

impl From<ClientError> for Refusal {
    /// Of an error that no status came with.
    fn from(error: ClientError) -> Self {
        Self { status: Status::unavailable(error.to_string()), error }
    }
}

/// What the bytes of an answer to [`Ask::List`] say.
///
/// # Errors
/// When they are no such answer: [`ClientError::Status`].
pub fn usage_of(answer: Bytes) -> Result<Usage, ClientError> {
    decoded::<v1::ListPodResourcesResponse>(Ask::List.method(), answer).map(Usage::from)
}

/// What the bytes of an answer to [`Ask::ListV1alpha1`] say.
pub(super) fn devices_of(answer: Bytes) -> Result<Usage, ClientError> {
    decoded::<v1alpha1::ListPodResourcesResponse>(Ask::ListV1alpha1.method(), answer).map(Usage::from)
}

/// What the bytes of an answer to [`Ask::Allocatable`] say.
///
/// # Errors
/// When they are no such answer: [`ClientError::Status`].
pub fn allocatable_of(answer: Bytes) -> Result<Allocatable, ClientError> {
    decoded::<v1::AllocatableResourcesResponse>(Ask::Allocatable.method(), answer).map(Allocatable::from)
}

/// What `answer` says; an answer that is no message is said to be one in tonic's words.
pub(super) fn decoded<M: Message + Default>(method: &'static str, answer: Bytes) -> Result<M, ClientError> {
    M::decode(answer).map_err(|error| ClientError::Status {
        call: method,
        code: "Internal".to_owned(),
        message: error.to_string(),
    })
}

/// Messages as they are. An answer's frames are put together once, by tonic; the result is not copied again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
