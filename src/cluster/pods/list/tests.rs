use super::*;
use crate::cluster::pods::samples::{FORBIDDEN, enveloped, pod, record};
use crate::core_v1::read_pod;
use crate::pod::{Annotation, Phase, Pod, RawPod, Wanted};

/// The response of an API server 1.36.3: one pod of two, with `limit=1`.
const LIST: &[u8] = include_bytes!("../seen/list.pb");
/// An empty list.
const EMPTY: &[u8] = include_bytes!("../seen/list-empty.pb");

fn list(records: &[&[u8]]) -> Vec<u8> {
    enveloped("PodList", &[&record(1, &record(2, b"7"))[..], &records.concat()].concat(), b"")
}

/// Returns the pods of a response that arrives in chunks of this size, and the result of its end.
fn read(answer: &[u8], size: usize) -> (Vec<Vec<u8>>, Result<String, Odd>) {
    let (mut list, mut pods) = (PodList::default(), Vec::new());
    for piece in answer.chunks(size) {
        list.put(piece);
        loop {
            match list.take() {
                Ok(Some(pod)) => pods.push(pod.to_vec()),
                Ok(None) => break,
                Err(odd) => return (pods, Err(odd)),
            }
        }
    }
    (pods, list.end())
}

/// Returns the pods of a response, which must not depend on the chunk size, and the result of its end.
fn told(answer: &[u8]) -> (Vec<Result<Pod, String>>, Result<String, Odd>) {
    let (pods, end) = read(answer, usize::MAX);
    for size in [1, 2, 7, 100] {
        assert_eq!(read(answer, size), (pods.clone(), end.clone()), "in pieces of {size}");
    }
    (pods.iter().map(|pod| read_pod(pod, &Wanted::of(["k"]).with_raw())).collect(), end)
}

fn odd(answer: &[u8]) -> Odd {
    told(answer).1.unwrap_err()
}

fn names(pods: &[Result<Pod, String>]) -> Vec<&str> {
    pods.iter().map(|pod| pod.as_ref().map_or("!", |pod| pod.name.as_str())).collect()
}

#[test]
fn a_list_of_a_real_api_server_is_read() {
    let (pods, end) = told(LIST);
    assert_eq!(end, Err(Odd::Partial), "we never ask for a part");
    let pod = pods[0].as_ref().unwrap();
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.phase), ("default", "a", Phase::Pending));
    assert_eq!(pod.uid, "3718d2c4-a0c1-44b0-bffe-06a848b3713e");
    assert!(pod.guaranteed && pod.qos_guaranteed);
    assert_eq!(pod.annotations, [("k".into(), Annotation::Text("v".into()))].into());
    assert_eq!((pod.containers[0].cpu_milli, pod.containers[0].memory), (1000, 1 << 30));
    // The pod is the whole list, except for what is before it and the end of the envelope.
    let Some(RawPod::Protobuf(whole)) = pod.raw.as_deref() else { panic!("{pod:?}") };
    assert!(LIST[..LIST.len() - 4].ends_with(whole) && whole.starts_with(b"\x0a\xa4\x05\x0a\x01a"));
    assert_eq!(told(EMPTY), (vec![], Ok("234".to_owned())));
}

