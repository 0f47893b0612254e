//! The API server's protocol buffers responses (`application/vnd.kubernetes.protobuf`; seen with 1.36).
//!
//! A response is four magic bytes and a `runtime.Unknown`, the envelope that names its content. The frames of
//! a watch are not in such an envelope, but the object in each of them is.

#[cfg(test)]
pub(super) mod samples;

use kube::core::Status;
use kube::core::response::StatusDetails;
use prost::Message;
use prost::bytes::Bytes;

use crate::util::wire::WireError;

/// What is around a pod in a response; generated from `proto/core/envelope.proto`.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub(super) mod proto {
    tonic::include_proto!("core/envelope");
}
use proto::{TypeMeta, Unknown};

/// The magic bytes before every envelope.
pub(super) const MAGIC: &[u8] = b"k8s\0";
/// The content type of an envelope that names none.
pub(super) const CONTENT: &str = "application/vnd.kubernetes.protobuf";

/// Maximum number of characters quoted from an unexpected response.
const MAX_QUOTED: usize = 300;

/// A response that is not what was requested.
#[allow(missing_docs, reason = "each variant's message describes it")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("it does not begin like Kubernetes' protocol buffers")]
    Magic,
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
    #[error("unexpected content type or encoding: {0:?}")]
    Content(String),
    #[error("it is a {0:?}, not a {1}")]
    Kind(String, &'static str),
    #[error("its event is unknown: {0:?}")]
    Event(String),
    /// Without a version there is nothing to resume from.
    #[error("it has no version")]
    NoVersion,
    /// It is a page with a continue token, though all was requested.
    #[error("it is only a part of the list")]
    Partial,
    #[error("an object in it is larger than {0} bytes")]
    TooLarge(usize),
    #[error("it is not an event: {0}")]
    Line(String),
}

/// Returns the beginning of an unexpected text.
pub(super) fn quoted(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(MAX_QUOTED).collect()
}

/// Returns a resource version as text.
pub(super) fn version(version: &[u8]) -> Result<String, DecodeError> {
    if version.is_empty() { Err(DecodeError::NoVersion) } else { Ok(text(version)) }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Opens an envelope: returns its object, which must be of this kind.
pub(super) fn open_as(envelope: &Bytes, expected: &'static str) -> Result<Bytes, DecodeError> {
    if !envelope.starts_with(MAGIC) {
        return Err(DecodeError::Magic);
    }
    let unknown = Unknown::decode(envelope.slice(MAGIC.len()..))?;
    let Unknown { type_meta, raw, content_encoding, content_type } = unknown;
    for (content, allowed) in [(content_encoding, ""), (content_type, CONTENT)] {
        if !content.is_empty() && content != allowed {
            return Err(DecodeError::Content(quoted(&content)));
        }
    }
    check_kind(&type_meta.unwrap_or_default(), expected)?;
    Ok(raw)
}

pub(super) fn check_kind(type_meta: &TypeMeta, expected: &'static str) -> Result<(), DecodeError> {
    let TypeMeta { api_version, kind } = type_meta;
    match &**api_version {
        b"v1" if kind == expected => Ok(()),
        b"v1" => Err(DecodeError::Kind(text(kind), expected)),
        other => {
            let kind = format!("{}/{}", text(other), text(kind));
            Err(DecodeError::Kind(quoted(kind.as_bytes()), expected))
        }
    }
}

/// Decodes an object that is a `Status`.
pub(super) fn status(object: &[u8]) -> Result<Status, DecodeError> {
    let proto::Status { message, reason, details, code } = proto::Status::decode(object)?;
    let retry_after_seconds = details.unwrap_or_default().retry_after_seconds;
    Ok(Status {
        details: Some(details_of(u32::try_from(retry_after_seconds).unwrap_or_default())),
        ..Status::failure(&text(&message), &text(&reason)).with_code(u16::try_from(code).unwrap_or_default())
    })
}

/// Returns details with only the delay before a retry.
pub(super) fn details_of(retry_after_seconds: u32) -> StatusDetails {
    let [name, group, kind, uid] = [const { String::new() }; 4];
    StatusDetails { name, group, kind, uid, causes: Vec::new(), retry_after_seconds }
}

/// Decodes an error response: usually a `Status`, in protocol buffers or, from a proxy before the API server,
/// in JSON.
pub fn decode_status(code: u16, bytes: &[u8]) -> Box<Status> {
    let object = open_as(&Bytes::copy_from_slice(bytes), "Status");
    let decoded = object.and_then(|object| status(&object)).ok();
    let status = decoded
        .or_else(|| serde_json::from_slice(bytes).ok())
        .unwrap_or_else(|| Status::failure(&quoted(text(bytes).trim().as_bytes()), ""));
    Box::new(if status.code == 0 { status.with_code(code) } else { status })
}

#[cfg(test)]
mod tests;
