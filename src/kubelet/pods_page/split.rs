//! Splits a `PodList` in JSON while it arrives: one pod at a time is buffered and parsed. A pod that is too
//! large is left out.

use super::outline::outline;
use crate::one_item::OneItem;
use crate::pod::annotation::{MAX_ANNOTATION_BYTES, drop_longest_annotations};
use crate::pod::{Pod, RawPod, Wanted};

/// An incremental splitter.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// Number of open objects and arrays.
    depth: usize,
    /// Set inside a string; true after a `\` that starts an escape.
    text: Option<bool>,
    /// The last string in the outermost object, truncated to the length needed to recognize a key.
    key: Vec<u8>,
    /// The position in the document.
    place: Place,
    /// The incoming pod.
    pod: OneItem,
    pods: Vec<Pod>,
    /// How many bytes of annotations they have.
    texts: usize,
    wanted: Wanted,
    wrong: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the outermost object.
    #[default]
    Before,
    /// In the outermost object, before `items`.
    Around,
    /// In the array `items`.
    Pods,
    /// After `items`.
    Behind,
    /// After the outermost object.
    End,
}

impl Splitter {
    /// Returns a splitter that keeps what is wanted of each pod.
    pub(super) fn keeping(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Processes the next piece.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let Some((first, more)) = rest.split_first()
            && self.wrong.is_none()
        {
            // Inside a string, take everything up to the next special byte at once.
            let plain = match self.text {
                Some(false) => rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\')).count(),
                _ => 0,
            };
            let (taken, left) =
                if plain > 0 { rest.split_at(plain) } else { (std::slice::from_ref(first), more) };
            self.keep(taken);
            if plain == 0 {
                self.step(*first);
            }
            rest = left;
        }
    }

    /// Returns a message about the pods that were left out, if there are any.
    pub(super) fn left_out(&self) -> Option<String> {
        self.pod.left_out()
    }

    /// Returns the pods once the whole document has arrived.
    pub(super) fn finish(self) -> Result<Vec<Pod>, String> {
        match (self.wrong, self.place) {
            (Some(wrong), _) => Err(wrong),
            (None, Place::End) => Ok(self.pods),
            (None, _) => Err("it is no complete list of pods".to_owned()),
        }
    }

    /// Buffers bytes of the incoming pod, or of a string that may be a key.
    fn keep(&mut self, bytes: &[u8]) {
        if self.place == Place::Pods && self.depth > 2 {
            self.pod.push(bytes);
        } else if self.depth == 1 && self.text.is_some() && self.key.len() <= "items".len() {
            self.key.extend(bytes.iter().take(8));
        }
    }

    fn step(&mut self, byte: u8) {
        match self.text {
            Some(true) => self.text = Some(false),
            Some(false) if byte == b'\\' => self.text = Some(true),
            Some(false) if byte == b'"' => self.text = None,
            Some(false) => {}
            None => self.structure(byte),
        }
    }

    fn structure(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.text = Some(false);
                if self.depth == 1 {
                    self.key.clear();
                }
            }
            b'{' | b'[' => self.open(byte),
            b'}' | b']' => self.close(),
            // Go writes null for an empty list.
            b'n' if self.depth == 1 && self.is_items() => self.place = Place::Behind,
            byte if self.depth == 0 && !byte.is_ascii_whitespace() => {
                self.wrong = Some("it is no list of pods".to_owned());
            }
            _ => {}
        }
    }

    /// Returns true if the next value is that of `items`. The buffered key includes its closing quotation
    /// mark.
    fn is_items(&self) -> bool {
        self.place == Place::Around && self.key == b"items\""
    }

    fn open(&mut self, byte: u8) {
        match (self.place, self.depth, byte) {
            (Place::Before, 0, b'{') => self.place = Place::Around,
            (Place::Around, 1, b'[') if self.is_items() => self.place = Place::Pods,
            (Place::Pods, 2, b'{') => self.pod.push(&[byte]),
            (Place::Pods, 2, _) | (_, 0, _) => self.wrong = Some("it is no list of pods".to_owned()),
            _ => {}
        }
        self.depth += 1;
    }

    fn close(&mut self) {
        let Some(depth) = self.depth.checked_sub(1) else {
            self.wrong = Some("it is no list of pods".to_owned());
            return;
        };
        self.depth = depth;
        match (self.place, depth) {
            (Place::Pods, 2) => match self.pod.end(|pod| read(pod, &self.wanted)).transpose() {
                Ok(pod) => pod.into_iter().for_each(|pod| self.add(pod)),
                Err(reason) => self.wrong = Some(format!("a pod in it cannot be read: {reason}")),
            },
            (Place::Pods, 1) => self.place = Place::Behind,
            (Place::Behind, 0) => self.place = Place::End,
            (Place::Around, 0) => self.wrong = Some("it is no list of pods".to_owned()),
            _ => {}
        }
    }

    /// Adds a pod, and keeps no more annotations than fit.
    fn add(&mut self, pod: Pod) {
        self.texts += pod.annotation_bytes();
        self.pods.push(pod);
        if self.texts > MAX_ANNOTATION_BYTES {
            self.texts = drop_longest_annotations(self.pods.iter_mut());
        }
    }
}

