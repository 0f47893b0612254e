//! Errors of the podresources client.

use std::path::PathBuf;
use std::time::Duration;

/// Why a call to the kubelet failed. Every variant is one sentence for the node's operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(
    missing_docs,
    reason = "`path` is the socket, `call` the gRPC method, `after` the deadline, the rest is the other side's words"
)]
pub enum ClientError {
    #[error("there is no kubelet socket at {0}: is the kubelet running, and is `kubelet.socket` right?")]
    NoSocket(PathBuf),
    #[error("no process listens on {0}: the kubelet is not running or is just starting")]
    Refused(PathBuf),
    /// The path exists, but connecting is not permitted, or it is not a socket.
    #[error("cannot connect to {path}: {reason}")]
    Connect { path: PathBuf, reason: String },
    #[error("{path} is a socket, but no gRPC server responds on it ({reason}); is `kubelet.socket` right?")]
    NotGrpc { path: PathBuf, reason: String },
    /// The listener accepts connections but has never responded.
    #[error(
        "{path} is a socket, but no gRPC server responds on it (no response to {call} within {after:?}); \
         is `kubelet.socket` right?"
    )]
    Silent { path: PathBuf, call: &'static str, after: Duration },
    #[error("the kubelet did not respond to {call} on {path} within {after:?}")]
    Deadline { path: PathBuf, call: &'static str, after: Duration },
    /// Rejected by the kubelet's rate limiter (100 requests per second for all its clients together).
    #[error("the kubelet rejected {0}: all its clients together exceed its rate limit")]
    RateLimited(&'static str),
    #[error("the kubelet's response to {call} is too large: {detail}")]
    TooLarge { call: &'static str, detail: String },
    #[error(
        "the kubelet at {path} does not serve {call} (numacast needs kubelet 1.23 or later, \
         or 1.21 with the feature gate KubeletPodResourcesGetAllocatable)"
    )]
    Unsupported { path: PathBuf, call: &'static str },
    #[error("the kubelet's connection broke during {call}: {detail}")]
    Lost { call: &'static str, detail: String },
    /// Any other status. `code` is the name of the gRPC code.
    #[error("the kubelet responded to {call} with {code}: {message}")]
    Status { call: &'static str, code: String, message: String },
}

impl ClientError {
    /// The values of [`ClientError::kind`].
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
            Self::Lost { .. } => "lost",
            Self::Status { .. } => "status",
        }
    }

    /// Returns true if a call to `Get` failed because the kubelet does not serve it (feature gate
    /// KubeletPodResourcesGet). With the gate off the kubelet returns `Unknown`, as it does for an unknown
    /// pod: only the message differs (upstream: `pkg/kubelet/apis/podresources/server_v1.go`).
    pub(super) fn is_get_disabled(&self) -> bool {
        match self {
            Self::Unsupported { call, .. } => *call == "Get",
            Self::Status { call, message, .. } => *call == "Get" && message.ends_with("Get method disabled"),
            _ => false,
        }
    }

    /// Returns true if the server responded, so that the connection still works.
    pub(super) fn is_response(&self) -> bool {
        use ClientError::{RateLimited, Status, TooLarge, Unsupported};
        matches!(self, Status { .. } | Unsupported { .. } | RateLimited(_) | TooLarge { .. })
    }

    /// Returns true if the call should be retried on a new connection: it may have reached a kubelet that was
    /// shutting down.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::NotGrpc { .. })
    }
}
