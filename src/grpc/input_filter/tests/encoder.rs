//! An HTTP/2 encoder for tests: h2's cannot write what Go's does.

use std::collections::VecDeque;
use std::sync::LazyLock;

use crate::grpc::input_filter::{HEADERS, PADDED, PRIORITY};

pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// Code length of each byte, in bits (RFC 7541, Appendix B).
pub(super) const LENGTHS: [usize; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26,
];

/// The code of each byte. It is canonical: shorter codes first, and codes of one length in byte order.
pub(super) static CODE: LazyLock<Vec<(u32, usize)>> = LazyLock::new(|| {
    let mut bytes: Vec<usize> = (0..256).collect();
    bytes.sort_by_key(|byte| LENGTHS[*byte]);
    let (mut codes, mut next, mut length) = (vec![(0, 0); 256], 0_u32, 0);
    for byte in bytes {
        next <<= LENGTHS[byte] - length;
        length = LENGTHS[byte];
        codes[byte] = (next, length);
        next += 1;
    }
    codes
});

pub(super) fn encoded(text: &[u8]) -> Vec<u8> {
    let bits = text.iter().flat_map(|byte| {
        let (code, length) = CODE[usize::from(*byte)];
        (0..length).rev().map(move |at| (code >> at & 1) as u8)
    });
    let bits: Vec<u8> = bits.collect();
    bits.chunks(8).map(|bits| (0..8).fold(0, |byte, at| byte << 1 | bits.get(at).unwrap_or(&1))).collect()
}

pub(super) fn decoded(bytes: &[u8]) -> String {
    let (mut text, mut code, mut length) = (Vec::new(), 0, 0);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
        (code, length) = (code << 1 | bit, length + 1);
        if let Some(byte) = CODE.iter().position(|known| *known == (code, length)) {
            text.push(byte as u8);
            (code, length) = (0, 0);
        }
    }
    assert!(length < 8, "{bytes:x?}");
    String::from_utf8(text).unwrap()
}

/// How a client encodes its headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) coded: bool,
    /// Whether `:authority` is sent by name, not by index.
    pub(super) named: bool,
    pub(super) padded: bool,
    pub(super) priority: bool,
    /// Whether all fields are inserted into the dynamic table, or none.
    pub(super) table: bool,
}

pub(super) const GO: Style = Style { coded: true, named: false, padded: false, priority: false, table: true };

/// An HPACK encoder that uses the whole dynamic table.
pub(super) struct Encoder {
    pub(super) style: Style,
    /// The newest first.
    pub(super) table: VecDeque<(String, String)>,
}

impl Encoder {
    pub(super) fn block(&mut self, fields: &[(String, String)]) -> Vec<u8> {
        let mut block = Vec::new();
        for field in fields {
            if let Some(at) = self.table.iter().position(|entry| entry == field) {
                write_integer(&mut block, 0x80, 7, 62 + at);
                continue;
            }
            let (kind, bits) = if self.style.table { (0x40, 6) } else { (0x10, 4) };
            if field.0 == ":authority" && !self.style.named {
                write_integer(&mut block, kind, bits, 1);
            } else {
                write_integer(&mut block, kind, bits, 0);
                self.literal(&mut block, &field.0);
            }
            self.literal(&mut block, &field.1);
            if self.style.table {
                self.table.push_front(field.clone());
                while self.table.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>()
                    > 4096
                {
                    self.table.pop_back();
                }
            }
        }
        block
    }

    /// Writes a string literal, Huffman-coded if that is shorter.
    fn literal(&self, block: &mut Vec<u8>, text: &str) {
        let code = encoded(text.as_bytes());
        if self.style.coded && code.len() < text.len() {
            write_integer(block, 0x80, 7, code.len());
            block.extend(code);
        } else {
            write_integer(block, 0, 7, text.len());
            block.extend(text.as_bytes());
        }
    }

    pub(super) fn headers(&mut self, stream: u32, fields: &[(String, String)]) -> Vec<u8> {
        let Style { padded, priority, .. } = self.style;
        let mut payload = Vec::new();
        payload.extend(padded.then_some(7));
        payload.extend(priority.then_some([0, 0, 0, 0, 15]).into_iter().flatten());
        payload.extend(self.block(fields));
        payload.extend(padded.then_some([0; 7]).into_iter().flatten());
        let flags = 0x5 | if padded { PADDED } else { 0 } | if priority { PRIORITY } else { 0 };
        frame(HEADERS, flags, stream, &payload)
    }
}

pub(super) fn write_integer(block: &mut Vec<u8>, first: u8, bits: u8, value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        return block.push(first | value as u8);
    }
    block.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub(super) fn fields(authority: &str, others: &[(String, String)]) -> Vec<(String, String)> {
    let own = [(":method", "POST"), (":scheme", "http"), (":path", "/v1.PodResourcesLister/List")];
    let own = own.into_iter().chain([(":authority", authority), ("content-type", "application/grpc")]);
    own.map(|(name, value)| (name.to_owned(), value.to_owned())).chain(others.iter().cloned()).collect()
}

/// Returns a connection's bytes: one request for each list of fields.
pub(super) fn requests(style: Style, requests: &[Vec<(String, String)>]) -> Vec<u8> {
    let mut encoder = Encoder { style, table: VecDeque::new() };
    let mut bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(4, 0, 0, &[])].concat();
    for (stream, fields) in (1..).step_by(2).zip(requests) {
        bytes.extend(encoder.headers(stream, fields));
    }
    bytes
}
