//! Reads the kubelet's `/pods` while it arrives, one pod at a time.

use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::core_v1::SOURCE_ANNOTATIONS;
use crate::json_list::ListSplitter;
use crate::pod::{MAX_ANNOTATION_BYTES, Pod, RawPod, Wanted, drop_longest_annotations};

/// Maximum size of an outline in bytes: conditions take a few hundred each.
const MAX_OUTLINE_BYTES: usize = 64 << 10;

/// Collects the pods of a response.
#[derive(Debug, Default)]
pub(super) struct PodListReader {
    splitter: ListSplitter,
    pods: Vec<Pod>,
    annotation_bytes: usize,
    wanted: Wanted,
    error: Option<String>,
}

impl PodListReader {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Processes the next piece. Errors are returned at the end.
    pub(super) fn push(&mut self, piece: &[u8]) {
        if self.error.is_some() {
            return;
        }
        let Self { splitter, pods, annotation_bytes, wanted, .. } = self;
        let result = splitter.push(piece, |json| {
            let pod =
                decode(json, wanted).map_err(|reason| format!("a pod in it cannot be read: {reason}"))?;
            *annotation_bytes += pod.annotation_bytes();
            pods.push(pod);
            if *annotation_bytes > MAX_ANNOTATION_BYTES {
                *annotation_bytes = drop_longest_annotations(pods.iter_mut());
            }
            Ok(())
        });
        self.error = result.err();
    }

    /// Returns the pods once the whole document has arrived, and a message about pods that were too large.
    pub(super) fn finish(self) -> Result<(Vec<Pod>, Option<String>), String> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let list = self.splitter.finish()?;
        match list.has_items {
            true => Ok((self.pods, list.omitted)),
            false => Err("it is not a list of pods".to_owned()),
        }
    }
}

fn decode(json: &[u8], wanted: &Wanted) -> Result<Pod, String> {
    let mut pod = Pod::from_json(json)?.keeping(wanted);
    if wanted.has_raw() {
        pod.raw = outline(json)?.map(|outline| Box::new(RawPod::Json(outline)));
    }
    Ok(pod)
}

/// The part of a serialized pod that is kept: identity and status, which is all that is read from the JSON
/// later. The rest is written by the pod's creator and may take some MiB per pod.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Outline {
    metadata: Metadata,
    status: Status,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    #[serde(skip_serializing_if = "Value::is_null")]
    name: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    namespace: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    uid: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    deletion_timestamp: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    annotations: Value,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Status {
    #[serde(skip_serializing_if = "Value::is_null")]
    phase: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    conditions: Value,
}

