//! Splits a Kubernetes list in JSON while it arrives: one item at a time is buffered and decoded. An item
//! that is too large is left out: its creator must not be able to hide all others.

mod item_buffer;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::Deserialize;
use tracing::warn;

use crate::util::log_throttle::LastLogged;
use item_buffer::ItemBuffer;
pub(crate) use item_buffer::MAX_ITEM_BYTES;

/// An incremental splitter.
#[derive(Debug, Default)]
pub(crate) struct ListSplitter {
    /// Number of open objects and arrays.
    depth: usize,
    /// Set inside a string; true after a `\` that starts an escape.
    string: Option<bool>,
    /// The last string in the outermost object, truncated to the length needed to recognize a key.
    key: Vec<u8>,
    position: Position,
    /// The incoming item.
    item: ItemBuffer,
    /// The list without its items.
    list: Vec<u8>,
    has_items: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// Before the outermost object.
    #[default]
    Start,
    /// In the outermost object, but not in `items`.
    List,
    /// In the array `items`.
    Items,
    /// After the outermost object.
    End,
}

/// A list that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct List {
    /// Its resource version.
    pub(crate) version: Option<String>,
    /// Whether it has `items`, if only null.
    pub(crate) has_items: bool,
    /// A message about items that were too large, if there are any.
    pub(crate) omitted: Option<String>,
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    metadata: ListMeta,
}

impl ListSplitter {
    /// Adds the next chunk, and passes each complete item to `take`, except those that are too large.
    ///
    /// # Errors
    /// The list is invalid, or `take` fails. The splitter is then unusable.
    pub(crate) fn push(
        &mut self,
        piece: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut rest = piece;
        while let Some((first, more)) = rest.split_first() {
            // Inside a string, take everything up to the next special byte at once.
            let plain = match self.string {
                Some(false) => rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\')).count(),
                _ => 0,
            };
            if plain > 0 {
                let (taken, left) = rest.split_at(plain);
                self.keep(taken);
                rest = left;
            } else {
                self.keep(std::slice::from_ref(first));
                self.step(*first, &mut take)?;
                rest = more;
            }
        }
        match self.list.len() > MAX_ITEM_BYTES {
            true => Err(format!("it is larger than {MAX_ITEM_BYTES} bytes without its items")),
            false => Ok(()),
        }
    }

    /// Returns the list once all of it has arrived.
    ///
    /// # Errors
    /// The list is invalid or incomplete.
    pub(crate) fn finish(self) -> Result<List, String> {
        if self.position != Position::End {
            return Err("it is not a complete list".to_owned());
        }
        let envelope: Envelope = serde_json::from_slice(&self.list).map_err(|error| error.to_string())?;
        let version = envelope.metadata.resource_version;
        Ok(List { version, has_items: self.has_items, omitted: self.item.omitted() })
    }

    /// Buffers bytes of the incoming item, or of the list around the items.
    fn keep(&mut self, bytes: &[u8]) {
        if self.position != Position::Items {
            self.list.extend_from_slice(bytes);
        } else if self.depth > 2 {
            self.item.push(bytes);
        }
        if self.depth == 1 && self.string.is_some() && self.key.len() <= "items".len() {
            self.key.extend(bytes.iter().take(8));
        }
    }

    fn step(
        &mut self,
        byte: u8,
        take: &mut impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        match (self.string, byte) {
            (Some(true), _) => self.string = Some(false),
            (Some(false), b'\\') => self.string = Some(true),
            (Some(false), b'"') => self.string = None,
            (Some(false), _) => {}
            (None, b'"') => {
                self.string = Some(false);
                if self.depth == 1 {
                    self.key.clear();
                }
            }
            (None, b'{' | b'[') => return self.open(byte),
            (None, b'}' | b']') => return self.close(byte, take),
            // Go writes null for an empty list.
            (None, b'n') if self.is_at_items() => self.has_items = true,
            (None, _) if self.depth == 0 && !byte.is_ascii_whitespace() => return Err(not_a_list()),
            (None, _) => {}
        }
        Ok(())
    }

    /// Returns true if the next value is that of `items`. The buffered key includes its closing quotation
    /// mark.
    fn is_at_items(&self) -> bool {
        self.position == Position::List && self.depth == 1 && !self.has_items && self.key == b"items\""
    }

    fn open(&mut self, byte: u8) -> Result<(), String> {
        match (self.position, self.depth, byte) {
            (Position::Start, 0, b'{') => self.position = Position::List,
            (Position::List, 1, b'[') if self.is_at_items() => {
                (self.position, self.has_items) = (Position::Items, true);
            }
            (Position::Items, 2, b'{') => self.item.push(&[byte]),
            (Position::Items, 2, _) | (_, 0, _) => return Err(not_a_list()),
            _ => {}
        }
        self.depth += 1;
        Ok(())
    }

    fn close(
        &mut self,
        byte: u8,
        take: &mut impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        self.depth = self.depth.checked_sub(1).ok_or_else(not_a_list)?;
        match (self.position, self.depth) {
            (Position::Items, 2) => self.item.end(take).unwrap_or(Ok(()))?,
            (Position::Items, 1) => {
                self.position = Position::List;
                self.list.push(byte);
            }
            (_, 0) => self.position = Position::End,
            _ => {}
        }
        Ok(())
    }
}

fn not_a_list() -> String {
    "it is not a list of objects".to_owned()
}

/// Logs the message about the items that were left out of a list, unless there were some in the list before.
pub(crate) fn log_omitted(log: &LastLogged, list: &str, message: Option<&str>) {
    match message {
        Some(message) if log.is_new(()) => warn!("{list}: {message}"),
        Some(_) => {}
        None => {
            log.reset();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
