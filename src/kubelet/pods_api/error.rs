//! Errors of the Pods API client.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::{Code, Status};

use crate::kubelet::connector::innermost;

/// Why a Pods API call failed. Each is one sentence for the node's operator: what failed, where, and what to
/// do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "`path` is the socket, `call` the gRPC method, the rest is from the server"
)]
pub enum PodsError {
    /// The path does not exist.
    NoSocket { path: PathBuf },
    /// The path exists, but nothing listens.
    Refused { path: PathBuf },
    /// Connecting is not permitted.
    Denied { path: PathBuf },
    /// Any other connection error.
    Connect { path: PathBuf, reason: String },
    /// The listener is not a gRPC server.
    NotGrpc { path: PathBuf, reason: String },
    /// No response within the deadline.
    Deadline { path: PathBuf, call: &'static str, after: Duration },
    /// The server does not know its pods yet.
    Starting { path: PathBuf, message: String },
    /// The server does not serve the Pods API.
    Unserved { path: PathBuf, message: String },
    /// There is no pod with this UID.
    NoSuchPod { path: PathBuf, uid: String },
    /// Rejected by the server's rate limiter.
    RateLimited { path: PathBuf, call: &'static str },
    /// The server ended the watch because it was not read fast enough.
    TooSlow { path: PathBuf, message: String },
    /// The response exceeds the size limit.
    TooLarge { path: PathBuf, call: &'static str, message: String },
    /// The response cannot be decoded.
    Invalid { path: PathBuf, call: &'static str, reason: String },
    /// The server ended the watch without an error.
    Ended { path: PathBuf },
    /// The server stalled in the middle of a list.
    Stalled { path: PathBuf, after: Duration },
    /// The connection broke.
    Lost { path: PathBuf, call: &'static str, reason: String },
    /// Any other status.
    Status { path: PathBuf, call: &'static str, code: String, message: String },
    /// No socket was configured.
    NoSocketConfigured,
    /// All of several sockets failed, with an error for each.
    All(Vec<PodsError>),
}

/// Maximum number of characters quoted from the server's message.
const MAX_QUOTED: usize = 300;

impl PodsError {
    /// Returns the error for a failed connection.
    pub(super) fn unreached(path: &Path, error: &io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => Self::NoSocket { path },
            io::ErrorKind::ConnectionRefused => Self::Refused { path },
            io::ErrorKind::PermissionDenied => Self::Denied { path },
            _ => Self::Connect { path, reason: error.to_string() },
        }
    }

    /// Returns the error for a status.
    pub(super) fn of_status(path: &Path, call: &'static str, status: &Status) -> Self {
        let path = path.to_owned();
        let message: String = status.message().chars().take(MAX_QUOTED).collect();
        match status.code() {
            Code::Unimplemented => Self::Unserved { path, message },
            Code::FailedPrecondition => Self::Starting { path, message },
            Code::NotFound if call == "GetPod" => {
                let uid =
                    message.strip_prefix("pod with UID ").and_then(|rest| rest.strip_suffix(" not found"));
                let uid = uid.unwrap_or(&message).to_owned();
                Self::NoSuchPod { path, uid }
            }
            Code::ResourceExhausted if message.contains("rate limit") => Self::RateLimited { path, call },
            // tonic returns OutOfRange for a response above its own limit, Go's servers ResourceExhausted.
            // The last condition: another server may have a pod that numacast's leaves out.
            Code::ResourceExhausted | Code::OutOfRange
                if message.contains("large") && !message.contains("is left out") =>
            {
                Self::TooLarge { path, call, message }
            }
            Code::ResourceExhausted if call == "WatchPods" => Self::TooSlow { path, message },
            _ if breaks_http2(status) => Self::NotGrpc { path, reason: innermost(status) },
            _ if status.source().is_some() => Self::Lost { path, call, reason: innermost(status) },
            code => Self::Status { path, call, code: format!("{code:?}"), message },
        }
    }

    /// Combines the errors of all sockets.
    pub(super) fn all(mut errors: Vec<Self>) -> Self {
        match errors.len() {
            0 => Self::NoSocketConfigured,
            1 => errors.swap_remove(0),
            _ => Self::All(errors),
        }
    }

    /// Returns true if the error concerns the requested pods or the client, so that no other socket should be
    /// tried.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::NoSuchPod { .. } | Self::RateLimited { .. } | Self::TooLarge { .. } | Self::Invalid { .. }
        )
    }

    /// Returns true if no server there serves the Pods API, so that retries are useless until the server is
    /// replaced.
    #[must_use]
    pub fn is_unserved(&self) -> bool {
        match self {
            Self::Unserved { .. } | Self::NoSocketConfigured => true,
            // A kubelet that is just starting creates the directory before the socket.
            Self::NoSocket { path } => path.parent().is_none_or(|directory| !directory.is_dir()),
            Self::All(errors) => errors.iter().all(Self::is_unserved),
            _ => false,
        }
    }

    /// Returns true if there is a server that does not know its pods yet.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        match self {
            Self::Starting { .. } => true,
            Self::All(errors) => errors.iter().any(Self::is_starting),
            _ => false,
        }
    }

    /// Returns what the operator can do.
    fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::NoSocket { .. } => {
                "kubelets have one from 1.36 on (there with the feature gate PodsAPI), numacast makes one with \
                 `podsApi.enabled`; is the path right?"
            }
            Self::Refused { .. } => {
                "its server is not running, is just starting, or no longer serves the Pods API"
            }
            Self::Denied { .. } => "it is for root and the socket's group: run this as root",
            Self::NotGrpc { .. } => "is the path right?",
            Self::Lost { .. } => "it is restarting, or no gRPC server at all",
            Self::RateLimited { .. } => "send fewer requests, or watch",
            Self::NoSocketConfigured => "configure a socket",
            _ => return None,
        })
    }

    fn what(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSocket { path } => write!(f, "there is no Pods API socket at {}", path.display()),
            Self::Refused { path } => write!(f, "nobody listens on {}", path.display()),
            Self::Denied { path } => write!(f, "permission to connect to {} is denied", path.display()),
            Self::Connect { path, reason } => write!(f, "cannot connect to {}: {reason}", path.display()),
            Self::NotGrpc { path, reason } => {
                write!(f, "{} is a socket, but no gRPC server responds on it ({reason})", path.display())
            }
            Self::Deadline { path, call, after } => {
                write!(f, "the server at {} did not respond to {call} within {after:?}", path.display())
            }
            Self::Starting { path, message } => {
                write!(f, "the server at {} does not know its pods yet: {message}", path.display())
            }
            Self::Unserved { path, message } => {
                write!(f, "the server at {} does not serve the Pods API ({message})", path.display())
            }
            Self::NoSuchPod { path, uid } => {
                write!(f, "the server at {} has no pod with the UID {uid}", path.display())
            }
            Self::RateLimited { path, call } => {
                write!(f, "the server at {}: {call} was rejected by rate limit", path.display())
            }
            Self::TooSlow { path, message } => write!(
                f,
                "the server at {} ended the watch: we were too slow, or it has too many clients: {message}",
                path.display()
            ),
            Self::TooLarge { path, call, message } => {
                write!(f, "the {call} response of the server at {} is too large: {message}", path.display())
            }
            Self::Invalid { path, call, reason } => {
                write!(f, "the {call} response of the server at {} is invalid: {reason}", path.display())
            }
            Self::Ended { path } => write!(f, "the server at {} ended the watch of its pods", path.display()),
            Self::Stalled { path, after } => {
                let path = path.display();
                write!(f, "the server at {path} did not continue the list of its pods within {after:?}")
            }
            Self::Lost { path, call, reason } => {
                write!(f, "the connection to the server at {} broke during {call}: {reason}", path.display())
            }
            Self::Status { path, call, code, message } => {
                write!(f, "the server at {} responded to {call} with {code}: {message}", path.display())
            }
            Self::NoSocketConfigured => f.write_str("no socket is configured"),
            Self::All(errors) => {
                f.write_str("nobody serves the Pods API here: ")?;
                for (index, error) in errors.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { "; " })?;
                    error.what(f)?;
                }
                Ok(())
            }
        }
    }
}

/// Returns true if the peer sent something other than HTTP/2. A connection that breaks for another reason is
/// an I/O error.
fn breaks_http2(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.is_library() && !error.is_io();
        }
        source = error.source();
    }
    false
}

impl fmt::Display for PodsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.what(f)?;
        let all = match self {
            Self::All(errors) => errors,
            one => std::slice::from_ref(one),
        };
        // Each advice once.
        let mut written: Vec<&str> = Vec::new();
        for advice in all.iter().filter_map(Self::advice) {
            if !written.contains(&advice) {
                write!(f, "{}{advice}", if written.is_empty() { ": " } else { "; " })?;
                written.push(advice);
            }
        }
        Ok(())
    }
}

impl Error for PodsError {}
