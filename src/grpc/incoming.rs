//! What a client sends, on its way to h2.
//!
//! `:authority`: grpc-go and gRPC's C core fill it with what they dialled, for a unix socket its path, raw
//! (`/run/x.sock`) or escaped (`%2Frun%2Fx.sock`). Neither is an authority of a URI, and h2 refuses the request with
//! `PROTOCOL_ERROR` (h2 0.4 `server.rs`, `convert_poll_message`; hyperium/h2 #487). Nobody here needs the value, so
//! it is overwritten **in place, by one of the same length**, decoded and encoded: the client's HPACK table and h2's then
//! have entries of the same sizes at the same places, and nothing has to be decoded here but the structure. h2 still
//! reads and judges every byte; what is not understood here goes to it as it came.
//!
//! What h2 may keep for a connection is bounded here too, where h2 has no bound of its own:
//! - It reads all there is before it hands out a request. So it is given one frame of fields at a time.
//! - A pseudo-header field in its HPACK table keeps the whole buffer that it was read into, 8 to 24 KiB, however short it is.
//!   So a connection ends whose table may keep too many of them ([`Table`]), or more than there is room for ([`Pace::keep`]).
//! - A block of fields is kept until its end. So one ends the connection that has more bytes than a frame.
//!
//! Left alone, and so refused by h2 if it is no authority: a value in a CONTINUATION frame, and one whose name is given
//! as an entry of the dynamic table. No client has cause for either: `:authority` is in the static table and comes first.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// `PRI * HTTP/2.0` and what follows (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// Length, type, flags and stream of a frame (RFC 9113, 4.1).
const HEAD: usize = 9;
/// What we advertise, the least there is (RFC 9113, 6.5.2). h2 ends the connection for more.
const MAX_FRAME: usize = 16_384;
/// What is read at once.
const CHUNK: usize = 4096;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// What frames cost, in 0.36 µs of a core: so it was measured. A request, with what becomes of it in h2 and here.
const REQUEST: usize = 16;
/// One field of it. HPACK writes one that is in its table in a byte, and h2 makes a whole one of it.
const FIELD: usize = 1;
/// So many bytes of fields cost one more, for Huffman's code.
const BYTES_OF_FIELDS: usize = 128;
/// More fields than these end a connection, in a frame that was not understood.
const MOST_FIELDS: usize = 1024;
/// PING, SETTINGS, RST_STREAM and whatever else has to be answered or is for nothing.
const DEAR: usize = 4;
/// Data, and a grant of a window.
const CHEAP: usize = 2;
/// So many bytes of anything cost one more.
const BYTES: usize = 1024;

/// A client's stream, with every `:authority` made harmless. Where frames flood it is read no faster than
/// [`Connection::pace`] allows.
#[derive(Debug)]
pub(super) struct Incoming<T, P> {
    inner: T,
    pace: P,
    /// Received and not handed out. At most a frame of HEADERS and what came with its end; free when there is nothing.
    held: Vec<u8>,
    /// Of these, handed out.
    given: usize,
    /// Of these, seen: they may be handed out.
    seen: usize,
    /// Bytes to come that pass as they are.
    pass: usize,
    /// They end a frame of fields.
    in_fields: bool,
    /// Such a frame was handed out: whoever has been reading shall see to it first.
    turn: bool,
    /// Bytes of fields since their block began.
    block: usize,
    /// Bytes seen since the connection began.
    position: u64,
    table: Table,
    /// Nothing is read before its end.
    pause: Option<Pin<Box<Sleep>>>,
    /// The last write found no room.
    blocked: bool,
}

/// Whose stream it is.
pub(super) trait Pace {
    /// Frames that cost so much came: how long to wait before more are read.
    fn pace(&self, cost: usize) -> Duration;

    /// Reserves room for the buffers that its HPACK table may keep now, in place of what it had; false if there is none.
    fn keep(&mut self, buffers: u32) -> bool;

    /// A write was waiting for the client to read, or is not any more.
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

    /// Looks at what came, up to the end of a frame of fields: what it cost.
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
            let mut fields = length.min(MOST_FIELDS);
            if *kind == HEADERS && length <= MAX_FRAME {
                // The rest is to come.
                let Some(payload) = payload.get_mut(..length) else { return Ok(cost) };
                self.table.frame(self.position);
                let known = block(payload, *flags).and_then(|block| overwrite(block, &mut self.table));
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
                HEADERS | CONTINUATION => REQUEST + FIELD * fields + length / BYTES_OF_FIELDS,
                WINDOW_UPDATE => CHEAP,
                DATA if length > 0 => CHEAP + length / BYTES,
                _ => DEAR + length / BYTES,
            };
            self.pass = HEAD + length;
        }
    }

    fn look_and_pay(&mut self) -> io::Result<()> {
        let cost = self.look()?;
        if cost > 0 {
            let pause = self.pace.pace(cost);
            self.pause = (!pause.is_zero()).then(|| Box::pin(sleep(pause)));
        }
        Ok(())
    }

    /// Whether the client reads is seen by what becomes of a write.
    fn written<R>(&mut self, written: Poll<R>) -> Poll<R> {
        if self.blocked != written.is_pending() {
            self.blocked = written.is_pending();
            self.pace.blocked(self.blocked);
        }
        written
    }

    /// Hands out what may go.
    fn give(&mut self, out: &mut ReadBuf<'_>) {
        let given = out.remaining().min(self.seen - self.given);
        out.put_slice(&self.held[self.given..self.given + given]);
        self.given += given;
        if self.given == self.held.len() {
            // An idle connection keeps nothing.
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
            self.look_and_pay()?;
            if self.given < self.seen {
                break;
            }
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut self.inner).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                // The end, in a frame perhaps: h2 judges that.
                self.seen = self.held.len();
                break;
            }
            self.held.extend_from_slice(chunk.filled());
            self.look_and_pay()?;
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

