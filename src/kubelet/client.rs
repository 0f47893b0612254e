//! The podresources client: one connection by path, made again whenever the socket at that path is another.

use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper_util::rt::TokioIo;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Response, Status};
use tower::service_fn;

use super::proto::{v1, v1alpha1};
use super::types::{Allocatable, PodUsage, Usage};

/// The convention of every podresources client (Kubernetes' own e2e tests, Multus, NFD): 16 MiB.
const MESSAGE_LIMIT: usize = 16 << 20;

/// Which version of the podresources API answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// CPUs, memory and devices.
    V1,
    /// Devices only; kubelets before 1.20.
    V1alpha1,
}

/// Tells kubelet processes apart: another value means that another socket lies at the path, which the kubelet
/// makes anew whenever it starts. Connecting again to the same socket keeps the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection(u64);

impl Connection {
    /// The one after this.
    #[must_use]
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A client of the kubelet's podresources socket.
///
/// The kubelet replaces the socket when it restarts, so every call looks at the path first and connects
/// again when another socket lies there. A call on a connection that broke is tried once more on a new one.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    timeout: Duration,
    open: Option<Open>,
    /// The socket that was connected to last, and its number.
    last: (Identity, Connection),
    /// Has anything at this path ever answered in gRPC?
    answered: bool,
}

/// Device, inode and time of the last change of the inode (seconds, nanoseconds): inodes are used again.
pub(super) type Identity = (u64, u64, i64, i64);

#[derive(Clone, Debug)]
struct Open {
    channel: Channel,
    connection: Connection,
    /// The socket we connected to.
    identity: Identity,
    api: Api,
}

/// Why the kubelet's answer is not there. Every variant is one sentence for the person who runs the node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The path does not exist.
    #[error("there is no kubelet socket at {0}: is the kubelet running, and is `kubelet.socket` right?")]
    NoSocket(PathBuf),
    /// The path exists, but nobody listens.
    #[error("nobody listens on {0}: the kubelet is not running or is just starting")]
    Refused(PathBuf),
    /// The path exists, but we may not connect, or it is no socket.
    #[error("cannot connect to {path}: {reason}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        reason: String,
    },
    /// Something listens that is no gRPC server.
    #[error("{path} is a socket, but no gRPC server answers on it ({reason}); is `kubelet.socket` right?")]
    NotGrpc {
        /// The socket.
        path: PathBuf,
        /// What happened instead of an answer.
        reason: String,
    },
    /// Something accepts connections and has never said a word.
    #[error(
        "{path} is a socket, but no gRPC server answers on it (no answer to {call} within {after:?}); \
         is `kubelet.socket` right?"
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The gRPC method.
        call: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// No answer in time.
    #[error("the kubelet did not answer {call} on {path} within {after:?}")]
    Deadline {
        /// The socket.
        path: PathBuf,
        /// The gRPC method.
        call: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The kubelet's limiter (100 requests per second for all its clients together) refused.
    #[error("the kubelet refused {0}: its request limit is used up by its clients together")]
    RateLimited(&'static str),
    /// The answer is larger than we accept.
    #[error("the kubelet's answer to {call} is too large: {detail}")]
    TooLarge {
        /// The gRPC method.
        call: &'static str,
        /// The transport's words.
        detail: String,
    },
    /// The kubelet does not serve the method.
    #[error(
        "the kubelet at {path} does not serve {call} (numacast needs kubelet 1.23 or later, \
         or 1.21 with the feature gate KubeletPodResourcesGetAllocatable)"
    )]
    Unsupported {
        /// The socket.
        path: PathBuf,
        /// The gRPC method.
        call: &'static str,
    },
    /// `Get` is switched off or too old on this kubelet.
    #[error("the kubelet does not serve Get (feature gate KubeletPodResourcesGet, on since 1.34)")]
    GetDisabled,
    /// `Get` knows no such pod.
    #[error("the kubelet knows no pod {0}")]
    NoSuchPod(String),
    /// The connection broke, and the new one as well.
    #[error("the kubelet's connection broke during {call}: {detail}")]
    Lost {
        /// The gRPC method.
        call: &'static str,
        /// The transport's words.
        detail: String,
    },
    /// Anything else, code and text as they came.
    #[error("the kubelet answered {call} with {code}: {message}")]
    Status {
        /// The gRPC method.
        call: &'static str,
        /// The name of the gRPC code.
        code: String,
        /// The status text.
        message: String,
    },
}

