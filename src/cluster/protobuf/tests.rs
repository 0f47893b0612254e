use super::samples::{FORBIDDEN, enveloped, record};
use super::*;
use crate::util::wire::put_number;

/// The response to a watch from version `abc`.
const NO_VERSION: &[u8] = include_bytes!("captured/no-version.pb");

#[test]
fn an_error_response_is_decoded_in_any_format() {
    let decode = |code, bytes: &[u8]| {
        let status = decode_status(code, bytes);
        (status.code, status.reason, status.message)
    };
    let expected = |code, reason: &str, message: &str| (code, reason.to_owned(), message.to_owned());
    let forbidden = "pods is forbidden: User \"low\" cannot list resource \"pods\" in API group \"\" at the cluster scope";
    assert_eq!(decode(403, FORBIDDEN), expected(403, "Forbidden", forbidden));
    let (code, reason, message) = decode(500, NO_VERSION);
    assert_eq!((code, reason.as_str()), (500, ""));
    assert!(message.contains("resourceVersion: Invalid value: \"abc\""), "{message}");
    let json = br#"{"kind":"Status","code":503,"reason":"ServiceUnavailable","message":"later"}"#;
    assert_eq!(decode(503, json), expected(503, "ServiceUnavailable", "later"));
    assert_eq!(decode(429, b"Too many requests\n"), expected(429, "", "Too many requests"));
    assert_eq!(decode(502, b""), expected(502, "", ""));
    assert_eq!(decode(502, &b"x".repeat(1000)).2.len(), MAX_QUOTED);
    // A status with a retry delay.
    let mut details = Vec::new();
    put_number(&mut details, 5, 17);
    let mut status = [record(3, b"busy"), record(5, &details)].concat();
    put_number(&mut status, 6, 429);
    let status = decode_status(429, &enveloped("Status", &status, b""));
    assert_eq!(status.details.unwrap().retry_after_seconds, 17);
}
