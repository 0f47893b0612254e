//! What `doctor` reads beside objects and Nodes. Decoded leniently: it must tell what is wrong with it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource;
use kube::api::{GetParams, ObjectMeta};
use kube::core::Request;
use serde::Deserialize;
use serde_json::Value;

use super::metadata::metadata;
use super::pages::{Listing, PAGE_OF_PEOPLE, Pages};
use super::pods::{ListItem, ListReader};
use super::{Cluster, ClusterError, SlimDaemonSet};
use crate::core_v1::{InspectedPod, PlacedPod, read_inspected_pod};
use crate::names::is_dns_name;

/// The CRD of the objects.
pub const CRD_NAME: &str = "noderesourcetopologies.topology.node.k8s.io";

/// Maximum size of a kubelet's configuration, in bytes. It has some 10 KiB.
const MAX_CONFIGZ: usize = 1 << 20;

/// A CustomResourceDefinition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrdDetails {
    /// The versions.
    pub spec: CrdSpec,
    /// What the API server made of it.
    pub status: CrdStatus,
}

/// The versions of a CRD.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrdSpec {
    /// In the order of the file.
    pub versions: Vec<CrdVersion>,
}

/// One version of a CRD.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrdVersion {
    /// `v1alpha2`
    pub name: String,
    /// Whether clients may use it.
    pub served: bool,
    /// Whether objects are stored in it.
    pub storage: bool,
    /// The schema, as it is.
    pub schema: Value,
}

/// The status of a CRD.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrdStatus {
    /// Versions in which objects may be stored.
    pub stored_versions: Vec<String>,
    /// Such as `Established`.
    pub conditions: Vec<Condition>,
}

/// A condition of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// `Established`
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A sentence.
    pub message: String,
}

/// A ValidatingAdmissionPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyDetails {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    /// What it restricts.
    pub spec: PolicySpec,
    /// What the API server found in it.
    pub status: PolicyStatus,
}

/// The parts of a ValidatingAdmissionPolicy that are checked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicySpec {
    /// `Fail` (also if it is not set) or `Ignore`.
    pub failure_policy: Option<String>,
    /// What it is about.
    pub match_constraints: MatchConstraints,
    /// Conditions that a request has to meet.
    pub match_conditions: Vec<MatchCondition>,
}

/// What a policy is about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MatchConstraints {
    /// One of them has to match.
    pub resource_rules: Vec<ResourceRule>,
}

/// Requests that a policy is about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRule {
    /// The API groups.
    pub api_groups: Vec<String>,
}

/// A condition of a request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MatchCondition {
    /// Its name.
    pub name: String,
    /// In CEL.
    pub expression: String,
}

/// The status of a ValidatingAdmissionPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// What the API server's type checker found.
    pub type_checking: TypeChecking,
}

/// What the API server's type checker found.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TypeChecking {
    /// One for each expression.
    pub expression_warnings: Vec<ExpressionWarning>,
}

/// An expression with an error.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExpressionWarning {
    /// The field of the expression.
    pub field_ref: String,
    /// The error.
    pub warning: String,
}

/// A ValidatingAdmissionPolicyBinding.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingDetails {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    /// What it binds.
    pub spec: BindingSpec,
}

/// The parts of a binding that are checked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingSpec {
    /// The policy's name.
    pub policy_name: String,
    /// `Deny`, `Warn`, `Audit`.
    pub validation_actions: Vec<String>,
}

/// A configuration of one of the nri-plugins (nri-plugins 0705acc, `pkg/apis/config/v1alpha1`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NriPolicy {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    spec: NriSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NriSpec {
    agent: NriAgent,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NriAgent {
    node_resource_topology: Option<bool>,
}

impl NriPolicy {
    /// Returns whether it is in a namespace.
    pub fn is_in(&self, namespace: &str) -> bool {
        self.metadata.namespace.as_deref() == Some(namespace)
    }