impl ClientError {
    /// What [`ClientError::kind`] says of calls that the agent makes.
    pub const KINDS: [&str; 11] = [
        "no_socket",
        "refused",
        "connect",
        "not_grpc",
        "silent",
        "deadline",
        "rate_limited",
        "too_large",
        "unsupported",
        "lost",
        "status",
    ];

    /// The variant, in a word for counters.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NoSocket(_) => "no_socket",
            Self::Refused(_) => "refused",
            Self::Connect { .. } => "connect",
            Self::NotGrpc { .. } => "not_grpc",
            Self::Silent { .. } => "silent",
            Self::Deadline { .. } => "deadline",
            Self::RateLimited(_) => "rate_limited",
            Self::TooLarge { .. } => "too_large",
            Self::Unsupported { .. } => "unsupported",
            Self::GetDisabled => "get_disabled",
            Self::NoSuchPod(_) => "no_such_pod",
            Self::Lost { .. } => "lost",
            Self::Status { .. } => "status",
        }
    }

    /// Is another attempt on a new connection worth while? A kubelet that was ending may have taken the first.
    fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::NotGrpc { .. })
    }
}

impl Client {
    /// A client for `socket` whose calls end after `timeout`. Nothing is opened yet.
    #[must_use]
    pub fn new(socket: PathBuf, timeout: Duration) -> Self {
        Self { socket, timeout, open: None, last: Default::default(), answered: false }
    }

    /// How long ago the socket of the present connection was made; zero if there is none, or if the clock was set back
    /// since. Never longer than the machine runs, however far the clock was set forward since, as it is after a boot.
    #[must_use]
    pub fn socket_age(&self) -> Duration {
        self.open.as_ref().map_or(Duration::ZERO, |open| age(open.identity))
    }

    /// When the socket of the present connection was made, by the clock of then; soon after the kubelet started.
    #[must_use]
    pub fn socket_made(&self) -> Option<SystemTime> {
        self.open.as_ref().and_then(|open| made(open.identity))
    }

