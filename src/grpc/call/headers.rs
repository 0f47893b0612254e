//! A request's headers. Order, codes and texts of errors are grpc-go's (`http2_server.go`, `operateHeaders`;
//! `server.go`, `handleStream`), except that texts quote at most [`QUOTE_LIMIT`] bytes of client input.

use std::borrow::Cow;
use std::time::Duration;

use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use tokio::time::Instant;
use tonic::Status;

use super::GRPC;

/// Maximum length of a path: a service and a method.
const PATH_LIMIT: usize = 512;
/// How many bytes of client input a status quotes.
const QUOTE_LIMIT: usize = 128;

pub(super) struct Headers {
    pub(super) path: String,
    /// A compression, which is not supported.
    pub(super) encoding: Option<String>,
    pub(super) deadline: Option<Instant>,
}

/// The HTTP status and the gRPC status for a request that is not a gRPC call.
pub(super) struct InvalidHeaders(pub(super) StatusCode, pub(super) Status);

impl Headers {
    pub(super) fn parse(parts: Parts, started: Instant) -> Result<Self, InvalidHeaders> {
        let field = |name: &str| Some(quoted(parts.headers.get(name)?.as_bytes()).into_owned());
        let kind = field("content-type").unwrap_or_default();
        if !is_grpc(&kind) {
            let status = Status::invalid_argument(format!("invalid gRPC request content-type {kind:?}"));
            return Err(InvalidHeaders(StatusCode::UNSUPPORTED_MEDIA_TYPE, status));
        }
        let timeout = field("grpc-timeout").map(|text| parse_timeout(&text)).transpose();
        let timeout = timeout.map_err(|reason| {
            let status = Status::internal(format!("malformed grpc-timeout: transport: timeout {reason}"));
            InvalidHeaders(StatusCode::BAD_REQUEST, status)
        })?;
        if parts.method != Method::POST {
            let method = quoted(parts.method.as_str().as_bytes());
            let text = "Received a HEADERS frame with :method";
            let status = Status::internal(format!("{text} {method:?} which should be POST"));
            return Err(InvalidHeaders(StatusCode::METHOD_NOT_ALLOWED, status));
        }
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        if path.len() > PATH_LIMIT || path.strip_prefix('/').is_none_or(|path| !path.contains('/')) {
            let path = quoted(path.as_bytes());
            let status = Status::unimplemented(format!("malformed method name: {path:?}"));
            return Err(InvalidHeaders(StatusCode::OK, status));
        }
        let encoding = field("grpc-encoding").filter(|encoding| !matches!(&**encoding, "" | "identity"));
        let deadline = timeout.and_then(|timeout| started.checked_add(timeout));
        Ok(Self { path: path.to_owned(), encoding, deadline })
    }
}

/// Returns the start of client input; a truncated character becomes U+FFFD.
fn quoted(text: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(text.get(..QUOTE_LIMIT).unwrap_or(text))
}

fn is_grpc(kind: &str) -> bool {
    let rest = kind.strip_prefix(GRPC);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

/// Parses the value of `grpc-timeout`: at most 8 digits and a unit.
pub(in crate::grpc) fn parse_timeout(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.len() {
        0 | 1 => return Err(format!("string is too short: {text:?}")),
        2..=9 => text.split_at_checked(text.len() - 1).unwrap_or((text, "")),
        _ => return Err(format!("string is too long: {text:?}")),
    };
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return Err(format!("unit is not recognized: {text:?}")),
    };
    let has_digits_only = number.bytes().all(|digit| digit.is_ascii_digit());
    let number = has_digits_only.then(|| number.parse().ok()).flatten();
    number.map(|number: u32| unit * number).ok_or_else(|| format!("is no number: {text:?}"))
}
