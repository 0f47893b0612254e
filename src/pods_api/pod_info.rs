//! The messages of the service `PodInfo` (`proto/podinfo`): a pod's conditions and phase, read from the
//! serialized pod and encoded field by field. The same state gives the same bytes, whatever the pod's
//! encoding, so that comparing bytes shows whether anything changed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use jiff::Timestamp;
use serde::Deserialize;

use crate::core_v1;
use crate::pod::{Pod, RawPod};
use crate::util::wire::{Field, Value, WireError, fields, fields_in, put_bytes, put_number};

/// Where the kubelet has the pod from: `api`, or for static pods `file` or `http`.
const SOURCE: &str = "kubernetes.io/config.source";
/// Set on mirror pods only: the kubelet's UID of the static pod. Immutable, but a pod's creator may set it.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Field numbers of k8s.io/api core/v1 and meta/v1 (`generated.proto`).
mod tags {
    pub(super) const METADATA: u32 = 1;
    pub(super) const STATUS: u32 = 3;
    pub(super) const NAME: u32 = 1;
    pub(super) const NAMESPACE: u32 = 3;
    pub(super) const UID: u32 = 5;
    pub(super) const DELETED: u32 = 9;
    pub(super) const ANNOTATIONS: u32 = 12;
    pub(super) const KEY: u32 = 1;
    pub(super) const VALUE: u32 = 2;
    pub(super) const PHASE: u32 = 1;
    pub(super) const CONDITIONS: u32 = 2;
    pub(super) const SECONDS: u32 = 1;
    pub(super) const NANOS: u32 = 2;
}

/// Field numbers of a core/v1 PodCondition.
mod condition {
    pub(super) const TYPE: u32 = 1;
    pub(super) const STATUS: u32 = 2;
    pub(super) const LAST_PROBE: u32 = 3;
    pub(super) const LAST_TRANSITION: u32 = 4;
    pub(super) const REASON: u32 = 5;
    pub(super) const MESSAGE: u32 = 6;
    pub(super) const GENERATION: u32 = 7;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodInfo {
    /// The UID the kubelet has for the pod.
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    is_static: bool,
    /// Encoded conditions.
    conditions: Vec<Vec<u8>>,
    /// The encoded deletion timestamp.
    deleted: Option<Vec<u8>>,
    phase: String,
}

#[derive(Debug, Default)]
struct Origin {
    source: Option<String>,
    mirror: Option<String>,
}

impl Origin {
    fn record(&mut self, key: &str, value: &str) {
        let field = match key {
            SOURCE => &mut self.source,
            MIRROR => &mut self.mirror,
            _ => return,
        };
        *field = Some(value.to_owned());
    }
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

    pub(super) fn of_protobuf(bytes: &[u8]) -> Result<Self, WireError> {
        let (mut info, mut origin) = (Self::default(), Origin::default());
        for field in fields(bytes) {
            match field? {
                Field { number: tags::METADATA, value: Value::Bytes(part), .. } => {
                    info.read_metadata(bytes, part, &mut origin)?;
                }
                Field { number: tags::STATUS, value: Value::Bytes(part), .. } => {
                    info.read_status(bytes, part)?;
                }
                _ => {}
            }
        }
        Ok(info.with_origin(origin))
    }

