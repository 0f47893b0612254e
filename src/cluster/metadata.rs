//! Decodes the metadata of objects whatever their `managedFields` contain.
//!
//! Whoever may update an object may put anything into its `managedFields`, and the API server keeps it. kube
//! decodes each `fieldsV1` as a JSON value, and serde_json refuses values of 128 levels: one such entry
//! would make every response with the object unreadable. Here lower levels are skipped, which serde_json does
//! without recursion and therefore without a limit.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, OwnerReference, Time};
use kube::api::ObjectMeta;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// How many levels of `fieldsV1` are kept: those of the root, of `f:metadata`, and of its `f:annotations`.
const LEVELS: usize = 3;

/// An object of which only the metadata is decoded.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OnlyMetadata {
    #[serde(deserialize_with = "metadata")]
    pub(super) metadata: ObjectMeta,
}

/// Decodes an object's metadata.
pub(super) fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    RawMetadata::deserialize(deserializer).map(ObjectMeta::from)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMetadata {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    managed_fields: Option<Vec<RawEntry>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    uid: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawEntry {
    api_version: Option<String>,
    fields_type: Option<String>,
    #[serde(rename = "fieldsV1")]
    fields_v1: Fields,
    manager: Option<String>,
    operation: Option<String>,
    subresource: Option<String>,
    time: Option<String>,
}

impl From<RawMetadata> for ObjectMeta {
    fn from(raw: RawMetadata) -> Self {
        let entries = |entries: Vec<RawEntry>| entries.into_iter().map(ManagedFieldsEntry::from).collect();
        Self {
            annotations: raw.annotations,
            creation_timestamp: raw.creation_timestamp,
            deletion_grace_period_seconds: raw.deletion_grace_period_seconds,
            deletion_timestamp: raw.deletion_timestamp,
            finalizers: raw.finalizers,
            generate_name: raw.generate_name,
            generation: raw.generation,
            labels: raw.labels,
            managed_fields: raw.managed_fields.map(entries),
            name: raw.name,
            namespace: raw.namespace,
            owner_references: raw.owner_references,
            resource_version: raw.resource_version,
            self_link: None,
            uid: raw.uid,
        }
    }
}

impl From<RawEntry> for ManagedFieldsEntry {
    fn from(raw: RawEntry) -> Self {
        Self {
            api_version: raw.api_version,
            fields_type: raw.fields_type,
            fields_v1: raw.fields_v1.0.map(FieldsV1),
            manager: raw.manager,
            operation: raw.operation,
            subresource: raw.subresource,
            // Go accepts times that jiff does not, such as the last day of the year 9999.
            time: raw.time.and_then(|time| time.parse().ok()).map(Time),
        }
    }
}

/// The upper levels of `fieldsV1`.
#[derive(Default)]
struct Fields(Option<Value>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Levels(LEVELS).deserialize(deserializer)?;
        Ok(Self(Some(fields).filter(Value::is_object)))
    }
}

/// Decodes this many levels of objects. What is below, or no object, becomes null.
struct Levels(usize);

impl<'de> DeserializeSeed<'de> for Levels {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.0 {
            0 => IgnoredAny::deserialize(deserializer).map(|_| Value::Null),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Levels {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("managed fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = items.next_key::<String>()? {
            fields.insert(key, items.next_value_seed(Self(self.0 - 1))?);
        }
        Ok(Value::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// Returns an object's metadata as JSON, with an entry of `managedFields` that is nested this deep.
#[cfg(test)]
pub(super) fn nested(levels: usize) -> String {
    format!(
        r#"{{"name":"w","uid":"u","resourceVersion":"7","managedFields":[{{"manager":"x","operation":"Update",
        "time":"9999-12-31T23:59:59Z","fieldsType":"FieldsV1","fieldsV1":{}{{}}{}}},{{"manager":"nfd",
        "fieldsV1":{{"f:zones":{{}}}}}}]}}"#,
        r#"{"f:a":"#.repeat(levels),
        "}".repeat(levels)
    )
    // The lines of a watch contain no newlines.
    .replace('\n', "")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(metadata: &str) -> ObjectMeta {
        let object = format!(r#"{{"kind":"X","metadata":{metadata},"spec":{{}}}}"#);
        serde_json::from_str::<OnlyMetadata>(&object).unwrap().metadata
    }

    #[test]
    fn managed_fields_of_any_depth_are_read() {
        for levels in [1, 130, 10_000] {
            let metadata = read(&nested(levels));
            assert_eq!(metadata.resource_version.as_deref(), Some("7"));
            let entries = metadata.managed_fields.unwrap();
            let names: Vec<_> = entries.iter().filter_map(|entry| entry.manager.as_deref()).collect();
            assert_eq!(names, ["x", "nfd"]);
            assert_eq!(entries[0].time, None, "jiff has no such time");
            assert_eq!(entries[1].fields_v1.as_ref().unwrap().0, json!({"f:zones": {}}));
        }
    }

    #[test]
    fn all_else_is_read_as_kube_reads_it() {
        let value = json!({
            "name": "w", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 3, "generateName": "g",
            "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["f"], "deletionGracePeriodSeconds": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "w", "uid": "n"}],
            "managedFields": [{"manager": "m", "operation": "Apply", "apiVersion": "v1", "subresource": "status",
                "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:annotations": {"f:c": null}}}}],
        });
        assert_eq!(read(&value.to_string()), serde_json::from_value::<ObjectMeta>(value).unwrap());
    }

    #[test]
    fn fields_that_are_no_objects_are_left_out() {
        for odd in ["null", "7", "-7", "0.5", "true", r#""x""#, "[[1]]"] {
            let entry = |fields: &str| read(&format!(r#"{{"managedFields":[{{"fieldsV1":{fields}}}]}}"#));
            assert_eq!(entry(odd).managed_fields.unwrap()[0].fields_v1, None, "{odd}");
            let below = entry(&format!(r#"{{"f:metadata":{odd}}}"#)).managed_fields.unwrap();
            assert_eq!(below[0].fields_v1.as_ref().unwrap().0, json!({"f:metadata": null}), "{odd}");
        }
    }
}
