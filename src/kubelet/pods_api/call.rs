//! Calls of the Pods API, whose messages are not decoded.

use prost::bytes::Bytes;
use tokio::time::error::Elapsed;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use crate::kubelet::request::Raw;

/// 500 full pods take some 5 MiB, which is above the default receive limit of gRPC clients, 4 MiB.
const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// The result of a call, or the expiry of its deadline.
pub(super) type Outcome<T> = Result<Result<T, Status>, Elapsed>;

/// The methods of the service.
#[derive(Clone, Copy, Debug)]
pub(super) enum Method {
    List,
    Get,
    Watch,
}

impl Method {
    /// Returns its name, for messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::List => "ListPods",
            Self::Get => "GetPod",
            Self::Watch => "WatchPods",
        }
    }

    fn path(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Self::List => "/v1alpha1.Pods/ListPods",
            Self::Get => "/v1alpha1.Pods/GetPod",
            Self::Watch => "/v1alpha1.Pods/WatchPods",
        })
    }
}

async fn client(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let ready = client.ready().await;
    ready.map_err(|error| Status::from_error(error.into()))?;
    Ok(client)
}

pub(super) async fn unary(channel: Channel, method: Method, message: Bytes) -> Result<Bytes, Status> {
    let mut client = client(channel).await?;
    client.unary(Request::new(message), method.path(), Raw).await.map(tonic::Response::into_inner)
}

/// Resolves with the first pod, or with the end of an empty list.
pub(super) async fn watch(channel: Channel) -> Result<Streaming<Bytes>, Status> {
    let mut client = client(channel).await?;
    let request = Request::new(Bytes::new());
    client.server_streaming(request, Method::Watch.path(), Raw).await.map(tonic::Response::into_inner)
}
