//! Finds out how the object differs from what we want, and who changed it.
//!
//! An apply sets the fields that we manage and cannot remove those that others own: the deprecated policies
//! that NFD writes, the Namespace that NFD makes the owner, and RTE's annotation with a fingerprint, which
//! the scheduler plugin falls back to. Labels and other annotations are left to their writers.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use kube::core::ObjectMeta;
use serde_json::{Map, Value, json};

use crate::cluster::FIELD_MANAGER;
use crate::nrt::{
    FINGERPRINT_ANNOTATION as FINGERPRINT, Form, NodeResourceTopology, NodeResourceTopologyFields, Version,
};

/// The deprecated field, which we write on request only.
const POLICIES: &str = "topologyPolicies";

/// Returns the fields of `live` that differ from what we want.
pub(super) fn differing(
    live: &NodeResourceTopology,
    wanted: &NodeResourceTopologyFields,
) -> Vec<&'static str> {
    let of = |fields: &NodeResourceTopologyFields| fields.attributes.clone().unwrap_or_default();
    let mut fields = Vec::new();
    if live.spec.zones != wanted.zones {
        fields.push("zones");
    }
    if of(&live.spec) != of(wanted) {
        fields.push("attributes");
    }
    let policies = |fields: &NodeResourceTopologyFields| fields.topology_policies.clone().unwrap_or_default();
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
    owner: bool,
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

    /// Returns true if removing them requires the permission to change owner references.
    pub(super) const fn has_owner(self) -> bool {
        self.owner
    }

    /// Returns the leftovers without the owner.
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

/// The author of a change that is not ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Author {
    /// A person with `kubectl`.
    Person(String),
    /// Another program.
    Manager(String),
    /// Another process with our field manager: an agent that just started, or a duplicate.
    Namesake,
    /// The managed fields do not show the author.
    Unknown,
}

impl Author {
    /// Returns the author of `fields` according to the object's managed fields.
    pub(super) fn of(metadata: &ObjectMeta, fields: &[&str]) -> Self {
        let entries = || metadata.managed_fields.iter().flatten();
        let newest = |entries: &mut dyn Iterator<Item = &ManagedFieldsEntry>| {
            let newest =
                entries.max_by(|a, b| a.time.as_ref().map(|t| t.0).cmp(&b.time.as_ref().map(|t| t.0)));
            newest.map(|entry| Self::named(entry.manager.as_deref().unwrap_or_default()))
        };
        let foreign = |entry: &&ManagedFieldsEntry| entry.manager.as_deref() != Some(FIELD_MANAGER);
        let writes = |entry: &&ManagedFieldsEntry| fields.iter().any(|field| owns(entry, field));
        if let Some(author) = newest(&mut entries().filter(foreign).filter(writes)) {
            return author;
        }
        if entries().any(|entry| fields.iter().all(|field| owns(entry, field))) {
            return Self::Namesake;
        }
        // A removed field has no owner.
        newest(&mut entries().filter(foreign)).unwrap_or(Self::Unknown)
    }

    /// Returns the author of the content of an object that differs from ours; `None` if nobody else wrote it.
    pub(super) fn of_content(metadata: &ObjectMeta) -> Option<Self> {
        match Self::of(metadata, &["zones", "attributes", POLICIES]) {
            Self::Namesake | Self::Unknown => None,
            author => Some(author),
        }
    }

    fn named(manager: &str) -> Self {
        match manager {
            "" => Self::Unknown,
            FIELD_MANAGER => Self::Namesake,
            name if name.starts_with("kubectl") => Self::Person(name.to_owned()),
            name => Self::Manager(name.to_owned()),
        }
    }

    pub(super) const fn is_person(&self) -> bool {
        matches!(self, Self::Person(_) | Self::Unknown)
    }
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Person(name) => write!(f, "somebody with `{name}`"),
            Self::Manager(name) => write!(f, "`{name}`"),
            Self::Namesake => write!(f, "another `{FIELD_MANAGER}`"),
            Self::Unknown => f.write_str("somebody"),
        }
    }
}

