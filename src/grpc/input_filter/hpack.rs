//! The structure of HPACK header blocks (RFC 7541).

use std::ops::RangeInclusive;

use super::huffman::{decoded_length, encode_letters};

/// Index of `:authority` in the static table (Appendix A).
const AUTHORITY: usize = 1;
pub(super) const AUTHORITY_NAME: &[u8] = b":authority";
/// The same in Huffman code.
pub(super) const CODED_AUTHORITY_NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// Indexes of the pseudo-header fields in the static table.
const PSEUDO_FIELDS: RangeInclusive<usize> = 1..=14;
/// Index of the first entry of the dynamic table (2.3.3).
const FIRST_DYNAMIC: usize = 62;

/// Maximum number of buffers that pseudo-header fields in a client's table may keep. Each path that it calls,
/// and its `:authority`, may be there twice, among thousands of timeouts.
pub(super) const BUFFER_LIMIT: u32 = 16;
/// Minimum size of h2's buffers, in bytes.
const BUFFER_SIZE: u64 = 8192;

/// Model of h2's dynamic table: one bit per entry, the newest first. 4 KiB have room for at most 128 entries
/// of 32 bytes or more each (4.1). Entries evicted earlier are counted nevertheless.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Entries whose name begins with a colon.
    pseudo: u128,
    /// Those of them that were the first in their buffer.
    first: u128,
    /// The number of the buffer being read into, and of the one counted last; from 1.
    buffer: u64,
    counted: u64,
}

impl Table {
    /// Records that a header frame begins at this byte.
    pub(super) fn start_frame(&mut self, position: u64) {
        self.buffer = position / BUFFER_SIZE + 1;
    }

    fn insert(&mut self, is_pseudo: bool) {
        let is_first = is_pseudo && self.counted != self.buffer;
        if is_first {
            self.counted = self.buffer;
        }
        self.pseudo = self.pseudo << 1 | u128::from(is_pseudo);
        self.first = self.first << 1 | u128::from(is_first);
    }

    /// Records a frame that may insert anything: from now on, any entry's name may be that of a pseudo-header
    /// field.
    pub(super) fn insert_unknown(&mut self) {
        self.insert(true);
        self.pseudo = u128::MAX;
    }

    /// Returns true if this entry, of either table, has the name of a pseudo-header field.
    fn is_pseudo(&self, index: usize) -> bool {
        match index.checked_sub(FIRST_DYNAMIC) {
            Some(at) => at < 128 && self.pseudo >> at & 1 == 1,
            None => PSEUDO_FIELDS.contains(&index),
        }
    }

    /// Returns the number of buffers that the table may keep.
    pub(super) fn buffers(&self) -> u32 {
        self.first.count_ones()
    }
}

/// Overwrites every value of `:authority`, adds the bytes of those that are Huffman-coded to `coded_bytes`,
/// and returns the number of fields; `None` if the block could not be parsed to its end.
pub(super) fn overwrite_authority(
    mut block: &mut [u8],
    table: &mut Table,
    coded_bytes: &mut usize,
) -> Option<usize> {
    let mut fields = 0;
    while !block.is_empty() {
        let (authority, rest) = parse_field(block, table)?;
        if let Some(value) = authority {
            *coded_bytes += if value.is_coded { value.bytes.len() } else { 0 };
            value.overwrite();
        }
        block = rest;
        fields += 1;
    }
    Some(fields)
}

/// Parses one field (6) and returns its value if it is an `:authority`, and the rest of the block.
fn parse_field<'a>(block: &'a mut [u8], table: &mut Table) -> Option<(Option<Literal<'a>>, &'a mut [u8])> {
    let (prefix, is_inserted) = match *block.first()? {
        // An indexed field, or a table size update.
        0x80.. => return Some((None, parse_integer(block, 7)?.1)),
        0x20..=0x3f => return Some((None, parse_integer(block, 5)?.1)),
        0x40..=0x7f => (6, true),
        _ => (4, false),
    };
    let (index, rest) = parse_integer(block, prefix)?;
    let (is_authority, is_pseudo, rest) = if index == 0 {
        let (name, rest) = parse_literal(rest)?;
        let authority = if name.is_coded { CODED_AUTHORITY_NAME } else { AUTHORITY_NAME };
        (name.bytes == authority, name.is_pseudo(), rest)
    } else {
        (index == AUTHORITY, table.is_pseudo(index), rest)
    };
    let (value, rest) = parse_literal(rest)?;
    if is_inserted {
        table.insert(is_pseudo);
    }
    Some((is_authority.then_some(value), rest))
}

fn parse_literal(block: &mut [u8]) -> Option<(Literal<'_>, &mut [u8])> {
    let is_coded = block.first()? & 0x80 != 0;
    let (length, rest) = parse_integer(block, 7)?;
    let (bytes, rest) = rest.split_at_mut_checked(length)?;
    Some((Literal { is_coded, bytes }, rest))
}

/// Parses an integer with a prefix of `bits` bits (5.1). Values above 2^20 make no sense here.
pub(super) fn parse_integer(block: &mut [u8], bits: u8) -> Option<(usize, &mut [u8])> {
    let (first, mut rest) = block.split_first_mut()?;
    let max = (1 << bits) - 1;
    let mut value = usize::from(*first & max);
    if value < usize::from(max) {
        return Some((value, rest));
    }
    for shift in [0, 7, 14] {
        let (byte, behind) = rest.split_first_mut()?;
        rest = behind;
        value += usize::from(*byte & 0x7f) << shift;
        if *byte & 0x80 == 0 {
            return Some((value, rest));
        }
    }
    None
}

/// A string literal (5.2).
pub(super) struct Literal<'a> {
    pub(super) is_coded: bool,
    pub(super) bytes: &'a mut [u8],
}

impl Literal<'_> {
    /// Returns true if it begins with a colon, whose Huffman code has 7 bits.
    fn is_pseudo(&self) -> bool {
        let is_colon = |first: &u8| if self.is_coded { first >> 1 == 0x5c } else { *first == b':' };
        self.bytes.first().is_some_and(is_colon)
    }

    /// Overwrites it with letters: as many as it had characters, in as many bytes. A Huffman code that does
    /// not decode, or is longer than what it encodes, is left unchanged.
    pub(super) fn overwrite(self) {
        if !self.is_coded {
            self.bytes.fill(b'a');
        } else if let Some(length) = decoded_length(self.bytes) {
            encode_letters(self.bytes, length);
        }
    }
}
