//! Pods in both forms, both written by Kubernetes' own types. The heart has these tests too, for `make mutants`.

use std::path::Path;

use super::{CORPUS, Pod, decode_pod, pod_json};

/// The same pods in JSON and in protocol buffers, both written by Kubernetes' own types.
#[test]
fn both_forms_of_a_pod_are_one_record() {
    let dir = Path::new(CORPUS).join("pods");
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
    let mut compared = 0;
    for corpus in ["pods", "pod_bytes"] {
        let dir = Path::new(CORPUS).join(corpus);
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