    /// What every active pod holds, the API version that told, and the connection it came from.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list(&mut self) -> Result<(Usage, Api, Connection), ClientError> {
        if self.open().await?.api == Api::V1 {
            let answer = self.call("List", |channel| async move {
                v1_client(channel).list(v1::ListPodResourcesRequest {}).await.map(Response::into_inner)
            });
            match answer.await {
                Ok((answer, connection)) => return Ok((answer.into(), Api::V1, connection)),
                Err(ClientError::Unsupported { .. }) => self.remember(Api::V1alpha1),
                Err(error) => return Err(error),
            }
        }
        let (answer, connection) = self
            .call("List", |channel| async move {
                v1alpha1_client(channel)
                    .list(v1alpha1::ListPodResourcesRequest {})
                    .await
                    .map(Response::into_inner)
            })
            .await?;
        Ok((answer.into(), Api::V1alpha1, connection))
    }

    /// What the kubelet may hand out, and the connection that told.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Unsupported`] from a kubelet that is too old.
    pub async fn allocatable(&mut self) -> Result<(Allocatable, Connection), ClientError> {
        let (answer, connection) = self
            .call("GetAllocatableResources", |channel| async move {
                v1_client(channel)
                    .get_allocatable_resources(v1::AllocatableResourcesRequest {})
                    .await
                    .map(Response::into_inner)
            })
            .await?;
        Ok((answer.into(), connection))
    }

    /// What one pod holds.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::GetDisabled`] and [`ClientError::NoSuchPod`] are this call's own.
    pub async fn get(&mut self, namespace: &str, name: &str) -> Result<PodUsage, ClientError> {
        let answer = self.call("Get", |channel| async move {
            let request =
                v1::GetPodResourcesRequest { pod_name: name.to_owned(), pod_namespace: namespace.to_owned() };
            v1_client(channel).get(request).await.map(Response::into_inner)
        });
        match answer.await {
            Ok((v1::GetPodResourcesResponse { pod_resources: Some(pod) }, _)) => Ok(pod.into()),
            Ok(_) => Err(ClientError::NoSuchPod(format!("{namespace}/{name}"))),
            Err(ClientError::Unsupported { .. }) => Err(ClientError::GetDisabled),
            // Both answers are `Unknown`: only the text tells them apart (kubelet.md 3.9).
            Err(ClientError::Status { message, .. }) if message.ends_with("Get method disabled") => {
                Err(ClientError::GetDisabled)
            }
            Err(ClientError::Status { message, .. }) if message.ends_with("not found") => {
                Err(ClientError::NoSuchPod(format!("{namespace}/{name}")))
            }
            Err(error) => Err(error),
        }
    }

    /// One call with its deadline, tried again on a new connection if the old one turns out to be dead.
    async fn call<T, F>(
        &mut self,
        call: &'static str,
        request: impl Fn(Channel) -> F,
    ) -> Result<(T, Connection), ClientError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        match self.attempt(call, &request).await {
            Err(error) if error.is_lost() => self.attempt(call, &request).await,
            answer => answer,
        }
    }

    async fn attempt<T, F>(
        &mut self,
        call: &'static str,
        request: &impl Fn(Channel) -> F,
    ) -> Result<(T, Connection), ClientError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let open = self.open().await?.clone();
        let (channel, connection) = (open.channel, open.connection);
        let error = match tokio::time::timeout(self.timeout, request(channel)).await {
            Ok(Ok(answer)) => {
                self.answered = true;
                return Ok((answer, connection));
            }
            Ok(Err(status)) => self.explain(call, &status),
            Err(_) if !self.answered => {
                ClientError::Silent { path: self.socket.clone(), call, after: self.timeout }
            }
            Err(_) => ClientError::Deadline { path: self.socket.clone(), call, after: self.timeout },
        };
        match error {
            // The server spoke; the connection is as good as before.
            ClientError::Status { .. }
            | ClientError::Unsupported { .. }
            | ClientError::RateLimited(_)
            | ClientError::TooLarge { .. } => self.answered = true,
            _ => self.open = None,
        }
        Err(error)
    }

    fn remember(&mut self, api: Api) {
        if let Some(open) = &mut self.open {
            open.api = api;
        }
    }

    /// The connection to the socket that lies at the path now.
    async fn open(&mut self) -> Result<&Open, ClientError> {
        // No socket at the path is no reason to leave a connection that works.
        let stale = |open: &Open| identity(&self.socket).is_ok_and(|now| now != open.identity);
        let open = match self.open.take().filter(|open| !stale(open)) {
            Some(open) => open,
            None => self.connect().await?,
        };
        Ok(self.open.insert(open))
    }

    async fn connect(&mut self) -> Result<Open, ClientError> {
        let identity = identity(&self.socket).map_err(|e| connect_error(&self.socket, &e))?;
        let stream = tokio::time::timeout(self.timeout, UnixStream::connect(&self.socket))
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
            .map_err(|e| connect_error(&self.socket, &e))?;
        let channel = channel(stream)
            .await
            .map_err(|e| ClientError::NotGrpc { path: self.socket.clone(), reason: innermost(&e) })?;
        if self.last.0 != identity {
            self.last = (identity, self.last.1.next());
        }
        Ok(Open { channel, connection: self.last.1, identity, api: Api::V1 })
    }

    /// Turns a status into the sentence that fits.
    fn explain(&self, call: &'static str, status: &Status) -> ClientError {
        let message = status.message();
        match status.code() {
            Code::ResourceExhausted if message.contains("rate limit") => ClientError::RateLimited(call),
            // tonic says OutOfRange of an answer above its own limit, Go's servers ResourceExhausted.
            Code::ResourceExhausted | Code::OutOfRange if message.contains("large") => {
                ClientError::TooLarge { call, detail: message.to_owned() }
            }
            Code::Unimplemented => ClientError::Unsupported { path: self.socket.clone(), call },
            // Kubelets before 1.23 answer so when the gate is off.
            Code::Unknown if call == "GetAllocatableResources" && message.contains("disabled") => {
                ClientError::Unsupported { path: self.socket.clone(), call }
            }
            _ if status.source().is_none() && !is_transport(status) => ClientError::Status {
                call,
                code: format!("{:?}", status.code()),
                message: message.chars().take(300).collect(),
            },
            _ if self.answered => ClientError::Lost { call, detail: innermost(status) },
            _ => ClientError::NotGrpc { path: self.socket.clone(), reason: nonsense(status) },
        }
    }
}

