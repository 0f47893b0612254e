//! Outlines of pods that are too large to cache. Pods are untrusted: their contents are written by their
//! creators.

use std::cmp::Reverse;
use std::ops::Range;

use prost::bytes::Bytes;

use crate::pod::{Pod, RawPod};
use crate::util::wire::{self, Field, Value, WireError};

/// Maximum size, in bytes, of all serialized pods that are cached or buffered in one place. Above it, the
/// largest pods are replaced by outlines ([`RawPod::Outline`]). A thousand typical pods take 10 MiB. gRPC
/// clients accept messages of 4 MiB, or 16 MiB if configured, so larger lists would be useless to most.
///
/// The API server accepts objects of up to 1.5 MiB (etcd's `--max-request-bytes`), and anyone who may create
/// pods may create many and bind them to one node.
pub const MAX_RAW_BYTES: usize = 16 << 20;

/// The annotations with the source from which the kubelet got a pod (`pkg/kubelet/types/pod_update.go`).
pub const SOURCE_ANNOTATIONS: [&str; 2] = ["kubernetes.io/config.source", "kubernetes.io/config.mirror"];

/// Field numbers of `core/v1` and `meta/v1` (`generated.proto` of `k8s.io/api` and `k8s.io/apimachinery`).
mod outlined {
    pub(super) const METADATA: u32 = 1;
    pub(super) const STATUS: u32 = 3;
    /// Name, namespace, UID and deletion timestamp.
    pub(super) const OF_METADATA: [u32; 4] = [1, 3, 5, 9];
    pub(super) const ANNOTATIONS: u32 = 12;
    pub(super) const KEY: u32 = 1;
    /// Phase and conditions.
    pub(super) const OF_STATUS: [u32; 2] = [1, 2];
}

/// Returns the identity and status of a serialized `core/v1` Pod: a Pod with only its name, namespace, UID,
/// deletion timestamp, source annotations, phase and conditions. Empty if the bytes are invalid, or if the
/// outline would be half of them or more.
#[must_use]
pub fn outline(bytes: &[u8]) -> Bytes {
    let outline = try_outline(bytes).unwrap_or_default();
    if outline.len() * 2 < bytes.len() { outline.into() } else { Bytes::new() }
}

fn try_outline(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut outline = Vec::new();
    for field in wire::fields(bytes) {
        let Field {
            number: number @ (outlined::METADATA | outlined::STATUS), value: Value::Bytes(part), ..
        } = field?
        else {
            continue;
        };
        let mut kept = Vec::new();
        for inner in wire::fields_in(bytes, part) {
            let Field { number: inner, record, value } = inner?;
            let keep = match (number, inner, value) {
                (outlined::METADATA, outlined::ANNOTATIONS, Value::Bytes(entry)) => {
                    is_source_annotation(bytes, entry)?
                }
                // prost decodes an entry of a map whatever its wire type: the fields after it would differ.
                (outlined::METADATA, outlined::ANNOTATIONS, _) => {
                    return Err(WireError { reason: "an annotation that is no message", at: record.start });
                }
                (outlined::METADATA, inner, _) => outlined::OF_METADATA.contains(&inner),
                (outlined::STATUS, inner, _) => outlined::OF_STATUS.contains(&inner),
                _ => false,
            };
            if keep {
                kept.extend_from_slice(&bytes[record]);
            }
        }
        if !kept.is_empty() {
            wire::put_bytes(&mut outline, number, &kept);
        }
    }
    Ok(outline)
}

/// Returns true if the annotation is one of [`SOURCE_ANNOTATIONS`].
fn is_source_annotation(bytes: &[u8], entry: Range<usize>) -> Result<bool, WireError> {
    for field in wire::fields_in(bytes, entry) {
        if let Field { number: outlined::KEY, value: Value::Bytes(key), .. } = field? {
            return Ok(SOURCE_ANNOTATIONS.iter().any(|known| known.as_bytes() == &bytes[key.clone()]));
        }
    }
    Ok(false)
}

/// Reduces the largest of these pods to their outlines, and then drops the largest outlines, until all take
/// at most `limit` bytes. Returns how many bytes they take then: more than the limit only if pods in JSON
/// do, which are never reduced.
pub fn reduce_to<'a>(limit: usize, pods: impl Iterator<Item = &'a mut Pod>) -> usize {
    let mut pods: Vec<&mut Pod> = pods.collect();
    let mut bytes = pods.iter().map(|pod| pod.raw_bytes()).sum();
    if bytes <= limit {
        return bytes;
    }
    for reduce in [Pod::reduce_to_outline, Pod::drop_outline] {
        pods.sort_by_key(|pod| Reverse(pod.raw_bytes()));
        for pod in &mut pods {
            if bytes <= limit {
                return bytes;
            }
            bytes -= pod.raw_bytes();
            reduce(pod);
            bytes += pod.raw_bytes();
        }
    }
    bytes
}

impl Pod {
    /// Returns the size of the serialized pod, in bytes.
    #[must_use]
    pub fn raw_bytes(&self) -> usize {
        match self.raw.as_deref() {
            Some(RawPod::Protobuf(bytes) | RawPod::Outline(bytes, _) | RawPod::Json(bytes)) => bytes.len(),
            None => 0,
        }
    }

