//! The client of the Pods API (KEP-4188), which serves and watches all pods known to the kubelet.
//! Kubelets serve it from 1.36 on, numacast for all others; the client treats both alike.

mod error;
mod follow;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::stream::{Stream, StreamExt};
use prost::Message;
use prost::bytes::Bytes;
use tokio::net::UnixStream;
use tokio::time::{error::Elapsed, timeout};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tracing::warn;

use super::connector::{SocketId, channel, innermost};
use super::proto::pods::{GetPodRequest, GetPodResponse, ListPodsResponse};
use super::request::Raw;
use crate::core_v1::{MAX_RAW_BYTES, read_pod};
use crate::pod::{Pod, PodEvent, Wanted};

pub use error::PodsError;
pub use follow::PodsFollow;

/// 500 full pods take some 5 MiB, which is above the default receive limit of gRPC clients, 4 MiB.
const MESSAGE_LIMIT: usize = 32 << 20;

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
/// let mut follow = client.follow(Wanted::default());
/// loop {
///     match follow.next().await {
///         Ok(PodEvent::Apply(pod)) => println!("{}/{} came or changed", pod.namespace, pod.name),
///         Ok(PodEvent::Delete(pod)) => println!("{}/{} is gone", pod.namespace, pod.name),
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
    sockets: Vec<PathBuf>,
    deadline: Duration,
    doubts: bool,
    /// Maximum bytes of serialized pods in an incoming list.
    budget: usize,
    /// The connection to the socket that last responded.
    open: Option<Open>,
    /// Why the sockets before it were skipped.
    passed_over: Vec<PodsError>,
}

/// A connection.
#[derive(Clone, Debug)]
struct Open {
    channel: Channel,
    /// The socket's index, and the identity of the socket at that path.
    socket: usize,
    identity: SocketId,
}

/// The result of a call, or the expiry of its deadline.
type Outcome<T> = Result<Result<T, Status>, Elapsed>;

