use super::*;
use crate::cluster::pods::Frames;
use crate::pod::{Annotation, Phase, Whole};
use crate::wire::{put_bytes, put_number};

/// What an API server of 1.36.3 answered: a page of one pod, of two.
const LIST: &[u8] = include_bytes!("../seen/list.pb");
/// A list of nothing.
const EMPTY: &[u8] = include_bytes!("../seen/list-empty.pb");
/// A pod changed, another was deleted, and in the end it was said how far the watch is.
const WATCH: &[u8] = include_bytes!("../seen/watch.pb");
/// A watch from a version that was too old.
const EXPIRED: &[u8] = include_bytes!("../seen/watch-expired.pb");
/// To one who may not list pods.
const FORBIDDEN: &[u8] = include_bytes!("../seen/forbidden.pb");
/// To one who wants a watch from version `abc` on.
const NO_VERSION: &[u8] = include_bytes!("../seen/no-version.pb");

fn record(number: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, number, content);
    out
}

/// An object in its envelope, with more in the envelope.
fn enveloped(kind: &str, object: &[u8], more: &[u8]) -> Vec<u8> {
    let about = [record(1, b"v1"), record(2, kind.as_bytes())].concat();
    [&b"k8s\0"[..], &record(1, &about), &record(2, object), more].concat()
}

fn event(what: &[u8], object: &[u8]) -> Vec<u8> {
    [record(1, what), record(2, &record(1, object))].concat()
}

/// A pod of this name, with this in its metadata.
fn pod(name: &str, more: &[u8]) -> Vec<u8> {
    record(1, &[&record(1, name.as_bytes())[..], &record(3, b"ns"), &record(6, b"7"), more].concat())
}

fn list(records: &[&[u8]]) -> Vec<u8> {
    let metadata = [record(2, b"7"), record(3, b"more")].concat();
    enveloped("PodList", &[&record(1, &metadata)[..], &records.concat()].concat(), b"")
}

fn pods(page: &mut PodPage) -> Vec<Result<Pod, String>> {
    std::iter::from_fn(|| page.take(&Wanted::default())).collect()
}

fn names(page: &mut PodPage) -> Vec<String> {
    pods(page).into_iter().map(|pod| pod.unwrap().name).collect()
}

fn frames(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut splitter = Frames::default();
    splitter.put(stream);
    std::iter::from_fn(|| splitter.take().unwrap().map(<[u8]>::to_vec)).collect()
}

#[test]
fn a_page_of_a_real_api_server_is_read() {
    let mut page = PodPage::open(LIST.to_vec()).unwrap();
    assert_eq!((page.version.as_str(), page.next.len()), ("64", 76));
    let wanted = Wanted::of(["k"]).whole();
    let pod = page.take(&wanted).unwrap().unwrap();
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.phase), ("default", "a", Phase::Pending));
    assert_eq!(pod.uid, "3718d2c4-a0c1-44b0-bffe-06a848b3713e");
    assert!(pod.guaranteed && pod.said_guaranteed);
    assert_eq!(pod.annotations, [("k".into(), Annotation::Text("v".into()))].into());
    assert_eq!((pod.containers[0].cpu_milli, pod.containers[0].memory), (1000, 1 << 30));
    // The pod is all of the page but for what is before it and the end of the envelope.
    let Some(Whole::Protobuf(whole)) = pod.whole.as_deref() else { panic!("{pod:?}") };
    assert!(LIST[..LIST.len() - 4].ends_with(whole) && whole.starts_with(b"\x0a\xa4\x05\x0a\x01a"));
    assert_eq!(page.take(&wanted), None);
    let mut empty = PodPage::open(EMPTY.to_vec()).unwrap();
    assert_eq!((empty.version.as_str(), empty.next.as_str()), ("234", ""));
    assert_eq!(empty.take_bytes(), None);
}

#[test]
fn a_watch_of_a_real_api_server_is_read() {
    let told: Vec<(String, String)> = frames(WATCH)
        .iter()
        .map(|frame| match News::read(frame).unwrap() {
            News::Is(pod, version) => (read_pod(pod, &Wanted::default()).unwrap().name, version),
            News::Gone(pod, version) => {
                (format!("-{}", read_pod(pod, &Wanted::default()).unwrap().name), version)
            }
            News::Until(version) => ("until".to_owned(), version),
            News::Failed(status) => panic!("{status:?}"),
        })
        .collect();
    let told: Vec<&str> = told.iter().flat_map(|(what, version)| [what.as_str(), version]).collect();
    assert_eq!(told, ["a", "221", "b", "222", "-b", "223", "until", "223"]);
    let expired = frames(EXPIRED);
    let News::Failed(status) = News::read(&expired[0]).unwrap() else { panic!("{expired:?}") };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    assert_eq!(status.message, "too old resource version: 2 (229)");
}

