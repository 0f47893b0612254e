//! Converts objects between the versions of the API, with the deprecated policies on request.
//!
//! v1alpha1 has no attributes: policy and scope are combined in one name, the fingerprint is an annotation,
//! and all other attributes are omitted.

use kube::core::{ApiResource, GroupVersionKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{AttributeInfo, NodeResourceTopology};

/// The attribute with the fingerprint of the node's pods.
pub const FINGERPRINT: &str = "nodeTopologyPodsFingerprint";
/// The attribute with the method that selected these pods.
pub const FINGERPRINT_METHOD: &str = "nodeTopologyPodsFingerprintMethod";
/// The only method that the annotation implies.
const EVERY_POD: &str = "all";
/// The annotation with the fingerprint in v1alpha1. The scheduler plugin uses it if there is no such
/// attribute.
pub const FINGERPRINT_ANNOTATION: &str = "topology.node.k8s.io/fingerprint";

/// The attribute with the Topology Manager policy.
pub const POLICY: &str = "topologyManagerPolicy";
/// The attribute with the Topology Manager scope.
pub const SCOPE: &str = "topologyManagerScope";
/// The policy parts of the deprecated names, as NFD spells them.
const POLICIES: [(&str, &str); 3] =
    [("single-numa-node", "SingleNUMANode"), ("restricted", "Restricted"), ("best-effort", "BestEffort")];
/// The scope parts of the deprecated names.
const SCOPES: [(&str, &str); 2] = [("container", "ContainerLevel"), ("pod", "PodLevel")];
/// The deprecated name for no alignment, whatever the scope.
const NONE: &str = "None";

/// A version of the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// For consumers that support no other.
    V1alpha1,
    /// The stored version.
    #[default]
    V1alpha2,
}

impl Version {
    /// Returns the version as in `apiVersion`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1alpha1 => "v1alpha1",
            Self::V1alpha2 => "v1alpha2",
        }
    }

    /// Returns the resource in this version.
    #[must_use]
    pub fn resource(self) -> ApiResource {
        let kind = GroupVersionKind::gvk("topology.node.k8s.io", self.name(), "NodeResourceTopology");
        ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies")
    }
}

/// The representation of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// The API version.
    pub version: Version,
    /// Whether to include the deprecated name of policy and scope; v1alpha1 always does.
    pub policies: bool,
}

impl Form {
    /// Returns true if objects have the deprecated policies.
    #[must_use]
    pub fn has_policies(self) -> bool {
        self.policies || self.version == Version::V1alpha1
    }

    /// Converts `object` to this form.
    #[must_use]
    pub fn of(self, mut object: NodeResourceTopology) -> NodeResourceTopology {
        let attributes = object.spec.attributes.clone().unwrap_or_default();
        if self.has_policies() {
            object.spec.topology_policies = Some(deprecated(&attributes).into_iter().collect());
        }
        if self.version == Version::V1alpha1 {
            object.spec.attributes = None;
            // Useless without the attributes of the object.
            object.spec.zones.iter_mut().for_each(|zone| zone.attributes = None);
            if let Some(fingerprint) = fingerprint(&attributes) {
                let annotations = object.metadata.annotations.get_or_insert_default();
                annotations.insert(FINGERPRINT_ANNOTATION.to_owned(), fingerprint);
            }
        }
        object
    }

    /// Returns the object in this form as JSON, as it is sent.
    ///
    /// # Errors
    /// The object cannot be encoded.
    pub fn json(self, object: &NodeResourceTopology) -> Result<Value, serde_json::Error> {
        let mut value = serde_json::to_value(self.of(object.clone()))?;
        value["apiVersion"] = json!(format!("topology.node.k8s.io/{}", self.version.name()));
        Ok(value)
    }

    /// Returns the object in this form, to be printed: its fields in their order, as far as the version has types here.
    ///
    /// # Errors
    /// The object cannot be encoded.
    pub fn printed(self, object: NodeResourceTopology) -> Result<Printed, serde_json::Error> {
        Ok(match self.version {
            Version::V1alpha1 => Printed::Json(self.json(&object)?),
            Version::V1alpha2 => Printed::Typed(Box::new(self.of(object))),
        })
    }

