//! Splits a Kubernetes list in JSON while it arrives: one item at a time is buffered and decoded. An item
//! that is too large is left out: its creator must not be able to hide all others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::Deserialize;
use tracing::warn;

use crate::util::log_throttle::LastLogged;

/// Maximum size of an item in JSON. etcd accepts 1.5 MiB by default, and JSON writers of Go escape characters
/// such as `<` as six bytes: 9 MiB.
pub(crate) const MAX_ITEM_BYTES: usize = 10 << 20;

/// The part of an item that is too large in which its name is looked for. Kubernetes writes names first.
const NAME_BYTES: usize = 1 << 10;
const UNNAMED: &str = "an item without a known name";

#[derive(Debug, Default)]
pub(crate) struct ListSplitter {
    /// Number of open objects and arrays.
    depth: usize,
    /// Set inside a string; true after a `\` that starts an escape.
    string: Option<bool>,
    /// The last string in the outermost object, truncated to the length needed to recognize a key.
    key: Vec<u8>,
    position: Position,
    /// The incoming item. One that is too large is truncated to a byte more than the maximum.
    item: Vec<u8>,
    /// The name of the first item that was too large, and the number of such items.
    omitted: Option<(String, usize)>,
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

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct List {
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
        while let Some(first) = rest.first() {
            // Take as much as possible at once.
            let plain = match (self.position, self.string) {
                (Position::Items, _) if self.depth > 2 => self.scan_item(rest),
                (_, Some(false)) => rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\')).count(),
                _ => 0,
            };
            let (taken, left) = rest.split_at(plain.max(1));
            self.keep(taken);
            if plain == 0 {
                self.step(*first, &mut take)?;
            }
            rest = left;
        }
        match self.list.len() > MAX_ITEM_BYTES {
            true => Err(format!("it is larger than {MAX_ITEM_BYTES} bytes without its items")),
            false => Ok(()),
        }
    }

    /// Returns the list once all of it has arrived.
    pub(crate) fn finish(self) -> Result<List, String> {
        if self.position != Position::End {
            return Err("it is not a complete list".to_owned());
        }
        let envelope: Envelope = serde_json::from_slice(&self.list).map_err(|error| error.to_string())?;
        let omitted = self.omitted.map(|(first, count)| {
            let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            format!("{first}{more}: larger than {MAX_ITEM_BYTES} bytes in JSON and left out")
        });
        Ok(List { version: envelope.metadata.resource_version, has_items: self.has_items, omitted })
    }

    /// Buffers bytes of the incoming item, or of the list around the items.
    fn keep(&mut self, bytes: &[u8]) {
        if self.position != Position::Items {
            self.list.extend_from_slice(bytes);
        } else if self.depth > 2 {
            let room = MAX_ITEM_BYTES + 1 - self.item.len();
            self.item.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        if self.depth == 1 && self.string.is_some() && self.key.len() <= "items".len() {
            self.key.extend(bytes.iter().take(8));
        }
    }

    /// Follows the bytes of an item, and returns how many there are before its end.
    fn scan_item(&mut self, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            match (self.string, byte) {
                (Some(true), _) => self.string = Some(false),
                (Some(false), b'\\') => self.string = Some(true),
                (Some(false), b'"') => self.string = None,
                (Some(false), _) => {}
                (None, b'"') => self.string = Some(false),
                (None, b'{' | b'[') => self.depth += 1,
                (None, b'}' | b']') if self.depth == 3 => return at,
                (None, b'}' | b']') => self.depth -= 1,
                (None, _) => {}
            }
        }
        bytes.len()
    }

    fn step(&mut self, byte: u8, take: impl FnOnce(&[u8]) -> Result<(), String>) -> Result<(), String> {
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
            (None, b'{' | b'[') => {
                match (self.position, self.depth, byte) {
                    (Position::Start, 0, b'{') => self.position = Position::List,
                    (Position::List, 1, b'[') if self.is_at_items() => {
                        (self.position, self.has_items) = (Position::Items, true);
                    }
                    (Position::Items, 2, b'{') => self.item.push(byte),
                    (Position::Items, 2, _) | (_, 0, _) => return Err(not_a_list()),
                    _ => {}
                }
                self.depth += 1;
            }
            (None, b'}' | b']') => {
                self.depth = self.depth.checked_sub(1).ok_or_else(not_a_list)?;
                match (self.position, self.depth) {
                    (Position::Items, 2) => return self.end_item(take),
                    (Position::Items, 1) => {
                        self.position = Position::List;
                        self.list.push(byte);
                    }
                    (_, 0) => self.position = Position::End,
                    _ => {}
                }
            }
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

    /// Passes the item to `take` unless it is too large.
    fn end_item(&mut self, take: impl FnOnce(&[u8]) -> Result<(), String>) -> Result<(), String> {
        let result = match self.item.len() <= MAX_ITEM_BYTES {
            true => take(&self.item),
            false => {
                let first = || name(&self.item[..NAME_BYTES]).unwrap_or_else(|| UNNAMED.to_owned());
                self.omitted.get_or_insert_with(|| (first(), 0)).1 += 1;
                Ok(())
            }
        };
        self.item.clear();
        result
    }
}

fn not_a_list() -> String {
    "it is not a list of objects".to_owned()
}

/// Returns namespace and name from the beginning of an object as Kubernetes writes it in a list.
fn name(beginning: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(beginning);
    let (name, rest) = text.strip_prefix(r#"{"metadata":{"name":""#)?.split_once('"')?;
    let namespace = rest.split_once(r#""namespace":""#).and_then(|(_, rest)| rest.split_once('"'));
    Some(namespace.map_or_else(|| name.to_owned(), |(namespace, _)| format!("{namespace}/{name}")))
}

/// Logs the message about the items that were left out of a list, unless there were some in the list before.
pub(crate) fn log_omitted(log: &LastLogged, list: &str, message: Option<&str>) {
    match message {
        Some(message) if log.is_new(()) => warn!("{list}: {message}"),
        Some(_) => {}
        None => _ = log.reset(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
