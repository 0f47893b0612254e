//! A client of the Pods API on the first of several sockets that serves it.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tracing::warn;

use super::error::PodsError;
use super::error::PodsErrorKind::{Final, Lost, NoSuchPod};
use crate::core_v1::read_pod;
use crate::kubelet::connector::{SocketId, channel, innermost};
use crate::kubelet::proto::pods::{GetPodRequest, GetPodResponse, ListPodsResponse};
use crate::kubelet::request::Raw;
use crate::pod::{Pod, Wanted};

/// 500 full pods take some 5 MiB, which is above the default receive limit of gRPC clients, 4 MiB.
const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// Relative to the host's root: the socket of numacast's own Pods API, then the kubelet's.
const SOCKETS: [&str; 2] = ["run/numacast/pods-api/pods-api.sock", "var/lib/kubelet/pods-api/pods-api.sock"];

/// A client of the Pods API on the first of several sockets that serves it.
///
/// ```no_run
/// use std::path::Path;
/// use std::time::Duration;
///
/// use numacast::kubelet::PodsClient;
/// use numacast::pod::{PodEvent, RawPod, Wanted};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// // Numacast's socket, then the kubelet's: the first that responds.
/// let mut client = PodsClient::new(PodsClient::sockets(Path::new("/")), Duration::from_secs(10));
/// for pod in client.list(&Wanted::default()).await? {
///     println!("{}/{} is {:?}", pod.namespace, pod.name, pod.phase);
/// }
/// // One pod with all its fields: the undecoded `core/v1` message.
/// let pod = client.get("0b5f3b0e-91d6-4f5c-8c3f-7d2f3a1f0e11", &Wanted::default().with_raw()).await?;
/// if let Some(RawPod::Protobuf(message)) = pod.raw.as_deref() {
///     println!("{} bytes", message.len());
/// }
/// let mut watch = client.watch(Wanted::default());
/// loop {
///     match watch.next().await {
///         Ok(PodEvent::Apply(pod)) => println!("{}/{} was added or changed", pod.namespace, pod.name),
///         Ok(PodEvent::Delete(pod)) => println!("{}/{} was deleted", pod.namespace, pod.name),
///         // All pods are listed at the start and again periodically: a pod not listed is gone.
///         Ok(_) => {}
///         // The watch is retried after a backoff.
///         Err(error) => eprintln!("{error}"),
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PodsClient {
    pub(super) sockets: Vec<PathBuf>,
    pub(super) deadline: Duration,
    pub(super) verifies_lists: bool,
    /// Maximum bytes of serialized pods in an incoming list; the largest are reduced to outlines.
    pub(super) raw_limit: usize,
    /// The connection to the socket that last responded.
    pub(super) open: Option<OpenSocket>,
}

#[derive(Clone, Debug)]
pub(super) struct OpenSocket {
    pub(super) channel: Channel,
    /// The index of the path, and the identity of the socket at that path.
    pub(super) index: usize,
    pub(super) identity: SocketId,
}

impl PodsClient {
    /// Returns the sockets of a node whose root is at `root`: numacast's own, then the kubelet's.
    #[must_use]
    pub fn sockets(root: &Path) -> Vec<PathBuf> {
        SOCKETS.iter().map(|socket| root.join(socket)).collect()
    }

    /// Returns a client that tries `sockets` in order. `deadline` limits everything but the wait for events.
    /// It does not connect yet.
    #[must_use]
    pub fn new(sockets: impl IntoIterator<Item = PathBuf>, deadline: Duration) -> Self {
        let sockets = sockets.into_iter().collect();
        Self { sockets, deadline, verifies_lists: false, raw_limit: usize::MAX, open: None }
    }

    /// For callers that act on a pod's deletion: [`PodsClient::watch`] does not at once take a pod for
    /// deleted that a recently started kubelet does not list. The kubelet may not have found it again yet.
    #[must_use]
    pub fn verifying_lists(self) -> Self {
        Self { verifies_lists: true, ..self }
    }