/// Watches the pods of the kubelet whose Pods API is at `socket`. `deadline` limits everything but the wait
/// for events; `wanted` selects what is kept of each pod. An error is one sentence; the stream continues
/// after a backoff with a new list.
pub fn follow_pods(
    socket: PathBuf,
    deadline: Duration,
    wanted: Wanted,
) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static {
    let follow = PodsClient::new([socket], deadline).doubting().within(MAX_RAW_BYTES).follow(wanted);
    follow.stream().map(|told| told.map_err(|error| error.to_string()))
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
        Self { sockets, deadline, doubts: false, budget: usize::MAX, open: None, passed_over: Vec::new() }
    }

    /// For callers that act on a pod's deletion: [`PodsClient::follow`] does not at once take a pod for gone
    /// that a recently started kubelet does not list. The kubelet may not have found it again yet.
    #[must_use]
    pub fn doubting(self) -> Self {
        Self { doubts: true, ..self }
    }

    /// For callers that cache all pods of a node: of those listed by [`PodsClient::follow`], at most `budget`
    /// bytes come serialized in full; the largest are reduced to outlines
    /// ([`RawPod::Outline`](crate::pod::RawPod::Outline)).
    #[must_use]
    pub fn within(self, budget: usize) -> Self {
        Self { budget, ..self }
    }

    /// Returns the socket that last responded.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.open.as_ref().map(|open| &*self.sockets[open.socket])
    }

    /// Returns why the sockets before it failed.
    #[must_use]
    pub fn passed_over(&self) -> &[PodsError] {
        &self.passed_over
    }

    /// Returns all pods, sorted by UID; `wanted` selects what is kept of each. A pod that cannot be decoded
    /// is left out and logged.
    ///
    /// # Errors
    /// See [`PodsError`].
    pub async fn list(&mut self, wanted: &Wanted) -> Result<Vec<Pod>, PodsError> {
        let answer = self.ask("ListPods", PodsPath::List, Bytes::new()).await?;
        let all = ListPodsResponse::decode(answer).map_err(|error| self.garbled("ListPods", &error))?;
        let mut pods = Vec::with_capacity(all.pods.len());
        for bytes in all.pods {
            match read_pod(&bytes, wanted) {
                Ok(pod) => pods.push(pod),
                Err(reason) => {
                    warn!("a pod in the answer to ListPods cannot be read and is left out: {reason}")
                }
            }
        }
        // The server should have sorted them already.
        pods.sort_by(|one, other| one.uid.cmp(&other.uid));
        Ok(pods)
    }

    /// Returns the pod with this UID; `wanted` selects what is kept of it.
    ///
    /// # Errors
    /// See [`PodsError`]; [`PodsError::NoSuchPod`] if there is none.
    pub async fn get(&mut self, uid: &str, wanted: &Wanted) -> Result<Pod, PodsError> {
        let request = GetPodRequest { pod_uid: uid.to_owned() };
        let answer = self.ask("GetPod", PodsPath::Get, request.encode_to_vec().into()).await?;
        let answer = GetPodResponse::decode(answer).map_err(|error| self.garbled("GetPod", &error))?;
        read_pod(&answer.pod, wanted).map_err(|reason| self.garbled("GetPod", &reason))
    }

    /// Lists and watches all pods until dropped; `wanted` selects what is kept of each.
    ///
    /// All pods are listed at the start, after every failure, and again every few minutes, since the kubelet
    /// may drop an event silently. If the watch is on a later socket, the earlier ones are tried again each
    /// time.
    #[must_use]
    pub fn follow(self, wanted: Wanted) -> PodsFollow {
        PodsFollow::new(self, wanted)
    }

    /// Makes a call, trying one socket after the other.
    async fn ask(&mut self, call: &'static str, path: PodsPath, message: Bytes) -> Result<Bytes, PodsError> {
        let mut reasons = Vec::new();
        for socket in 0..self.sockets.len() {
            match self.ask_at(socket, call, path, message.clone()).await {
                Ok(answer) => {
                    self.passed_over = reasons;
                    return Ok(answer);
                }
                Err(error) if error.is_an_answer() => return Err(error),
                Err(error) => reasons.push(error),
            }
        }
        Err(PodsError::all(reasons))
    }

    /// Makes a call at one socket, retried if an earlier connection turns out to be broken.
    async fn ask_at(
        &mut self,
        socket: usize,
        call: &'static str,
        path: PodsPath,
        message: Bytes,
    ) -> Result<Bytes, PodsError> {
        loop {
            let known = self.known(socket);
            let was_known = known.is_some();
            let open = match known {
                Some(open) => open,
                None => self.connect(socket).await?,
            };
            let asked = unary(open.channel.clone(), path, message.clone());
            let error = match timeout(self.deadline, asked).await {
                Ok(Ok(answer)) => {
                    self.open = Some(open);
                    return Ok(answer);
                }
                outcome => self.explain(socket, call, outcome),
            };
            self.open = None;
            if !(was_known && matches!(error, PodsError::Lost { .. })) {
                return Err(error);
            }
        }
    }

    /// Starts a watch at one socket.
    async fn watch_at(&self, socket: usize) -> Result<(Open, Streaming<Bytes>), PodsError> {
        let open = match self.known(socket) {
            Some(open) => open,
            None => self.connect(socket).await?,
        };
        match timeout(self.deadline, watch(open.channel.clone())).await {
            Ok(Ok(told)) => Ok((open, told)),
            outcome => Err(self.explain(socket, "WatchPods", outcome)),
        }
    }

    /// Returns the open connection to this socket, unless the socket at the path was replaced.
    fn known(&self, socket: usize) -> Option<Open> {
        let open = self.open.as_ref().filter(|open| open.socket == socket)?;
        SocketId::of(&self.sockets[socket]).is_ok_and(|now| now == open.identity).then(|| open.clone())
    }

    async fn connect(&self, socket: usize) -> Result<Open, PodsError> {
        let path = &self.sockets[socket];
        let unreached = |error| PodsError::unreached(path, &error);
        let identity = SocketId::of(path).map_err(unreached)?;
        let silent = || PodsError::NotGrpc { path: path.clone(), reason: "it says nothing".to_owned() };
        let stream = timeout(self.deadline, UnixStream::connect(path)).await;
        let stream = stream.map_err(|_| silent())?.map_err(unreached)?;
        match timeout(self.deadline, channel(stream)).await {
            Ok(Ok(channel)) => Ok(Open { channel, socket, identity }),
            Ok(Err(error)) => Err(PodsError::NotGrpc { path: path.clone(), reason: innermost(&error) }),
            Err(_) => Err(silent()),
        }
    }

    /// Returns the error for a failed call.
    fn explain<T>(&self, socket: usize, call: &'static str, outcome: Outcome<T>) -> PodsError {
        let path = &self.sockets[socket];
        match outcome {
            Ok(Err(status)) => PodsError::of_status(path, call, &status),
            _ => PodsError::Deadline { path: path.clone(), call, after: self.deadline },
        }
    }

    /// Returns the error for an invalid response.
    fn garbled(&self, call: &'static str, reason: &dyn ToString) -> PodsError {
        let path = self.socket().unwrap_or(Path::new("")).to_owned();
        PodsError::Garbled { path, call, reason: reason.to_string() }
    }
}

/// The methods of the service.
#[derive(Clone, Copy, Debug)]
enum PodsPath {
    List,
    Get,
    Watch,
}

impl PodsPath {
    fn of(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Self::List => "/v1alpha1.Pods/ListPods",
            Self::Get => "/v1alpha1.Pods/GetPod",
            Self::Watch => "/v1alpha1.Pods/WatchPods",
        })
    }
}

async fn client(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let ready = client.ready().await;
    ready.map_err(|error| Status::from_error(error.into()))?;
    Ok(client)
}

async fn unary(channel: Channel, path: PodsPath, message: Bytes) -> Result<Bytes, Status> {
    let mut client = client(channel).await?;
    client.unary(Request::new(message), path.of(), Raw).await.map(tonic::Response::into_inner)
}

/// Resolves with the first pod, or with the end of an empty list.
async fn watch(channel: Channel) -> Result<Streaming<Bytes>, Status> {
    let mut client = client(channel).await?;
    let request = Request::new(Bytes::new());
    client.server_streaming(request, PodsPath::Watch.of(), Raw).await.map(tonic::Response::into_inner)
}
