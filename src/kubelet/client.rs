//! The podresources client: one connection per socket path, reopened whenever the socket at that path is
//! replaced.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper_util::rt::TokioIo;
use prost::bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::time::error::Elapsed;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};
use tower::service_fn;

use super::ask::{Ask, Refusal, allocatable_of, decoded, devices_of, usage_of};
use super::proto::v1;
use super::types::{Allocatable, Connection, PodUsage, Usage};

/// The version of the podresources API that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// CPUs, memory and devices.
    V1,
    /// Devices only; kubelets before 1.20.
    V1alpha1,
}

/// A client of the kubelet's podresources socket.
///
/// The kubelet replaces the socket when it restarts, so every call checks the path first and reconnects if
/// the socket there is another. A call on a broken connection is retried once on a new one.
#[derive(Debug)]
pub struct Client {
    line: Line,
    /// Number of the connection whose kubelet does not serve v1.
    old: Option<u64>,
}

/// The connection to the socket at a path, reopened whenever that socket is replaced. It is given only the
/// outcomes of calls, so that several may be in flight.
#[derive(Debug)]
pub(super) struct Line {
    socket: PathBuf,
    timeout: Duration,
    open: Option<Open>,
    /// Number of connections opened so far.
    opened: u64,
    /// The socket of the last connection, and the value of [`Connection`] for it.
    last: (Identity, Connection),
    /// Whether any server at this path has ever answered in gRPC.
    answered: bool,
}

/// Device, inode and the inode's ctime (seconds, nanoseconds): inode numbers are reused.
pub(super) type Identity = (u64, u64, i64, i64);

/// One connection.
#[derive(Clone, Debug)]
pub(super) struct Open {
    channel: Channel,
    timeout: Duration,
    /// Unique per connection, even for two connections to the same socket.
    number: u64,
    pub(super) connection: Connection,
    /// The socket that is connected to.
    pub(super) identity: Identity,
}

/// The result of a call, or the expiry of its deadline.
pub(super) type Outcome = Result<Result<Bytes, Status>, Elapsed>;