    /// Returns the socket that last responded.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.open.as_ref().map(|open| &*self.sockets[open.index])
    }

    /// Returns all pods, sorted by UID; `wanted` selects what is kept of each. A pod that cannot be decoded
    /// is left out and logged.
    pub async fn list(&mut self, wanted: &Wanted) -> Result<Vec<Pod>, PodsError> {
        let response = self.call(Method::List, Bytes::new()).await?;
        let list = ListPodsResponse::decode(response).map_err(|error| self.invalid(Method::List, &error))?;
        let mut pods = Vec::with_capacity(list.pods.len());
        for bytes in list.pods {
            match read_pod(&bytes, wanted) {
                Ok(pod) => pods.push(pod),
                Err(reason) => {
                    warn!("a pod in the response to ListPods cannot be read and is left out: {reason}");
                }
            }
        }
        // The server should have sorted them already.
        pods.sort_by(|one, other| one.uid.cmp(&other.uid));
        Ok(pods)
    }

    /// Returns the pod with this UID; `wanted` selects what is kept of it.
    pub async fn get(&mut self, uid: &str, wanted: &Wanted) -> Result<Pod, PodsError> {
        let request = GetPodRequest { pod_uid: uid.to_owned() };
        let response = self.call(Method::Get, request.encode_to_vec().into()).await?;
        let response = GetPodResponse::decode(response).map_err(|error| self.invalid(Method::Get, &error))?;
        read_pod(&response.pod, wanted).map_err(|reason| self.invalid(Method::Get, &reason))
    }

    /// Makes a call, trying one socket after the other.
    async fn call(&mut self, method: Method, message: Bytes) -> Result<Bytes, PodsError> {
        let mut errors = Vec::new();
        for index in 0..self.sockets.len() {
            match self.call_at(index, method, message.clone()).await {
                Err(error) if !matches!(error.kind, NoSuchPod | Final) => errors.push(error),
                result => return result,
            }
        }
        Err(PodsError::all(errors))
    }

    /// Makes a call at one socket, retried if an earlier connection turns out to be broken.
    async fn call_at(&mut self, index: usize, method: Method, message: Bytes) -> Result<Bytes, PodsError> {
        loop {
            let (open, was_open) = self.connection(index).await?;
            let call = unary(open.channel.clone(), method, message.clone());
            let result = self.within_deadline(index, method, call).await;
            self.open = result.is_ok().then_some(open);
            if !(was_open && matches!(&result, Err(error) if error.kind == Lost)) {
                return result;
            }
        }
    }

    pub(super) async fn watch_at(&self, index: usize) -> Result<(OpenSocket, Streaming<Bytes>), PodsError> {
        let (open, _) = self.connection(index).await?;
        let call = watch(open.channel.clone());
        Ok((open, self.within_deadline(index, Method::Watch, call).await?))
    }

    /// Returns the open connection to this socket and true, unless the socket at the path was replaced; else
    /// a new one and false.
    async fn connection(&self, index: usize) -> Result<(OpenSocket, bool), PodsError> {
        let is_current = |open: &&OpenSocket| {
            open.index == index && SocketId::of(&self.sockets[index]).is_ok_and(|now| now == open.identity)
        };
        match self.open.as_ref().filter(is_current) {
            Some(open) => Ok((open.clone(), true)),
            None => Ok((self.connect(index).await?, false)),
        }
    }

    async fn connect(&self, index: usize) -> Result<OpenSocket, PodsError> {
        let path = &self.sockets[index];
        let unreached = |error| PodsError::unreached(path, &error);
        let identity = SocketId::of(path).map_err(unreached)?;
        let silent = || PodsError::not_grpc(path, "it does not respond");
        let stream = timeout(self.deadline, UnixStream::connect(path)).await;
        let stream = stream.map_err(|_| silent())?.map_err(unreached)?;
        match timeout(self.deadline, channel(stream)).await {
            Ok(Ok(channel)) => Ok(OpenSocket { channel, index, identity }),
            Ok(Err(error)) => Err(PodsError::not_grpc(path, &innermost(&error))),
            Err(_) => Err(silent()),
        }
    }

    async fn within_deadline<T>(
        &self,
        index: usize,
        method: Method,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, PodsError> {
        let (path, call_name, after) = (&self.sockets[index], method.name(), self.deadline);
        match timeout(after, call).await {
            Ok(result) => result.map_err(|status| PodsError::of_status(path, call_name, &status)),
            Err(_) => {
                let what = format!("did not respond to {call_name} within {after:?}");
                Err(PodsError::failed(path, &what))
            }
        }
    }

    fn invalid(&self, method: Method, reason: &dyn Display) -> PodsError {
        PodsError::invalid(self.socket().unwrap_or(Path::new("")), method.name(), reason)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Method {
    List,
    Get,
    Watch,
}

impl Method {
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
