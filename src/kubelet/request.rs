//! Requests to the podresources API and their encoded responses.

use std::borrow::Cow;

use prost::Message;
use prost::bytes::{Buf as _, BufMut as _, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::client_error::ClientError;
use super::proto::v1;
use super::{Allocatable, Usage};
use crate::util::text::truncate;

/// The convention of podresources clients (Kubernetes' own e2e tests, Multus, NFD): 16 MiB. Responses of 5
/// MiB do occur; the proxy's clients could not receive a larger one than this.
const MESSAGE_LIMIT: usize = 16 << 20;

/// Maximum length of a pod's name, which namespaces do not exceed either (RFC 1123, enforced by Kubernetes).
const NAME_LIMIT: usize = 253;

/// A request to the kubelet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// `List` of v1: the resources allocated to every active pod.
    List,
    /// `List` of v1alpha1: devices only.
    ListV1alpha1,
    /// `GetAllocatableResources`.
    Allocatable,
    /// `Get`: the resources allocated to one pod.
    Get {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
    },
}

/// A failed request.
#[derive(Clone, Debug)]
pub struct RequestError {
    /// The error for this process.
    pub error: ClientError,
    /// The status for clients on whose behalf the request was made: the kubelet's own code and message if it
    /// responded, otherwise `Unavailable` and one sentence.
    pub status: Status,
}

impl Request {
    /// Returns the gRPC method's name, as used in errors.
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

    /// Returns the encoded request, which is empty for all but `Get`.
    fn message(&self) -> Bytes {
        let Self::Get { namespace, name } = self else { return Bytes::new() };
        let request = v1::GetPodResourcesRequest { pod_name: name.clone(), pod_namespace: namespace.clone() };
        request.encode_to_vec().into()
    }

    /// Sends the request on `channel`. The future does not borrow `self`.
    pub(super) fn send(
        &self,
        channel: Channel,
    ) -> impl Future<Output = Result<Bytes, Status>> + Send + use<> {
        let (path, message) = (self.path(), self.message());
        async move {
            let mut client = Grpc::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
            let ready = client.ready().await;
            ready.map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
            client.unary(tonic::Request::new(message), path, Raw).await.map(tonic::Response::into_inner)
        }
    }

    /// Returns the error for a pod that cannot exist because its name is too long. The kubelet's own error
    /// repeats the name, which would not fit into its headers.
    pub(super) fn check(&self) -> Result<(), RequestError> {
        match self {
            Self::Get { namespace, name } if name.len().max(namespace.len()) > NAME_LIMIT => {
                Err(not_found(namespace, name))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the kubelet's own not-found error, with overlong names truncated.
pub(super) fn not_found(namespace: &str, name: &str) -> RequestError {
    let message = format!("pod {} in namespace {} not found", truncated(name), truncated(namespace));
    let status = Status::unknown(message.clone());
    let code = format!("{:?}", Code::Unknown);
    RequestError { error: ClientError::Status { call: "Get", code, message }, status }
}

fn truncated(name: &str) -> Cow<'_, str> {
    if name.len() <= NAME_LIMIT {
        return name.into();
    }
    format!("{}...", truncate(name, NAME_LIMIT)).into()
}

impl From<ClientError> for RequestError {
    /// For an error without a status from the kubelet.
    fn from(error: ClientError) -> Self {
        Self { status: Status::unavailable(error.to_string()), error }
    }
}

/// Decodes a response to [`Request::List`].
pub fn decode_list(response: Bytes) -> Result<Usage, ClientError> {
    decode::<v1::ListPodResourcesResponse>(&Request::List, response).map(Usage::from)
}

/// Decodes a response to [`Request::Allocatable`].
pub fn decode_allocatable(response: Bytes) -> Result<Allocatable, ClientError> {
    decode::<v1::AllocatableResourcesResponse>(&Request::Allocatable, response).map(Allocatable::from)
}

/// Decodes a response; failure is reported as tonic would, as a status with the code Internal.
fn decode<M: Message + Default>(request: &Request, response: Bytes) -> Result<M, ClientError> {
    M::decode(response).map_err(|error| ClientError::Status {
        call: request.method(),
        code: "Internal".to_owned(),
        message: error.to_string(),
    })
}

/// A codec that leaves messages encoded. tonic joins a response's frames once; the result is not copied
/// again.
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
