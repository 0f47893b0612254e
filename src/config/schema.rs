//! The configuration's JSON Schema, for editors and for the chart: generated from the types, with the
//! descriptions in [`DOCS`].
//!
//! [`DOCS`]: super::DOCS

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{Address, Endpoint, Nudge, Percent, Period, SchedulerPods, SocketMode};
use crate::util::json_path::{JsonPath, Template};

/// The JSON Schema (draft 7) of a configuration file. It covers keys and types; conflicts between keys are
/// found only by the model itself (`numacast config check`).
pub const SCHEMA: &str = include_str!("schema.json");

/// Implements [`JsonSchema`] for types with their own text format.
macro_rules! text {
    ($($value:ty: $schema:tt),* $(,)?) => {$(
        impl JsonSchema for $value {
            fn schema_name() -> Cow<'static, str> {
                stringify!($value).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}
text! {
    Period: {"type": "string", "minLength": 2},
    Endpoint: {"type": "string", "pattern": "^(none|.*:[0-9]+)$"},
    Address: {"type": "string", "minLength": 1},
    Percent: {"type": "integer", "minimum": 0, "maximum": 100},
    SchedulerPods: {"type": "string", "pattern": "^[a-z0-9-]+/.+=.*$"},
    SocketMode: {"type": "string", "pattern": "^0?[0-7]{3}$"},
    JsonPath: {"type": "string", "pattern": "^\\$"},
    Template: {"type": "string", "minLength": 1},
    // YAML parses a bare `off` as a boolean.
    Nudge: {"type": ["string", "boolean"]},
}

/// As people write it: [`crate::util::glob::PodPattern`].
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[allow(dead_code, reason = "for its schema")]
pub(super) struct PodPattern {
    namespace: Option<String>,
    name: Option<String>,
}

#[cfg(test)]
mod tests {
    use schemars::generate::SchemaSettings;
    use serde_json::Value;

    use super::super::{Config, DOCS};
    use crate::generated;

    /// Returns the schema of the types, with the descriptions in [`DOCS`] instead of the types' doc comments.
    fn of_the_types() -> Value {
        let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<Config>().to_value();
        forget(&mut schema);
        for (key, meaning) in DOCS {
            let at = key.split('.').fold(&mut schema, |schema, name| &mut schema["properties"][name]);
            assert!(at.is_object(), "{key} has no schema");
            at["description"] = (*meaning).into();
        }
        schema["title"] = "The configuration of numacast".into();
        schema
    }

    /// Removes the types' descriptions, and turns alternatives that are all constants into an `enum`. A key
    /// named `description` or `title` is kept: its value in `properties` is a map.
    fn forget(schema: &mut Value) {
        let Some(map) = schema.as_object_mut() else { return };
        map.retain(|name, value| !(matches!(name.as_str(), "description" | "title") && value.is_string()));
        // Defaults are listed once, at their keys.
        if map.contains_key("properties") || map.get("default").is_some_and(Value::is_null) {
            map.remove("default");
        }
        if let Some(variants) = map.get_mut("oneOf").and_then(Value::as_array_mut) {
            let names: Option<Vec<Value>> =
                variants.iter().map(|variant| variant.get("const").cloned()).collect();
            if let Some(names) = names {
                map.remove("oneOf");
                map.insert("type".to_owned(), "string".into());
                map.insert("enum".to_owned(), names.into());
            }
        }
        map.values_mut().for_each(forget);
        for name in ["anyOf", "oneOf", "allOf"] {
            map.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().for_each(forget);
        }
    }

    #[test]
    fn the_document_is_that_of_the_types() {
        let text = serde_json::to_string_pretty(&of_the_types()).unwrap() + "\n";
        generated::whole("src/config/schema.json", &text);
    }
}
