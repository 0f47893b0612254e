//! Pods as protocol buffers and as JSON, both written by Kubernetes' own types.

#![allow(clippy::unwrap_used)] // a failing test shows where

use std::path::PathBuf;

use numacast_core::core_v1::decode_pod;
use numacast_core::pod::Pod;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");

/// Returns the pods of the corpus that exist in both forms: the path, the protocol buffers, the JSON.
fn pods_in_both_forms() -> Vec<(PathBuf, Vec<u8>, Vec<u8>)> {
    let files = PathBuf::from(CORPUS).join("pods").read_dir().unwrap().map(|entry| entry.unwrap().path());
    let protobuf = files.filter(|path| path.extension().is_some_and(|extension| extension == "pb"));
    let both = protobuf.filter(|path| path.with_extension("json").exists());
    let read = |path: PathBuf| {
        let (binary, text) =
            (std::fs::read(&path).unwrap(), std::fs::read(path.with_extension("json")).unwrap());
        (path, binary, text)
    };
    both.map(read).collect()
}

#[test]
fn protobuf_and_json_are_parsed_to_the_same_pod() {
    let mut compared = 0;
    for (path, binary, text) in pods_in_both_forms() {
        let Ok(pod) = decode_pod(&binary) else { continue };
        assert_eq!(Pod::from_json(&text).unwrap(), pod, "{}", path.display());
        compared += 1;
    }
    assert!(compared >= 9, "{compared}");
}
