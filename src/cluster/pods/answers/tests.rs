use super::*;
use crate::cluster::pods::Frames;
use crate::cluster::pods::samples::{FORBIDDEN, enveloped, pod, record};
use crate::core_v1::read_pod;
use crate::pod::Wanted;
use crate::util::wire::put_number;

/// Two pods were added or changed, one was deleted, then a bookmark.
const WATCH: &[u8] = include_bytes!("../seen/watch.pb");
/// A watch from a version that was too old.
const EXPIRED: &[u8] = include_bytes!("../seen/watch-expired.pb");
/// The response to a watch from version `abc`.
const NO_VERSION: &[u8] = include_bytes!("../seen/no-version.pb");

fn event(what: &[u8], object: &[u8]) -> Vec<u8> {
    [record(1, what), record(2, &record(1, object))].concat()
}

fn frames(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut splitter = Frames::default();
    splitter.put(stream);
    std::iter::from_fn(|| splitter.take().unwrap().map(<[u8]>::to_vec)).collect()
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
    // A status with a retry delay.
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
    for frame in frames(WATCH).iter().chain(&frames(EXPIRED)) {
        for cut in 0..frame.len() - 4 {
            assert!(News::read(&frame[..cut]).is_err(), "{cut} of {frame:?}");
        }
    }
}

#[test]
fn fields_that_are_not_known_are_skipped() {
    let unknown = [record(99, b"new"), vec![0xf8, 6, 1]].concat();
    let object = enveloped("Pod", &pod("a", b""), &unknown);
    let frame = [unknown.clone(), event(b"ADDED", &object), unknown].concat();
    assert_eq!(News::read(&frame), Ok(News::Is(&pod("a", b""), "7".to_owned())));
}

#[test]
fn content_of_another_kind_is_not_taken() {
    let pod = enveloped("Pod", &pod("a", b""), b"");
    assert_eq!(News::read(&event(b"RENAMED", &pod)), Err(Odd::Event("RENAMED".to_owned())));
    assert!(matches!(News::read(&event(b"ERROR", &pod)), Err(Odd::Kind(..))));
    let without = enveloped("Pod", &record(1, &record(1, b"a")), b"");
    assert_eq!(News::read(&event(b"ADDED", &without)), Err(Odd::NoVersion));
}
