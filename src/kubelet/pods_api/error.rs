//! Errors of the Pods API client.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::{Code, Status};

use crate::kubelet::connector::innermost;

/// Why a Pods API call failed. Each is one sentence for the node's operator: what failed, where, and what to
/// do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "`path` is the socket, `call` the gRPC method, the rest is from the server")]
pub enum PodsError {
    #[error(
        "there is no Pods API socket at {}: kubelets have one from 1.36 on (there with the feature gate \
         PodsAPI), numacast makes one with `podsApi.enabled`; is the path right?",
        path.display()
    )]
    NoSocket { path: PathBuf },
    #[error(
        "nobody listens on {}: its server is not running, is just starting, or no longer serves the Pods API",
        path.display()
    )]
    Refused { path: PathBuf },
    #[error(
        "permission to connect to {} is denied: it is for root and the socket's group: run this as root",
        path.display()
    )]
    Denied { path: PathBuf },
    #[error("cannot connect to {}: {reason}", path.display())]
    Connect { path: PathBuf, reason: String },
    #[error(
        "{} is a socket, but no gRPC server responds on it ({reason}): is the path right?",
        path.display()
    )]
    NotGrpc { path: PathBuf, reason: String },
    #[error("the server at {} did not respond to {call} within {after:?}", path.display())]
    Deadline { path: PathBuf, call: &'static str, after: Duration },
    #[error("the server at {} does not know its pods yet: {message}", path.display())]
    Starting { path: PathBuf, message: String },
    #[error("the server at {} does not serve the Pods API ({message})", path.display())]
    Unserved { path: PathBuf, message: String },
    #[error("the server at {} has no pod with the UID {uid}", path.display())]
    NoSuchPod { path: PathBuf, uid: String },
    #[error(
        "the server at {}: {call} was rejected by rate limit: send fewer requests, or watch",
        path.display()
    )]
    RateLimited { path: PathBuf, call: &'static str },
    #[error(
        "the server at {} ended the watch: we were too slow, or it has too many clients: {message}",
        path.display()
    )]
    TooSlow { path: PathBuf, message: String },
    #[error("the {call} response of the server at {} is too large: {message}", path.display())]
    TooLarge { path: PathBuf, call: &'static str, message: String },
    #[error("the {call} response of the server at {} is invalid: {reason}", path.display())]
    Invalid { path: PathBuf, call: &'static str, reason: String },
    #[error("the server at {} ended the watch of its pods", path.display())]
    Ended { path: PathBuf },
    #[error("the server at {} did not continue the list of its pods within {after:?}", path.display())]
    Stalled { path: PathBuf, after: Duration },
    #[error(
        "the connection to the server at {} broke during {call}: {reason}: it is restarting, or no gRPC \
         server at all",
        path.display()
    )]
    Lost { path: PathBuf, call: &'static str, reason: String },
    #[error("the server at {} responded to {call} with {code}: {message}", path.display())]
    Status { path: PathBuf, call: &'static str, code: String, message: String },
    #[error("no socket is configured")]
    NoSocketConfigured,
    /// All of several sockets failed, with an error for each.
    #[error("nobody serves the Pods API here: {}", joined(.0))]
    All(Vec<Self>),
}

const MAX_QUOTED: usize = 300;

impl PodsError {
    pub(super) fn unreached(path: &Path, error: &io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => Self::NoSocket { path },
            io::ErrorKind::ConnectionRefused => Self::Refused { path },
            io::ErrorKind::PermissionDenied => Self::Denied { path },
            _ => Self::Connect { path, reason: error.to_string() },
        }
    }

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
}

/// Joins the errors of several sockets. What the operator can do comes after the last colon; it is written
/// once if it is the same.
fn joined(errors: &[PodsError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let parts = texts.iter().enumerate().map(|(at, text)| match text.rsplit_once(": ") {
        Some((what, advice)) if texts[at + 1..].iter().any(|later| later.ends_with(advice)) => what,
        _ => text,
    });
    parts.collect::<Vec<&str>>().join("; ")
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