/// Returns true if an entry of the managed fields owns a field: one of the root, an annotation or the owner
/// references.
fn owns(entry: &ManagedFieldsEntry, field: &str) -> bool {
    let Some(fields) = &entry.fields_v1 else { return false };
    let fields = &fields.0;
    let metadata = &fields["f:metadata"];
    let key = format!("f:{field}");
    [fields, metadata, &metadata["f:annotations"]].into_iter().any(|level| level.get(&key).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    fn entry(manager: &str, second: u32, fields: Value) -> Value {
        json!({"manager": manager, "operation": "Update", "apiVersion": "topology.node.k8s.io/v1alpha2",
            "time": format!("2026-01-01T00:00:{second:02}Z"), "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    fn author(entries: &[Value], fields: &[&str]) -> String {
        Author::of(&metadata(json!({"managedFields": entries})), fields).to_string()
    }

    #[test]
    fn the_author_is_who_owns_what_differs_and_wrote_last() {
        let ours = entry(FIELD_MANAGER, 9, json!({"f:attributes": {}}));
        let nfd = entry("nfd", 3, json!({"f:zones": {}}));
        let edit = entry("kubectl-edit", 5, json!({"f:zones": {}}));
        let label = entry("labeller", 8, json!({"f:metadata": {"f:labels": {"f:x": {}}}}));
        let all = [ours.clone(), nfd, edit, label.clone()];
        assert_eq!(author(&all, &["zones"]), "somebody with `kubectl-edit`");
        assert_eq!(author(&all[..2], &["zones"]), "`nfd`");
        assert_eq!(author(&[ours.clone(), label.clone()], &["attributes"]), "another `numacast`");
        assert_eq!(author(&[ours.clone(), label], &["zones"]), "`labeller`", "the nearest there is");
        assert_eq!(author(&[ours], &["zones"]), "somebody");
        assert_eq!(author(&[], &["zones"]), "somebody");
    }

    #[test]
    fn content_that_nobody_else_owns_is_ours() {
        let of = |entries: &[Value]| Author::of_content(&metadata(json!({"managedFields": entries})));
        let ours =
            entry(FIELD_MANAGER, 9, json!({"f:zones": {}, "f:attributes": {}, "f:topologyPolicies": {}}));
        let edit = entry("kubectl-edit", 5, json!({"f:zones": {}}));
        let nfd = entry("nfd", 3, json!({"f:attributes": {}}));
        assert_eq!(of(std::slice::from_ref(&ours)), None);
        assert_eq!(of(&[]), None);
        let (person, manager) = (of(&[ours.clone(), edit]).unwrap(), of(&[ours, nfd]).unwrap());
        assert!(person.is_person() && Author::Unknown.is_person());
        assert!(!manager.is_person() && !Author::Namesake.is_person());
    }

    #[test]
    fn an_annotation_and_an_owner_have_authors_too() {
        let fields = json!({"f:metadata": {"f:annotations": {".": {}, "f:topology.node.k8s.io/fingerprint": {}},
            "f:ownerReferences": {"k:{\"uid\":\"u\"}": {}}}});
        let rte = [entry("rte", 1, fields)];
        assert_eq!(author(&rte, &[FINGERPRINT]), "`rte`");
        assert_eq!(author(&rte, &["ownerReferences"]), "`rte`");
    }

    #[test]
    fn only_what_misleads_is_left_over() {
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
        assert!(found.any() && found.has_owner() && !found.without_owner().has_owner());
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
        assert_eq!(differing(&with(empty), &wanted), [""; 0]);
        let other =
            NodeResourceTopologyFields { topology_policies: Some(vec!["None".into()]), ..wanted.clone() };
        assert_eq!(differing(&with(other), &wanted), [POLICIES]);
    }
}
