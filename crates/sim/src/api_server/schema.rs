//! Validates objects against the schema of their CRD: unknown fields, missing fields, wrong types.

use std::sync::OnceLock;

use numacast_core::nrt::CRD;
use numacast_core::quantity::Quantity;
use serde_json::{Map, Value};

use super::status::Cause;

/// The schema of one version of `NodeResourceTopology`.
pub(super) fn of_version(version: &str) -> &'static Value {
    static DEFINITION: OnceLock<Value> = OnceLock::new();
    static NOTHING: Value = Value::Null;
    let definition = DEFINITION.get_or_init(|| serde_saphyr::from_str(CRD).unwrap_or_default());
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let found = versions.into_iter().find(|candidate| candidate["name"] == version);
    found.map_or(&NOTHING, |version| &version["schema"]["openAPIV3Schema"])
}

/// The paths of fields that are not in the schema: `zones[0].bogus`.
pub(super) fn unknown_fields(schema: &Value, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(schema, object, "", &mut |schema, value, path| {
        let (Some(known), Some(fields)) = (schema["properties"].as_object(), value.as_object()) else {
            return;
        };
        let unknown = fields.keys().filter(|name| !known.contains_key(*name));
        found.extend(unknown.map(|name| join(path, name)));
    });
    found
}

/// Removes fields that are not in the schema.
pub(super) fn prune(schema: &Value, object: &mut Value) {
    match object {
        Value::Object(fields) => {
            let Some(known) = schema["properties"].as_object() else { return };
            fields.retain(|name, _| known.contains_key(name));
            fields.iter_mut().for_each(|(name, value)| prune(&known[name], value));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| prune(&schema["items"], item)),
        _ => {}
    }
}

/// The first value of the wrong type, in the wording of server-side apply.
pub(super) fn untyped(schema: &Value, object: &Value) -> Option<String> {
    let mut first = None;
    walk(schema, object, "", &mut |schema, value, path| {
        let Some(expected) = wrong_type(schema, value) else { return };
        let expected = match expected {
            "array" => "list",
            "object" => "map",
            other => other,
        };
        first.get_or_insert_with(|| {
            format!(".{path}: expected {expected}, got &value.valueUnstructured{{Value:{value}}}")
        });
    });
    first
}

/// All violations of the schema, ordered by field.
pub(super) fn violations(schema: &Value, object: &Value) -> Vec<Cause> {
    let mut found: Vec<Cause> = Vec::new();
    walk(schema, object, "", &mut |schema, value, path| {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if value.is_object() && value.get(name).is_none() {
                found.push(("FieldValueRequired", "Required value".into(), join(path, name)));
            }
        }
        if let Some(expected) = wrong_type(schema, value) {
            let actual = type_name(value);
            let message = format!(
                "Invalid value: \"{actual}\": {path} in body must be of type {expected}: \"{actual}\""
            );
            found.push(("FieldValueTypeInvalid", message, path.to_owned()));
        } else if let Some(pattern) = violated_pattern(schema, value) {
            let message = format!("Invalid value: {value}: {path} in body should match '{pattern}'");
            found.push(("FieldValueInvalid", message, path.to_owned()));
        }
    });
    found.sort_by(|a, b| a.2.cmp(&b.2));
    found
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Visits every value that has a schema, parents first.
fn walk(schema: &Value, value: &Value, path: &str, visit: &mut impl FnMut(&Value, &Value, &str)) {
    visit(schema, value, path);
    match value {
        Value::Object(fields) => {
            let nothing = Map::new();
            let known = schema["properties"].as_object().unwrap_or(&nothing);
            for (name, value) in fields {
                if let Some(schema) = known.get(name) {
                    walk(schema, value, &join(path, name), visit);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(&schema["items"], item, &format!("{path}[{index}]"), visit);
            }
        }
        _ => {}
    }
}

fn wrong_type<'a>(schema: &'a Value, value: &Value) -> Option<&'a str> {
    if schema["x-kubernetes-int-or-string"] == true {
        return (!value.is_string() && !value.is_i64()).then_some("integer,string");
    }
    let expected = schema["type"].as_str()?;
    let matches = match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "boolean" => value.is_boolean(),
        _ => true,
    };
    (!matches).then_some(expected)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The only pattern in this schema is that of a quantity.
fn violated_pattern<'a>(schema: &'a Value, value: &Value) -> Option<&'a str> {
    let pattern = schema["pattern"].as_str()?;
    let violated = value.as_str().is_some_and(|text| text.parse::<Quantity>().is_err());
    violated.then_some(pattern)
}
