//! Protocol buffers messages for tests, as an API server sends them.

use crate::util::wire::put_bytes;

/// The response of an API server 1.36.3 to a client that may not list pods.
pub(in crate::cluster) const FORBIDDEN: &[u8] = include_bytes!("captured/forbidden.pb");

/// Encodes a field.
pub(in crate::cluster) fn record(number: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, number, content);
    out
}

/// Encodes an object in its envelope, with more fields in the envelope.
pub(in crate::cluster) fn enveloped(kind: &str, object: &[u8], more: &[u8]) -> Vec<u8> {
    let type_meta = [record(1, b"v1"), record(2, kind.as_bytes())].concat();
    [&b"k8s\0"[..], &record(1, &type_meta), &record(2, object), more].concat()
}

/// Encodes a pod of this name, with more fields in its metadata.
pub(in crate::cluster) fn pod(name: &str, more: &[u8]) -> Vec<u8> {
    record(1, &[&record(1, name.as_bytes())[..], &record(3, b"ns"), &record(6, b"7"), more].concat())
}
