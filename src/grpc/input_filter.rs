//! Filters the bytes a client sends, on their way to h2.
//!
//! `:authority`: grpc-go and gRPC's C core set it to the target they dialed; for a unix socket that is its
//! path, raw (`/run/x.sock`) or escaped (`%2Frun%2Fx.sock`). Neither is a valid URI authority, and h2 resets
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
//!   ([`Table`]), or more than there is room for ([`InputLimits::reserve_buffers`]).
//! - A header block is kept until its end. So a block larger than a frame closes the connection.
//!
//! Left alone, and so rejected by h2 if it is not a valid authority: a value in a CONTINUATION frame, and one
//! whose name is an index into the dynamic table. Clients have no reason for either: `:authority` is in the
//! static table and comes first.

mod hpack;
mod huffman;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use hpack::{BUFFER_LIMIT, Table, overwrite_authority};

/// Length of the client preface: `PRI * HTTP/2.0` and what follows (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// Length of a frame header: length, type, flags and stream (RFC 9113, 4.1).
const FRAME_HEADER: usize = 9;
/// The frame size that we advertise, the smallest allowed (RFC 9113, 6.5.2). h2 closes the connection for
/// larger frames.
const FRAME_LIMIT: usize = 16_384;
const READ_SIZE: usize = 4096;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Frame costs are in units of 0.36 µs of CPU time, as measured. This is the cost of a request, including its
/// processing in h2 and here.
const REQUEST_COST: usize = 16;
/// The cost of one header field. A field in the HPACK table is one byte on the wire, which h2 expands to a
/// full field.
const FIELD_COST: usize = 1;
/// Bytes of header fields that cost one more unit, for Huffman decoding.
const FIELD_BYTES_PER_UNIT: usize = 128;
/// Bytes of a Huffman-coded `:authority` that cost one more unit: it is decoded and encoded here bit by bit.
const AUTHORITY_BYTES_PER_UNIT: usize = 6;
/// Maximum number of fields charged for a frame that was not understood: a frame with more closes the
/// connection.
const MAX_FIELDS: usize = 1024;
/// The cost of PING, SETTINGS, RST_STREAM and other frames that need a reply or serve no purpose.
const CONTROL_COST: usize = 4;
/// The cost of DATA and WINDOW_UPDATE.
const DATA_COST: usize = 2;
/// Bytes of any frame that cost one more unit.
const BYTES_PER_UNIT: usize = 1024;
/// The minimum cost of what arrives with one read, for which the connection's task was woken.
const MIN_READ_COST: usize = 8;

/// A client's stream, with every `:authority` overwritten. It is read no faster than [`InputLimits::charge`]
/// allows.
#[derive(Debug)]
pub(super) struct InputFilter<T, L> {
    inner: T,
    limits: L,
    /// Received bytes not handed out yet. At most a HEADERS frame and what arrived with its end; deallocated
    /// when empty.
    buffer: Vec<u8>,
    /// How many bytes of `buffer` have been handed out.
    handed_out: usize,
    /// How many bytes of `buffer` have been inspected and may be handed out.
    inspected: usize,
    /// Upcoming bytes that pass unchanged.
    passing: usize,
    /// Whether `passing` ends a header frame.
    is_header_frame: bool,
    /// A header frame was handed out: the reader processes it before it is given more.
    must_yield: bool,
    /// Bytes of header fields since the start of their block.
    block_length: usize,
    /// Bytes inspected since the start of the connection.
    position: u64,
    table: Table,
    /// Reading is paused until it completes.
    delay: Option<Pin<Box<Sleep>>>,
    /// The last write was pending.
    is_write_blocked: bool,
}

/// The rate limit and memory budget of a stream.
pub(super) trait InputLimits {
    /// Charges the cost of received frames and returns how long to wait before reading more.
    fn charge(&self, cost: usize) -> Duration;

    /// Reserves room for the buffers that the HPACK table may keep now, replacing the previous reservation;
    /// returns false if there is not enough room.
    fn reserve_buffers(&mut self, buffers: u32) -> bool;

    /// Reports whether a write is waiting for the client to read.
    fn set_write_blocked(&self, is_blocked: bool);
}

impl<T, L: InputLimits> InputFilter<T, L> {
    pub(super) fn new(inner: T, limits: L) -> Self {
        Self {
            inner,
            limits,
            buffer: Vec::new(),
            handed_out: 0,
            inspected: 0,
            passing: PREFACE,
            is_header_frame: false,
            must_yield: false,
            block_length: 0,
            position: 0,
            table: Table::default(),
            delay: None,
            is_write_blocked: false,
        }
    }