#[test]
fn what_is_cut_off_anywhere_is_no_list() {
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
fn lengths_that_lie_are_found() {
    // A pod that claims more bytes than its list has, in an envelope that fits.
    let mut long = record(2, &pod("a", b""));
    long[1] += 1;
    assert!(matches!(odd(&list(&[&long])), Odd::Wire(_)));
    // An error inside a pod affects only that pod.
    let mut broken = pod("a", b"");
    broken[1] += 1;
    let (pods, end) = told(&list(&[&record(2, &broken), &record(2, &pod("b", b""))]));
    assert_eq!((names(&pods), end), (vec!["!", "b"], Ok("7".to_owned())));
    // An impossible length is rejected at once, however long the list claims to be.
    let about = record(1, b"\x0a\x02v1\x12\x07PodList");
    let endless = [&b"k8s\0"[..], &about, b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f"].concat();
    for (record, most) in [(&b"\x12"[..], LARGEST), (b"\x0a", SMALL)] {
        let length = [b"\xff\xff\xff\xff\x0f".to_vec(), vec![0; 64]].concat();
        assert_eq!(odd(&[&endless[..], record, &length].concat()), Odd::TooLarge(most));
    }
    let huge = [&b"k8s\0\x0a"[..], &[0xff; 9], &[1]].concat();
    assert_eq!(odd(&huge), Odd::TooLarge(SMALL));
    assert!(matches!(odd(&[&b"k8s\0"[..], &[0xff; 12]].concat()), Odd::Wire(_)));
    // An unknown field is skipped without being buffered.
    let unknown = [&endless[..], b"\x1a\xff\xff\xff\xff\x0f"].concat();
    let mut list = PodList::default();
    list.put(&unknown);
    for _ in 0..64 {
        list.put(&[0; 1 << 16]);
        assert_eq!(list.take(), Ok(None));
        assert!(list.buffer.rest().is_empty());
    }
    assert!(matches!(list.end(), Err(Odd::Wire(_))));
}

/// The list of a full node, of maximum size, in the chunks in which HTTP delivers it.
#[test]
fn no_more_is_held_than_one_pod() {
    let filler = record(12, &[record(1, b"other"), record(2, &vec![b'x'; 9 << 10])].concat());
    let pods: Vec<u8> =
        (0..500).flat_map(|index| record(2, &pod(&format!("pod-{index}"), &filler))).collect();
    let answer = list(&[&pods]);
    assert!(answer.len() > 4 << 20, "{}", answer.len());
    let (mut list, mut taken, mut most) = (PodList::default(), 0, 0);
    for piece in answer.chunks(16 << 10) {
        list.put(piece);
        most = most.max(list.buffer.capacity());
        while let Some(pod) = list.take().unwrap() {
            assert!(read_pod(pod, &Wanted::default()).is_ok());
            taken += 1;
        }
    }
    assert_eq!((taken, list.end()), (500, Ok("7".to_owned())));
    assert!(most <= 64 << 10, "{most} bytes were held");
}

#[test]
fn fields_that_are_not_known_are_skipped() {
    let unknown =
        [record(99, b"new"), vec![0xf8, 6, 1, 0xf9, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0xfd, 6, 1, 2, 3, 4]].concat();
    let item = record(2, &[pod("a", &record(99, b"new")), record(98, b"new")].concat());
    let object = [&unknown[..], &record(1, &record(2, b"7")), &item, &unknown].concat();
    let about = record(1, b"\x0a\x02v1\x12\x07PodList");
    let answer = [&b"k8s\0"[..], &unknown, &about, &record(2, &object), &unknown].concat();
    let (pods, end) = told(&answer);
    assert_eq!((names(&pods), end), (vec!["a"], Ok("7".to_owned())));
}

#[test]
fn content_of_another_kind_is_not_taken() {
    let content = [record(1, &record(2, b"7")), record(2, &pod("a", b""))].concat();
    for (more, right) in [
        (record(3, b""), true),
        (record(4, CONTENT.as_bytes()), true),
        (record(3, b"gzip"), false),
        (record(4, b"application/json"), false),
    ] {
        let end = told(&enveloped("PodList", &content, &more)).1;
        assert!(if right { end.is_ok() } else { matches!(end, Err(Odd::Content(_))) }, "{more:?}");
    }
    assert_eq!(odd(&enveloped("NodeList", &content, b"")).to_string(), "it is a \"NodeList\", not a PodList");
    assert!(matches!(odd(FORBIDDEN), Odd::Kind(..)));
    for nothing in [&b""[..], b"k8s", b"{\"kind\":\"PodList\"}", b"k8t\0"] {
        assert_eq!(odd(nothing), Odd::Magic);
    }
    // Without its kind, and with two lists.
    assert!(matches!(odd(&[&b"k8s\0"[..], &record(2, &content)].concat()), Odd::Kind(..)));
    assert!(matches!(odd(&enveloped("PodList", &content, &record(2, &content))), Odd::Wire(_)));
    assert_eq!(odd(&enveloped("PodList", b"", b"")), Odd::NoVersion);
    // A field with the right number that is not a message.
    assert!(matches!(odd(&list(&[&[2 << 3, 1]])), Odd::Wire(_)));
}

/// The API server checks the keys of annotations, but accepts any bytes as values from clients that use
/// protocol buffers (seen with 1.36.3).
#[test]
fn bytes_that_are_no_text_do_not_cost_a_pod() {
    let annotation = record(12, &[record(1, b"k"), record(2, b"\xff\xfe")].concat());
    let (pods, _) = told(&list(&[&record(2, &pod("a", &annotation))]));
    let expected = [("k".into(), Annotation::Text("\u{fffd}\u{fffd}".into()))].into();
    assert_eq!(pods[0].as_ref().unwrap().annotations, expected);
}
