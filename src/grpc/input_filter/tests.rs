//! Tests what h2 accepts.

mod encoder;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use h2::server;
use hyper::body::Bytes;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::hpack::{AUTHORITY_NAME, CODED_AUTHORITY_NAME, Literal, parse_integer};
use super::huffman::{CODES_BY_LENGTH, decoded_length};
use super::*;
use crate::randomised;
use encoder::{GO, LENGTHS, Style, decoded, encoded, fields, frame, hex, requests, write_integer};

#[test]
fn the_huffman_code_is_that_of_the_rfc() {
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
    assert_eq!(encoded(AUTHORITY_NAME), CODED_AUTHORITY_NAME);
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(decoded_length(&encoded(&all)), Some(256));
    for (length, count) in CODES_BY_LENGTH.iter().enumerate() {
        assert_eq!(LENGTHS.iter().filter(|other| **other == length).count(), *count as usize, "{length}");
    }
}

#[test]
fn an_invalid_code_has_no_length() {
    assert_eq!(decoded_length(&[]), Some(0));
    assert_eq!(decoded_length(&[0xff]), None, "a whole byte of padding");
    assert_eq!(decoded_length(&[0x00]), None, "padding that is no end of string");
    assert_eq!(decoded_length(&[0xff; 4]), None, "the end of string");
}

#[test]
fn letters_have_the_length_of_what_they_replace() {
    for text in ["/run/kubelet.sock", "%2Frun%2Fkubelet.sock", "0", "aaaaaaaa", "XXXXXXXX", "x", "{}ü/"] {
        let mut bytes = encoded(text.as_bytes());
        let before = bytes.clone();
        Literal { is_coded: true, bytes: &mut bytes }.overwrite();
        if before.len() > text.len() {
            assert_eq!(bytes, before, "{text}: a code that is longer is not changed");
            continue;
        }
        let letters = decoded(&bytes);
        assert_eq!(letters.len(), text.len());
        assert!(letters.bytes().all(|letter| letter.is_ascii_alphabetic()), "{text}: {letters}");
    }
}

#[tokio::test]
async fn an_empty_authority_is_not_changed() {
    let name = [&[0x40, 0x80 | CODED_AUTHORITY_NAME.len() as u8], CODED_AUTHORITY_NAME].concat();
    for before in [vec![0x41], vec![0x01], vec![0x11], name, [&b"\x40\x0a"[..], AUTHORITY_NAME].concat()] {
        let mut bytes = requests(GO, &[]);
        // `:method: POST`, `:scheme: http` and `:path: /` of the static table, and an empty `:authority`.
        let block = [&[0x83, 0x86, 0x84], &before[..], &[0x80]].concat();
        bytes.extend(frame(HEADERS, 0x5, 1, &block));
        assert_eq!(filter_client_bytes(&bytes, usize::MAX), bytes, "{before:x?}");
        let (requests, reset) = taken(bytes, true).await;
        assert_eq!((requests.len(), reset), (0, vec![1]), "{before:x?}");
    }
}

#[test]
fn integers_are_those_of_the_rfc() {
    // RFC 7541, C.1.
    assert_eq!(parse_integer(&mut hex("0a"), 5).unwrap().0, 10);
    assert_eq!(parse_integer(&mut hex("1f9a0a"), 5).unwrap().0, 1337);
    assert!(parse_integer(&mut hex("1f9a"), 5).is_none(), "its end is missing");
    assert!(parse_integer(&mut hex("1fffffffffffffffff7f"), 5).is_none(), "that is no length");
}

