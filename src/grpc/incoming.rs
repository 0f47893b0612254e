//! Filters the bytes a client sends, on their way to h2.
//!
//! `:authority`: grpc-go and gRPC's C core set it to the target they dialed; for a unix socket that is its
//! path, raw (`/run/x.sock`) or escaped (`%2Frun%2Fx.sock`). Neither is a valid URI authority, and h2 refuses
//! the request with `PROTOCOL_ERROR` (h2 0.4 `server.rs`, `convert_poll_message`; hyperium/h2 #487). The
//! value is not needed here, so it is overwritten **in place, by one of the same length**, decoded and
//! encoded: the client's HPACK table and h2's then have entries of the same sizes at the same indexes, and
//! only the structure has to be decoded here. h2 still parses and validates every byte; what is not
//! understood here is passed on unchanged.
//!
//! Memory that h2 may keep for a connection is also bounded here, where h2 has no limit of its own:
//! - h2 reads everything available before it hands out a request. So it is given one header frame at a time.
//! - A pseudo-header field in its HPACK table keeps the whole buffer that it was read into, 8 to 24 KiB,
//!   however short the field is. So a connection is closed if its table may keep too many of them
//!   ([`Table`]), or more than there is room for ([`Pace::keep`]).
//! - A header block is kept until its end. So a block larger than a frame closes the connection.
//!
//! Left alone, and so refused by h2 if it is not a valid authority: a value in a CONTINUATION frame, and one
//! whose name is an index into the dynamic table. Clients have no reason for either: `:authority` is in the
//! static table and comes first.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Length of the client preface: `PRI * HTTP/2.0` and what follows (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// Length of a frame header: length, type, flags and stream (RFC 9113, 4.1).
const HEAD: usize = 9;
/// The frame size that we advertise, the smallest allowed (RFC 9113, 6.5.2). h2 closes the connection for
/// larger frames.
const MAX_FRAME: usize = 16_384;
/// Bytes per read.
const CHUNK: usize = 4096;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Frame costs are in units of 0.36 µs of CPU time, as measured. This is the cost of a request, including its
/// processing in h2 and here.
const REQUEST: usize = 16;
/// The cost of one header field. A field in the HPACK table is one byte on the wire, which h2 expands to a
/// full field.
const FIELD: usize = 1;
/// Bytes of header fields that cost one more unit, for Huffman decoding.
const BYTES_OF_FIELDS: usize = 128;
/// Bytes of a Huffman-coded `:authority` that cost one more unit: it is decoded and encoded here bit by bit.
const BYTES_OF_AUTHORITY: usize = 6;
/// Maximum number of fields charged for a frame that was not understood: a frame with more closes the
/// connection.
const MOST_FIELDS: usize = 1024;
/// The cost of PING, SETTINGS, RST_STREAM and other frames that need a reply or serve no purpose.
const DEAR: usize = 4;
/// The cost of DATA and WINDOW_UPDATE.
const CHEAP: usize = 2;
/// Bytes of any frame that cost one more unit.
const BYTES: usize = 1024;
/// The minimum cost of what arrives with one read, for which the connection's task was woken.
const READ: usize = 8;

/// A client's stream, with every `:authority` overwritten. Where frames flood, it is read no faster than
/// [`Pace::pace`] allows.
#[derive(Debug)]
pub(super) struct Incoming<T, P> {
    inner: T,
    pace: P,
    /// Received bytes not handed out yet. At most a HEADERS frame and what arrived with its end; deallocated
    /// when empty.
    held: Vec<u8>,
    /// How many bytes of `held` have been handed out.
    given: usize,
    /// How many bytes of `held` have been inspected and may be handed out.
    seen: usize,
    /// Upcoming bytes that pass unchanged.
    pass: usize,
    /// Whether `pass` ends a header frame.
    in_fields: bool,
    /// A header frame was handed out: the reader processes it before it is given more.
    turn: bool,
    /// Bytes of header fields since the start of their block.
    block: usize,
    /// Bytes inspected since the start of the connection.
    position: u64,
    table: Table,
    /// Reading is paused until it completes.
    pause: Option<Pin<Box<Sleep>>>,
    /// The last write was pending.
    blocked: bool,
}

/// The rate limit and memory budget of a stream.
pub(super) trait Pace {
    /// Charges the cost of received frames and returns how long to wait before reading more.
    fn pace(&self, cost: usize) -> Duration;

