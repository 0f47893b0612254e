//! `NodeResourceTopology`, `topology.node.k8s.io/v1alpha2`: the object that we publish.
//!
//! The types mirror `k8stopologyawareschedwg/noderesourcetopology-api` (tags to v0.1.3). The fields are at
//! the root of the object, there is no `spec`.

mod form;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;

pub use form::{
    FINGERPRINT, FINGERPRINT_ANNOTATION, FINGERPRINT_METHOD, Form, POLICY, SCOPE, Version, policy_and_scope,
};

/// The CRD with upstream's versions: v1alpha1 served, v1alpha2 served and stored.
pub const CRD: &str = include_str!("../../../crds/topology.node.k8s.io_noderesourcetopologies.yaml");

/// `type` of a zone that is a NUMA node; the scheduler ignores every other type.
pub const ZONE_TYPE: &str = "Node";

/// The only Topology Manager policy with which the scheduler plugin filters nodes.
pub(crate) const SINGLE_NUMA_NODE: &str = "single-numa-node";

/// The zone attribute with the nodes of the Memory Manager's group that the zone is in; its own id if it is in none.
pub const MEMORY_GROUP: &str = "memoryGroup";

/// The zone attribute with the sockets of the zone's CPUs.
pub const SOCKETS: &str = "sockets";

/// The zone attribute with the CPUs of each L3 cache, if only a part of the zone shares one.
pub const L3_CACHES: &str = "l3Caches";

/// The attribute with the online CPUs that the kubelet allocates to no container exclusively.
pub const RESERVED_CPUS: &str = "reservedCPUs";

/// Returns a zone's name, `node-<NUMA id>`, from which the scheduler parses the id.
#[must_use]
pub fn zone_name(id: u16) -> String {
    format!("node-{id}")
}

/// Returns true if a scheduler reads an object with zones of these types as that of a Node.
#[must_use]
pub fn describes_node<'a>(zone_types: impl IntoIterator<Item = &'a str>) -> bool {
    let mut types = zone_types.into_iter().peekable();
    types.peek().is_none() || types.any(|kind| kind == ZONE_TYPE)
}

/// CPUs, bytes or devices of one resource, in one zone or in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// What the hardware has.
    pub capacity: u64,
    /// What the kubelet can allocate.
    pub allocatable: u64,
    /// The part of `allocatable` that is not in use.
    pub available: u64,
}

impl Amounts {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            capacity: self.capacity.saturating_add(other.capacity),
            allocatable: self.allocatable.saturating_add(other.allocatable),
            available: self.available.saturating_add(other.available),
        }
    }
}

/// What one node's NUMA zones have, and how its kubelet places pods on them.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "topology.node.k8s.io",
    version = "v1alpha2",
    kind = "NodeResourceTopology",
    plural = "noderesourcetopologies",
    singular = "noderesourcetopology",
    shortname = "node-res-topo",
    derive = "Default",
    derive = "PartialEq",
    doc = "One node's NUMA zones. Its name is the node's.",
    no_spec
)]
#[serde(rename_all = "camelCase")]
pub struct NodeResourceTopologyFields {
    /// Deprecated in favour of `attributes`; nothing writes it by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_policies: Option<Vec<String>>,
    /// The NUMA nodes, ascending by id.
    pub zones: Vec<Zone>,
    /// The kubelet's policies, the CPUs of each core type, the fingerprint and the placement, in a fixed order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Vec<AttributeInfo>>,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Zone {
    /// `node-<NUMA id>`.
    pub name: String,
    /// `Node`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Unused by the known consumers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Distances to every zone, itself included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Vec<CostInfo>>,
    /// Attributes of the zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Vec<AttributeInfo>>,
    /// Sorted by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<ResourceInfo>>,
}

/// The distance to one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CostInfo {
    /// The other zone's name.
    pub name: String,
    /// The SLIT distance; 255 when unknown.
    pub value: i64,
}

/// A name and its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttributeInfo {
    /// The name. If it occurs more than once, the first entry counts.
    pub name: String,
    /// Verbatim.
    pub value: String,
}