    fn reduce_to_outline(&mut self) {
        if let Some(RawPod::Protobuf(bytes)) = self.raw.as_deref() {
            self.raw = Some(Box::new(RawPod::Outline(outline(bytes), bytes.len())));
        }
    }

    /// Drops the outline. It may be large: a pod's source annotations may take up to 256 KiB.
    fn drop_outline(&mut self) {
        if let Some(RawPod::Outline(outline, _)) = self.raw.as_deref_mut() {
            *outline = Bytes::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::core_v1::core;

    #[test]
    fn an_outline_of_half_a_pod_or_more_is_empty() {
        let mut named = Vec::new();
        wire::put_bytes(&mut named, outlined::METADATA, &[0x0a, 1, b'a']);
        // A specification with this many bytes of content, after a header of two.
        let pod = |content: usize| {
            let mut pod = named.clone();
            wire::put_bytes(&mut pod, 2, &vec![0; content]);
            pod
        };
        assert_eq!(outline(&pod(named.len() - 2)), Bytes::new());
        assert_eq!(outline(&pod(named.len() - 1)), named);
    }

    #[test]
    fn outlines_keep_the_source_annotations() {
        let pod = |keys: &[&str]| {
            let annotation = |key: &&str| ((*key).to_owned(), b"v".to_vec().into());
            let annotations = keys.iter().map(annotation).collect();
            let metadata = core::ObjectMeta { name: "a".to_owned(), annotations, ..Default::default() };
            core::Pod { metadata: Some(metadata), ..core::Pod::default() }.encode_to_vec()
        };
        let other = "x".repeat(200);
        let [source, mirror] = SOURCE_ANNOTATIONS;
        assert_eq!(outline(&pod(&[source, &other, mirror])), pod(&SOURCE_ANNOTATIONS));
    }

    #[test]
    fn outlines_keep_phase_and_conditions() {
        let pod = |status: &[u8]| {
            let mut pod = Vec::new();
            wire::put_bytes(&mut pod, outlined::METADATA, b"\x0a\x01a");
            wire::put_bytes(&mut pod, outlined::STATUS, status);
            pod
        };
        let mut kept = Vec::new();
        wire::put_bytes(&mut kept, 1, b"Running");
        wire::put_bytes(&mut kept, 2, b"\x0a\x05Ready");
        let mut status = kept.clone();
        wire::put_bytes(&mut status, 3, &[b'x'; 200]);
        assert_eq!(outline(&pod(&status)), pod(&kept));
    }

    #[test]
    fn an_annotation_of_another_wire_type_has_no_outline() {
        let pod = |annotation: &[u8]| {
            let mut pod = Vec::new();
            wire::put_bytes(&mut pod, outlined::METADATA, &[b"\x0a\x01a", annotation].concat());
            wire::put_bytes(&mut pod, 100, &[0; 100]);
            pod
        };
        // The same four bytes after the field's key: an entry of three bytes, or the number 3 and the name `b`.
        assert!(!outline(&pod(b"\x62\x03\x0a\x01b")).is_empty());
        let entry = pod(b"\x60\x03\x0a\x01b");
        assert_eq!(core::Pod::decode(&*entry).unwrap().metadata.unwrap().name, "a");
        assert_eq!(outline(&entry), Bytes::new());
    }

    #[test]
    fn the_largest_pods_are_reduced_until_the_others_fit() {
        let kept = |limit: usize, sizes: &[usize]| {
            // Its outline has 5 bytes: a name of one character.
            let raw = |size: usize| {
                let mut bytes = vec![0x0a, 3, 0x0a, 1, b'a'];
                wire::put_bytes(&mut bytes, 2, &vec![0; size - 7]);
                assert_eq!(bytes.len(), size);
                RawPod::Protobuf(bytes.into())
            };
            let of = |&size: &usize| Pod { raw: Some(Box::new(raw(size))), ..Pod::default() };
            let mut pods: Vec<Pod> = sizes.iter().map(of).collect();
            let bytes = reduce_to(limit, pods.iter_mut());
            let sizes: Vec<usize> = pods.iter().map(Pod::raw_bytes).collect();
            assert_eq!(bytes, sizes.iter().sum::<usize>());
            sizes
        };
        // As many bytes as a thousand typical pods.
        assert_eq!(kept(MAX_RAW_BYTES, &[100; 100_000]), vec![100; 100_000]);
        assert_eq!(kept(300, &[50, 130, 120]), [50, 130, 120]);
        assert_eq!(kept(299, &[50, 130, 120]), [50, 5, 120]);
        assert_eq!(kept(175, &[50, 130, 120]), [50, 5, 120]);
        assert_eq!(kept(174, &[50, 130, 120]), [50, 5, 5]);
        assert_eq!(kept(15, &[50, 130, 120]), [5, 5, 5]);
        assert_eq!(kept(14, &[50, 130, 120]), [5, 0, 5]);
        assert_eq!(kept(0, &[50, 130, 120]), [0, 0, 0]);
    }
}