/// Why a call to the kubelet failed. Every variant is one sentence for the node's operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The path does not exist.
    #[error("there is no kubelet socket at {0}: is the kubelet running, and is `kubelet.socket` right?")]
    NoSocket(PathBuf),
    /// The path exists, but nothing listens.
    #[error("nobody listens on {0}: the kubelet is not running or is just starting")]
    Refused(PathBuf),
    /// The path exists, but connecting is not permitted, or it is not a socket.
    #[error("cannot connect to {path}: {reason}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        reason: String,
    },
    /// The listener is not a gRPC server.
    #[error("{path} is a socket, but no gRPC server answers on it ({reason}); is `kubelet.socket` right?")]
    NotGrpc {
        /// The socket.
        path: PathBuf,
        /// What happened instead of a response.
        reason: String,
    },
    /// The listener accepts connections but has never responded.
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
    /// No response within the deadline.
    #[error("the kubelet did not answer {call} on {path} within {after:?}")]
    Deadline {
        /// The socket.
        path: PathBuf,
        /// The gRPC method.
        call: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// Rejected by the kubelet's rate limiter (100 requests per second for all its clients together).
    #[error("the kubelet refused {0}: its request limit is used up by its clients together")]
    RateLimited(&'static str),
    /// The response exceeds the size limit.
    #[error("the kubelet's answer to {call} is too large: {detail}")]
    TooLarge {
        /// The gRPC method.
        call: &'static str,
        /// The transport's message.
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
    /// The kubelet does not serve `Get`: the feature gate is off or the kubelet too old.
    #[error("the kubelet does not serve Get (feature gate KubeletPodResourcesGet, on since 1.34)")]
    GetDisabled,
    /// `Get` found no such pod.
    #[error("the kubelet knows no pod {0}")]
    NoSuchPod(String),
    /// The connection broke, and so did the new one.
    #[error("the kubelet's connection broke during {call}: {detail}")]
    Lost {
        /// The gRPC method.
        call: &'static str,
        /// The transport's message.
        detail: String,
    },
    /// Any other status, with its code and message.
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
    /// The values of [`ClientError::kind`] for the agent's calls.
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

    /// Returns the variant as a metric label.
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

    /// Returns true if a call to `Get` failed because the kubelet does not serve it. With the gate off the
    /// kubelet returns `Unknown`, as it does for an unknown pod: only the message differs (kubelet.md 3.9).
    pub(super) fn is_get_disabled(&self) -> bool {
        match self {
            Self::Unsupported { call, .. } => *call == "Get",
            Self::Status { call, message, .. } => *call == "Get" && message.ends_with("Get method disabled"),
            _ => false,
        }
    }

    /// Returns true if the call should be retried on a new connection: it may have reached a kubelet that was
    /// shutting down.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::NotGrpc { .. })
    }
}

impl Client {
    /// Returns a client for `socket` whose calls time out after `timeout`. It does not connect yet.
    #[must_use]
    pub fn new(socket: PathBuf, timeout: Duration) -> Self {
        Self { line: Line::new(socket, timeout), old: None }
    }

    /// Returns the resources allocated to every active pod, the API version that was used, and the
    /// connection.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list(&mut self) -> Result<(Usage, Api, Connection), ClientError> {
        let number = self.line.open().await?.number;
        if self.old != Some(number) {
            match self.ask(&Ask::List).await {
                Ok((bytes, connection)) => return Ok((usage_of(bytes)?, Api::V1, connection)),
                Err(Refusal { error: ClientError::Unsupported { .. }, .. }) => {
                    self.old = self.line.number();
                }
                Err(refusal) => return Err(refusal.error),
            }
        }
        let (bytes, connection) = self.ask(&Ask::ListV1alpha1).await.map_err(|refusal| refusal.error)?;
        Ok((devices_of(bytes)?, Api::V1alpha1, connection))
    }

    /// Returns the allocatable resources and the connection.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Unsupported`] from a kubelet that is too old.
    pub async fn allocatable(&mut self) -> Result<(Allocatable, Connection), ClientError> {
        let (bytes, connection) = self.ask(&Ask::Allocatable).await.map_err(|refusal| refusal.error)?;
        Ok((allocatable_of(bytes)?, connection))
    }

    /// Returns the resources allocated to one pod.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::GetDisabled`] and [`ClientError::NoSuchPod`] are specific to this
    /// call.
    pub async fn get(&mut self, namespace: &str, name: &str) -> Result<PodUsage, ClientError> {
        let ask = Ask::Get { namespace: namespace.to_owned(), name: name.to_owned() };
        let no_such_pod = || ClientError::NoSuchPod(format!("{namespace}/{name}"));
        match self.ask(&ask).await {
            Ok((bytes, _)) => {
                let answer: v1::GetPodResourcesResponse = decoded(ask.method(), bytes)?;
                answer.pod_resources.map(PodUsage::from).ok_or_else(no_such_pod)
            }
            Err(refusal) if refusal.error.is_get_disabled() => Err(ClientError::GetDisabled),
            Err(Refusal { error: ClientError::Status { message, .. }, .. })
                if message.ends_with("not found") =>
            {
                Err(no_such_pod())
            }
            Err(refusal) => Err(refusal.error),
        }
    }

    /// Makes one call with its deadline, retried on a new connection if the old one is dead. Returns the
    /// undecoded response message and the connection.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn ask(&mut self, ask: &Ask) -> Result<(Bytes, Connection), Refusal> {
        match self.attempt(ask).await {
            Err(refusal) if refusal.error.is_lost() => self.attempt(ask).await,
            answer => answer,
        }
    }

    async fn attempt(&mut self, ask: &Ask) -> Result<(Bytes, Connection), Refusal> {
        let open = self.line.open().await?;
        let outcome = open.call(ask).await;
        Ok((self.line.settle(&open, ask, outcome)?, open.connection))
    }
}

impl Open {
    /// Sends a request on this connection.
    pub(super) fn call(&self, ask: &Ask) -> impl Future<Output = Outcome> + Send + use<> {
        let (timeout, answer) = (self.timeout, ask.on(self.channel.clone()));
        async move { tokio::time::timeout(timeout, answer).await }
    }
}

impl Line {
    /// Returns a connector for `socket` whose calls time out after `timeout`. It does not connect yet.
    pub(super) fn new(socket: PathBuf, timeout: Duration) -> Self {
        Self { socket, timeout, open: None, opened: 0, last: Default::default(), answered: false }
    }

    /// Returns the number of the current connection.
    fn number(&self) -> Option<u64> {
        self.open.as_ref().map(|open| open.number)
    }

    /// Returns the socket of the current connection.
    pub(super) fn connection(&self) -> Option<Connection> {
        self.open.as_ref().map(|open| open.connection)
    }

    /// Returns the error for a call that timed out.
    pub(super) fn late(&self, method: &'static str) -> ClientError {
        let (path, call, after) = (self.socket.clone(), method, self.timeout);
        match self.answered {
            true => ClientError::Deadline { path, call, after },
            false => ClientError::Silent { path, call, after },
        }
    }

