//! The protocol buffers wire format, preserving unknown fields.
//!
//! Decoding a message into a type and encoding it again loses the fields that the type does not have. Here a
//! message is walked field by field, by position in the received bytes, so that the rest of it can be copied.

use std::ops::Range;

/// Maximum depth of nested unknown groups, as in prost. Groups are obsolete.
const MAX_GROUPS: usize = 100;

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const GROUP: u64 = 3;
const GROUP_END: u64 = 4;
const FIXED32: u64 = 5;

/// The bytes are not a protocol buffers message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid protocol buffers message: {reason} at byte {at}")]
pub struct WireError {
    /// What is wrong.
    pub reason: &'static str,
    /// The position in the buffer, in bytes.
    pub at: usize,
}

/// One field of a message. All positions are relative to the start of the whole buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The field number.
    pub number: u32,
    /// The whole record, including its key.
    pub record: Range<usize>,
    /// The value.
    pub value: Value,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// An integer or a boolean.
    Varint(u64),
    /// A string, bytes, a message or packed numbers: the range of the content, without the length before it.
    Bytes(Range<usize>),
    /// Four or eight bytes, or a group, whose content nothing needs.
    Other,
}

/// The fields of a message, in wire order. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

/// Returns the fields of a message that is all of `bytes`.
#[must_use]
pub fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields { bytes, at: 0, end: bytes.len() }
}

/// Returns the fields of a message that is a part of `bytes`.
#[must_use]
pub fn fields_in(bytes: &[u8], part: Range<usize>) -> Fields<'_> {
    let end = part.end.min(bytes.len());
    Fields { bytes, at: part.start.min(end), end }
}

impl Iterator for Fields<'_> {
    type Item = Result<Field, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.at = self.end;
        }
        Some(field)
    }
}

impl Fields<'_> {
    #[inline]
    fn field(&mut self) -> Result<Field, WireError> {
        let start = self.at;
        let (number, kind) = self.key()?;
        let value = match kind {
            GROUP => self.group(number),
            _ => self.value(start, kind),
        }?;
        Ok(Field { number, record: start..self.at, value })
    }

    /// Decodes the value of a field that starts at `start` and is not a group.
    #[inline]
    fn value(&mut self, start: usize, kind: u64) -> Result<Value, WireError> {
        match kind {
            BYTES => Ok(Value::Bytes(self.delimited()?)),
            VARINT => Ok(Value::Varint(self.varint()?)),
            FIXED64 => self.fixed(8),
            FIXED32 => self.fixed(4),
            _ => Err(WireError { reason: "an unknown wire type", at: start }),
        }
    }

    #[inline]
    fn key(&mut self) -> Result<(u32, u64), WireError> {
        let at = self.at;
        split_key(self.varint()?, at)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, WireError> {
        match self.bytes.get(self.at) {
            Some(&byte @ ..0x80) if self.at < self.end => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, WireError> {
        let start = self.at;
        let mut value = 0;
        for (index, byte) in self.bytes[start..self.end].iter().take(10).enumerate() {
            // The tenth byte has only the last of the 64 bits.
            if index == 9 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.at = start + index + 1;
                return Ok(value);
            }
        }
        let is_truncated = self.end - start < 10;
        let reason = if is_truncated { "a truncated number" } else { "a number of more than 64 bits" };
        Err(WireError { reason, at: start })
    }

    #[inline]
    fn delimited(&mut self) -> Result<Range<usize>, WireError> {
        let at = self.at;
        let length = self.varint()?;
        match usize::try_from(length) {
            Ok(length) if length <= self.end - self.at => {
                let start = self.at;
                self.at += length;
                Ok(start..self.at)
            }
            _ => Err(WireError { reason: "a field that exceeds its message", at }),
        }
    }

    fn fixed(&mut self, length: usize) -> Result<Value, WireError> {
        if self.end - self.at < length {
            return Err(WireError { reason: "a truncated number", at: self.at });
        }
        self.at += length;
        Ok(Value::Other)
    }

    /// Skips a group and those in it, without recursion.
    fn group(&mut self, number: u32) -> Result<Value, WireError> {
        let start = self.at;
        let mut open = vec![number];
        loop {
            let at = self.at;
            if at >= self.end {
                return Err(WireError { reason: "a group without end", at: start });
            }
            let (number, kind) = self.key()?;
            match kind {
                GROUP if open.len() < MAX_GROUPS => open.push(number),
                GROUP => return Err(WireError { reason: "too many nested groups", at }),
                GROUP_END if open.pop() == Some(number) => {
                    if open.is_empty() {
                        return Ok(Value::Other);
                    }
                }
                GROUP_END => return Err(WireError { reason: "the end of another group", at }),
                _ => {
                    self.value(at, kind)?;
                }
            }
        }
    }
}

/// Splits the key of a field into its number and wire type.
#[inline]
fn split_key(key: u64, at: usize) -> Result<(u32, u64), WireError> {
    match u32::try_from(key >> 3) {
        Ok(number) if number > 0 && key <= u64::from(u32::MAX) => Ok((number, key & 7)),
        _ => Err(WireError { reason: "an invalid field number", at }),
    }
}

/// The header of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The field number.
    pub number: u32,
    /// Whether it is a string, bytes, a message or packed numbers.
    pub is_bytes: bool,
    /// The number of bytes before the content: the key, and the length of length-delimited fields.
    pub before: usize,
    /// The number of bytes of the content. It is not checked that they are present.
    pub length: u64,
}

/// Decodes the header of the first field of `bytes`, which may be incomplete; `None` if more bytes are
/// needed.
///
/// # Errors
/// It is not a field, or it is a group, which is obsolete.
pub fn head(bytes: &[u8]) -> Result<Option<Head>, WireError> {
    let Some((key, key_bytes)) = first_varint(bytes, 0)? else { return Ok(None) };
    let (number, kind) = split_key(key, 0)?;
    let head = |length| Head { number, is_bytes: false, before: key_bytes, length };
    match kind {
        BYTES => Ok(first_varint(bytes, key_bytes)?.map(|(length, length_bytes)| Head {
            is_bytes: true,
            before: key_bytes + length_bytes,
            ..head(length)
        })),
        VARINT => Ok(first_varint(bytes, key_bytes)?.map(|(_, length)| head(length as u64))),
        FIXED64 => Ok(Some(head(8))),
        FIXED32 => Ok(Some(head(4))),
        _ => Err(WireError { reason: "an unknown wire type", at: 0 }),
    }
}

/// Returns the varint at `at` and its size; `None` if it is incomplete.
fn first_varint(bytes: &[u8], at: usize) -> Result<Option<(u64, usize)>, WireError> {
    let mut rest = Fields { bytes, at, end: bytes.len() };
    match rest.varint() {
        Ok(value) => Ok(Some((value, rest.at - at))),
        Err(_) if bytes.len() - at < 10 && bytes[at..].iter().all(|byte| *byte >= 0x80) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Encodes a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Encodes a varint field.
pub fn put_number(out: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(out, u64::from(number) << 3 | VARINT);
    put_varint(out, value);
}

/// Encodes the key and length of a length-delimited field.
pub fn put_head(out: &mut Vec<u8>, number: u32, length: usize) {
    put_varint(out, u64::from(number) << 3 | BYTES);
    put_varint(out, length as u64);
}

/// Encodes a string, bytes or an encoded message as a field.
pub fn put_bytes(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    put_head(out, number, content.len());
    out.extend_from_slice(content);
}

#[cfg(test)]
mod tests;
