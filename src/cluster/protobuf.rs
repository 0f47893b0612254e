//! The API server's protocol buffers responses (`application/vnd.kubernetes.protobuf`; seen with 1.36).
//!
//! A response is four magic bytes and a `runtime.Unknown`, the envelope that names its content. The frames of
//! a watch are not in such an envelope, but the object in each of them is.

#[cfg(test)]
pub(super) mod samples;

use std::ops::Range;

use kube::core::Status;
use kube::core::response::StatusDetails;

use crate::util::wire::{self, Value, WireError};

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
    #[error("its content was not requested: {0:?}")]
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

/// Returns the range of the last length-delimited field with this number; empty if there is none.
pub(super) fn last(bytes: &[u8], within: Range<usize>, number: u32) -> Result<Range<usize>, WireError> {
    let mut found = within.end..within.end;
    for field in wire::fields_in(bytes, within) {
        let field = field?;
        match field.value {
            _ if field.number != number => {}
            Value::Bytes(range) => found = range,
            _ => return Err(WireError { reason: "a record of another type", at: field.record.start }),
        }
    }
    Ok(found)
}

/// Returns the last varint with this field number; 0 if there is none.
fn number(bytes: &[u8], within: Range<usize>, number: u32) -> Result<u64, WireError> {
    let mut found = 0;
    for field in wire::fields_in(bytes, within) {
        let field = field?;
        match field.value {
            Value::Varint(value) if field.number == number => found = value,
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the beginning of an unexpected text.
pub(super) fn quoted(text: &str) -> String {
    text.chars().take(MAX_QUOTED).collect()
}

/// Returns the resource version in this field of the metadata.
pub(super) fn version(bytes: &[u8], metadata: Range<usize>, number: u32) -> Result<String, DecodeError> {
    let version = last_text(bytes, metadata, number)?;
    if version.is_empty() { Err(DecodeError::NoVersion) } else { Ok(version) }
}

pub(super) fn last_text(bytes: &[u8], within: Range<usize>, number: u32) -> Result<String, WireError> {
    last(bytes, within, number).map(|range| String::from_utf8_lossy(&bytes[range]).into_owned())
}

/// Opens an envelope: returns the range of its object, which must be of this kind.
pub(super) fn open_as(
    bytes: &[u8],
    within: Range<usize>,
    expected: &'static str,
) -> Result<Range<usize>, DecodeError> {
    if !bytes[within.clone()].starts_with(MAGIC) {
        return Err(DecodeError::Magic);
    }
    let unknown = within.start + MAGIC.len()..within.end;
    let type_meta = last(bytes, unknown.clone(), 1)?;
    for (number, allowed) in [(3, ""), (4, CONTENT)] {
        let content = last_text(bytes, unknown.clone(), number)?;
        if !content.is_empty() && content != allowed {
            return Err(DecodeError::Content(quoted(&content)));
        }
    }
    let group_version = last_text(bytes, type_meta.clone(), 1)?;
    let kind = last_text(bytes, type_meta, 2)?;
    let object = last(bytes, unknown, 2)?;
    match group_version.as_str() {
        "v1" if kind == expected => Ok(object),
        "v1" => Err(DecodeError::Kind(kind, expected)),
        other => Err(DecodeError::Kind(quoted(&format!("{other}/{kind}")), expected)),
    }
}

pub(super) fn status(bytes: &[u8], within: Range<usize>) -> Result<Status, WireError> {
    let small = |value: u64| u32::try_from(value).unwrap_or_default();
    let details = last(bytes, within.clone(), 5)?;
    let retry_after_seconds = small(number(bytes, details, 5)?);
    let message = last_text(bytes, within.clone(), 3)?;
    let reason = last_text(bytes, within.clone(), 4)?;
    let code = u16::try_from(number(bytes, within, 6)?).unwrap_or_default();
    Ok(Status {
        details: Some(details_of(retry_after_seconds)),
        ..Status::failure(&message, &reason).with_code(code)
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
    let open = open_as(bytes, 0..bytes.len(), "Status");
    let decoded = open.ok().and_then(|range| status(bytes, range).ok());
    let status = decoded
        .or_else(|| serde_json::from_slice(bytes).ok())
        .unwrap_or_else(|| Status::failure(&quoted(String::from_utf8_lossy(bytes).trim()), ""));
    Box::new(if status.code == 0 { status.with_code(code) } else { status })
}

#[cfg(test)]
mod tests;