    /// Converts an object that was read in this form to v1alpha2's attributes.
    #[must_use]
    pub fn read(self, mut object: NodeResourceTopology) -> NodeResourceTopology {
        if self.version == Version::V1alpha1 {
            let annotations = object.metadata.annotations.iter().flatten();
            let fingerprint = annotations.filter(|(name, _)| *name == FINGERPRINT_ANNOTATION);
            let fingerprint: Vec<_> = fingerprint.map(|(_, value)| attribute(FINGERPRINT, value)).collect();
            let policies = object.spec.topology_policies.iter().flatten().next();
            let mut attributes = policies.map(|name| from_deprecated(name)).unwrap_or_default();
            attributes.extend(fingerprint);
            object.spec.attributes = Some(attributes).filter(|all| !all.is_empty());
        }
        object
    }

    /// Returns what a read of `object` returns after it was written in this form.
    #[must_use]
    pub fn round_trip(self, object: NodeResourceTopology) -> NodeResourceTopology {
        self.read(self.of(object))
    }
}

/// An object in one of its forms. It serializes as the object.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Printed {
    /// As JSON.
    Json(Value),
    /// As the type.
    Typed(Box<NodeResourceTopology>),
}

fn attribute(name: &str, value: &str) -> AttributeInfo {
    AttributeInfo { name: name.to_owned(), value: value.to_owned() }
}

fn value<'a>(attributes: &'a [AttributeInfo], name: &str) -> Option<&'a str> {
    attributes.iter().find(|attribute| attribute.name == name).map(|attribute| attribute.value.as_str())
}

/// Returns the fingerprint, if it covers every pod.
fn fingerprint(attributes: &[AttributeInfo]) -> Option<String> {
    let of_every_pod = value(attributes, FINGERPRINT_METHOD).is_none_or(|method| method == EVERY_POD);
    value(attributes, FINGERPRINT).filter(|_| of_every_pod).map(str::to_owned)
}

/// Returns the deprecated name of policy and scope, as NFD spells it; `None` if either is unknown.
fn deprecated(attributes: &[AttributeInfo]) -> Option<String> {
    let (policy, scope) = (value(attributes, POLICY)?, value(attributes, SCOPE)?);
    let level = SCOPES.iter().find(|(name, _)| *name == scope);
    Some(match POLICIES.iter().find(|(name, _)| *name == policy).zip(level) {
        Some(((_, policy), (_, level))) => format!("{policy}{level}"),
        None => NONE.to_owned(),
    })
}

/// Returns the policy and scope of an object, from its attributes or else from the deprecated name.
#[must_use]
pub fn policy_and_scope(
    attributes: &[AttributeInfo],
    policies: &[String],
) -> (Option<String>, Option<String>) {
    let of = |attributes: &[AttributeInfo]| {
        let owned = |name| value(attributes, name).map(str::to_owned);
        (owned(POLICY), owned(SCOPE))
    };
    match (of(attributes), policies.first()) {
        ((None, None), Some(name)) => of(&from_deprecated(name)),
        (found, _) => found,
    }
}