/// Returns the requests that h2 accepts from these bytes, and the streams it resets.
async fn taken(bytes: Vec<u8>, filtered: bool) -> (Vec<hyper::http::request::Parts>, Vec<u32>) {
    let (client, server) = duplex(1 << 20);
    let mut requests = Vec::new();
    let reset = if filtered {
        tokio::join!(converse(client, bytes), take(InputFilter::new(server, ()), &mut requests)).0
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
            let mut head = [0; FRAME_HEADER];
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
async fn h2_alone_rejects_what_go_sends() {
    for path in PATHS {
        let (requests, reset) = taken(requests(GO, &[fields(path, &[])]), false).await;
        assert_eq!((requests.len(), reset), (0, vec![1]), "{path}");
    }
}

#[tokio::test]
async fn h2_accepts_any_authority_in_any_style() {
    for bits in 0..32 {
        let bit = |at: u8| bits >> at & 1 == 1;
        let style = Style { coded: bit(0), named: bit(1), padded: bit(2), priority: bit(3), table: bit(4) };
        for path in PATHS.into_iter().chain(["localhost", "", "localhost:1"]) {
            // The second request refers to the first one's fields.
            let sent = [fields(path, &[]), fields(path, &[]), fields("/other", &[])];
            let (requests, reset) = taken(requests(style, &sent), true).await;
            if path.is_empty() {
                assert_eq!((requests.len(), reset), (1, vec![1, 3]), "an empty one is not changed");
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
        end += FRAME_HEADER + u32::from_be_bytes([0, a, b, c]) as usize;
    }
    sent[..end].to_vec()
}

/// Recorded from grpc-go 1.72 and gRPC's C core 1.85 (Python), with every way of specifying a socket's path.
#[tokio::test]
async fn h2_accepts_what_real_clients_sent() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/grpc_frames");
    let mut rejected = Vec::new();
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
            rejected.push(name);
        }
    }
    rejected.sort();
    let every = ["go-library", "go-odd", "go-passthrough", "go-passthrough-unix", "go-raw-path"];
    assert_eq!(
        rejected,
        [&every[..], &["python", "python-escaped-path", "python-raw-path"]].concat(),
        "by h2 alone"
    );
}

#[test]
fn nothing_else_is_changed() {
    let sent = requests(GO, &[fields("/run/kubelet.sock", &[("x-path".into(), "/run/kubelet.sock".into())])]);
    let given = filter_client_bytes(&sent, usize::MAX);
    assert_eq!(given.len(), sent.len());
    let value = encoded(b"/run/kubelet.sock");
    let places: Vec<_> = sent.windows(value.len()).enumerate().filter(|(_, part)| *part == value).collect();
    let [(authority, _), _] = places[..] else { panic!("{places:?}") };
    let (before, behind) = (..authority, authority + value.len()..);
    assert_eq!((&given[before], &given[behind.clone()]), (&sent[before], &sent[behind]));
    // The same bytes in a DATA frame are not changed.
    let data = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(DATA, 0, 1, &sent)].concat();
    assert_eq!(filter_client_bytes(&data, 7), data);
}

#[tokio::test]
async fn an_endless_frame_is_not_buffered() {
    let mut filter = InputFilter::new((), ());
    let endless =
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0xff, 0xff, 0xff, HEADERS, 0, 0, 0, 0, 1]]
            .concat();
    filter.buffer.extend(endless);
    for _ in 0..1000 {
        filter.buffer.extend([0; READ_SIZE]);
        filter.inspect().unwrap();
        let mut out = vec![0; 2 * READ_SIZE];
        filter.hand_out(&mut ReadBuf::new(&mut out));
        assert!(filter.buffer.len() <= READ_SIZE + PREFACE + FRAME_HEADER, "{}", filter.buffer.len());
    }
}