#[test]
fn a_refusal_is_read_whoever_wrote_it() {
    let told = |code, bytes: &[u8]| {
        let status = refusal(code, bytes);
        (status.code, status.reason, status.message)
    };
    let words = |code, reason: &str, message: &str| (code, reason.to_owned(), message.to_owned());
    let forbidden = "pods is forbidden: User \"low\" cannot list resource \"pods\" in API group \"\" at the cluster scope";
    assert_eq!(told(403, FORBIDDEN), words(403, "Forbidden", forbidden));
    let (code, reason, message) = told(500, NO_VERSION);
    assert_eq!((code, reason.as_str()), (500, ""));
    assert!(message.contains("resourceVersion: Invalid value: \"abc\""), "{message}");
    let json = br#"{"kind":"Status","code":503,"reason":"ServiceUnavailable","message":"later"}"#;
    assert_eq!(told(503, json), words(503, "ServiceUnavailable", "later"));
    assert_eq!(told(429, b"Too many requests\n"), words(429, "", "Too many requests"));
    assert_eq!(told(502, b""), words(502, "", ""));
    assert_eq!(told(502, &b"x".repeat(1000)).2.len(), SHOWN);
    // How long to wait, from one that says so.
    let mut details = Vec::new();
    put_number(&mut details, 5, 17);
    let mut status = [record(3, b"busy"), record(5, &details)].concat();
    put_number(&mut status, 6, 429);
    let status = refusal(429, &enveloped("Status", &status, b""));
    assert_eq!(status.details.unwrap().retry_after_seconds, 17);
}

#[test]
fn what_is_cut_off_anywhere_is_no_answer() {
    // The last four bytes are two empty records of the envelope.
    for cut in 0..LIST.len() - 4 {
        assert!(PodPage::open(LIST[..cut].to_vec()).is_err(), "{cut}");
    }
    for frame in frames(WATCH).iter().chain(&frames(EXPIRED)) {
        for cut in 0..frame.len() - 4 {
            assert!(News::read(&frame[..cut]).is_err(), "{cut} of {frame:?}");
        }
    }
}

#[test]
fn lengths_that_lie_are_found() {
    // A pod that claims more than its list has, in an envelope that fits.
    let mut long = record(2, &pod("a", b""));
    long[1] += 1;
    assert!(matches!(PodPage::open(list(&[&long])), Err(Odd::Wire(_))));
    // Inside a pod it costs the pod alone.
    let mut broken = pod("a", b"");
    broken[1] += 1;
    let mut page = PodPage::open(list(&[&record(2, &broken), &record(2, &pod("b", b""))])).unwrap();
    let told = pods(&mut page);
    assert!(told[0].is_err() && told[1].as_ref().is_ok_and(|pod| pod.name == "b"), "{told:?}");
    let mut huge = b"k8s\0\x0a".to_vec();
    huge.extend([0xff; 9]);
    huge.push(1);
    assert!(matches!(PodPage::open(huge), Err(Odd::Wire(_))));
}

#[test]
fn fields_that_are_not_known_are_skipped() {
    let unknown = [record(99, b"new"), vec![0xf8, 6, 1]].concat();
    let item = record(2, &[pod("a", &unknown), unknown.clone()].concat());
    let mut page = PodPage::open(list(&[&unknown, &item, &unknown])).unwrap();
    assert_eq!(names(&mut page), ["a"]);
    assert_eq!((page.version.as_str(), page.next.as_str()), ("7", "more"));
    let object = enveloped("Pod", &pod("a", b""), &unknown);
    let frame = [unknown.clone(), event(b"ADDED", &object), unknown].concat();
    assert_eq!(News::read(&frame), Ok(News::Is(&pod("a", b""), "7".to_owned())));
}

#[test]
fn content_of_another_kind_is_not_taken() {
    let list = [record(1, &record(2, b"7")), record(2, &pod("a", b""))].concat();
    for (more, right) in [
        (record(3, b""), true),
        (record(4, CONTENT.as_bytes()), true),
        (record(3, b"gzip"), false),
        (record(4, b"application/json"), false),
    ] {
        let opened = PodPage::open(enveloped("PodList", &list, &more));
        assert!(if right { opened.is_ok() } else { matches!(opened, Err(Odd::Content(_))) }, "{more:?}");
    }
    let other = PodPage::open(enveloped("NodeList", &list, b""));
    assert_eq!(other.unwrap_err().to_string(), "it is a \"NodeList\", not a PodList");
    assert!(matches!(PodPage::open(FORBIDDEN.to_vec()), Err(Odd::Kind(..))));
    for nothing in [&b""[..], b"k8s", b"{\"kind\":\"PodList\"}", b"k8t\0"] {
        assert_eq!(PodPage::open(nothing.to_vec()).unwrap_err(), Odd::Magic);
    }
    let pod = enveloped("Pod", &pod("a", b""), b"");
    assert_eq!(News::read(&event(b"RENAMED", &pod)), Err(Odd::Event("RENAMED".to_owned())));
    assert!(matches!(News::read(&event(b"ERROR", &pod)), Err(Odd::Kind(..))));
    let without = enveloped("Pod", &record(1, &record(1, b"a")), b"");
    assert_eq!(News::read(&event(b"ADDED", &without)), Err(Odd::NoVersion));
    assert_eq!(PodPage::open(enveloped("PodList", b"", b"")).unwrap_err(), Odd::NoVersion);
    // A record of the right number that is no message.
    assert!(matches!(PodPage::open(self::list(&[&[2 << 3, 1]])), Err(Odd::Wire(_))));
}

/// The API server checks keys of annotations, and takes any bytes for a value from whoever writes protocol buffers (seen
/// with 1.36.3).
#[test]
fn bytes_that_are_no_text_do_not_cost_a_pod() {
    let annotation = record(12, &[record(1, b"k"), record(2, b"\xff\xfe")].concat());
    let mut page = PodPage::open(list(&[&record(2, &pod("a", &annotation))])).unwrap();
    let pod = page.take(&Wanted::of(["k"])).unwrap().unwrap();
    assert_eq!(pod.annotations, [("k".into(), Annotation::Text("\u{fffd}\u{fffd}".into()))].into());
}
