//! Dynamic resource allocation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DraSource {
    /// If the API server has them.
    #[default]
    Auto,
    /// Never.
    Off,
}