/// What a zone has of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceInfo {
    /// The name used in pod specs.
    pub name: String,
    /// What the hardware has.
    #[schemars(schema_with = "quantity_schema")]
    pub capacity: Quantity,
    /// What the kubelet can allocate.
    #[schemars(schema_with = "quantity_schema")]
    pub allocatable: Quantity,
    /// The part of `allocatable` that is not in use.
    #[schemars(schema_with = "quantity_schema")]
    pub available: Quantity,
}

/// Returns the schema of a quantity as controller-gen generates it.
fn quantity_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": QUANTITY_PATTERN,
        "x-kubernetes-int-or-string": true,
    })
}

/// controller-gen's pattern for `resource.Quantity`.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use serde_json::{Value, json};

    use super::*;

    fn crd_file() -> Value {
        serde_saphyr::from_str(CRD).unwrap()
    }

    fn version(name: &str) -> Value {
        let file = crd_file();
        let versions = file["spec"]["versions"].as_array().unwrap();
        versions.iter().find(|v| v["name"] == name).unwrap().clone()
    }

    /// Returns the validating parts of a schema; sorted, so that order does not matter.
    fn shape(schema: &Value) -> Value {
        match schema {
            Value::Object(fields) => {
                // kube leaves `anyOf` of an int-or-string empty, as the extension implies it.
                let int_or_string = fields.contains_key("x-kubernetes-int-or-string");
                let kept = fields.iter().filter(|(key, value)| {
                    match key.as_str() {
                        // A property named `description` is not a description.
                        "description" => !value.is_string(),
                        "anyOf" => !int_or_string,
                        "title" | "format" | "nullable" | "default" => false,
                        _ => true,
                    }
                });
                Value::Object(kept.map(|(key, value)| (key.clone(), shape(value))).collect())
            }
            Value::Array(items) => {
                let mut items: Vec<Value> = items.iter().map(shape).collect();
                items.sort_by_key(Value::to_string);
                Value::Array(items)
            }
            other => other.clone(),
        }
    }

    /// Returns the shape without `apiVersion`, `kind` and `metadata`, which every controller-gen schema has
    /// and no derived one.
    fn own_properties(schema: &Value) -> Value {
        let mut schema = shape(schema);
        let properties = schema["properties"].as_object_mut().unwrap();
        for common in ["apiVersion", "kind", "metadata"] {
            properties.remove(common);
        }
        schema
    }

    #[test]
    fn the_derived_schema_equals_the_crd_file() {
        let derived = serde_json::to_value(NodeResourceTopology::crd()).unwrap();
        let file = crd_file();
        assert_eq!(derived["spec"]["group"], file["spec"]["group"]);
        assert_eq!(derived["spec"]["scope"], file["spec"]["scope"]);
        assert_eq!(derived["metadata"]["name"], file["metadata"]["name"]);
        for name in ["kind", "plural", "singular", "shortNames"] {
            assert_eq!(derived["spec"]["names"][name], file["spec"]["names"][name], "{name}");
        }
        let derived = own_properties(&derived["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
        let written = own_properties(&version("v1alpha2")["schema"]["openAPIV3Schema"]);
        assert_eq!(derived, written);
    }

    #[test]
    fn the_versions_are_served_as_upstream() {
        let (old, new) = (version("v1alpha1"), version("v1alpha2"));
        assert_eq!((&old["served"], &old["storage"]), (&json!(true), &json!(false)));
        assert_eq!((&new["served"], &new["storage"]), (&json!(true), &json!(true)));
        let mut expected = own_properties(&new["schema"]["openAPIV3Schema"]);
        expected["properties"].as_object_mut().unwrap().remove("attributes");
        expected["required"] = json!(["topologyPolicies", "zones"]);
        assert_eq!(own_properties(&old["schema"]["openAPIV3Schema"]), expected);
    }

    #[test]
    fn the_fields_are_at_the_root() {
        let object = NodeResourceTopology::new("worker", NodeResourceTopologyFields::default());
        let value = serde_json::to_value(object).unwrap();
        assert_eq!(value["zones"], json!([]));
        assert_eq!(value.get("spec"), None);
    }
}
