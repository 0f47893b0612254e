//! Decodes a protocol buffers list of pods while it arrives, buffering no more than its largest pod.
//!
//! The list is requested without a limit, since only then the API server serves it from its watch cache; so
//! it can have any length.

use prost::Message;

use crate::cluster::frames::{Buffer, MAX_OBJECT_BYTES};
use crate::cluster::protobuf::proto::{ListMeta, TypeMeta};
use crate::cluster::protobuf::{CONTENT, DecodeError, MAGIC, check_kind, quoted, version};
use crate::util::wire::{self, Head, WireError};

/// Kind of the list.
const KIND: &str = "PodList";

/// Maximum size of everything that is not a pod: the type of the object, and the list's metadata.
const MAX_METADATA_BYTES: usize = 64 << 10;

/// A streaming decoder of a list.
#[derive(Clone, Debug, Default)]
pub struct PodListDecoder {
    buffer: Buffer,
    /// The number of bytes consumed.
    read: usize,
    /// The number of bytes to skip next.
    skip: u64,
    position: Position,
    version: String,
    /// The list has a continue token.
    is_partial: bool,
}

/// The position of the decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// In the magic bytes.
    #[default]
    Magic,
    /// In the envelope, before the list; whether its kind was read.
    Envelope(bool),
    /// In the list, with this many bytes left.
    List(u64),
    /// In the envelope, after the list.
    End,
}

/// What one step consumed: a pod, which is the last this many consumed bytes, or something else.
type Step = Option<usize>;