    /// Reserves room for the buffers that the HPACK table may keep now, replacing the previous reservation;
    /// returns false if there is none.
    fn keep(&mut self, buffers: u32) -> bool;

    /// Reports whether a write is waiting for the client to read.
    fn blocked(&self, blocked: bool);
}

impl<T, P: Pace> Incoming<T, P> {
    pub(super) fn new(inner: T, pace: P) -> Self {
        Self {
            inner,
            pace,
            held: Vec::new(),
            given: 0,
            seen: 0,
            pass: PREFACE,
            in_fields: false,
            turn: false,
            block: 0,
            position: 0,
            table: Table::default(),
            pause: None,
            blocked: false,
        }
    }

    /// Inspects received bytes, up to the end of a header frame, and returns their cost.
    fn look(&mut self) -> io::Result<usize> {
        let mut cost = 0;
        loop {
            let passing = self.pass.min(self.held.len() - self.seen);
            self.seen += passing;
            self.position += passing as u64;
            self.pass -= passing;
            if self.pass > 0 {
                return Ok(cost);
            }
            if std::mem::take(&mut self.in_fields) {
                self.turn = true;
                return Ok(cost);
            }
            let [a, b, c, kind, flags, _, _, _, _, payload @ ..] = &mut self.held[self.seen..] else {
                return Ok(cost);
            };
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            let (mut fields, mut coded) = (length.min(MOST_FIELDS), 0);
            if *kind == HEADERS && length <= MAX_FRAME {
                // The rest of the frame has not arrived yet.
                let Some(payload) = payload.get_mut(..length) else { return Ok(cost) };
                self.table.frame(self.position);
                let known =
                    block(payload, *flags).and_then(|block| overwrite(block, &mut self.table, &mut coded));
                fields = known.unwrap_or(fields);
                if known.is_none() || *flags & END_HEADERS == 0 {
                    self.table.unknown();
                }
                self.block = length;
            } else if *kind == CONTINUATION {
                self.table.frame(self.position);
                self.table.unknown();
                self.block += length;
            }
            self.in_fields = matches!(*kind, HEADERS | CONTINUATION);
            let buffers = self.table.buffers();
            if self.block > MAX_FRAME || buffers > BUFFERS || !self.pace.keep(buffers) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its fields take too much room"));
            }
            cost += match *kind {
                HEADERS | CONTINUATION => {
                    REQUEST + FIELD * fields + length / BYTES_OF_FIELDS + coded / BYTES_OF_AUTHORITY
                }
                WINDOW_UPDATE => CHEAP,
                DATA if length > 0 => CHEAP + length / BYTES,
                _ => DEAR + length / BYTES,
            };
            self.pass = HEAD + length;
        }
    }

    /// Inspects received bytes and pays for them, at least `least`.
    fn look_and_pay(&mut self, least: usize) -> io::Result<()> {
        let cost = self.look()?.max(least);
        if cost > 0 {
            let pause = self.pace.pace(cost);
            self.pause = (!pause.is_zero()).then(|| Box::pin(sleep(pause)));
        }
        Ok(())
    }

    /// Tracks whether the client reads, by whether writes are pending.
    fn written<R>(&mut self, written: Poll<R>) -> Poll<R> {
        if self.blocked != written.is_pending() {
            self.blocked = written.is_pending();
            self.pace.blocked(self.blocked);
        }
        written
    }

    /// Hands out inspected bytes.
    fn give(&mut self, out: &mut ReadBuf<'_>) {
        let given = out.remaining().min(self.seen - self.given);
        out.put_slice(&self.held[self.given..self.given + given]);
        self.given += given;
        if self.given == self.held.len() {
            // An idle connection keeps no buffer.
            (self.held, self.given, self.seen) = (Vec::new(), 0, 0);
        } else if self.given == self.seen {
            self.held.drain(..self.given);
            (self.given, self.seen) = (0, 0);
        }
    }
}

impl<T: AsyncRead + Unpin, P: Pace + Unpin> AsyncRead for Incoming<T, P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.given == self.seen {
            if std::mem::take(&mut self.turn) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            self.look_and_pay(0)?;
            if self.given < self.seen {
                break;
            }
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut self.inner).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                // End of stream, possibly inside a frame: h2 handles that.
                self.seen = self.held.len();
                break;
            }
            self.held.extend_from_slice(chunk.filled());
            self.look_and_pay(READ)?;
        }
        self.give(out);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin, P: Pace + Unpin> AsyncWrite for Incoming<T, P> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Returns the fields in a HEADERS frame, without padding and priority (RFC 9113, 6.2).
