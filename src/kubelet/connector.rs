//! Connections to a kubelet socket.

use std::error::Error as _;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper_util::rt::TokioIo;
use prost::bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use tokio::net::UnixStream;
use tokio::time::error::Elapsed;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};
use tower::service_fn;

use super::client_error::ClientError;
use super::instance::KubeletInstance;
use super::request::{Request, RequestError};
use crate::util::sync::lock;

/// Opens a connection to the socket at a path, and another one whenever that socket is replaced. Callers make
/// the calls and pass the outcomes to [`Connector::finish`], so that several may be in flight.
#[derive(Debug)]
pub struct Connector {
    socket: PathBuf,
    timeout: Duration,
    open: Option<OpenConnection>,
    opened: u64,
    /// The socket of the last connection, and the value of [`KubeletInstance`] for it.
    last: (SocketId, KubeletInstance),
    /// Whether any server at this path has ever responded in gRPC.
    has_responded: bool,
}

/// A connection that works as far as is known. Clones share it.
#[derive(Clone, Debug)]
pub struct OpenConnection {
    channel: Channel,
    timeout: Duration,
    /// Unique per connection, even for two connections to the same socket.
    pub number: u64,
    /// Differs between two sockets only.
    pub instance: KubeletInstance,
    pub(crate) socket: SocketId,
}

/// Identifies a socket by device, inode and the inode's ctime (seconds, nanoseconds): inode numbers are
/// reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketId(u64, u64, i64, i64);

/// The result of a call, or the expiry of its deadline.
pub(super) type Outcome = Result<Result<Bytes, Status>, Elapsed>;

impl OpenConnection {
    /// Makes a call with the connector's deadline.
    pub fn call(&self, request: &Request) -> impl Future<Output = Outcome> + Send + use<> {
        let (timeout, response) = (self.timeout, request.send(self.channel.clone()));
        async move { tokio::time::timeout(timeout, response).await }
    }
}

impl Connector {
    /// Returns a connector for `socket` whose calls time out after `timeout`. It does not connect yet.
    #[must_use]
    pub fn new(socket: PathBuf, timeout: Duration) -> Self {
        Self { socket, timeout, open: None, opened: 0, last: Default::default(), has_responded: false }
    }

    pub(super) fn instance(&self) -> Option<KubeletInstance> {
        self.open.as_ref().map(|open| open.instance)
    }

    pub(super) fn timed_out(&self, call: &'static str) -> ClientError {
        let (path, after) = (self.socket.clone(), self.timeout);
        match self.has_responded {
            true => ClientError::Deadline { path, call, after },
            false => ClientError::Silent { path, call, after },
        }
    }

    /// Interprets the outcome of a call on `open`, and closes the connection if the call shows that it is
    /// broken.
    ///
    /// # Errors
    /// If the call failed; see [`RequestError`].
    pub fn finish(
        &mut self,
        open: &OpenConnection,
        request: &Request,
        outcome: Outcome,
    ) -> Result<Bytes, RequestError> {
        let failed = match outcome {
            Ok(Ok(response)) => {
                self.has_responded = true;
                return Ok(response);
            }
            Ok(Err(status)) => self.request_error(request.method(), status),
            Err(_) => self.timed_out(request.method()).into(),
        };
        if failed.error.is_response() {
            self.has_responded = true;
        } else if self.open.as_ref().is_some_and(|now| now.number == open.number) {
            // Otherwise a newer connection was opened meanwhile.
            self.open = None;
        }
        Err(failed)
    }

    /// Returns the connection to the socket now at the path. Connecting to a Unix socket does not wait for
    /// the server.
    ///
    /// # Errors
    /// If there is no socket, or no server that speaks gRPC.
    pub async fn open(&mut self) -> Result<OpenConnection, ClientError> {
        // A missing socket is no reason to drop a working connection.
        let is_stale = |open: &OpenConnection| SocketId::of(&self.socket).is_ok_and(|now| now != open.socket);
        let open = match self.open.take().filter(|open| !is_stale(open)) {
            Some(open) => open,
            None => self.connect().await?,
        };
        Ok(self.open.insert(open).clone())
    }