/// Returns policy and scope of a deprecated name; empty if it contains only one of them.
fn from_deprecated(name: &str) -> Vec<AttributeInfo> {
    let of = |policy: &str, scope: &str| vec![attribute(POLICY, policy), attribute(SCOPE, scope)];
    if name == NONE {
        return of("none", "container");
    }
    let known = POLICIES.iter().find_map(|(policy, start)| {
        let level = name.strip_prefix(start)?;
        SCOPES.iter().find(|(_, word)| *word == level).map(|(scope, _)| of(policy, scope))
    });
    known.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nrt::{NodeResourceTopologyFields, Zone};

    const OLD: Form = Form { version: Version::V1alpha1, policies: false };
    const BOTH: Form = Form { version: Version::V1alpha2, policies: true };

    fn object(attributes: &[(&str, &str)]) -> NodeResourceTopology {
        let attributes: Vec<_> = attributes.iter().map(|(name, value)| attribute(name, value)).collect();
        let zone = Zone { attributes: Some(vec![attribute("a", "b")]), ..Zone::default() };
        let fields = NodeResourceTopologyFields {
            attributes: Some(attributes),
            zones: vec![zone],
            ..NodeResourceTopologyFields::default()
        };
        NodeResourceTopology::new("w", fields)
    }

    const ATTRIBUTES: [(&str, &str); 5] = [
        (POLICY, "single-numa-node"),
        (SCOPE, "pod"),
        ("cpuManagerPolicy", "static"),
        (FINGERPRINT, "pfp0v001ef46db3751d8e999"),
        (FINGERPRINT_METHOD, "all"),
    ];

    #[test]
    fn v1alpha1_has_policies_and_fingerprint_only() {
        let json = OLD.json(&object(&ATTRIBUTES)).unwrap();
        assert_eq!(
            json,
            json!({
                "apiVersion": "topology.node.k8s.io/v1alpha1",
                "kind": "NodeResourceTopology",
                "metadata": {
                    "name": "w",
                    "annotations": {"topology.node.k8s.io/fingerprint": "pfp0v001ef46db3751d8e999"},
                },
                "topologyPolicies": ["SingleNUMANodePodLevel"],
                "zones": [{"name": "", "type": ""}],
            })
        );
        let other = [(FINGERPRINT, "x"), (FINGERPRINT_METHOD, "with-exclusive-resources")];
        let nothing = OLD.json(&object(&other)).unwrap();
        assert_eq!(nothing["topologyPolicies"], json!([]), "the field is required");
        assert_eq!(nothing["metadata"], json!({"name": "w"}), "the annotation implies all pods");
    }

    #[test]
    fn objects_in_v1alpha1_are_read_with_attributes() {
        let back = OLD.round_trip(object(&ATTRIBUTES));
        let expected = [ATTRIBUTES[0], ATTRIBUTES[1], ATTRIBUTES[3]];
        let expected: Vec<_> = expected.iter().map(|(name, value)| attribute(name, value)).collect();
        assert_eq!(back.spec.attributes, Some(expected));
        assert_eq!(OLD.round_trip(back.clone()), back);
        assert_eq!(OLD.round_trip(object(&[])).spec.attributes, None);
    }

    #[test]
    fn v1alpha2_has_the_deprecated_policies_only_on_request() {
        let object = object(&ATTRIBUTES);
        assert_eq!(Form::default().of(object.clone()), object);
        assert_eq!(Form::default().json(&object).unwrap(), serde_json::to_value(&object).unwrap());
        let both = BOTH.round_trip(object.clone());
        assert_eq!(both.spec.topology_policies.as_deref(), Some(&["SingleNUMANodePodLevel".to_owned()][..]));
        assert_eq!(both.spec.attributes, object.spec.attributes);
        assert_eq!(both.metadata.annotations, None);
    }

    #[test]
    fn deprecated_names_equal_nfds_and_can_be_parsed() {
        for (policy, scope, name) in [
            ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
            ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
            ("restricted", "container", "RestrictedContainerLevel"),
            ("restricted", "pod", "RestrictedPodLevel"),
            ("best-effort", "container", "BestEffortContainerLevel"),
            ("best-effort", "pod", "BestEffortPodLevel"),
            ("none", "container", "None"),
        ] {
            let attributes = vec![attribute(POLICY, policy), attribute(SCOPE, scope)];
            assert_eq!(deprecated(&attributes).as_deref(), Some(name));
            assert_eq!(from_deprecated(name), attributes);
        }
        let of = |scope| [attribute(POLICY, "none"), attribute(SCOPE, scope)];
        assert_eq!(deprecated(&of("pod")).as_deref(), Some("None"));
        assert_eq!(deprecated(&of("pod")[..1]), None, "never without its scope");
        assert_eq!(from_deprecated("Restricted"), [], "half of it");
    }
}