impl PodListDecoder {
    /// Appends a chunk. Take all complete pods first: the rest is buffered.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.push(piece);
    }

    /// Returns the next encoded pod; `None` if it is incomplete.
    ///
    /// # Errors
    /// It is not a list of pods, or a pod in it is larger than any of the API server; the list is then
    /// unusable.
    pub fn take(&mut self) -> Result<Option<&[u8]>, DecodeError> {
        while let Some(step) = self.step()? {
            if let Some(length) = step {
                return Ok(Some(self.buffer.last(length)));
            }
        }
        Ok(None)
    }

    /// Returns the version of the list. Call it after the last chunk, when all pods are taken.
    ///
    /// # Errors
    /// It is not a list of pods, or incomplete.
    pub fn finish(self) -> Result<String, DecodeError> {
        match self.position {
            Position::Magic => return Err(DecodeError::Magic),
            Position::Envelope(false) => return Err(DecodeError::Kind(String::new(), KIND)),
            Position::End if self.skip == 0 && self.buffer.rest().is_empty() => {}
            _ => return Err(self.invalid("a truncated list")),
        }
        match (self.version.is_empty(), self.is_partial) {
            (true, _) => Err(DecodeError::NoVersion),
            (false, true) => Err(DecodeError::Partial),
            (false, false) => Ok(self.version),
        }
    }

    /// Consumes one record; `None` if it is incomplete.
    fn step(&mut self) -> Result<Option<Step>, DecodeError> {
        if self.skip > 0 {
            return Ok(self.skip_bytes());
        }
        match self.position {
            Position::Magic => self.magic(),
            Position::List(0) => {
                self.position = Position::End;
                Ok(Some(None))
            }
            Position::List(rest) => self.list(rest),
            Position::Envelope(_) | Position::End => self.envelope(),
        }
    }

    fn skip_bytes(&mut self) -> Option<Step> {
        let available = self.buffer.rest().len();
        let bytes = usize::try_from(self.skip).unwrap_or(usize::MAX).min(available);
        self.advance(bytes);
        self.skip -= bytes as u64;
        (bytes > 0).then_some(None)
    }

    fn magic(&mut self) -> Result<Option<Step>, DecodeError> {
        let rest = self.buffer.rest();
        let available = rest.len().min(MAGIC.len());
        if rest[..available] != MAGIC[..available] {
            return Err(DecodeError::Magic);
        }
        if available < MAGIC.len() {
            return Ok(None);
        }
        self.advance(available);
        self.position = Position::Envelope(false);
        Ok(Some(None))
    }

    /// Consumes a record of the envelope: 1 is the type, 2 the list, 3 its encoding and 4 its content type.
    fn envelope(&mut self) -> Result<Option<Step>, DecodeError> {
        let Some(head) = self.head(u64::MAX)? else { return Ok(None) };
        match (head.number, self.position) {
            (1 | 3 | 4, _) => {
                let Some(content) = self.content(&head, MAX_METADATA_BYTES)? else { return Ok(None) };
                match head.number {
                    1 => check_kind(&TypeMeta::decode(content)?, KIND)?,
                    3 if content.is_empty() => {}
                    4 if content.is_empty() || content == CONTENT.as_bytes() => {}
                    _ => return Err(DecodeError::Content(quoted(content))),
                }
                if head.number == 1 && self.position != Position::End {
                    self.position = Position::Envelope(true);
                }
            }
            (2, Position::Envelope(true)) if head.is_bytes => {
                self.advance(head.before);
                self.position = Position::List(head.length);
            }
            // Every API server writes the type first, and one list only.
            (2, Position::Envelope(false)) => return Err(DecodeError::Kind(String::new(), KIND)),
            (2, _) => return Err(self.invalid("a second list")),
            _ => self.skip_record(&head),
        }
        Ok(Some(None))
    }

    /// Consumes a record of the list: 1 is its metadata, 2 a pod.
    fn list(&mut self, rest: u64) -> Result<Option<Step>, DecodeError> {
        let Some(head) = self.head(rest)? else { return Ok(None) };
        let record = head.length.saturating_add(head.before as u64);
        let Some(left) = rest.checked_sub(record) else {
            return Err(self.invalid("a field that exceeds its message"));
        };
        let mut step = None;
        match head.number {
            1 => {
                let Some(metadata) = self.content(&head, MAX_METADATA_BYTES)? else { return Ok(None) };
                let ListMeta { resource_version, continue_token } = ListMeta::decode(metadata)?;
                (self.version, self.is_partial) = (version(&resource_version)?, !continue_token.is_empty());
            }
            2 => match self.content(&head, MAX_OBJECT_BYTES)? {
                Some(pod) => step = Some(pod.len()),
                None => return Ok(None),
            },
            _ => self.skip_record(&head),
        }
        self.position = Position::List(left);
        Ok(Some(step))
    }

    /// Returns the header of the next record, of which at most `rest` bytes belong to the enclosing message.
    fn head(&self, rest: u64) -> Result<Option<Head>, DecodeError> {
        let available = self.buffer.rest();
        let rest = usize::try_from(rest).unwrap_or(usize::MAX);
        let head = wire::head(&available[..available.len().min(rest)]);
        let head = head.map_err(|error| WireError { at: self.read + error.at, ..error })?;
        match head {
            // The record does not end within its message.
            None if available.len() >= rest => Err(self.invalid("a truncated field")),
            head => Ok(head),
        }
    }

    /// Consumes a length-delimited record and returns its content; `None` if it is incomplete.
    fn content(&mut self, head: &Head, limit: usize) -> Result<Option<&[u8]>, DecodeError> {
        if !head.is_bytes {
            return Err(self.invalid("a record of another type"));
        }
        let length = usize::try_from(head.length).ok().filter(|length| *length <= limit);
        let length = length.ok_or(DecodeError::TooLarge(limit))?;
        if self.buffer.rest().len() < head.before + length {
            return Ok(None);
        }
        self.advance(head.before + length);
        Ok(Some(self.buffer.last(length)))
    }

    fn skip_record(&mut self, head: &Head) {
        self.advance(head.before);
        self.skip = head.length;
    }

    fn advance(&mut self, bytes: usize) {
        self.buffer.skip(bytes);
        self.read += bytes;
    }

    fn invalid(&self, reason: &'static str) -> DecodeError {
        DecodeError::Wire(WireError { reason, at: self.read })
    }
}

#[cfg(test)]
mod tests;