    fn read_metadata(
        &mut self,
        bytes: &[u8],
        part: Range<usize>,
        origin: &mut Origin,
    ) -> Result<(), WireError> {
        for field in fields_in(bytes, part) {
            let Field { number, value: Value::Bytes(part), .. } = field? else { continue };
            match number {
                tags::NAME => self.name = text(bytes, part).into_owned(),
                tags::NAMESPACE => self.namespace = text(bytes, part).into_owned(),
                tags::UID => self.uid = text(bytes, part).into_owned(),
                tags::DELETED => self.deleted = encode_time(bytes, part)?,
                tags::ANNOTATIONS => {
                    let (key, value) = entry(bytes, part)?;
                    origin.record(&key, &value);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read_status(&mut self, bytes: &[u8], part: Range<usize>) -> Result<(), WireError> {
        for field in fields_in(bytes, part) {
            let Field { number, value: Value::Bytes(part), .. } = field? else { continue };
            match number {
                tags::PHASE => self.phase = text(bytes, part).into_owned(),
                tags::CONDITIONS => self.conditions.push(encode_condition(bytes, part)?),
                _ => {}
            }
        }
        Ok(())
    }

    fn of_json(bytes: &[u8]) -> Result<Self, String> {
        let JsonPod { metadata, status } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let mut origin = Origin::default();
        for (key, value) in metadata.annotations.iter().flatten() {
            origin.record(key, value);
        }
        let info = Self {
            uid: metadata.uid,
            namespace: metadata.namespace,
            name: metadata.name,
            is_static: false,
            conditions: status.conditions.iter().flatten().map(JsonCondition::encode).collect(),
            deleted: metadata.deletion_timestamp.map(encode_timestamp),
            phase: status.phase,
        };
        Ok(info.with_origin(origin))
    }

    /// Sets the UID to the kubelet's, which a mirror pod has in an annotation.
    fn with_origin(mut self, origin: Origin) -> Self {
        let Origin { source, mirror } = origin;
        self.is_static = mirror.is_some() || matches!(source.as_deref(), Some("file" | "http"));
        if let Some(uid) = mirror.filter(|uid| !uid.is_empty()) {
            self.uid = uid;
        }
        self
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = tombstone(&self.uid, &self.namespace, &self.name);
        if self.is_static {
            put_number(&mut out, 4, 1);
        }
        self.conditions.iter().for_each(|condition| put_bytes(&mut out, 5, condition));
        if let Some(time) = &self.deleted {
            put_bytes(&mut out, 6, time);
        }
        put_text(&mut out, 7, &self.phase);
        out
    }

    pub(super) fn tombstone(&self) -> Vec<u8> {
        tombstone(&self.uid, &self.namespace, &self.name)
    }
}

fn tombstone(uid: &str, namespace: &str, name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_text(&mut out, 1, uid);
    put_text(&mut out, 2, namespace);
    put_text(&mut out, 3, name);
    out
}

/// Encodes the content of a `DELETED` event of `Pods`: a Pod with only name, namespace and UID.
pub(super) fn pod_tombstone(pod: &Pod) -> Vec<u8> {
    let (mut metadata, mut out) = (Vec::new(), Vec::new());
    put_text(&mut metadata, tags::NAME, &pod.name);
    put_text(&mut metadata, tags::NAMESPACE, &pod.namespace);
    put_text(&mut metadata, tags::UID, &pod.uid);
    put_bytes(&mut out, tags::METADATA, &metadata);
    out
}

/// Reads a string. Invalid UTF-8 is replaced, since no client could decode it.
fn text(bytes: &[u8], part: Range<usize>) -> Cow<'_, str> {
    core_v1::text(&bytes[part])
}

fn put_text(out: &mut Vec<u8>, number: u32, text: &str) {
    if !text.is_empty() {
        put_bytes(out, number, text.as_bytes());
    }
}

fn entry(bytes: &[u8], part: Range<usize>) -> Result<(Cow<'_, str>, Cow<'_, str>), WireError> {
    let (mut key, mut value) = (Cow::default(), Cow::default());
    for field in fields_in(bytes, part) {
        match field? {
            Field { number: tags::KEY, value: Value::Bytes(part), .. } => key = text(bytes, part),
            Field { number: tags::VALUE, value: Value::Bytes(part), .. } => value = text(bytes, part),
            _ => {}
        }
    }
    Ok((key, value))
}

/// Reads and encodes a timestamp. Go writes an unset one as an empty message, which other languages would
/// read as 1970.
fn encode_time(bytes: &[u8], part: Range<usize>) -> Result<Option<Vec<u8>>, WireError> {
    if part.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanos) = (0, 0);
    for field in fields_in(bytes, part) {
        match field? {
            Field { number: tags::SECONDS, value: Value::Varint(number), .. } => seconds = number,
            Field { number: tags::NANOS, value: Value::Varint(number), .. } => nanos = number,
            _ => {}
        }
    }
    Ok(Some(encode_seconds(seconds, nanos)))
}

fn encode_timestamp(time: Timestamp) -> Vec<u8> {
    // Protocol buffers encode a negative number with all its 64 bits.
    encode_seconds(time.as_second() as u64, i64::from(time.subsec_nanosecond()) as u64)
}

fn encode_seconds(seconds: u64, nanos: u64) -> Vec<u8> {
    let mut out = Vec::new();
    [(tags::SECONDS, seconds), (tags::NANOS, nanos)]
        .into_iter()
        .filter(|(_, number)| *number != 0)
        .for_each(|(tag, number)| put_number(&mut out, tag, number));
    out
}

/// Encodes a condition: without unset fields, and with unknown fields unchanged.
fn encode_condition(bytes: &[u8], part: Range<usize>) -> Result<Vec<u8>, WireError> {
    let mut out = Vec::with_capacity(part.len());
    for field in fields_in(bytes, part) {
        let Field { number, record, value } = field?;
        match (number, value) {
            (
                condition::TYPE | condition::STATUS | condition::REASON | condition::MESSAGE,
                Value::Bytes(part),
            ) => put_text(&mut out, number, &text(bytes, part)),
            (condition::LAST_PROBE | condition::LAST_TRANSITION, Value::Bytes(part)) => {
                if let Some(time) = encode_time(bytes, part)? {
                    put_bytes(&mut out, number, &time);
                }
            }
            (condition::GENERATION, Value::Varint(0)) => {}
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
    conditions: Option<Vec<JsonCondition>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JsonCondition {
    r#type: String,
    status: String,
    last_probe_time: Option<Timestamp>,
    last_transition_time: Option<Timestamp>,
    reason: String,
    message: String,
    observed_generation: i64,
}

impl JsonCondition {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let put_time = |out: &mut Vec<u8>, number, time: Option<Timestamp>| {
            if let Some(time) = time {
                put_bytes(out, number, &encode_timestamp(time));
            }
        };
        put_text(&mut out, condition::TYPE, &self.r#type);
        put_text(&mut out, condition::STATUS, &self.status);
        put_time(&mut out, condition::LAST_PROBE, self.last_probe_time);
        put_time(&mut out, condition::LAST_TRANSITION, self.last_transition_time);
        put_text(&mut out, condition::REASON, &self.reason);
        put_text(&mut out, condition::MESSAGE, &self.message);
        if self.observed_generation != 0 {
            put_number(&mut out, condition::GENERATION, self.observed_generation as u64);
        }
        out
    }
}