/// Returns the outline of a pod in JSON; `None` if it is too long.
fn outline(pod: &[u8]) -> Result<Option<Bytes>, String> {
    let mut outline: Outline = serde_json::from_slice(pod).map_err(|error| error.to_string())?;
    if let Some(annotations) = outline.metadata.annotations.as_object_mut() {
        annotations.retain(|key, _| SOURCE_ANNOTATIONS.contains(&key.as_str()));
    }
    let outline = serde_json::to_vec(&outline).map_err(|error| error.to_string())?;
    Ok((outline.len() <= MAX_OUTLINE_BYTES).then(|| outline.into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json_list::{self, MAX_ITEM_BYTES};
    use crate::pod::Annotation;

    fn read(text: &str, size: usize) -> Result<String, String> {
        let mut reader = PodListReader::default();
        text.as_bytes().chunks(size).for_each(|piece| reader.push(piece));
        let (pods, _) = reader.finish()?;
        Ok(pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn annotations_of_a_list_are_bounded_together() {
        let mut reader = PodListReader::new(Wanted::of(["a"]));
        reader.push(br#"{"items":[{"metadata":{"name":"small","namespace":"ns","annotations":{"a":"x"}}}"#);
        for number in 0..500 {
            let annotations = json!({"a": "x".repeat(Annotation::MAX_BYTES)});
            let metadata = json!({"name": number.to_string(), "namespace": "ns", "annotations": annotations});
            reader.push(format!(",{}", json!({"metadata": metadata})).as_bytes());
        }
        reader.push(b"]}");
        let (pods, _) = reader.finish().unwrap();
        let bytes: usize = pods.iter().map(Pod::annotation_bytes).sum();
        assert!((MAX_ANNOTATION_BYTES / 2..=MAX_ANNOTATION_BYTES).contains(&bytes), "{bytes}");
        assert_eq!((pods.len(), pods[0].annotation_bytes()), (501, 1), "the longest are dropped, and no pod");
    }

    #[test]
    fn identity_and_status_of_a_serialized_pod_are_kept() {
        let outline = json!({
            "metadata": {
                "name": "a", "namespace": "ns", "uid": "u", "deletionTimestamp": "2026-11-21T14:00:00Z",
                "annotations": {"kubernetes.io/config.mirror": "m"},
            },
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let mut pod = outline.clone();
        pod["metadata"]["annotations"]["x"] = "x".repeat(1 << 20).into();
        pod["spec"] = json!({"containers": [{"name": "c", "args": ["x".repeat(1 << 20)]}]});
        let mut long = pod.clone();
        long["status"]["conditions"][0]["message"] = "x".repeat(1 << 20).into();
        let list = json!({"items": [pod, long]}).to_string();
        for wanted in [Wanted::default().with_raw(), Wanted::default()] {
            let mut reader = PodListReader::new(wanted.clone());
            list.as_bytes().chunks(1 << 16).for_each(|piece| reader.push(piece));
            let (pods, _) = reader.finish().unwrap();
            let raw = |pod: &Pod| match pod.raw.as_deref() {
                Some(RawPod::Json(bytes)) => Some(serde_json::from_slice::<Value>(bytes).unwrap()),
                _ => None,
            };
            let expected = wanted.has_raw().then_some(outline.clone());
            assert_eq!(pods.iter().map(raw).collect::<Vec<_>>(), [expected, None]);
        }
    }

    #[test]
    fn a_pod_that_is_too_large_hides_no_other() {
        let list = format!(r#"{{"kind":"PodList","items":[{}]}}"#, json_list::tests::pods().join(","));
        let mut reader = PodListReader::new(Wanted::default().with_raw());
        list.as_bytes().chunks(1 << 16).for_each(|piece| reader.push(piece));
        let (pods, omitted) = reader.finish().unwrap();
        assert!(omitted.unwrap().starts_with("ns/too-large: larger than"));
        assert_eq!(pods.iter().map(|pod| &*pod.name).collect::<Vec<_>>(), ["a", "large", "b"]);
    }

    #[test]
    fn an_incomplete_list_of_pods_is_an_error() {
        assert_eq!(read(r#"{"kind":"PodList","items":[]}"#, 3).unwrap(), "");
        assert_eq!(read(r#"{"kind":"PodList","items":null}"#, 3).unwrap(), "");
        let good = r#"{"items":[{"metadata":{"name":"a","namespace":"ns"}}]}"#;
        assert_eq!(read(good, 5).unwrap(), "a");
        for end in 0..good.len() {
            assert!(read(&good[..end.max(1)], 5).is_err(), "{}", &good[..end]);
        }
        for wrong in [
            "[]",
            "{}",
            "}",
            "null",
            "nonsense",
            r#"{"kind":"Status"}"#,
            r#"{"items":[[]]}"#,
            r#"{"items":[{}]}"#,
            r#"{"items":[{"metadata":7}]}"#,
            r#"{"metadata":{"items":[]}}"#,
            r#"["items",[{}]]"#,
            r#"{"items":[]}{"items":[]}"#,
        ] {
            assert!(read(wrong, 4).is_err(), "{wrong}");
        }
        let endless = format!(r#"{{"items":[{{"x":"{}"#, "x".repeat(MAX_ITEM_BYTES * 2));
        assert!(read(&endless, 1 << 16).is_err());
        let deep = format!(r#"{{"items":[{}"#, r#"{"a":"#.repeat(1_000_000));
        assert!(read(&deep, 1 << 16).is_err());
    }
}