fn block(payload: &mut [u8], flags: u8) -> Option<&mut [u8]> {
    let padding = if flags & PADDED == 0 { 0 } else { usize::from(*payload.first()?) };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { 5 };
    let end = payload.len().checked_sub(padding)?;
    payload.get_mut(start..end)
}

/// The index of `:authority` in the static table (RFC 7541, Appendix A).
const STATIC: usize = 1;
const NAME: &[u8] = b":authority";
/// The same in the Huffman code of RFC 7541, Appendix B.
const CODED_NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// Maximum number of buffers that pseudo-header fields in a client's table may keep. Each path that it calls,
/// and its `:authority`, may be there twice, among thousands of timeouts.
const BUFFERS: u32 = 16;
/// Minimum size of h2's buffers, in bytes.
const BUFFER: u64 = 8192;
/// Index of the first entry of the dynamic table (RFC 7541, 2.3.3).
const DYNAMIC: usize = 62;
/// Indexes of the pseudo-header fields in the static table.
const PSEUDO: std::ops::RangeInclusive<usize> = 1..=14;

/// Model of h2's HPACK table: one bit per entry, the newest first. 4 KiB have room for at most 128 entries of
/// 32 bytes or more each (RFC 7541, 4.1). Entries evicted earlier are counted nevertheless.
#[derive(Debug, Default)]
struct Table {
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
    fn frame(&mut self, position: u64) {
        self.buffer = position / BUFFER + 1;
    }

    fn insert(&mut self, pseudo: bool) {
        let first = pseudo && self.counted != self.buffer;
        if first {
            self.counted = self.buffer;
        }
        self.pseudo = self.pseudo << 1 | u128::from(pseudo);
        self.first = self.first << 1 | u128::from(first);
    }

    /// Records a frame that may insert anything: from now on, any entry's name may be that of a pseudo-header
    /// field.
    fn unknown(&mut self) {
        self.insert(true);
        self.pseudo = u128::MAX;
    }

    /// Returns true if this entry, of either table, has the name of a pseudo-header field.
    fn is_pseudo(&self, index: usize) -> bool {
        match index.checked_sub(DYNAMIC) {
            Some(at) => at < 128 && self.pseudo >> at & 1 == 1,
            None => PSEUDO.contains(&index),
        }
    }

    fn buffers(&self) -> u32 {
        self.first.count_ones()
    }
}

/// Overwrites every value of `:authority`, adds the bytes of those that are Huffman-coded to `coded`, and
/// returns the number of fields; `None` if the block could not be parsed to its end.
fn overwrite(mut block: &mut [u8], table: &mut Table, coded: &mut usize) -> Option<usize> {
    let mut fields = 0;
    while !block.is_empty() {
        let (value, rest) = field(block, table)?;
        if let Some(value) = value {
            *coded += if value.coded { value.bytes.len() } else { 0 };
            value.blank();
        }
        block = rest;
        fields += 1;
    }
    Some(fields)
}

/// A string literal (RFC 7541, 5.2).
struct Literal<'a> {
    coded: bool,
    bytes: &'a mut [u8],
}

/// Parses one field (RFC 7541, 6) and returns its value if it is an `:authority`, and the rest of the block.
fn field<'a>(block: &'a mut [u8], table: &mut Table) -> Option<(Option<Literal<'a>>, &'a mut [u8])> {
    let (prefix, inserted) = match *block.first()? {
        // An indexed field, or a table size update.
        0x80.. => return Some((None, integer(block, 7)?.1)),
        0x20..=0x3f => return Some((None, integer(block, 5)?.1)),
        0x40..=0x7f => (6, true),
        _ => (4, false),
    };
    let (index, rest) = integer(block, prefix)?;
    let (authority, pseudo, rest) = if index == 0 {
        let (name, rest) = literal(rest)?;
        (name.bytes == if name.coded { CODED_NAME } else { NAME }, name.is_pseudo(), rest)
    } else {
        (index == STATIC, table.is_pseudo(index), rest)
    };
    let (value, rest) = literal(rest)?;
    if inserted {
        table.insert(pseudo);
    }
    Some((authority.then_some(value), rest))
}

fn literal(block: &mut [u8]) -> Option<(Literal<'_>, &mut [u8])> {
    let coded = block.first()? & 0x80 != 0;
    let (length, rest) = integer(block, 7)?;
    let (bytes, rest) = rest.split_at_mut_checked(length)?;
    Some((Literal { coded, bytes }, rest))
}

