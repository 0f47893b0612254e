//! Dynamic resource allocation.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// Dynamic resource allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Dra {
    /// Whether what ResourceClaims hold leaves the zones: `auto` (if the API server has `resource.k8s.io`) or `off`.
    ///
    /// CPUs and memory of claims leave what is available in their zones, and the devices of each driver are a
    /// resource of their zones with the driver's name. The agent watches the node's ResourceSlices, and reads each
    /// claim that a pod of the node names, once. RBAC cannot limit the latter to the node.
    pub source: DraSource,
}

/// Whether claims are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DraSource {
    /// If the API server has them.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl<'de> Deserialize<'de> for DraSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = DraSource;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("auto or off")
            }
            // YAML parses a bare `off` as a boolean.
            fn visit_bool<E: serde::de::Error>(self, on: bool) -> Result<DraSource, E> {
                Ok(if on { DraSource::Auto } else { DraSource::Off })
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<DraSource, E> {
                match text {
                    "auto" => Ok(DraSource::Auto),
                    "off" => Ok(DraSource::Off),
                    _ => Err(E::unknown_variant(text, &["auto", "off"])),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for DraSource {
    fn schema_name() -> Cow<'static, str> {
        "DraSource".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "boolean"], "enum": ["auto", "off", true, false]})
    }
}
