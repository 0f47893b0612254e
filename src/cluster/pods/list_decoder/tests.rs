use super::*;
use crate::cluster::protobuf::samples::{FORBIDDEN, enveloped, pod, record};
use crate::core_v1::read_pod;
use crate::pod::{Annotation, Phase, Pod, RawPod, Wanted};

/// The response of an API server 1.36.3: one pod of two, with `limit=1`.
const LIST: &[u8] = include_bytes!("../../protobuf/captured/list.pb");
/// An empty list.
const EMPTY: &[u8] = include_bytes!("../../protobuf/captured/list-empty.pb");

fn list(records: &[&[u8]]) -> Vec<u8> {
    enveloped("PodList", &[&record(1, &record(2, b"7"))[..], &records.concat()].concat(), b"")
}

/// Returns the pods of a response that arrives in chunks of this size, and the result of its end.
fn read(response: &[u8], size: usize) -> (Vec<Vec<u8>>, Result<String, DecodeError>) {
    let (mut list, mut pods) = (PodListDecoder::default(), Vec::new());
    for piece in response.chunks(size) {
        list.push(piece);
        loop {
            match list.take() {
                Ok(Some(pod)) => pods.push(pod.to_vec()),
                Ok(None) => break,
                Err(error) => return (pods, Err(error)),
            }
        }
    }
    (pods, list.finish())
}

/// Returns the pods of a response, which must not depend on the chunk size, and the result of its end.
fn decode(response: &[u8]) -> (Vec<Result<Pod, String>>, Result<String, DecodeError>) {
    let (pods, end) = read(response, usize::MAX);
    for size in [1, 2, 7, 100] {
        assert_eq!(read(response, size), (pods.clone(), end.clone()), "in chunks of {size}");
    }
    (pods.iter().map(|pod| read_pod(pod, &Wanted::of(["k"]).with_raw())).collect(), end)
}

fn error(response: &[u8]) -> DecodeError {
    decode(response).1.unwrap_err()
}

fn names(pods: &[Result<Pod, String>]) -> Vec<&str> {
    pods.iter().map(|pod| pod.as_ref().map_or("!", |pod| pod.name.as_str())).collect()
}

#[test]
fn a_list_of_a_real_api_server_is_decoded() {
    let (pods, end) = decode(LIST);
    assert_eq!(end, Err(DecodeError::Partial), "a part is never requested");
    let pod = pods[0].as_ref().unwrap();
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.phase), ("default", "a", Phase::Pending));
    assert_eq!(pod.uid, "3718d2c4-a0c1-44b0-bffe-06a848b3713e");
    assert!(pod.guaranteed && pod.qos_guaranteed);
    assert_eq!(pod.annotations, [("k".into(), Annotation::Text("v".into()))].into());
    assert_eq!((pod.containers[0].cpu_milli, pod.containers[0].memory), (1000, 1 << 30));
    // The pod is the whole list, except for what is before it and the end of the envelope.
    let Some(RawPod::Protobuf(whole)) = pod.raw.as_deref() else { panic!("{pod:?}") };
    assert!(LIST[..LIST.len() - 4].ends_with(whole) && whole.starts_with(b"\x0a\xa4\x05\x0a\x01a"));
    assert_eq!(decode(EMPTY), (vec![], Ok("234".to_owned())));
}

#[test]
fn a_truncated_list_is_an_error() {
    // The last four bytes are two empty records of the envelope.
    for cut in 0..EMPTY.len() - 4 {
        assert!(read(&EMPTY[..cut], 3).1.is_err(), "{cut}");
    }
    let list = list(&[&record(2, &pod("a", b"")), &record(2, &pod("b", b""))]);
    assert_eq!(read(&list, 3).1, Ok("7".to_owned()));
    for cut in 0..list.len() {
        assert!(read(&list[..cut], 3).1.is_err(), "{cut}");
    }
}