    /// Interprets the outcome of a call on `open`, and closes the connection if the call shows that it is
    /// broken.
    pub(super) fn settle(&mut self, open: &Open, ask: &Ask, outcome: Outcome) -> Result<Bytes, Refusal> {
        let call = ask.method();
        let refusal = match outcome {
            Ok(Ok(answer)) => {
                self.answered = true;
                return Ok(answer);
            }
            Ok(Err(status)) => self.refusal(call, status),
            Err(_) => self.late(call).into(),
        };
        match refusal.error {
            // The server responded, so the connection still works.
            ClientError::Status { .. }
            | ClientError::Unsupported { .. }
            | ClientError::RateLimited(_)
            | ClientError::TooLarge { .. } => self.answered = true,
            // A newer connection may have been opened meanwhile.
            _ if self.number() == Some(open.number) => self.open = None,
            _ => {}
        }
        Err(refusal)
    }

    /// Returns the connection to the socket now at the path. Connecting to a Unix socket does not wait for
    /// the server.
    pub(super) async fn open(&mut self) -> Result<Open, ClientError> {
        // A missing socket is no reason to drop a working connection.
        let stale = |open: &Open| identity(&self.socket).is_ok_and(|now| now != open.identity);
        let open = match self.open.take().filter(|open| !stale(open)) {
            Some(open) => open,
            None => self.connect().await?,
        };
        Ok(self.open.insert(open).clone())
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
        self.opened += 1;
        let (timeout, number, connection) = (self.timeout, self.opened, self.last.1);
        Ok(Open { channel, timeout, number, connection, identity })
    }

    fn refusal(&self, call: &'static str, status: Status) -> Refusal {
        let error = self.explain(call, &status);
        match (&error, status.code()) {
            (
                ClientError::Status { .. } | ClientError::Unsupported { .. } | ClientError::RateLimited(_),
                _,
            )
            | (ClientError::TooLarge { .. }, Code::ResourceExhausted) => Refusal { error, status },
            // The client-side limit, with the code that Go's clients use for theirs.
            (ClientError::TooLarge { .. }, _) => {
                Refusal { status: Status::resource_exhausted(error.to_string()), error }
            }
            _ => error.into(),
        }
    }

    /// Converts a status into the matching error.
    fn explain(&self, call: &'static str, status: &Status) -> ClientError {
        let message = status.message();
        match status.code() {
            Code::ResourceExhausted if message.contains("rate limit") => ClientError::RateLimited(call),
            // tonic returns OutOfRange for a response above its own limit, Go's servers ResourceExhausted.
            Code::ResourceExhausted | Code::OutOfRange if message.contains("large") => {
                ClientError::TooLarge { call, detail: message.to_owned() }
            }
            Code::Unimplemented => ClientError::Unsupported { path: self.socket.clone(), call },
            // Returned by kubelets before 1.23 when the gate is off.
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

/// Returns true for statuses that tonic creates when the HTTP response is not a gRPC response.
fn is_transport(status: &Status) -> bool {
    let message = status.message();
    message.contains("invalid compression flag")
        || message.contains("h2 protocol error")
        || message.contains("transport error")
        || message.contains("grpc-status header missing")
}

/// Explains why a peer that never answered is not a gRPC server.
fn nonsense(status: &Status) -> String {
    let mut source = status.source();
    while let Some(error) = source {
        // The connector of `channel` was asked for a second connection: the first one closed without a
        // response.
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

/// Returns the age of this socket: zero if the clock was set back since, at most the machine's uptime.
#[allow(
    clippy::disallowed_methods,
    reason = "a file's time is of the wall clock, and nothing else is older than we are"
)]
pub(super) fn age(identity: Identity) -> Duration {
    let age = made(identity).and_then(|made| SystemTime::now().duration_since(made).ok()).unwrap_or_default();
    let up = clock_gettime(ClockId::Boottime).tv_sec;
    age.min(Duration::from_secs(u64::try_from(up).unwrap_or_default()))
}

/// Returns the time this socket was created.
pub(super) fn made((_, _, seconds, nanos): Identity) -> Option<SystemTime> {
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

/// Returns a channel on this stream only. It never reconnects by itself: after a new connection, callers must
/// read the inventory again.
pub(super) async fn channel(stream: UnixStream) -> Result<Channel, tonic::transport::Error> {
    let stream = Arc::new(Mutex::new(Some(stream)));
    let connector = service_fn(move |_: Uri| {
        let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move { stream.map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V1alpha1 => "v1alpha1",
        })
    }
}
