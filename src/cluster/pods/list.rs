//! Decodes a protocol buffers list of pods while it arrives, buffering no more than its largest pod.
//!
//! The list is requested without a limit, since only then the API server serves it from its watch cache; so
//! it can have any length.

use super::answers::{CONTENT, MAGIC, SHOWN, last, last_text, version};
use super::frames::{Buffer, LARGEST};
use super::{KIND, Odd};
use crate::util::wire::{self, Head, WireError};

/// Maximum size of everything that is not a pod: the type of the object, and the list's metadata.
const SMALL: usize = 64 << 10;

/// A streaming decoder of a list.
#[derive(Clone, Debug, Default)]
pub struct PodList {
    buffer: Buffer,
    /// The number of bytes consumed.
    read: usize,
    /// The number of bytes to skip next.
    skip: u64,
    within: Within,
    version: String,
    /// The list has a continue token.
    partial: bool,
}

/// The position of the decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Within {
    /// In the magic bytes.
    #[default]
    Magic,
    /// In the envelope, before the list; whether its kind was seen.
    Envelope(bool),
    /// In the list, with this many bytes left.
    List(u64),
    /// In the envelope, after the list.
    End,
}

/// The result of one step.
enum Step {
    /// A pod: the last this many consumed bytes.
    Pod(usize),
    Nothing,
}

impl PodList {
    /// Appends a chunk. Take all complete pods first: the rest is buffered.
    pub fn put(&mut self, piece: &[u8]) {
        self.buffer.put(piece);
    }

    /// Returns the next encoded pod; `None` if it is incomplete.
    ///
    /// # Errors
    /// It is not a list of pods, or a pod in it is larger than any of the API server; the list is then
    /// unusable.
    pub fn take(&mut self) -> Result<Option<&[u8]>, Odd> {
        loop {
            match self.step()? {
                Some(Step::Pod(length)) => return Ok(Some(self.buffer.last(length))),
                Some(Step::Nothing) => {}
                None => return Ok(None),
            }
        }
    }

    /// Returns the version of the list. Call it after the last chunk, when all pods are taken.
    ///
    /// # Errors
    /// It is not a list of pods, or incomplete.
    pub fn end(self) -> Result<String, Odd> {
        match self.within {
            Within::Magic => return Err(Odd::Magic),
            Within::Envelope(false) => return Err(Odd::Kind(String::new(), KIND)),
            Within::End if self.skip == 0 && self.buffer.rest().is_empty() => {}
            _ => return Err(self.broken("the list is cut off")),
        }
        match (self.version.is_empty(), self.partial) {
            (true, _) => Err(Odd::NoVersion),
            (false, true) => Err(Odd::Partial),
            (false, false) => Ok(self.version),
        }
    }

    /// Consumes one record; `None` if it is incomplete.
    fn step(&mut self) -> Result<Option<Step>, Odd> {
        if self.skip > 0 {
            return Ok(self.leave_out());
        }
        match self.within {
            Within::Magic => self.magic(),
            Within::List(0) => {
                self.within = Within::End;
                Ok(Some(Step::Nothing))
            }
            Within::List(rest) => self.list(rest),
            Within::Envelope(_) | Within::End => self.envelope(),
        }
    }

    fn leave_out(&mut self) -> Option<Step> {
        let there = self.buffer.rest().len();
        let bytes = usize::try_from(self.skip).unwrap_or(usize::MAX).min(there);
        self.advance(bytes);
        self.skip -= bytes as u64;
        (bytes > 0).then_some(Step::Nothing)
    }

    fn magic(&mut self) -> Result<Option<Step>, Odd> {
        let rest = self.buffer.rest();
        let there = rest.len().min(MAGIC.len());
        if rest[..there] != MAGIC[..there] {
            return Err(Odd::Magic);
        }
        if there < MAGIC.len() {
            return Ok(None);
        }
        self.advance(there);
        self.within = Within::Envelope(false);
        Ok(Some(Step::Nothing))
    }