#[test]
fn impossible_lengths_are_errors() {
    // A pod that claims more bytes than its list has, in an envelope that fits.
    let mut long = record(2, &pod("a", b""));
    long[1] += 1;
    assert!(matches!(error(&list(&[&long])), DecodeError::Wire(_)));
    // An error inside a pod affects only that pod.
    let mut broken = pod("a", b"");
    broken[1] += 1;
    let (pods, end) = decode(&list(&[&record(2, &broken), &record(2, &pod("b", b""))]));
    assert_eq!((names(&pods), end), (vec!["!", "b"], Ok("7".to_owned())));
    // An impossible length is rejected at once, however long the list claims to be.
    let type_meta = record(1, b"\x0a\x02v1\x12\x07PodList");
    let endless = [&b"k8s\0"[..], &type_meta, b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f"].concat();
    for (record, limit) in [(&b"\x12"[..], MAX_OBJECT_BYTES), (b"\x0a", MAX_METADATA_BYTES)] {
        let length = [b"\xff\xff\xff\xff\x0f".to_vec(), vec![0; 64]].concat();
        assert_eq!(error(&[&endless[..], record, &length].concat()), DecodeError::TooLarge(limit));
    }
    let huge = [&b"k8s\0\x0a"[..], &[0xff; 9], &[1]].concat();
    assert_eq!(error(&huge), DecodeError::TooLarge(MAX_METADATA_BYTES));
    assert!(matches!(error(&[&b"k8s\0"[..], &[0xff; 12]].concat()), DecodeError::Wire(_)));
    // An unknown field is skipped without being buffered.
    let unknown = [&endless[..], b"\x1a\xff\xff\xff\xff\x0f"].concat();
    let mut list = PodListDecoder::default();
    list.push(&unknown);
    for _ in 0..64 {
        list.push(&[0; 1 << 16]);
        assert_eq!(list.take(), Ok(None));
        assert!(list.buffer.rest().is_empty());
    }
    assert!(matches!(list.finish(), Err(DecodeError::Wire(_))));
}

/// The list of a full node, of maximum size, in the chunks in which HTTP delivers it.
#[test]
fn at_most_one_pod_is_buffered() {
    let filler = record(12, &[record(1, b"other"), record(2, &vec![b'x'; 9 << 10])].concat());
    let pods: Vec<u8> =
        (0..500).flat_map(|index| record(2, &pod(&format!("pod-{index}"), &filler))).collect();
    let response = list(&[&pods]);
    assert!(response.len() > 4 << 20, "{}", response.len());
    let (mut list, mut taken, mut most) = (PodListDecoder::default(), 0, 0);
    for piece in response.chunks(16 << 10) {
        list.push(piece);
        most = most.max(list.buffer.capacity());
        while let Some(pod) = list.take().unwrap() {
            assert!(read_pod(pod, &Wanted::default()).is_ok());
            taken += 1;
        }
    }
    assert_eq!((taken, list.finish()), (500, Ok("7".to_owned())));
    assert!(most <= 64 << 10, "{most} bytes were buffered");
}

#[test]
fn unknown_fields_are_skipped() {
    let unknown =
        [record(99, b"new"), vec![0xf8, 6, 1, 0xf9, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0xfd, 6, 1, 2, 3, 4]].concat();
    let item = record(2, &[pod("a", &record(99, b"new")), record(98, b"new")].concat());
    let object = [&unknown[..], &record(1, &record(2, b"7")), &item, &unknown].concat();
    let type_meta = record(1, b"\x0a\x02v1\x12\x07PodList");
    let response = [&b"k8s\0"[..], &unknown, &type_meta, &record(2, &object), &unknown].concat();
    let (pods, end) = decode(&response);
    assert_eq!((names(&pods), end), (vec!["a"], Ok("7".to_owned())));
}

#[test]
fn content_of_another_kind_is_an_error() {
    let content = [record(1, &record(2, b"7")), record(2, &pod("a", b""))].concat();
    for (more, is_valid) in [
        (record(3, b""), true),
        (record(4, CONTENT.as_bytes()), true),
        (record(3, b"gzip"), false),
        (record(4, b"application/json"), false),
    ] {
        let end = decode(&enveloped("PodList", &content, &more)).1;
        assert!(if is_valid { end.is_ok() } else { matches!(end, Err(DecodeError::Content(_))) }, "{more:?}");
    }
    let nodes = enveloped("NodeList", &content, b"");
    assert_eq!(error(&nodes).to_string(), "it is a \"NodeList\", not a PodList");
    assert!(matches!(error(FORBIDDEN), DecodeError::Kind(..)));
    for nothing in [&b""[..], b"k8s", b"{\"kind\":\"PodList\"}", b"k8t\0"] {
        assert_eq!(error(nothing), DecodeError::Magic);
    }
    // Without its kind, and with two lists.
    assert!(matches!(error(&[&b"k8s\0"[..], &record(2, &content)].concat()), DecodeError::Kind(..)));
    assert!(matches!(error(&enveloped("PodList", &content, &record(2, &content))), DecodeError::Wire(_)));
    assert_eq!(error(&enveloped("PodList", b"", b"")), DecodeError::NoVersion);
    // A field with the right number that is not a message.
    assert!(matches!(error(&list(&[&[2 << 3, 1]])), DecodeError::Wire(_)));
}

/// The API server checks the keys of annotations, but accepts any bytes as values from clients that use
/// protocol buffers (seen with 1.36.3).
#[test]
fn invalid_text_is_replaced() {
    let annotation = record(12, &[record(1, b"k"), record(2, b"\xff\xfe")].concat());
    let (pods, _) = decode(&list(&[&record(2, &pod("a", &annotation))]));
    let expected = [("k".into(), Annotation::Text("\u{fffd}\u{fffd}".into()))].into();
    assert_eq!(pods[0].as_ref().unwrap().annotations, expected);
}