/// The fields in a frame of HEADERS, without padding and priority (RFC 9113, 6.2).
fn block(payload: &mut [u8], flags: u8) -> Option<&mut [u8]> {
    let padding = if flags & PADDED == 0 { 0 } else { usize::from(*payload.first()?) };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { 5 };
    let end = payload.len().checked_sub(padding)?;
    payload.get_mut(start..end)
}

/// The index of `:authority` in the static table (RFC 7541, Appendix A).
const STATIC: usize = 1;
const NAME: &[u8] = b":authority";
/// The same in the code of RFC 7541, Appendix B.
const CODED_NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// Buffers that pseudo-header fields in a client's table may keep. Each path that it asks for, and its `:authority`, may be there
/// twice, among thousands of timeouts.
const BUFFERS: u32 = 16;
/// How long h2's buffers are, at least.
const BUFFER: u64 = 8192;
/// The first entry of the dynamic table (RFC 7541, 2.3.3).
const DYNAMIC: usize = 62;
/// The pseudo-header fields of the static table.
const PSEUDO: std::ops::RangeInclusive<usize> = 1..=14;

/// What is known of h2's HPACK table: one bit for each entry, the newest first. 4 KiB have room for 128 at most, of 32 bytes or
/// more each (RFC 7541, 4.1). Those that have left it earlier are counted all the same.
#[derive(Debug, Default)]
struct Table {
    /// Those whose name begins with a colon.
    pseudo: u128,
    /// Those of them that were the first in their buffer.
    first: u128,
    /// The buffer that is being read into, and the one that was counted last; by number, and from 1.
    buffer: u64,
    counted: u64,
}

impl Table {
    /// A frame of fields begins at this byte.
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

    /// Nobody knows what a frame puts in: any name may be a pseudo-header field's from now on.
    fn unknown(&mut self) {
        self.insert(true);
        self.pseudo = u128::MAX;
    }

    /// Is the name of this entry, of either table, that of a pseudo-header field?
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

/// Overwrites every value of `:authority`: how many fields there are. Stops where it does not understand.
fn overwrite(mut block: &mut [u8], table: &mut Table) -> Option<usize> {
    let mut fields = 0;
    while !block.is_empty() {
        let (value, rest) = field(block, table)?;
        if let Some(value) = value {
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

/// One field (RFC 7541, 6), with its value if it is an `:authority`; and what follows.
fn field<'a>(block: &'a mut [u8], table: &mut Table) -> Option<(Option<Literal<'a>>, &'a mut [u8])> {
    let (prefix, inserted) = match *block.first()? {
        // An entry of a table, or a new size of it.
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

/// An integer behind so many bits of its first byte (RFC 7541, 5.1). Above 2^20 none makes sense here.
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
    /// Does it begin with a colon? In the code that has 7 bits.
    fn is_pseudo(&self) -> bool {
        self.bytes.first().is_some_and(|first| if self.coded { first >> 1 == 0x5c } else { *first == b':' })
    }

    /// Makes it letters, as many as it had characters, in as many bytes. A code that does not decode, or is longer than
    /// what it encodes, stays as it is.
    fn blank(self) {
        if !self.coded {
            self.bytes.fill(b'a');
        } else if let Some(length) = decoded_length(self.bytes) {
            encode_letters(self.bytes, length);
        }
    }
}

/// How many characters have a code of so many bits, from none (RFC 7541, Appendix B). The code is canonical: those of
/// one length are consecutive numbers, and the first of the next length follows the last, with zeros behind it. The last
/// of 30 bits is the end of string, which must not occur.
const CODES: [u32; 31] =
    [0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 3];

/// How many characters there are in a string of the Huffman code; none if it is not well formed.
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
    // What is left over is the beginning of the end of string, and less than a byte.
    (length < 8 && code == (1 << length) - 1).then_some(characters)
}

/// A letter of each length that letters have: `a`, `b`, `B` and `X`, from 5 bits.
const LETTERS: [u8; 4] = [0b0_0011, 0b10_0011, 0b101_1101, 0b1111_1100];

/// So many letters in just these bytes.
fn encode_letters(bytes: &mut [u8], characters: usize) {
    let bits = (8 * bytes.len()).min(8 * characters);
    // An empty value has nothing to fill, more bytes than characters cannot be filled, fewer than 5 bits for each do not
    // exist.
    if characters == 0 || bytes.len() > characters || bits < 5 * characters {
        return;
    }
    let (each, longer) = (bits / characters, bits % characters);
    let lengths = (0..characters).map(|at| each + usize::from(at < longer));
    let bits = lengths.flat_map(|length| (0..length).rev().map(move |at| LETTERS[length - 5] >> at & 1));
    // What is left over of the last byte are ones.
    let mut bits = bits.chain(std::iter::repeat(1));
    for byte in bytes {
        *byte = bits.by_ref().take(8).fold(0, |byte, bit| byte << 1 | bit);
    }
}

/// What h2 is given of a client's first bytes. For the fuzzer, which cannot connect.
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