#[test]
fn the_cost_of_fields_grows_with_their_number_and_length() {
    let cost = |payload: &[u8], kind: u8, flags: u8| {
        let mut filter = InputFilter::new((), ());
        filter.buffer.extend(requests(GO, &[]));
        filter.inspect().unwrap();
        filter.buffer.extend(frame(kind, flags, 1, payload));
        filter.inspect().unwrap()
    };
    let request = [0x83, 0x86, 0x84];
    let whole = |more: &[u8]| cost(&[&request, more].concat(), HEADERS, END_HEADERS);
    assert_eq!(whole(&[]), REQUEST_COST + 3);
    assert_eq!(whole(&[0xbe; 200]), REQUEST_COST + 203 + 1, "entries of the table, a byte each");
    let mut long = vec![0x00, 1, b'x'];
    write_integer(&mut long, 0, 7, 8000);
    long.extend([b'y'; 8000]);
    assert_eq!(whole(&long), REQUEST_COST + 4 + 62);
    // An `:authority` is overwritten, bit by bit if it is coded.
    let authority = |coded: u8| {
        let mut field = vec![0x01];
        write_integer(&mut field, coded, 7, 6000);
        field.extend([0x18; 6000]);
        field
    };
    assert_eq!(whole(&authority(0)), REQUEST_COST + 4 + 46);
    assert_eq!(whole(&authority(0x80)), REQUEST_COST + 4 + 46 + 1000);
    let broken = [authority(0x80), vec![0xff; 6]].concat();
    assert_eq!(
        whole(&broken),
        REQUEST_COST + MAX_FIELDS + 46 + 1000,
        "also in a frame that is not understood"
    );
    // A frame that is not understood is charged for the most fields it may contain.
    assert_eq!(whole(&[0xbe, 0xff, 0xff, 0xff, 0xff, 0xff]), REQUEST_COST + 9);
    assert_eq!(cost(&[0xbe; 500], CONTINUATION, 0), REQUEST_COST + 500 + 3);
    assert_eq!(cost(&[0; 5], DATA, 0), DATA_COST);
    assert_eq!(cost(&[0; 16_000], DATA, 0), DATA_COST + 15);
    assert_eq!(cost(&[0; 8], 6, 0), CONTROL_COST);
}

/// Adds up what is charged.
#[derive(Clone, Default)]
struct Charged(Arc<AtomicUsize>);

impl InputLimits for Charged {
    fn charge(&self, cost: usize) -> Duration {
        self.0.fetch_add(cost, Ordering::SeqCst);
        Duration::ZERO
    }

    fn reserve_buffers(&mut self, _: u32) -> bool {
        true
    }

    fn set_write_blocked(&self, _: bool) {}
}

#[tokio::test]
async fn every_read_is_charged() {
    let (mut client, server) = duplex(1 << 20);
    let charged = Charged::default();
    let mut filter = InputFilter::new(server, charged.clone());
    let mut sent = requests(GO, &[]);
    sent.extend(frame(DATA, 0, 1, &[0; 1000]));
    let mut read = [0; 64];
    for byte in &sent {
        client.write_all(&[*byte]).await.unwrap();
        // The head of a frame is held back until it is complete.
        let _ = futures::poll!(std::pin::pin!(filter.read(&mut read)));
    }
    assert_eq!(charged.0.swap(0, Ordering::SeqCst), MIN_READ_COST * sent.len());
    client.write_all(&frame(6, 0, 0, &[0; 8]).repeat(10)).await.unwrap();
    filter.read_exact(&mut [0; 10 * (FRAME_HEADER + 8)]).await.unwrap();
    assert_eq!(charged.0.load(Ordering::SeqCst), 10 * CONTROL_COST, "frames that come together");
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
        let given = filter_client_bytes(&bytes, chunk);
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
    fn the_result_is_independent_of_the_pieces(
        mut sent in proptest::collection::vec(any::<u8>(), 0..3000),
        chunk in 1..200_usize,
        kinds in proptest::collection::vec((0..12_u8, 0..60_usize), 0..40),
    ) {
        // Frames of any type at the beginning.
        let mut at = PREFACE;
        for (kind, length) in kinds {
            if at + FRAME_HEADER + length > sent.len() {
                break;
            }
            sent[at..at + 4].copy_from_slice(&[0, 0, length as u8, kind]);
            at += FRAME_HEADER + length;
        }
        let given = filter_client_bytes(&sent, usize::MAX);
        prop_assert_eq!(given.len(), sent.len());
        prop_assert_eq!(&filter_client_bytes(&sent, chunk), &given);
        prop_assert_eq!(&filter_client_bytes(&given, chunk), &given, "filtering twice changes nothing");
    }
}
