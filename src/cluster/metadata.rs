//! Decodes the metadata of objects whatever their `managedFields` contain.
//!
//! A client that may update an object may put anything into its `managedFields`, and the API server keeps
//! it. kube decodes each `fieldsV1` as a JSON value, and serde_json rejects values of 128 levels: one such
//! entry would make every response with the object unreadable. Here lower levels are skipped, which
//! serde_json does without recursion and therefore without a limit.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// How many levels of metadata are kept: the metadata, a list, its entry, and of `fieldsV1` the root,
/// `f:metadata` and its `f:annotations`.
const LEVELS: usize = 6;
/// The level of lists. Those below, in `fieldsV1`, would need many times their size in memory.
const LISTS: usize = LEVELS - 1;

/// An object of which only the metadata is decoded.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OnlyMetadata {
    #[serde(deserialize_with = "metadata")]
    pub(super) metadata: ObjectMeta,
}

pub(super) fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut metadata = Levels(LEVELS).deserialize(deserializer)?;
    let entries = metadata.get_mut("managedFields").and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten().filter_map(Value::as_object_mut) {
        entry.retain(|key, value| match key.as_str() {
            // Go accepts times that jiff does not, such as the last day of the year 9999.
            "time" => Time::deserialize(&*value).is_ok(),
            "fieldsV1" => value.is_object(),
            _ => true,
        });
    }
    ObjectMeta::deserialize(metadata).map_err(D::Error::custom)
}

/// Decodes this many levels of JSON; what is below becomes null.
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

macro_rules! visit {
    ($($name:ident: $type:ty),*) => {
        $(fn $name<E: Error>(self, value: $type) -> Result<Value, E> {
            Ok(value.into())
        })*
    };
}

impl<'de> Visitor<'de> for Levels {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = items.next_key::<String>()? {
            fields.insert(key, items.next_value_seed(Self(self.0 - 1))?);
        }
        Ok(Value::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        if self.0 < LISTS {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Value::Null);
        }
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Self(self.0 - 1))? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    visit!(visit_str: &str, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_bool: bool);

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns an object's metadata as JSON, with an entry of `managedFields` that is nested this deep.
    pub(in crate::cluster) fn nested(levels: usize) -> String {
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

    fn read(metadata: &str) -> ObjectMeta {
        let object = format!(r#"{{"kind":"X","metadata":{metadata},"spec":{{}}}}"#);
        serde_json::from_str::<OnlyMetadata>(&object).unwrap().metadata
    }

    #[test]
    fn managed_fields_of_any_depth_are_decoded() {
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
    fn lists_in_managed_fields_are_skipped() {
        let entries =
            read(r#"{"managedFields":[{"fieldsV1":{"f:a":[0,0],"f:b":{"f:c":[[]]}}}]}"#).managed_fields;
        let fields = &entries.unwrap()[0].fields_v1;
        assert_eq!(fields.as_ref().unwrap().0, json!({"f:a": null, "f:b": {"f:c": null}}));
    }

    #[test]
    fn all_other_fields_are_decoded_as_by_kube() {
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
            let below = entry(&format!(r#"{{"f:metadata":{odd},"f:zones":{{}}}}"#)).managed_fields.unwrap();
            assert_eq!(below[0].fields_v1.as_ref().unwrap().0["f:zones"], json!({}), "{odd}");
        }
    }
}
