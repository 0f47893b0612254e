//! How the object differs from what we want.
//!
//! An apply sets the fields that we manage and cannot remove those that others own: the deprecated policies
//! that NFD writes, the Namespace that NFD makes the owner, and RTE's annotation with a fingerprint, which
//! the scheduler plugin falls back to. Labels and other annotations are left to their writers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use serde_json::{Map, Value, json};

use super::field_manager::{POLICIES, owns};
use crate::nrt::{
    FINGERPRINT_ANNOTATION as FINGERPRINT, Form, NodeResourceTopology, NodeResourceTopologyFields, Version,
};

/// Returns the fields of `live` that differ from what we want.
pub(super) fn differing_fields(
    live: &NodeResourceTopology,
    wanted: &NodeResourceTopologyFields,
) -> Vec<&'static str> {
    let attributes = |fields: &NodeResourceTopologyFields| fields.attributes.clone().unwrap_or_default();
    let policies = |fields: &NodeResourceTopologyFields| fields.topology_policies.clone().unwrap_or_default();
    let mut fields = Vec::new();
    if live.spec.zones != wanted.zones {
        fields.push("zones");
    }
    if attributes(&live.spec) != attributes(wanted) {
        fields.push("attributes");
    }
    if policies(&live.spec) != policies(wanted) {
        fields.push(POLICIES);
    }
    fields
}

/// What others left in an object and an apply does not remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leftovers {
    policies: bool,
    annotation: bool,
    /// Removing it requires the permission to change owner references.
    pub(super) owner: bool,
}

impl Leftovers {
    /// Returns the leftovers according to an object's metadata. `form` is how we write objects.
    pub(super) fn of(metadata: &ObjectMeta, form: Form) -> Self {
        let entries = || metadata.managed_fields.iter().flatten();
        let annotations = metadata.annotations.as_ref();
        Self {
            policies: !form.has_policies() && entries().any(|entry| owns(entry, POLICIES)),
            annotation: form.version != Version::V1alpha1
                && annotations.is_some_and(|annotations| annotations.contains_key(FINGERPRINT)),
            owner: metadata.owner_references.iter().flatten().any(is_namespace),
        }
    }

    pub(super) fn any(self) -> bool {
        self != Self::default()
    }

    pub(super) const fn without_owner(self) -> Self {
        Self { owner: false, ..self }
    }

    /// Returns the fields, for messages and to find out who wrote them.
    pub(super) fn fields(self) -> Vec<&'static str> {
        let all =
            [(self.policies, POLICIES), (self.annotation, FINGERPRINT), (self.owner, "ownerReferences")];
        all.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect()
    }

    /// Returns the merge patch that removes them from the object with this metadata, and from no other
    /// version of it. `owner` replaces the Namespace, unless a Node owns the object already.
    pub(super) fn patch(self, metadata: &ObjectMeta, owner: Option<&OwnerReference>) -> Value {
        let mut meta = Map::new();
        meta.insert("resourceVersion".to_owned(), json!(metadata.resource_version));
        if self.annotation {
            meta.insert("annotations".to_owned(), json!({FINGERPRINT: null}));
        }
        if self.owner {
            let all = metadata.owner_references.iter().flatten();
            let mut owners: Vec<&OwnerReference> = all.filter(|owner| !is_namespace(owner)).collect();
            if !owners.iter().any(|owner| owner.kind == "Node") {
                owners.extend(owner);
            }
            meta.insert("ownerReferences".to_owned(), json!(owners));
        }
        let mut patch = json!({"metadata": meta});
        if self.policies {
            patch[POLICIES] = Value::Null;
        }
        patch
    }
}

fn is_namespace(owner: &OwnerReference) -> bool {
    owner.kind == "Namespace" && owner.api_version == "v1"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::publish::field_manager::tests::{entry, metadata};

    #[test]
    fn only_misleading_fields_are_leftovers() {
        let node = json!({"apiVersion": "v1", "kind": "Node", "name": "w", "uid": "n"});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "name": "nfd", "uid": "s"});
        let harmless = metadata(json!({
            "labels": {"a": "b"}, "annotations": {"k8stopoawareschedwg/rte-update": "periodic"},
            "ownerReferences": [node.clone()],
            "managedFields": [entry("rte", 1, json!({"f:zones": {}}))],
        }));
        assert!(!Leftovers::of(&harmless, Form::default()).any());
        let left = metadata(json!({
            "resourceVersion": "7", "annotations": {FINGERPRINT: "x", "a": "b"},
            "ownerReferences": [namespace.clone()],
            "managedFields": [entry("nfd", 1, json!({"f:topologyPolicies": {}}))],
        }));
        let found = Leftovers::of(&left, Form::default());
        assert_eq!(found.fields(), [POLICIES, FINGERPRINT, "ownerReferences"]);
        assert!(found.any() && found.owner && !found.without_owner().owner);
        let owner: OwnerReference = serde_json::from_value(node.clone()).unwrap();
        let expected = json!({
            "metadata": {"resourceVersion": "7", "annotations": {FINGERPRINT: null}, "ownerReferences": [node]},
            POLICIES: null,
        });
        assert_eq!(found.patch(&left, Some(&owner)), expected);
        let patch = found.without_owner().patch(&left, Some(&owner));
        assert_eq!(patch["metadata"].get("ownerReferences"), None);
        let both = metadata(json!({"resourceVersion": "7", "ownerReferences": [namespace, node.clone()]}));
        let other: OwnerReference = OwnerReference { uid: "other".into(), ..owner };
        let patch = Leftovers::of(&both, Form::default()).patch(&both, Some(&other));
        assert_eq!(patch["metadata"]["ownerReferences"], json!([node]), "an owner that is there stays");
    }

    #[test]
    fn an_empty_list_and_none_are_the_same() {
        let wanted = NodeResourceTopologyFields::default();
        let with = |fields: NodeResourceTopologyFields| NodeResourceTopology::new("w", fields);
        let empty = NodeResourceTopologyFields {
            attributes: Some(Vec::new()),
            topology_policies: Some(Vec::new()),
            ..wanted.clone()
        };
        assert_eq!(differing_fields(&with(empty), &wanted), [""; 0]);
        let other =
            NodeResourceTopologyFields { topology_policies: Some(vec!["None".into()]), ..wanted.clone() };
        assert_eq!(differing_fields(&with(other), &wanted), [POLICIES]);
    }
}
