//! Decodes the API server's protocol buffers responses about pods (`application/vnd.kubernetes.protobuf`;
//! seen with 1.36).
//!
//! A response is four magic bytes and a `runtime.Unknown`, the envelope that names its content. The frames of
//! a watch are not in such an envelope, but the object in each of them is.

use std::ops::Range;

use kube::core::Status;
use kube::core::response::StatusDetails;

use crate::util::wire::{self, Value, WireError};

/// The magic bytes before every envelope.
pub(super) const MAGIC: &[u8] = b"k8s\0";
/// The content type of an envelope that names none.
pub(super) const CONTENT: &str = "application/vnd.kubernetes.protobuf";

/// How much of an unexpected response is shown.
pub(super) const SHOWN: usize = 300;

/// A response that is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Odd {
    /// It is in another format.
    #[error("it does not begin as Kubernetes' protocol buffers do")]
    Magic,
    /// It is broken.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It has another encoding or content type.
    #[error("it is content that was not asked for: {0:?}")]
    Content(String),
    /// It is an object of another kind.
    #[error("it is a {0:?}, not a {1}")]
    Kind(String, &'static str),
    /// An unknown event.
    #[error("there is no event {0:?}")]
    Event(String),
    /// Without a version there is nothing to resume from.
    #[error("it says no version")]
    NoVersion,
    /// It is a page with a continue token, though all was requested.
    #[error("it is only a part of the list")]
    Partial,
    /// It contains an object larger than the API server accepts.
    #[error("an object in it is larger than {0} bytes")]
    TooLarge(usize),
    /// A line is not an event.
    #[error("it is no event: {0}")]
    Line(String),
}

/// A range of the received bytes.
type Place = Range<usize>;

/// Returns the range of the last length-delimited field with this number; empty if there is none.
pub(super) fn last(bytes: &[u8], within: Place, number: u32) -> Result<Place, WireError> {
    let mut found = within.end..within.end;
    for field in wire::fields_in(bytes, within) {
        let field = field?;
        if field.number == number {
            found = content(field)?;
        }
    }
    Ok(found)
}

/// Returns the content of a field, which must be length-delimited.
fn content(field: wire::Field) -> Result<Place, WireError> {
    match field.value {
        Value::Bytes(place) => Ok(place),
        _ => Err(WireError { reason: "a record of another type", at: field.record.start }),
    }
}

/// Returns the last varint with this field number; 0 if there is none.
fn number(bytes: &[u8], within: Place, number: u32) -> Result<u64, WireError> {
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

fn text(bytes: &[u8], place: Place) -> String {
    String::from_utf8_lossy(&bytes[place]).into_owned()
}

pub(super) fn version(bytes: &[u8], metadata: Place, number: u32) -> Result<String, Odd> {
    let version = last_text(bytes, metadata, number)?;
    if version.is_empty() { Err(Odd::NoVersion) } else { Ok(version) }
}

pub(super) fn last_text(bytes: &[u8], within: Place, number: u32) -> Result<String, WireError> {
    last(bytes, within, number).map(|place| text(bytes, place))
}

/// Opens an envelope: returns the kind and the range of its object.
fn open(bytes: &[u8], within: Place) -> Result<(String, Place), Odd> {
    if !bytes[within.clone()].starts_with(MAGIC) {
        return Err(Odd::Magic);
    }
    let unknown = within.start + MAGIC.len()..within.end;
    let about = last(bytes, unknown.clone(), 1)?;
    for (what, nothing_else) in [(3, ""), (4, CONTENT)] {
        let said = last_text(bytes, unknown.clone(), what)?;
        if !said.is_empty() && said != nothing_else {
            return Err(Odd::Content(said.chars().take(SHOWN).collect()));
        }
    }
    let group_version = last_text(bytes, about.clone(), 1)?;
    let kind = last_text(bytes, about, 2)?;
    let object = last(bytes, unknown, 2)?;
    match group_version.as_str() {
        "v1" => Ok((kind, object)),
        other => Ok((format!("{other}/{kind}").chars().take(SHOWN).collect(), object)),
    }
}

/// Like [`open`], for an object that must be of this kind.
fn open_as(bytes: &[u8], within: Place, expected: &'static str) -> Result<Place, Odd> {
    match open(bytes, within)? {
        (kind, object) if kind == expected => Ok(object),
        (kind, _) => Err(Odd::Kind(kind, expected)),
    }
}

/// A decoded frame of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum News<'a> {
    /// A pod was added or changed: its bytes and version.
    Is(&'a [u8], String),
    /// A pod was deleted: its last state and the version of the deletion.
    Gone(&'a [u8], String),
    /// A bookmark with its version.
    Until(String),
    /// An error event.
    Failed(Box<Status>),
}

impl<'a> News<'a> {
    /// Decodes a frame.
    ///
    /// # Errors
    /// It is not a frame of a watch on pods.
    pub fn read(frame: &'a [u8]) -> Result<Self, Odd> {
        let whole = 0..frame.len();
        let what = last(frame, whole.clone(), 1)?;
        let object = last(frame, last(frame, whole, 2)?, 1)?;
        if &frame[what.clone()] == b"ERROR" {
            let (bytes, place) = (frame, open_as(frame, object, "Status")?);
            return Ok(Self::Failed(Box::new(status(bytes, place)?)));
        }
        let pod = open_as(frame, object, "Pod")?;
        let version = version(frame, last(frame, pod.clone(), 1)?, 6)?;
        match &frame[what.clone()] {
            b"ADDED" | b"MODIFIED" => Ok(Self::Is(&frame[pod], version)),
            b"DELETED" => Ok(Self::Gone(&frame[pod], version)),
            b"BOOKMARK" => Ok(Self::Until(version)),
            _ => Err(Odd::Event(text(frame, what).chars().take(SHOWN).collect())),
        }
    }
}

/// Decodes a `Status`.
fn status(bytes: &[u8], place: Place) -> Result<Status, WireError> {
    let small = |value: u64| u32::try_from(value).unwrap_or_default();
    let details = last(bytes, place.clone(), 5)?;
    let retry_after_seconds = small(number(bytes, details, 5)?);
    let message = last_text(bytes, place.clone(), 3)?;
    let reason = last_text(bytes, place.clone(), 4)?;
    let code = u16::try_from(number(bytes, place, 6)?).unwrap_or_default();
    Ok(Status {
        details: Some(details_of(retry_after_seconds)),
        ..Status::failure(&message, &reason).with_code(code)
    })
}

/// Returns details with only the delay before a retry.
pub(super) fn details_of(retry_after_seconds: u32) -> StatusDetails {
    let nothing = String::new;
    StatusDetails {
        name: nothing(),
        group: nothing(),
        kind: nothing(),
        uid: nothing(),
        causes: Vec::new(),
        retry_after_seconds,
    }
}

/// Decodes an error response: usually a `Status`, in protocol buffers or, from a proxy before the API server,
/// in JSON.
#[must_use]
pub fn refusal(code: u16, bytes: &[u8]) -> Box<Status> {
    let open = open_as(bytes, 0..bytes.len(), "Status");
    let told = open.ok().and_then(|place| status(bytes, place).ok());
    let told = told.or_else(|| serde_json::from_slice(bytes).ok()).unwrap_or_else(|| {
        let text: String = String::from_utf8_lossy(bytes).trim().chars().take(SHOWN).collect();
        Status::failure(&text, "")
    });
    Box::new(if told.code == 0 { told.with_code(code) } else { told })
}

#[cfg(test)]
mod tests;