    async fn connect(&mut self) -> Result<OpenConnection, ClientError> {
        let socket = SocketId::of(&self.socket).map_err(|e| connect_error(&self.socket, &e))?;
        let stream = tokio::time::timeout(self.timeout, UnixStream::connect(&self.socket))
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
            .map_err(|e| connect_error(&self.socket, &e))?;
        let channel = channel(stream)
            .await
            .map_err(|e| ClientError::NotGrpc { path: self.socket.clone(), reason: innermost(&e) })?;
        if self.last.0 != socket {
            self.last = (socket, self.last.1.next());
        }
        self.opened += 1;
        let (timeout, number, instance) = (self.timeout, self.opened, self.last.1);
        Ok(OpenConnection { channel, timeout, number, instance, socket })
    }

    fn request_error(&self, call: &'static str, status: Status) -> RequestError {
        let error = self.client_error(call, &status);
        match error {
            // The client-side limit, with the code that Go's clients use for theirs.
            ClientError::TooLarge { .. } if status.code() != Code::ResourceExhausted => {
                RequestError { status: Status::resource_exhausted(error.to_string()), error }
            }
            _ if error.is_response() => RequestError { error, status },
            _ => error.into(),
        }
    }

    fn client_error(&self, call: &'static str, status: &Status) -> ClientError {
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
            _ if self.has_responded => ClientError::Lost { call, detail: innermost(status) },
            _ => ClientError::NotGrpc { path: self.socket.clone(), reason: not_grpc_reason(status) },
        }
    }
}

impl SocketId {
    /// Returns the identity of the socket now at this path.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        std::fs::metadata(path).map(|meta| Self(meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()))
    }

    /// Returns the age of the socket: zero if the clock was set back since, at most the machine's uptime.
    #[allow(
        clippy::disallowed_methods,
        reason = "a file's time is of the wall clock, and nothing else is older than we are"
    )]
    pub(crate) fn age(self) -> Duration {
        let age = self.created().and_then(|created| SystemTime::now().duration_since(created).ok());
        let uptime = clock_gettime(ClockId::Boottime).tv_sec;
        age.unwrap_or_default().min(Duration::from_secs(u64::try_from(uptime).unwrap_or_default()))
    }

    /// Returns the time the socket was created, by the clock at that time.
    pub(crate) fn created(self) -> Option<SystemTime> {
        let Self(_, _, seconds, nanos) = self;
        let since_epoch = Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?);
        UNIX_EPOCH.checked_add(since_epoch)
    }
}

/// Returns true for statuses that tonic creates when the HTTP response is not a gRPC response.
fn is_transport(status: &Status) -> bool {
    let texts =
        ["invalid compression flag", "h2 protocol error", "transport error", "grpc-status header missing"];
    texts.iter().any(|text| status.message().contains(*text))
}

/// Explains why a peer that never responded is not a gRPC server.
fn not_grpc_reason(status: &Status) -> String {
    let mut io_errors = std::iter::successors(status.source(), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>());
    // The connector of `channel` was asked for a second connection: the first one closed without a response.
    match io_errors.any(|error| error.kind() == io::ErrorKind::NotConnected) {
        true => "it ended the connection without a response".to_owned(),
        false => innermost(status),
    }
}

/// Returns the message of the innermost source, truncated.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string().chars().take(300).collect()
}

fn connect_error(path: &Path, error: &io::Error) -> ClientError {
    let is_socket = || std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let reason = match error.kind() {
        io::ErrorKind::NotFound => return ClientError::NoSocket(path.to_owned()),
        io::ErrorKind::ConnectionRefused if is_socket() => return ClientError::Refused(path.to_owned()),
        io::ErrorKind::ConnectionRefused => "it is not a socket".to_owned(),
        _ => error.to_string(),
    };
    ClientError::Connect { path: path.to_owned(), reason }
}

/// Returns a channel on this stream only. It never reconnects by itself: after a new connection, callers must
/// read the inventory again.
pub(super) async fn channel(stream: UnixStream) -> Result<Channel, tonic::transport::Error> {
    let stream = Arc::new(Mutex::new(Some(stream)));
    let connector = service_fn(move |_: Uri| {
        let stream = lock(&stream).take();
        async move { stream.map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}