/// Parses a pod.
fn read(json: &[u8], wanted: &Wanted) -> Result<Pod, String> {
    let mut pod = Pod::from_json(json)?.keeping(wanted);
    if wanted.has_raw() {
        pod.raw = outline(json)?.map(|outline| Box::new(RawPod::Json(outline)));
    }
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::one_item;
    use crate::one_item::LARGEST;
    use crate::pod::Annotation;

    fn split(text: &str, pieces: usize) -> Result<String, String> {
        let mut splitter = Splitter::default();
        text.as_bytes().chunks(pieces).for_each(|piece| splitter.push(piece));
        let pods = splitter.finish()?;
        Ok(pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn annotations_of_a_list_are_bounded_together() {
        let mut splitter = Splitter::keeping(Wanted::of(["a"]));
        splitter.push(br#"{"items":[{"metadata":{"name":"small","namespace":"ns","annotations":{"a":"x"}}}"#);
        for number in 0..500 {
            let annotations = json!({"a": "x".repeat(Annotation::MAX_BYTES)});
            let metadata = json!({"name": number.to_string(), "namespace": "ns", "annotations": annotations});
            splitter.push(format!(",{}", json!({"metadata": metadata})).as_bytes());
        }
        splitter.push(b"]}");
        let pods = splitter.finish().unwrap();
        let bytes: usize = pods.iter().map(Pod::annotation_bytes).sum();
        assert!((MAX_ANNOTATION_BYTES / 2..=MAX_ANNOTATION_BYTES).contains(&bytes), "{bytes}");
        assert_eq!((pods.len(), pods[0].annotation_bytes()), (501, 1), "the longest go, and no pod");
    }

    #[test]
    fn of_a_pod_that_is_wanted_whole_is_kept_who_it_is_and_how_far_it_is() {
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
            let mut splitter = Splitter::keeping(wanted.clone());
            list.as_bytes().chunks(1 << 16).for_each(|piece| splitter.push(piece));
            let pods = splitter.finish().unwrap();
            let whole = |pod: &Pod| match pod.raw.as_deref() {
                Some(RawPod::Json(bytes)) => Some(serde_json::from_slice::<Value>(bytes).unwrap()),
                _ => None,
            };
            let expected = wanted.has_raw().then_some(outline.clone());
            assert_eq!(pods.iter().map(whole).collect::<Vec<_>>(), [expected, None]);
        }
    }

    #[test]
    fn pods_come_out_however_the_bytes_come_in() {
        let pod = |name: &str| {
            json!({"metadata": {"name": name, "namespace": "ns", "annotations": {
            "items": "[{\"]}\\", "\\": "\\\"", "x": "{".repeat(300),
        }}, "spec": {"items": [{"name": "not a pod"}], "containers": [{}], "x": [[[]]]}})
        };
        let list = json!({"kind": "PodList", "metadata": {"items": [{"a": 1}]}, "apiVersion": "items",
                          "items": [pod("a"), pod("b\u{e9}\"]}"), pod("c")]});
        // With the keys in another order: `serde_json` sorts them.
        let behind = format!(
            r#" {{ "items" : [ {} , {} ] , "metadata" : {{}} , "x": [1, "]"] }} "#,
            pod("a"),
            pod("b")
        );
        for pieces in [1, 2, 3, 7, 64, 1_000_000] {
            assert_eq!(split(&list.to_string(), pieces).unwrap(), "a,b\u{e9}\"]},c", "{pieces}");
            assert_eq!(split(&behind, pieces).unwrap(), "a,b", "{pieces}");
        }
        assert_eq!(split(r#"{"kind":"PodList","items":[]}"#, 3).unwrap(), "");
        assert_eq!(split(r#"{"kind":"PodList","items":null}"#, 3).unwrap(), "");
    }

    #[test]
    fn a_pod_that_is_too_large_hides_no_other() {
        let pods = one_item::tests::pods();
        let list = format!(r#"{{"kind":"PodList","items":[{}]}}"#, pods.join(","));
        let mut splitter = Splitter::keeping(Wanted::default().with_raw());
        list.as_bytes().chunks(1 << 16).for_each(|piece| splitter.push(piece));
        assert!(splitter.left_out().unwrap().starts_with("ns/too-large: larger than"));
        let pods = splitter.finish().unwrap();
        assert_eq!(pods.iter().map(|pod| &*pod.name).collect::<Vec<_>>(), ["a", "large", "b"]);
    }

    #[test]
    fn what_is_no_complete_list_of_pods_is_refused() {
        let good = r#"{"items":[{"metadata":{"name":"a","namespace":"ns"}}]}"#;
        assert_eq!(split(good, 5).unwrap(), "a");
        for end in 0..good.len() {
            assert!(split(&good[..end.max(1)], 5).is_err(), "{}", &good[..end]);
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
            assert!(split(wrong, 4).is_err(), "{wrong}");
        }
        let endless = format!(r#"{{"items":[{{"x":"{}"#, "x".repeat(LARGEST * 2));
        assert!(split(&endless, 1 << 16).is_err());
        let deep = format!(r#"{{"items":[{}"#, r#"{"a":"#.repeat(1_000_000));
        assert!(split(&deep, 1 << 16).is_err());
    }
}
