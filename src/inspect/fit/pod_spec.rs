//! The parts of a pod's specification that decide where it can go. Deserializing all of it adds a quarter of a MiB to
//! the binary.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The specification of a pod. Fields are those of `core/v1`, and may be null.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub(super) node_name: Option<String>,
    pub(super) node_selector: Option<BTreeMap<String, String>>,
    pub(super) affinity: Option<Affinity>,
    pub(super) tolerations: Option<Vec<Toleration>>,
    pub(super) containers: Vec<Container>,
    pub(super) init_containers: Option<Vec<Container>>,
    pub(super) overhead: Option<BTreeMap<String, Quantity>>,
    pub(super) runtime_class_name: Option<String>,
    pub(super) resource_claims: Option<Vec<ClaimReference>>,
    pub(super) topology_spread_constraints: Option<Vec<IgnoredAny>>,
    pub(super) volumes: Option<Vec<Volume>>,
}

/// `affinity`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Affinity {
    pub(super) node_affinity: Option<NodeAffinity>,
    pub(super) pod_affinity: Option<IgnoredAny>,
    pub(super) pod_anti_affinity: Option<IgnoredAny>,
}

/// `affinity.nodeAffinity`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub(super) required: Option<NodeSelector>,
}

/// A container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) resources: Option<Resources>,
    pub(super) ports: Option<Vec<Port>>,
}

/// A container's `resources`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Resources {
    pub(super) requests: Option<BTreeMap<String, Quantity>>,
    pub(super) limits: Option<BTreeMap<String, Quantity>>,
}

/// A container's port.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Port {
    pub(super) host_port: Option<i32>,
}

/// One of `resourceClaims`: a claim by name, or one that is made from a template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimReference {
    pub(super) name: String,
    pub(super) resource_claim_name: Option<String>,
}

/// A volume.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Volume {
    pub(super) persistent_volume_claim: Option<IgnoredAny>,
    pub(super) ephemeral: Option<IgnoredAny>,
}