/// tonic makes a status of its own when the HTTP answer is none of gRPC's.
fn is_transport(status: &Status) -> bool {
    let message = status.message();
    message.contains("invalid compression flag")
        || message.contains("h2 protocol error")
        || message.contains("transport error")
        || message.contains("grpc-status header missing")
}

/// Why a peer that never answered is no gRPC server.
fn nonsense(status: &Status) -> String {
    let mut source = status.source();
    while let Some(error) = source {
        // Our own connector, asked for a second connection: the first one ended before an answer.
        if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::NotConnected) {
            return "it ended the connection without an answer".to_owned();
        }
        source = error.source();
    }
    innermost(status)
}

pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string().chars().take(300).collect()
}

pub(super) fn identity(socket: &Path) -> io::Result<Identity> {
    std::fs::metadata(socket).map(|meta| (meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

/// How long ago this socket was made; zero if the clock was set back since. Never longer than the machine runs.
#[allow(
    clippy::disallowed_methods,
    reason = "a file's time is of the wall clock, and nothing else is older than we are"
)]
pub(super) fn age(identity: Identity) -> Duration {
    let age = made(identity).and_then(|made| SystemTime::now().duration_since(made).ok()).unwrap_or_default();
    let up = clock_gettime(ClockId::Boottime).tv_sec;
    age.min(Duration::from_secs(u64::try_from(up).unwrap_or_default()))
}

/// When this socket was made.
fn made((_, _, seconds, nanos): Identity) -> Option<SystemTime> {
    let since_epoch = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?);
    UNIX_EPOCH.checked_add(since_epoch)
}

fn connect_error(path: &Path, error: &io::Error) -> ClientError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => ClientError::NoSocket(path),
        io::ErrorKind::ConnectionRefused if is_socket(&path) => ClientError::Refused(path),
        io::ErrorKind::ConnectionRefused => ClientError::Connect { path, reason: "it is no socket".into() },
        _ => ClientError::Connect { path, reason: error.to_string() },
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

/// A channel on this stream only: it never connects again by itself, since a new connection means a new
/// inventory for everybody above.
pub(super) async fn channel(stream: UnixStream) -> Result<Channel, tonic::transport::Error> {
    let stream = Arc::new(Mutex::new(Some(stream)));
    let connector = service_fn(move |_: Uri| {
        let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move { stream.map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}

fn v1_client(channel: Channel) -> v1::pod_resources_lister_client::PodResourcesListerClient<Channel> {
    v1::pod_resources_lister_client::PodResourcesListerClient::new(channel)
        .max_decoding_message_size(MESSAGE_LIMIT)
}

fn v1alpha1_client(
    channel: Channel,
) -> v1alpha1::pod_resources_lister_client::PodResourcesListerClient<Channel> {
    v1alpha1::pod_resources_lister_client::PodResourcesListerClient::new(channel)
        .max_decoding_message_size(MESSAGE_LIMIT)
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V1alpha1 => "v1alpha1",
        })
    }
}
