//! Pods as protocol buffers and as JSON, both written by Kubernetes' own types. `tests/heart` compiles this
//! file too, so that `make mutants` runs these tests.

use std::path::PathBuf;

use super::{CORPUS, Pod, decode_pod, pod_json};

/// Returns the pods of a corpus that exist in both forms: the path, the protocol buffers, the JSON.
fn in_both_forms(corpus: &str) -> Vec<(PathBuf, Vec<u8>, Vec<u8>)> {
    let files = PathBuf::from(CORPUS).join(corpus).read_dir().unwrap().map(|entry| entry.unwrap().path());
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
fn both_forms_of_a_pod_are_one_record() {
    let mut compared = 0;
    for (path, binary, text) in in_both_forms("pods") {
        let Ok(pod) = decode_pod(&binary) else { continue };
        assert_eq!(Pod::from_json(&text).unwrap(), pod, "{}", path.display());
        compared += 1;
    }
    assert!(compared >= 9, "{compared}");
}

#[test]
fn a_whole_pod_is_written_as_kubernetes_own_types_write_it() {
    let mut compared = 0;
    for (path, binary, text) in ["pods", "pod_bytes"].into_iter().flat_map(in_both_forms) {
        // One file is nested more deeply than serde_json allows.
        let Ok(mut expected) = serde_json::from_slice::<serde_json::Value>(&text) else { continue };
        // `apiVersion` and `kind` are not part of the message.
        expected.as_object_mut().unwrap().retain(|key, _| key != "apiVersion" && key != "kind");
        // Protocol buffers do not distinguish an empty list from an unset one.
        let containers = &mut expected["spec"]["containers"];
        if containers.as_array().is_some_and(Vec::is_empty) {
            *containers = serde_json::Value::Null;
        }
        assert_eq!(pod_json(&binary).unwrap(), expected, "{}", path.display());
        compared += 1;
    }
    assert!(compared >= 20, "{compared}");
}