    /// Consumes a record of the envelope: 1 is the type, 2 the list, 3 its encoding and 4 its content type.
    fn envelope(&mut self) -> Result<Option<Step>, Odd> {
        let Some(head) = self.head(u64::MAX)? else { return Ok(None) };
        match (head.number, self.within) {
            (1 | 3 | 4, _) => {
                let Some(content) = self.content(&head, SMALL)? else { return Ok(None) };
                match head.number {
                    1 => check_kind(content)?,
                    3 if content.is_empty() => {}
                    4 if content.is_empty() || content == CONTENT.as_bytes() => {}
                    _ => return Err(Odd::Content(shown(content))),
                }
                if head.number == 1 && self.within != Within::End {
                    self.within = Within::Envelope(true);
                }
            }
            (2, Within::Envelope(true)) if head.is_bytes => {
                self.advance(head.before);
                self.within = Within::List(head.length);
            }
            // Every API server writes the type first, and one list only.
            (2, Within::Envelope(false)) => return Err(Odd::Kind(String::new(), KIND)),
            (2, _) => return Err(self.broken("another list")),
            _ => self.pass(&head),
        }
        Ok(Some(Step::Nothing))
    }

    /// Consumes a record of the list: 1 is its metadata, 2 a pod.
    fn list(&mut self, rest: u64) -> Result<Option<Step>, Odd> {
        let Some(head) = self.head(rest)? else { return Ok(None) };
        let whole = head.length.saturating_add(head.before as u64);
        let Some(left) = rest.checked_sub(whole) else {
            return Err(self.broken("a field that exceeds its message"));
        };
        let mut step = Step::Nothing;
        match head.number {
            1 => {
                let Some(metadata) = self.content(&head, SMALL)? else { return Ok(None) };
                let said = (version(metadata, 0..metadata.len(), 2)?, last(metadata, 0..metadata.len(), 3)?);
                (self.version, self.partial) = (said.0, !said.1.is_empty());
            }
            2 => match self.content(&head, LARGEST)? {
                Some(pod) => step = Step::Pod(pod.len()),
                None => return Ok(None),
            },
            _ => self.pass(&head),
        }
        self.within = Within::List(left);
        Ok(Some(step))
    }

    /// Returns the header of the next record, of which at most `rest` bytes belong to the enclosing message.
    fn head(&self, rest: u64) -> Result<Option<Head>, Odd> {
        let there = self.buffer.rest();
        let rest = usize::try_from(rest).unwrap_or(usize::MAX);
        let head = wire::head(&there[..there.len().min(rest)]);
        let head = head.map_err(|error| WireError { at: self.read + error.at, ..error })?;
        match head {
            // The record does not end within its message.
            None if there.len() >= rest => Err(self.broken("a truncated field")),
            head => Ok(head),
        }
    }

    /// Consumes a length-delimited record and returns its content; `None` if it is incomplete.
    fn content(&mut self, head: &Head, most: usize) -> Result<Option<&[u8]>, Odd> {
        if !head.is_bytes {
            return Err(self.broken("a record of another type"));
        }
        let length = usize::try_from(head.length).ok().filter(|length| *length <= most);
        let length = length.ok_or(Odd::TooLarge(most))?;
        if self.buffer.rest().len() < head.before + length {
            return Ok(None);
        }
        self.advance(head.before + length);
        Ok(Some(self.buffer.last(length)))
    }

    fn pass(&mut self, head: &Head) {
        self.advance(head.before);
        self.skip = head.length;
    }

    fn advance(&mut self, bytes: usize) {
        self.buffer.skip(bytes);
        self.read += bytes;
    }

    fn broken(&self, reason: &'static str) -> Odd {
        Odd::Wire(WireError { reason, at: self.read })
    }
}

fn check_kind(about: &[u8]) -> Result<(), Odd> {
    let (version, kind) = (last_text(about, 0..about.len(), 1)?, last_text(about, 0..about.len(), 2)?);
    match (version.as_str(), kind.as_str()) {
        ("v1", KIND) => Ok(()),
        ("v1", _) => Err(Odd::Kind(kind, KIND)),
        (version, kind) => Err(Odd::Kind(format!("{version}/{kind}").chars().take(SHOWN).collect(), KIND)),
    }
}

fn shown(content: &[u8]) -> String {
    String::from_utf8_lossy(content).chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests;
