//! What the fuzzer found worth keeping, on the ordinary compiler: every file of `fuzz/corpus/<target>` through the very
//! function that `make fuzz` runs.

#![allow(clippy::unwrap_used)] // a test that fails says where

#[path = "../../fuzz/targets.rs"]
mod targets;

use std::path::Path;

fn replay(name: &str) {
    let (_, target) = targets::TARGETS.into_iter().find(|(known, _)| *known == name).unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut files: Vec<_> = dir.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{} has only {} files", dir.display(), files.len());
    for file in files {
        // Shown if the target panics.
        eprintln!("{}", file.display());
        target(&std::fs::read(file).unwrap());
    }
}

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let entries = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut corpora: Vec<String> = entries.collect();
    corpora.sort();
    let mut names = targets::TARGETS.map(|(name, _)| name);
    names.sort_unstable();
    assert_eq!(corpora, names);
}

#[test]
fn sysfs() {
    replay("sysfs");
}

#[test]
fn podresources() {
    replay("podresources");
}

#[test]
fn state_files() {
    replay("state");
}

#[test]
fn kubelet_config() {
    replay("kubelet_config");
}

#[test]
fn config() {
    replay("config");
}

#[test]
fn recording() {
    replay("recording");
}

#[test]
fn pods() {
    replay("pods");
}

#[test]
fn pod_bytes() {
    replay("pod_bytes");
}

#[test]
fn splice() {
    replay("splice");
}

#[test]
fn annotations() {
    replay("annotations");
}

#[test]
fn grpc_frames() {
    replay("grpc_frames");
}

#[test]
fn pod_watch() {
    replay("pod_watch");
}

/// The same pods in JSON and in protocol buffers, both written by Kubernetes' own types.
#[test]
fn both_forms_of_a_pod_are_one_record() {
    use numacast::core_v1::decode_pod;
    use numacast::pod::Pod;

    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/pods");
    let mut compared = 0;
    for entry in dir.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let other = path.with_extension("json");
        if path.extension().is_none_or(|extension| extension != "pb") || !other.exists() {
            continue;
        }
        let (binary, text) = (std::fs::read(&path).unwrap(), std::fs::read(&other).unwrap());
        let Ok(pod) = decode_pod(&binary) else { continue };
        assert_eq!(Pod::from_json(&text).unwrap(), pod, "{}", path.display());
        compared += 1;
    }
    assert!(compared >= 9, "{compared}");
}

/// Whole pods in both forms, both written by Kubernetes' own types.
#[test]
fn a_whole_pod_is_written_as_kubernetes_own_types_write_it() {
    use numacast::core_v1::pod_json;

    let mut compared = 0;
    for corpus in ["pods", "pod_bytes"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(corpus);
        for entry in dir.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let other = path.with_extension("json");
            if path.extension().is_none_or(|extension| extension != "pb") || !other.exists() {
                continue;
            }
            // One is deeper than anybody reads.
            let right = serde_json::from_slice(&std::fs::read(&other).unwrap());
            let Ok(mut right): Result<serde_json::Value, _> = right else { continue };
            // What the message's envelope says.
            let object = right.as_object_mut().unwrap();
            object.retain(|key, _| key != "apiVersion" && key != "kind");
            // In a message an empty list is none.
            let containers = &mut right["spec"]["containers"];
            if containers.as_array().is_some_and(Vec::is_empty) {
                *containers = serde_json::Value::Null;
            }
            assert_eq!(pod_json(&std::fs::read(&path).unwrap()).unwrap(), right, "{}", path.display());
            compared += 1;
        }
    }
    assert!(compared >= 20, "{compared}");
}