    /// Inspects received bytes, up to the end of a header frame, and returns their cost.
    fn inspect(&mut self) -> io::Result<usize> {
        let mut cost = 0;
        loop {
            let passing = self.passing.min(self.buffer.len() - self.inspected);
            self.inspected += passing;
            self.position += passing as u64;
            self.passing -= passing;
            if self.passing > 0 {
                return Ok(cost);
            }
            if std::mem::take(&mut self.is_header_frame) {
                self.must_yield = true;
                return Ok(cost);
            }
            let [a, b, c, kind, flags, _, _, _, _, payload @ ..] = &mut self.buffer[self.inspected..] else {
                return Ok(cost);
            };
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            let (mut fields, mut coded_bytes) = (length.min(MAX_FIELDS), 0);
            if *kind == HEADERS && length <= FRAME_LIMIT {
                // The rest of the frame has not arrived yet.
                let Some(payload) = payload.get_mut(..length) else { return Ok(cost) };
                self.table.start_frame(self.position);
                let known = header_block(payload, *flags)
                    .and_then(|block| overwrite_authority(block, &mut self.table, &mut coded_bytes));
                fields = known.unwrap_or(fields);
                if known.is_none() || *flags & END_HEADERS == 0 {
                    self.table.insert_unknown();
                }
                self.block_length = length;
            } else if *kind == CONTINUATION {
                self.table.start_frame(self.position);
                self.table.insert_unknown();
                self.block_length += length;
            }
            self.is_header_frame = matches!(*kind, HEADERS | CONTINUATION);
            let buffers = self.table.buffers();
            if self.block_length > FRAME_LIMIT
                || buffers > BUFFER_LIMIT
                || !self.limits.reserve_buffers(buffers)
            {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its headers take too much memory"));
            }
            cost += match *kind {
                HEADERS | CONTINUATION => {
                    let coding = length / FIELD_BYTES_PER_UNIT + coded_bytes / AUTHORITY_BYTES_PER_UNIT;
                    REQUEST_COST + FIELD_COST * fields + coding
                }
                WINDOW_UPDATE => DATA_COST,
                DATA if length > 0 => DATA_COST + length / BYTES_PER_UNIT,
                _ => CONTROL_COST + length / BYTES_PER_UNIT,
            };
            self.passing = FRAME_HEADER + length;
        }
    }

    /// Inspects received bytes and charges their cost, at least `min_cost`.
    fn inspect_and_charge(&mut self, min_cost: usize) -> io::Result<()> {
        let cost = self.inspect()?.max(min_cost);
        if cost > 0 {
            let delay = self.limits.charge(cost);
            self.delay = (!delay.is_zero()).then(|| Box::pin(sleep(delay)));
        }
        Ok(())
    }

    /// Tracks whether the client reads, by whether writes are pending.
    fn written<R>(&mut self, written: Poll<R>) -> Poll<R> {
        if self.is_write_blocked != written.is_pending() {
            self.is_write_blocked = written.is_pending();
            self.limits.set_write_blocked(self.is_write_blocked);
        }
        written
    }

    fn hand_out(&mut self, out: &mut ReadBuf<'_>) {
        let count = out.remaining().min(self.inspected - self.handed_out);
        out.put_slice(&self.buffer[self.handed_out..self.handed_out + count]);
        self.handed_out += count;
        if self.handed_out == self.buffer.len() {
            // An idle connection keeps no buffer.
            (self.buffer, self.handed_out, self.inspected) = (Vec::new(), 0, 0);
        } else if self.handed_out == self.inspected {
            self.buffer.drain(..self.handed_out);
            (self.handed_out, self.inspected) = (0, 0);
        }
    }
}

impl<T: AsyncRead + Unpin, L: InputLimits + Unpin> AsyncRead for InputFilter<T, L> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.handed_out == self.inspected {
            if std::mem::take(&mut self.must_yield) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(delay) = &mut self.delay {
                ready!(delay.as_mut().poll(cx));
                self.delay = None;
            }
            self.inspect_and_charge(0)?;
            if self.handed_out < self.inspected {
                break;
            }
            let mut chunk = [0; READ_SIZE];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut self.inner).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                // End of stream, possibly inside a frame: h2 handles that.
                self.inspected = self.buffer.len();
                break;
            }
            self.buffer.extend_from_slice(chunk.filled());
            self.inspect_and_charge(MIN_READ_COST)?;
        }
        self.hand_out(out);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin, L: InputLimits + Unpin> AsyncWrite for InputFilter<T, L> {
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
fn header_block(payload: &mut [u8], flags: u8) -> Option<&mut [u8]> {
    let padding = if flags & PADDED == 0 { 0 } else { usize::from(*payload.first()?) };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY == 0 { 0 } else { 5 };
    let end = payload.len().checked_sub(padding)?;
    payload.get_mut(start..end)
}

/// Returns what h2 is given for a client's first bytes, which arrive in pieces of `size`. For the fuzzer,
/// which cannot connect.
#[must_use]
pub fn filter_client_bytes(sent: &[u8], size: usize) -> Vec<u8> {
    let mut filter = InputFilter::new((), ());
    let mut filtered = Vec::new();
    let mut pieces = sent.chunks(size.max(1));
    for piece in &mut pieces {
        filter.buffer.extend_from_slice(piece);
        let inspected = loop {
            let inspected = filter.inspect();
            if inspected.is_err() || filter.handed_out == filter.inspected {
                break inspected;
            }
            let mut out = vec![0; filter.buffer.len()];
            let mut out = ReadBuf::new(&mut out);
            filter.hand_out(&mut out);
            filtered.extend_from_slice(out.filled());
        };
        if inspected.is_err() {
            break;
        }
    }
    filtered.extend_from_slice(&filter.buffer[filter.handed_out..]);
    filtered.extend(pieces.flatten());
    filtered
}

impl InputLimits for () {
    fn charge(&self, _: usize) -> Duration {
        Duration::ZERO
    }

    fn reserve_buffers(&mut self, _: u32) -> bool {
        true
    }

    fn set_write_blocked(&self, _: bool) {}
}

#[cfg(test)]
mod tests;