    /// Returns whether it lets the plugin write objects, as its CRD does by default.
    pub fn publishes(&self) -> bool {
        self.spec.agent.node_resource_topology != Some(false)
    }
}

impl PolicyDetails {
    /// Returns its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

impl BindingDetails {
    /// Returns its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

impl Cluster {
    /// Returns the CRD of the objects; `None` if it does not exist.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn crd(&self) -> Result<Option<CrdDetails>, ClusterError> {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        self.read_opt("get the CRD", Request::new(path).get(CRD_NAME, &GetParams::default())).await
    }

    /// Lists all ValidatingAdmissionPolicies.
    pub fn admission_policies(&self) -> Pages<PolicyDetails> {
        self.listed(
            "validatingadmissionpolicies",
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        )
    }

    /// Lists all ValidatingAdmissionPolicyBindings.
    pub fn admission_bindings(&self) -> Pages<BindingDetails> {
        let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
        self.listed("validatingadmissionpolicybindings", path)
    }

    /// Lists the DaemonSets of all namespaces.
    pub fn all_daemon_sets(&self) -> Pages<SlimDaemonSet> {
        self.listed("daemonsets", "/apis/apps/v1/daemonsets")
    }

    /// Lists the configurations of nri-plugins in a resource of `config.nri`.
    pub fn nri_policies(&self, resource: &str) -> Pages<NriPolicy> {
        self.listed(resource, &format!("/apis/config.nri/v1alpha1/{resource}"))
    }

    fn listed<T: serde::de::DeserializeOwned>(&self, what: &str, path: &str) -> Pages<T> {
        let listing = Listing {
            what: format!("list {what}"),
            path: path.to_owned(),
            page: PAGE_OF_PEOPLE,
            ..Listing::default()
        };
        Pages::new(self.clone(), listing)
    }

    /// Returns the texts in a ConfigMap; `None` if it does not exist.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, ClusterError> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(default)]
            data: Option<BTreeMap<String, String>>,
        }
        // The name is one that a pod mounts, which the API server does not check.
        if !is_dns_name(namespace) || !is_dns_name(name) {
            return Ok(None);
        }
        let what = format!("get configmap {namespace}/{name}");
        let request =
            Request::new(ConfigMap::url_path(&(), Some(namespace))).get(name, &GetParams::default());
        Ok(self.read_opt::<Raw>(&what, request).await?.map(|map| map.data.unwrap_or_default()))
    }

    /// Returns the configuration with which a node's kubelet runs, as it responds at `/configz`.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn kubelet_configz(&self, node: &str) -> Result<Vec<u8>, ClusterError> {
        let what = format!("read the configuration of the kubelet on {node}");
        let path = format!("/api/v1/nodes/{node}/proxy/configz");
        let call = async {
            let body = self.get_as(path, "application/json").await?;
            Limited::new(body, MAX_CONFIGZ).collect().await.map_err(kube::Error::Service)
        };
        let body = self.in_time(&what, call).await.map_err(|failure| failure.explain(&what))?;
        Ok(body.to_bytes().to_vec())
    }

    /// Returns all pods of the cluster as the API server's cache has them, with the containers of those that are
    /// `of_interest`, which is also passed their images, commands and arguments.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn inspected_pods(
        &self,
        of_interest: impl Fn(&PlacedPod, &[Cow<'_, str>]) -> bool,
    ) -> Result<Vec<InspectedPod>, ClusterError> {
        let what = "list pods";
        let mut list =
            ListReader::start(self, "/api/v1/pods?resourceVersion=0".to_owned(), what, self.timeout).await?;
        let mut pods = Vec::new();
        while let ListItem::Pod(pod) =
            list.next_as(self, |bytes| read_inspected_pod(bytes, &of_interest)).await?
        {
            pods.push(pod.map_err(|reason| self.not_understood(what, reason))?);
        }
        Ok(pods)
    }
}
