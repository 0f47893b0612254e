//! Tests what h2 accepts, with our own encoder: h2's cannot write what Go's does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use h2::server;
use hyper::body::Bytes;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::randomised;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// Code length of each byte, in bits (RFC 7541, Appendix B).
const LENGTHS: [usize; 256] = [
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
static CODE: LazyLock<Vec<(u32, usize)>> = LazyLock::new(|| {
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

fn encoded(text: &[u8]) -> Vec<u8> {
    let bits = text.iter().flat_map(|byte| {
        let (code, length) = CODE[usize::from(*byte)];
        (0..length).rev().map(move |at| (code >> at & 1) as u8)
    });
    let bits: Vec<u8> = bits.collect();
    bits.chunks(8).map(|bits| (0..8).fold(0, |byte, at| byte << 1 | bits.get(at).unwrap_or(&1))).collect()
}

fn decoded(bytes: &[u8]) -> String {
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

#[test]
fn the_code_is_that_of_the_rfc() {
    // RFC 7541, C.4 and C.6.
    for (text, code) in [
        ("www.example.com", "f1e3 c2e5 f23a 6ba0 ab90 f4ff"),
        ("no-cache", "a8eb 1064 9cbf"),
        ("custom-key", "25a8 49e9 5ba9 7d7f"),
        ("private", "aec3 771a 4b"),
        ("Mon, 21 Oct 2013 20:13:21 GMT", "d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff"),
    ] {
        assert_eq!(encoded(text.as_bytes()), hex(code), "{text}");
        assert_eq!(decoded_length(&hex(code)), Some(text.len()), "{text}");
    }
    assert_eq!(encoded(NAME), CODED_NAME);
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(decoded_length(&encoded(&all)), Some(256));
    for (length, count) in CODES.iter().enumerate() {
        assert_eq!(LENGTHS.iter().filter(|other| **other == length).count(), *count as usize, "{length}");
    }
}

#[test]
fn what_is_no_code_has_no_length() {
    assert_eq!(decoded_length(&[]), Some(0));
    assert_eq!(decoded_length(&[0xff]), None, "a whole byte of padding");
    assert_eq!(decoded_length(&[0x00]), None, "padding that is no end of string");
    assert_eq!(decoded_length(&[0xff; 4]), None, "the end of string");
}

#[test]
fn letters_fill_what_they_are_given() {
    for text in ["/run/kubelet.sock", "%2Frun%2Fkubelet.sock", "0", "aaaaaaaa", "XXXXXXXX", "x", "{}ü/"] {
        let mut bytes = encoded(text.as_bytes());
        let before = bytes.clone();
        Literal { coded: true, bytes: &mut bytes }.blank();
        if before.len() > text.len() {
            assert_eq!(bytes, before, "{text}: nobody encodes what gets longer by it");
            continue;
        }
        let letters = decoded(&bytes);
        assert_eq!(letters.len(), text.len());
        assert!(letters.bytes().all(|letter| letter.is_ascii_alphabetic()), "{text}: {letters}");
    }
}

#[tokio::test]
async fn an_empty_code_is_left_to_h2() {
    let name = [&[0x40, 0x80 | CODED_NAME.len() as u8], CODED_NAME].concat();
    for before in [vec![0x41], vec![0x01], vec![0x11], name, [&b"\x40\x0a"[..], NAME].concat()] {
        let mut bytes = requests(GO, &[]);
        // `:method: POST`, `:scheme: http` and `:path: /` of the static table, and an empty `:authority`.
        let block = [&[0x83, 0x86, 0x84], &before[..], &[0x80]].concat();
        bytes.extend(frame(HEADERS, 0x5, 1, &block));
        assert_eq!(made_acceptable(&bytes, usize::MAX), bytes, "{before:x?}");
        let (requests, reset) = taken(bytes, true).await;
        assert_eq!((requests.len(), reset), (0, vec![1]), "{before:x?}");
    }
}

#[test]
fn integers_are_those_of_the_rfc() {
    // RFC 7541, C.1.
    assert_eq!(integer(&mut hex("0a"), 5).unwrap().0, 10);
    assert_eq!(integer(&mut hex("1f9a0a"), 5).unwrap().0, 1337);
    assert!(integer(&mut hex("1f9a"), 5).is_none(), "its end is missing");
    assert!(integer(&mut hex("1fffffffffffffffff7f"), 5).is_none(), "that is no length");
}

/// How a client encodes its headers.
#[derive(Clone, Copy, Debug)]
struct Style {
    coded: bool,
    /// Whether `:authority` is sent by name, not by index.
    named: bool,
    padded: bool,
    priority: bool,
    /// Whether all fields are inserted into the dynamic table, or none.
    table: bool,
}

const GO: Style = Style { coded: true, named: false, padded: false, priority: false, table: true };

/// An HPACK encoder that uses the whole dynamic table.
struct Encoder {
    style: Style,
    /// The newest first.
    table: VecDeque<(String, String)>,
}

impl Encoder {
    fn block(&mut self, fields: &[(String, String)]) -> Vec<u8> {
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

    fn headers(&mut self, stream: u32, fields: &[(String, String)]) -> Vec<u8> {
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

fn write_integer(block: &mut Vec<u8>, first: u8, bits: u8, value: usize) {
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

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn fields(authority: &str, others: &[(String, String)]) -> Vec<(String, String)> {
    let own = [(":method", "POST"), (":scheme", "http"), (":path", "/v1.PodResourcesLister/List")];
    let own = own.into_iter().chain([(":authority", authority), ("content-type", "application/grpc")]);
    own.map(|(name, value)| (name.to_owned(), value.to_owned())).chain(others.iter().cloned()).collect()
}

/// Returns a connection's bytes: one request for each list of fields.
fn requests(style: Style, requests: &[Vec<(String, String)>]) -> Vec<u8> {
    let mut encoder = Encoder { style, table: VecDeque::new() };
    let mut bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(4, 0, 0, &[])].concat();
    for (stream, fields) in (1..).step_by(2).zip(requests) {
        bytes.extend(encoder.headers(stream, fields));
    }
    bytes
}

/// Returns the requests that h2 accepts from these bytes, and the streams it resets.
async fn taken(bytes: Vec<u8>, acceptable: bool) -> (Vec<hyper::http::request::Parts>, Vec<u32>) {
    let (client, server) = duplex(1 << 20);
    let mut requests = Vec::new();
    let reset = if acceptable {
        tokio::join!(converse(client, bytes), take(Incoming::new(server, ()), &mut requests)).0
    } else {
        tokio::join!(converse(client, bytes), take(server, &mut requests)).0
    };
    (requests, reset)
}

/// Sends these bytes, and closes the connection when all have been processed. Returns the streams that were
/// reset.
async fn converse(mut client: DuplexStream, mut bytes: Vec<u8>) -> Vec<u32> {
    let mut reset = Vec::new();
    // Stream resets follow the first PING reply.
    for _ in 0..2 {
        bytes.extend(frame(6, 0, 0, &[0; 8]));
        client.write_all(&bytes).await.unwrap();
        bytes.clear();
        loop {
            let mut head = [0; HEAD];
            client.read_exact(&mut head).await.unwrap();
            let [a, b, c, kind, flags, stream @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            client.read_exact(&mut payload).await.unwrap();
            match (kind, flags) {
                (3, _) => reset.push(u32::from_be_bytes(stream)),
                (6, 1) => break,
                _ => {}
            }
        }
    }
    reset
}

async fn take(io: impl AsyncRead + AsyncWrite + Unpin, taken: &mut Vec<hyper::http::request::Parts>) {
    let mut h2 = server::Builder::new().handshake::<_, Bytes>(io).await.unwrap();
    let mut calls = Vec::new();
    while let Some(Ok((request, respond))) = h2.accept().await {
        calls.push(respond);
        taken.push(request.into_parts().0);
    }
}

const PATHS: [&str; 5] = [
    "/var/lib/kubelet/pod-resources/kubelet.sock",
    "%2Fvar%2Flib%2Fkubelet%2Fpod-resources%2Fkubelet.sock",
    "unix:%2F%2F%2Frun%2Fkubelet.sock",
    "/run/a b/{c}/ü.sock",
    "/",
];

#[tokio::test]
async fn h2_alone_refuses_what_go_sends() {
    for path in PATHS {
        let (requests, reset) = taken(requests(GO, &[fields(path, &[])]), false).await;
        assert_eq!((requests.len(), reset), (0, vec![1]), "{path}");
    }
}

#[tokio::test]
async fn any_authority_is_acceptable_in_any_style() {
    for bits in 0..32 {
        let bit = |at: u8| bits >> at & 1 == 1;
        let style = Style { coded: bit(0), named: bit(1), padded: bit(2), priority: bit(3), table: bit(4) };
        for path in PATHS.into_iter().chain(["localhost", "", "localhost:1"]) {
            // The second request refers to the first one's fields.
            let sent = [fields(path, &[]), fields(path, &[]), fields("/other", &[])];
            let (requests, reset) = taken(requests(style, &sent), true).await;
            if path.is_empty() {
                assert_eq!((requests.len(), reset), (1, vec![1, 3]), "an empty one is left to h2");
                continue;
            }
            assert_eq!((requests.len(), reset), (3, vec![]), "{path} {style:?}");
            let authority = requests[1].uri.authority().unwrap().as_str();
            assert_eq!(authority.len(), path.len(), "{path} {style:?}");
            assert_eq!(requests[1].uri.path(), "/v1.PodResourcesLister/List");
        }
    }
}

/// Returns what a client sent before it gave up.
fn first_request(sent: &[u8]) -> Vec<u8> {
    let mut end = PREFACE;
    while let [a, b, c, 0 | 1 | 4 | 6 | 8, ..] = sent[end..] {
        end += HEAD + u32::from_be_bytes([0, a, b, c]) as usize;
    }
    sent[..end].to_vec()
}

/// Recorded from grpc-go 1.72 and gRPC's C core 1.85 (Python), with every way of specifying a socket's path.
#[tokio::test]
async fn what_real_clients_sent_is_acceptable() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/grpc_frames");
    let mut refused = Vec::new();
    for entry in dir.read_dir().unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.starts_with("go-") && !name.starts_with("python") {
            continue;
        }
        let sent = first_request(&std::fs::read(dir.join(&name)).unwrap()[1..]);
        let (requests, reset) = taken(sent.clone(), true).await;
        assert_eq!((requests.len(), reset.len()), (1, 0), "{name}");
        assert_eq!(requests[0].uri.path(), "/v1.PodResourcesLister/List");
        if taken(sent, false).await.1 == [1] {
            refused.push(name);
        }
    }
    refused.sort();
    let every = ["go-library", "go-odd", "go-passthrough", "go-passthrough-unix", "go-raw-path"];
    assert_eq!(
        refused,
        [&every[..], &["python", "python-escaped-path", "python-raw-path"]].concat(),
        "by h2 alone"
    );
}

#[test]
fn nothing_else_is_touched() {
    let sent = requests(GO, &[fields("/run/kubelet.sock", &[("x-path".into(), "/run/kubelet.sock".into())])]);
    let given = made_acceptable(&sent, usize::MAX);
    assert_eq!(given.len(), sent.len());
    let value = encoded(b"/run/kubelet.sock");
    let places: Vec<_> = sent.windows(value.len()).enumerate().filter(|(_, part)| *part == value).collect();
    let [(authority, _), _] = places[..] else { panic!("{places:?}") };
    let (before, behind) = (..authority, authority + value.len()..);
    assert_eq!((&given[before], &given[behind.clone()]), (&sent[before], &sent[behind]));
    // The same bytes in a DATA frame are not changed.
    let data = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(DATA, 0, 1, &sent)].concat();
    assert_eq!(made_acceptable(&data, 7), data);
}

#[tokio::test]
async fn a_frame_that_never_ends_is_not_kept_for_ever() {
    let mut incoming = Incoming::new((), ());
    let endless =
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0xff, 0xff, 0xff, HEADERS, 0, 0, 0, 0, 1]]
            .concat();
    incoming.held.extend(endless);
    for _ in 0..1000 {
        incoming.held.extend([0; CHUNK]);
        incoming.look().unwrap();
        let mut out = vec![0; 2 * CHUNK];
        incoming.give(&mut ReadBuf::new(&mut out));
        assert!(incoming.held.len() <= CHUNK + endless_head(), "{}", incoming.held.len());
    }
}

#[test]
fn what_fields_cost_grows_with_their_number_and_their_length() {
    let cost = |payload: &[u8], kind: u8, flags: u8| {
        let mut incoming = Incoming::new((), ());
        incoming.held.extend(requests(GO, &[]));
        incoming.look().unwrap();
        incoming.held.extend(frame(kind, flags, 1, payload));
        incoming.look().unwrap()
    };
    let request = [0x83, 0x86, 0x84];
    let whole = |more: &[u8]| cost(&[&request, more].concat(), HEADERS, END_HEADERS);
    assert_eq!(whole(&[]), REQUEST + 3);
    assert_eq!(whole(&[0xbe; 200]), REQUEST + 203 + 1, "entries of the table, a byte each");
    let mut long = vec![0x00, 1, b'x'];
    write_integer(&mut long, 0, 7, 8000);
    long.extend([b'y'; 8000]);
    assert_eq!(whole(&long), REQUEST + 4 + 62);
    // An `:authority` is overwritten, bit by bit if it is coded.
    let authority = |coded: u8| {
        let mut field = vec![0x01];
        write_integer(&mut field, coded, 7, 6000);
        field.extend([0x18; 6000]);
        field
    };
    assert_eq!(whole(&authority(0)), REQUEST + 4 + 46);
    assert_eq!(whole(&authority(0x80)), REQUEST + 4 + 46 + 1000);
    let broken = [authority(0x80), vec![0xff; 6]].concat();
    assert_eq!(whole(&broken), REQUEST + MOST_FIELDS + 46 + 1000, "also in a frame that is not understood");
    // A frame that is not understood is charged for the most fields it may contain.
    assert_eq!(whole(&[0xbe, 0xff, 0xff, 0xff, 0xff, 0xff]), REQUEST + 9);
    assert_eq!(cost(&[0xbe; 500], CONTINUATION, 0), REQUEST + 500 + 3);
    assert_eq!(cost(&[0; 5], DATA, 0), CHEAP);
    assert_eq!(cost(&[0; 16_000], DATA, 0), CHEAP + 15);
    assert_eq!(cost(&[0; 8], 6, 0), DEAR);
}

/// Adds up what is charged.
#[derive(Clone, Default)]
struct Charged(Arc<AtomicUsize>);

impl Pace for Charged {
    fn pace(&self, cost: usize) -> Duration {
        self.0.fetch_add(cost, Ordering::SeqCst);
        Duration::ZERO
    }

    fn keep(&mut self, _: u32) -> bool {
        true
    }

    fn blocked(&self, _: bool) {}
}

#[tokio::test]
async fn bytes_that_trickle_are_charged_for_each_read() {
    let (mut client, server) = duplex(1 << 20);
    let charged = Charged::default();
    let mut incoming = Incoming::new(server, charged.clone());
    let mut sent = requests(GO, &[]);
    sent.extend(frame(DATA, 0, 1, &[0; 1000]));
    let mut read = [0; 64];
    for byte in &sent {
        client.write_all(&[*byte]).await.unwrap();
        // The head of a frame is held back until it is complete.
        let _ = futures::poll!(std::pin::pin!(incoming.read(&mut read)));
    }
    assert_eq!(charged.0.swap(0, Ordering::SeqCst), READ * sent.len());
    client.write_all(&frame(6, 0, 0, &[0; 8]).repeat(10)).await.unwrap();
    incoming.read_exact(&mut [0; 10 * (HEAD + 8)]).await.unwrap();
    assert_eq!(charged.0.load(Ordering::SeqCst), 10 * DEAR, "frames that come together");
}

const fn endless_head() -> usize {
    PREFACE + HEAD
}

fn text(length: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(b"/%abcXYZ019-._:{}~ ".to_vec()), length)
        .prop_map(|bytes| String::from_utf8(bytes).unwrap())
}

proptest! {
    #![proptest_config(randomised::cases())]

    /// Whatever is in the dynamic table or has been evicted from it: h2's table is the client's.
    #[test]
    fn fields_arrive_as_they_were_sent(
        sent in proptest::collection::vec((
            text(1..900),
            proptest::collection::vec((0..40_u8, proptest::sample::select(vec![1_usize, 30, 300, 1000])), 0..6),
        ), 1..12),
        bits in 0..32_u8,
        chunk in 1..5000_usize,
    ) {
        let bit = |at: u8| bits >> at & 1 == 1;
        let style = Style { coded: bit(0), named: bit(1), padded: bit(2), priority: bit(3), table: true };
        let sent: Vec<_> = sent.iter().map(|(authority, others)| {
            let others: Vec<_> =
                others.iter().map(|(name, length)| (format!("x-{name}"), format!("{name}").repeat(*length))).collect();
            fields(authority, &others)
        }).collect();
        let bytes = requests(style, &sent);
        let given = made_acceptable(&bytes, chunk);
        prop_assert_eq!(given.len(), bytes.len());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (requests, reset) = runtime.block_on(taken(given, false));
        prop_assert_eq!((requests.len(), reset), (sent.len(), vec![]));
        for (request, sent) in requests.iter().zip(&sent) {
            let got: Vec<_> = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
            let mut expected: Vec<_> =
                sent[4..].iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
            let mut got = got.clone();
            got.sort();
            expected.sort();
            prop_assert_eq!(got, expected);
            prop_assert_eq!(request.uri.authority().unwrap().as_str().len(), sent[3].1.len());
        }
    }

    /// Any input, in any pieces: the output has the same length, and is always the same.
    #[test]
    fn pieces_make_no_difference(
        mut sent in proptest::collection::vec(any::<u8>(), 0..3000),
        chunk in 1..200_usize,
        kinds in proptest::collection::vec((0..12_u8, 0..60_usize), 0..40),
    ) {
        // Frames of any type at the beginning.
        let mut at = PREFACE;
        for (kind, length) in kinds {
            if at + HEAD + length > sent.len() {
                break;
            }
            sent[at..at + 4].copy_from_slice(&[0, 0, length as u8, kind]);
            at += HEAD + length;
        }
        let given = made_acceptable(&sent, usize::MAX);
        prop_assert_eq!(given.len(), sent.len());
        prop_assert_eq!(&made_acceptable(&sent, chunk), &given);
        prop_assert_eq!(&made_acceptable(&given, chunk), &given, "it is acceptable now");
    }
}
