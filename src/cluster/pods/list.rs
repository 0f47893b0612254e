//! A list of pods in protocol buffers, decoded as it comes in: of it no more is held than its largest pod.
//!
//! It is asked for without a limit, since only then the API server answers from its watch cache, and it can be any length.

use super::answers::{CONTENT, MAGIC, SHOWN, last, last_text, version};
use super::frames::{Buffer, LARGEST};
use super::{KIND, Odd};
use crate::wire::{self, Head, WireError};

/// What is no pod is small: what kind of object it is, and the list's metadata.
const SMALL: usize = 64 << 10;

/// A list that comes in, in whatever pieces.
#[derive(Clone, Debug, Default)]
pub struct PodList {
    buffer: Buffer,
    /// So many bytes were read.
    read: usize,
    /// So many bytes that come are of no interest.
    skip: u64,
    within: Within,
    version: String,
    /// It is only the beginning of a list.
    partial: bool,
}

/// Where the next byte is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Within {
    /// In the four bytes before everything.
    #[default]
    Magic,
    /// In the envelope, before the list. It has said what it holds, or not.
    Envelope(bool),
    /// In the list, of which so many bytes are left.
    List(u64),
    /// In the envelope, after the list.
    End,
}

/// What one step found.
enum Step {
    /// A pod, of so many bytes before the next one.
    Pod(usize),
    Nothing,
}

impl PodList {
    /// Another piece came. All pods that are there should have been taken: what was not is held.
    pub fn put(&mut self, piece: &[u8]) {
        self.buffer.put(piece);
    }

    /// The next pod that is there, as it came; `None` if that is not all there yet.
    ///
    /// # Errors
    /// It is no list of pods, or a pod in it is larger than anything that the API server has; no more comes then.
    pub fn take(&mut self) -> Result<Option<&[u8]>, Odd> {
        loop {
            match self.step()? {
                Some(Step::Pod(length)) => return Ok(Some(self.buffer.last(length))),
                Some(Step::Nothing) => {}
                None => return Ok(None),
            }
        }
    }

    /// The version of the list, after the last piece, with all pods taken.
    ///
    /// # Errors
    /// It was no list of pods, or not all of it.
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

    /// Reads one record; `None` if it is not all there yet.
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

    /// A record around the list: 1 is what it holds, 2 the list, 3 and 4 how that is written.
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
            // Nobody writes it before it says what it is, or twice.
            (2, Within::Envelope(false)) => return Err(Odd::Kind(String::new(), KIND)),
            (2, _) => return Err(self.broken("another list")),
            _ => self.pass(&head),
        }
        Ok(Some(Step::Nothing))
    }

    /// A record of the list: 1 is its metadata, 2 a pod.
    fn list(&mut self, rest: u64) -> Result<Option<Step>, Odd> {
        let Some(head) = self.head(rest)? else { return Ok(None) };
        let whole = head.length.saturating_add(head.before as u64);
        let Some(left) = rest.checked_sub(whole) else {
            return Err(self.broken("a record that is longer than what it is in"));
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

    /// How the next record begins, of which `rest` bytes can be there.
    fn head(&self, rest: u64) -> Result<Option<Head>, Odd> {
        let there = self.buffer.rest();
        let rest = usize::try_from(rest).unwrap_or(usize::MAX);
        let head = wire::head(&there[..there.len().min(rest)]);
        let head = head.map_err(|error| WireError { at: self.read + error.at, ..error })?;
        match head {
            // It does not end where what it is in does.
            None if there.len() >= rest => Err(self.broken("a record that is cut off")),
            head => Ok(head),
        }
    }

    /// The content of a record that has to be bytes, and is read with that; `None` if it is not all there yet.
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
