//! Errors of the Pods API client.

use std::error::Error as _;
use std::fmt::Display;
use std::io;
use std::path::Path;

use tonic::{Code, Status};

use crate::kubelet::connector::innermost;

use PodsErrorKind::{Failed, Final, Lost, NoSuchPod, Starting, Unserved};

/// What follows from an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodsErrorKind {
    /// No server there serves the Pods API, so that retries are useless until the server is replaced.
    Unserved,
    /// There is a server that does not know its pods yet.
    Starting,
    /// The server has no pod with this UID.
    NoSuchPod,
    /// It concerns the response or the client, so that no other socket should be tried.
    Final,
    /// The connection broke.
    Lost,
    /// Anything else.
    Failed,
}

/// Why a Pods API call failed: one sentence for the node's operator, with what failed, where, and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct PodsError {
    /// What follows from it.
    pub kind: PodsErrorKind,
    text: String,
}

const MAX_QUOTED: usize = 300;

impl PodsError {
    pub(super) fn failed(path: &Path, what: &str) -> Self {
        Self { kind: Failed, text: format!("the server at {} {what}", path.display()) }
    }

    pub(super) fn unreached(path: &Path, error: &io::Error) -> Self {
        let at = path.display();
        // A kubelet that is just starting creates the directory before the socket.
        let has_directory = path.parent().is_some_and(Path::is_dir);
        let kind = if error.kind() == io::ErrorKind::NotFound && !has_directory { Unserved } else { Failed };
        let text = match error.kind() {
            io::ErrorKind::NotFound => format!(
                "there is no Pods API socket at {at}: kubelet 1.36 and later create it (in 1.36 with the feature \
                 gate PodsAPI); numacast creates it if `podsApi.enabled` is set; is the path right?"
            ),
            io::ErrorKind::ConnectionRefused => format!(
                "no process listens on {at}: its server is not running, is just starting, or no longer serves \
                 the Pods API"
            ),
            io::ErrorKind::PermissionDenied => format!(
                "permission denied on {at}: only root and the socket's group may connect; run as root"
            ),
            _ => format!("cannot connect to {at}: {error}"),
        };
        Self { kind, text }
    }

    pub(super) fn not_grpc(path: &Path, reason: &str) -> Self {
        let what = "is a socket, but no gRPC server responds on it";
        Self { kind: Failed, text: format!("{} {what} ({reason}): is the path right?", path.display()) }
    }

    pub(super) fn invalid(path: &Path, call: &str, reason: &dyn Display) -> Self {
        let text = format!("the {call} response of the server at {} is invalid: {reason}", path.display());
        Self { kind: Final, text }
    }

    pub(super) fn of_status(path: &Path, call: &str, status: &Status) -> Self {
        let server = format!("the server at {}", path.display());
        let message: String = status.message().chars().take(MAX_QUOTED).collect();
        let (kind, text) = match status.code() {
            Code::Unimplemented => (Unserved, format!("{server} does not serve the Pods API ({message})")),
            Code::FailedPrecondition => (Starting, format!("{server} does not know its pods yet: {message}")),
            Code::NotFound if call == "GetPod" => {
                let uid =
                    message.strip_prefix("pod with UID ").and_then(|rest| rest.strip_suffix(" not found"));
                (NoSuchPod, format!("{server} has no pod with the UID {}", uid.unwrap_or(&message)))
            }
            Code::ResourceExhausted if message.contains("rate limit") => {
                let what = "was rejected by rate limit: send fewer requests, or watch";
                (Final, format!("{server}: {call} {what}"))
            }
            // tonic returns OutOfRange for a response above its own limit, Go's servers ResourceExhausted.
            // The last condition: another server may have a pod that numacast's omits.
            Code::ResourceExhausted | Code::OutOfRange
                if message.contains("large") && !message.contains("is omitted") =>
            {
                (Final, format!("the {call} response of {server} is too large: {message}"))
            }
            Code::ResourceExhausted if call == "WatchPods" => {
                let what = "ended the watch: we were too slow, or it has too many clients";
                (Failed, format!("{server} {what}: {message}"))
            }
            _ if breaks_http2(status) => return Self::not_grpc(path, &innermost(status)),
            _ if status.source().is_some() => {
                let (reason, what) = (innermost(status), "it is restarting, or no gRPC server at all");
                (Lost, format!("the connection to {server} broke during {call}: {reason}: {what}"))
            }
            code => (Failed, format!("{server} responded to {call} with {code:?}: {message}")),
        };
        Self { kind, text }
    }

    /// Combines the errors of all sockets.
    pub(super) fn all(mut errors: Vec<Self>) -> Self {
        let kind = if errors.iter().any(|error| error.kind == Starting) {
            Starting
        } else if errors.iter().all(|error| error.kind == Unserved) {
            Unserved
        } else {
            Failed
        };
        match errors.len() {
            0 => Self { kind, text: "no socket is configured".to_owned() },
            1 => errors.swap_remove(0),
            _ => Self { kind, text: format!("no process serves the Pods API here: {}", joined(&errors)) },
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
