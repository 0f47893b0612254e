//! A gRPC server on a unix socket. It does two things that a general-purpose server does not: one encoded
//! response is shared by all the clients it is sent to, however large it is, and no client can starve the
//! others of memory, connections or CPU time.
//!
//! It is built on h2 directly: hyper's server (1.12) does not poll a body that waits for its client to read,
//! so a slow watcher could only lose its whole connection; it cannot close a connection in a way that reports
//! which calls were not begun (`abrupt_shutdown`); and it spawns calls without a bound.

mod call;
mod clients;
mod connection;
mod fair_queue;
mod input_filter;
mod limits;
mod message;
mod metrics;
mod off;
mod peer;
mod responses;
mod server;
mod shared;
mod socket;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::body::Bytes;
use tonic::{Code, Status};

pub use input_filter::filter_client_bytes;
pub use limits::Limits;
pub use message::{Message, MessageStream};
pub use metrics::ServerMetrics;
pub(crate) use off::answer_off;
pub use peer::Peer;
pub use server::Server;
pub(crate) use server::keep_serving;
pub use socket::{ServeError, Socket};

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// `/<service>/<method>`, well formed.
    pub path: String,
    /// The encoded request message.
    pub message: Bytes,
    /// The client.
    pub peer: Arc<Peer>,
}

impl Call {
    /// Returns service and method.
    #[must_use]
    pub fn names(&self) -> (&str, &str) {
        split_path(&self.path)
    }

    /// Returns the status for a service that is not served, with grpc-go's text.
    #[must_use]
    pub fn unknown_service(&self) -> Status {
        Status::unimplemented(format!("unknown service {}", self.names().0))
    }

    /// Returns the status for a method that a known service does not have, with grpc-go's text.
    #[must_use]
    pub fn unknown_method(&self) -> Status {
        let (service, method) = self.names();
        Status::unimplemented(format!("unknown method {method} for service {service}"))
    }
}

/// Returns the service and method of a path; two empty strings if it is not well formed.
#[must_use]
pub fn split_path(path: &str) -> (&str, &str) {
    path.strip_prefix('/').and_then(|path| path.rsplit_once('/')).unwrap_or_default()
}

/// Returns a code's name as grpc-go writes it: tonic's variants have the same names, except for two.
#[must_use]
pub fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

/// The response to a call.
pub enum Reply {
    /// One encoded message.
    One(Message),
    /// Encoded messages, until the stream or the client ends. The stream is not polled before the previous
    /// message is on its way, so a client that does not read blocks it.
    Many(Pin<Box<dyn MessageStream>>),
}

/// The service behind the server.
pub trait Service: Send + Sync + 'static {
    /// Handles a call; the future is dropped when the client cancels or the deadline expires. Use
    /// [`Call::unknown_service`] and [`Call::unknown_method`] for what is not served.
    fn call(&self, call: Call) -> BoxFuture<'static, Result<Reply, Status>>;

    /// Called when a call ends, with the status code sent (`Cancelled` if the client left) and the duration.
    /// The path is empty for a request that was not a gRPC call; otherwise it is untrusted client input.
    fn finished(&self, _path: &str, _peer: &Peer, _code: Code, _took: Duration) {}
}

/// A client's violation of a limit or of the protocol, which is logged. It costs the client a connection or a
/// call, or it is slowed down.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Violation {
    /// It connected and sent nothing.
    Silent,
    /// It violated the protocol.
    Protocol,
    /// It sends tens of thousands of frames per second.
    Flood,
    /// It did not read its response.
    Stalled,
    /// There were too many connections, of this client or in total.
    Connections,
    /// It, or all clients together, have too many calls open, or a call waited too long to run.
    Calls,
    /// Hundreds of its calls fail per second.
    Failures,
}

impl Violation {
    /// Returns the value for a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Protocol => "protocol",
            Self::Flood => "flood",
            Self::Stalled => "stalled",
            Self::Connections => "connections",
            Self::Calls => "calls",
            Self::Failures => "failures",
        }
    }
}

#[cfg(test)]
mod tests;