/// Parses an integer with a prefix of `bits` bits (RFC 7541, 5.1). Values above 2^20 make no sense here.
fn integer(block: &mut [u8], bits: u8) -> Option<(usize, &mut [u8])> {
    let (first, mut rest) = block.split_first_mut()?;
    let most = (1 << bits) - 1;
    let mut value = usize::from(*first & most);
    if value < usize::from(most) {
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

impl Literal<'_> {
    /// Returns true if it begins with a colon, whose Huffman code has 7 bits.
    fn is_pseudo(&self) -> bool {
        self.bytes.first().is_some_and(|first| if self.coded { first >> 1 == 0x5c } else { *first == b':' })
    }

    /// Overwrites it with letters: as many as it had characters, in as many bytes. A Huffman code that does
    /// not decode, or is longer than what it encodes, is left unchanged.
    fn blank(self) {
        if !self.coded {
            self.bytes.fill(b'a');
        } else if let Some(length) = decoded_length(self.bytes) {
            encode_letters(self.bytes, length);
        }
    }
}

/// Number of characters by the length of their Huffman code in bits, from 0 (RFC 7541, Appendix B). The code
/// is canonical: codes of one length are consecutive numbers, and the first code of the next length follows
/// the last one, with zeros appended. The last code of 30 bits is the end of string, which must not occur.
const CODES: [u32; 31] =
    [0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 3];

/// Returns the number of characters in a Huffman-coded string; `None` if it is not well formed.
fn decoded_length(bytes: &[u8]) -> Option<usize> {
    let mut characters = 0;
    // The code so far, its length, and the first code of that length.
    let (mut code, mut length, mut first) = (0_u32, 0, 0_u32);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
        length += 1;
        (code, first) = (code << 1 | bit, first << 1);
        let count = *CODES.get(length)?;
        if code - first < count {
            characters += 1;
            (code, length, first) = (0, 0, 0);
        } else {
            first += count;
        }
    }
    // The remainder is padding: a prefix of the end of string, shorter than a byte.
    (length < 8 && code == (1 << length) - 1).then_some(characters)
}

/// A letter for each code length that letters have, from 5 bits: `a`, `b`, `B` and `X`.
const LETTERS: [u8; 4] = [0b0_0011, 0b10_0011, 0b101_1101, 0b1111_1100];

/// Fills `bytes` exactly with this number of Huffman-coded letters.
fn encode_letters(bytes: &mut [u8], characters: usize) {
    let bits = (8 * bytes.len()).min(8 * characters);
    // An empty value has nothing to fill, more bytes than characters cannot be filled, and codes shorter than
    // 5 bits do not exist.
    if characters == 0 || bytes.len() > characters || bits < 5 * characters {
        return;
    }
    let (each, longer) = (bits / characters, bits % characters);
    let lengths = (0..characters).map(|at| each + usize::from(at < longer));
    let bits = lengths.flat_map(|length| (0..length).rev().map(move |at| LETTERS[length - 5] >> at & 1));
    // The last byte is padded with ones.
    let mut bits = bits.chain(std::iter::repeat(1));
    for byte in bytes {
        *byte = bits.by_ref().take(8).fold(0, |byte, bit| byte << 1 | bit);
    }
}

/// Returns what h2 is given for a client's first bytes. For the fuzzer, which cannot connect.
#[must_use]
pub fn made_acceptable(sent: &[u8], chunk: usize) -> Vec<u8> {
    let mut incoming = Incoming::new((), ());
    let mut given = Vec::new();
    let mut chunks = sent.chunks(chunk.max(1));
    for chunk in &mut chunks {
        incoming.held.extend_from_slice(chunk);
        let looked = loop {
            let looked = incoming.look();
            if looked.is_err() || incoming.given == incoming.seen {
                break looked;
            }
            let mut out = vec![0; incoming.held.len()];
            let mut out = ReadBuf::new(&mut out);
            incoming.give(&mut out);
            given.extend_from_slice(out.filled());
        };
        if looked.is_err() {
            break;
        }
    }
    given.extend_from_slice(&incoming.held[incoming.given..]);
    given.extend(chunks.flatten());
    given
}

impl Pace for () {
    fn pace(&self, _: usize) -> Duration {
        Duration::ZERO
    }

    fn keep(&mut self, _: u32) -> bool {
        true
    }

    fn blocked(&self, _: bool) {}
}

#[cfg(test)]
mod tests;
