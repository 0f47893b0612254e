//! Hand-written client frames of HTTP/2 (RFC 9113, RFC 7541).

#![allow(clippy::unwrap_used)] // a frame that cannot be written fails the test

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Encodes a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes the header fields of a call to a method of the service `t`.
pub(crate) fn request(method: &str) -> Vec<u8> {
    // `:method: POST` and `:scheme: http` are in the static table; `:path` is its entry 4.
    [
        &[0x83, 0x86, 0x04],
        &text(format!("/t/{method}").as_bytes())[..],
        &field(b"content-type", b"application/grpc"),
    ]
    .concat()
}

/// Encodes a field that is not indexed.
pub(crate) fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0], &text(name)[..], &text(value)].concat()
}

/// Encodes a field that is added to the dynamic table.
pub(crate) fn indexed(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0x40], &text(name)[..], &text(value)].concat()
}

/// Encodes a string literal without Huffman coding.
pub(crate) fn text(bytes: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    match u8::try_from(bytes.len()) {
        Ok(short) if short < 127 => coded.push(short),
        _ => {
            coded.push(127);
            let mut rest = bytes.len() - 127;
            while rest >= 128 {
                coded.push(0x80 | u8::try_from(rest % 128).unwrap());
                rest /= 128;
            }
            coded.push(u8::try_from(rest).unwrap());
        }
    }
    [&coded[..], bytes].concat()
}
