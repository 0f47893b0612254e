//! The messages of the service `PodInfo` (`proto/podinfo`): a pod's conditions and phase, read from the
//! serialized pod. The same state gives the same bytes, whatever the pod's encoding, so that comparing bytes
//! shows whether anything changed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error;

use prost::Message;
use serde::Deserialize;

use super::proto::Timestamp;
use crate::core_v1::{SOURCE_ANNOTATIONS, proto, text};
use crate::pod::{Pod, RawPod};
use crate::util::wire::{Field, Value, fields, put_bytes};

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct PodInfo {
    /// The UID the kubelet has for the pod.
    #[prost(string, tag = "1")]
    pub(super) uid: String,
    #[prost(string, tag = "2")]
    pub(super) namespace: String,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(bool, tag = "4")]
    is_static: bool,
    /// Encoded conditions.
    #[prost(bytes = "vec", repeated, tag = "5")]
    conditions: Vec<Vec<u8>>,
    #[prost(message, optional, tag = "6")]
    deleted: Option<Timestamp>,
    #[prost(string, tag = "7")]
    phase: String,
}

/// The parts of a core/v1 Pod that are read. Texts are bytes, since they may be invalid UTF-8.
#[derive(Clone, PartialEq, Message)]
struct CorePod {
    #[prost(message, required, tag = "1")]
    metadata: CoreMetadata,
    #[prost(message, required, tag = "3")]
    status: CoreStatus,
}

#[derive(Clone, PartialEq, Message)]
struct CoreMetadata {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    namespace: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    uid: Vec<u8>,
    /// Encoded.
    #[prost(bytes = "vec", tag = "9")]
    deleted: Vec<u8>,
    #[prost(message, repeated, tag = "12")]
    annotations: Vec<CoreAnnotation>,
}

#[derive(Clone, PartialEq, Message)]
struct CoreAnnotation {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct CoreStatus {
    #[prost(bytes = "vec", tag = "1")]
    phase: Vec<u8>,
    /// Encoded conditions.
    #[prost(bytes = "vec", repeated, tag = "2")]
    conditions: Vec<Vec<u8>>,
}

impl PodInfo {
    /// Reads it from a serialized pod.
    ///
    /// # Errors
    /// If it cannot be parsed, or the pod has no serialized form.
    pub(super) fn of(pod: &Pod) -> Result<Self, String> {
        match pod.raw.as_deref() {
            Some(RawPod::Protobuf(bytes) | RawPod::Outline(bytes, _)) => {
                Self::of_protobuf(bytes).map_err(|error| error.to_string())
            }
            Some(RawPod::Json(bytes)) => Self::of_json(bytes),
            None => Err("the source has no full pod".to_owned()),
        }
    }

    pub(super) fn of_protobuf(bytes: &[u8]) -> Result<Self, Box<dyn Error>> {
        let CorePod { metadata, status } = CorePod::decode(bytes)?;
        // Go writes an unset time as an empty message, which other languages would read as 1970.
        let deleted = Some(&*metadata.deleted).filter(|time| !time.is_empty());
        let info = Self {
            uid: text(&metadata.uid).into_owned(),
            namespace: text(&metadata.namespace).into_owned(),
            name: text(&metadata.name).into_owned(),
            is_static: false,
            conditions: status
                .conditions
                .iter()
                .map(|one| encode_condition(one))
                .collect::<Result<_, _>>()?,
            deleted: deleted.map(Timestamp::decode).transpose()?,
            phase: text(&status.phase).into_owned(),
        };
        Ok(info.with_origin(|key| {
            let mut last_first = metadata.annotations.iter().rev();
            Some(text(&last_first.find(|annotation| annotation.key == key.as_bytes())?.value))
        }))
    }

    fn of_json(bytes: &[u8]) -> Result<Self, String> {
        let JsonPod { metadata, status } =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let annotations = metadata.annotations.unwrap_or_default();
        let info = Self {
            uid: metadata.uid,
            namespace: metadata.namespace,
            name: metadata.name,
            is_static: false,
            conditions: status.conditions.iter().flatten().map(Message::encode_to_vec).collect(),
            deleted: metadata.deletion_timestamp,
            phase: status.phase,
        };
        Ok(info.with_origin(|key| Some(annotations.get(key)?.into())))
    }

    /// Sets what the annotations say of a pod's origin. `kubernetes.io/config.source` is `api`, or for static
    /// pods `file` or `http`. Only mirror pods have `kubernetes.io/config.mirror`, with the kubelet's UID of the
    /// static pod. It is immutable, but a pod's creator may set it.
    fn with_origin<'a>(mut self, annotation: impl Fn(&str) -> Option<Cow<'a, str>>) -> Self {
        let [source, mirror] = SOURCE_ANNOTATIONS.map(annotation);
        self.is_static = mirror.is_some() || matches!(source.as_deref(), Some("file" | "http"));
        if let Some(uid) = mirror.filter(|uid| !uid.is_empty()) {
            self.uid = uid.into_owned();
        }
        self
    }

    /// Encodes the content of a `DELETED` event: only name, namespace and UID.
    pub(super) fn tombstone(&self) -> Vec<u8> {
        let (uid, namespace, name) = (self.uid.clone(), self.namespace.clone(), self.name.clone());
        Self { uid, namespace, name, ..Self::default() }.encode_to_vec()
    }
}

/// Encodes the content of a `DELETED` event of `Pods`: a Pod with only name, namespace and UID.
pub(super) fn pod_tombstone(pod: &Pod) -> Vec<u8> {
    let (name, namespace, uid) = (pod.name.clone(), pod.namespace.clone(), pod.uid.clone());
    let metadata = proto::ObjectMeta { name, namespace, uid, ..proto::ObjectMeta::default() };
    proto::Pod { metadata: Some(metadata), ..proto::Pod::default() }.encode_to_vec()
}

/// Encodes a condition as [`Condition`] is: without unset fields, which Go writes too. Unknown fields stay
/// unchanged. Invalid UTF-8 is replaced, since no client could decode it.
fn encode_condition(bytes: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut out = Vec::with_capacity(bytes.len());
    for field in fields(bytes) {
        let Field { number, record, value } = field?;
        match (number, value) {
            (1..=6, Value::Bytes(part)) if part.is_empty() => {}
            (3 | 4, Value::Bytes(time)) => {
                put_bytes(&mut out, number, &Timestamp::decode(&bytes[time])?.encode_to_vec());
            }
            (1..=6, Value::Bytes(part)) => put_bytes(&mut out, number, text(&bytes[part]).as_bytes()),
            (7, Value::Varint(0)) => {}
            _ => out.extend_from_slice(&bytes[record]),
        }
    }
    Ok(out)
}

#[derive(Deserialize)]
struct JsonPod {
    #[serde(default)]
    metadata: JsonMetadata,
    #[serde(default)]
    status: JsonStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JsonMetadata {
    name: String,
    namespace: String,
    uid: String,
    deletion_timestamp: Option<Timestamp>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonStatus {
    phase: String,
    conditions: Option<Vec<Condition>>,
}

/// A core/v1 PodCondition: read from JSON, encoded as protocol buffers.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    #[prost(string, tag = "1")]
    r#type: String,
    #[prost(string, tag = "2")]
    status: String,
    #[prost(message, optional, tag = "3")]
    last_probe_time: Option<Timestamp>,
    #[prost(message, optional, tag = "4")]
    last_transition_time: Option<Timestamp>,
    #[prost(string, tag = "5")]
    reason: String,
    #[prost(string, tag = "6")]
    message: String,
    #[prost(int64, tag = "7")]
    observed_generation: i64,
}
