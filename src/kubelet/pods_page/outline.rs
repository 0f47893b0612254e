//! The part of a serialized pod that is kept: identity and status, which is all that is read from the JSON
//! later. The rest is written by the pod's creator and may take some MiB per pod.

use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::core_v1::SOURCE_ANNOTATIONS;

/// Maximum size of an outline in bytes: conditions take a few hundred each.
const MAX_BYTES: usize = 64 << 10;

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
///
/// # Errors
/// If the pod is invalid.
pub(super) fn outline(pod: &[u8]) -> Result<Option<Bytes>, String> {
    let mut outline: Outline = serde_json::from_slice(pod).map_err(|error| error.to_string())?;
    if let Some(annotations) = outline.metadata.annotations.as_object_mut() {
        annotations.retain(|key, _| SOURCE_ANNOTATIONS.contains(&key.as_str()));
    }
    let outline = serde_json::to_vec(&outline).map_err(|error| error.to_string())?;
    Ok((outline.len() <= MAX_BYTES).then(|| outline.into()))
}
