//! Dynamic resource allocation.

use std::borrow::Cow;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use super::switch;

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

impl FromStr for DraSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Err(format!("unknown variant `{text}`, expected `auto` or `off`")),
        }
    }
}

impl<'de> Deserialize<'de> for DraSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        switch::deserialize(deserializer, "auto or off")
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
