//! Who wrote the object, according to its managed fields.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::ObjectMeta;

use crate::cluster::FIELD_MANAGER;
use crate::nrt::Zone;
use crate::publishers::Publisher;

/// The deprecated field with the policies, which we write on request only.
pub(super) const POLICIES: &str = "topologyPolicies";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FieldManager {
    Person(String),
    Program(String),
    /// Another process with our field manager: an agent that just started, or a duplicate.
    SameName,
    Unknown,
}

impl FieldManager {
    /// Returns the author of `fields` according to the object's managed fields.
    pub(super) fn of(metadata: &ObjectMeta, fields: &[&str]) -> Self {
        let entries = || metadata.managed_fields.iter().flatten();
        let newest = |entries: &mut dyn Iterator<Item = &ManagedFieldsEntry>| {
            let newest = entries.max_by_key(|entry| entry.time.as_ref().map(|time| time.0));
            newest.map(|entry| Self::named(entry.manager.as_deref().unwrap_or_default()))
        };
        let is_foreign = |entry: &&ManagedFieldsEntry| entry.manager.as_deref() != Some(FIELD_MANAGER);
        let owns_any = |entry: &&ManagedFieldsEntry| fields.iter().any(|field| owns(entry, field));
        if let Some(author) = newest(&mut entries().filter(is_foreign).filter(owns_any)) {
            return author;
        }
        if entries().any(|entry| fields.iter().all(|field| owns(entry, field))) {
            return Self::SameName;
        }
        // A removed field has no owner.
        newest(&mut entries().filter(is_foreign)).unwrap_or(Self::Unknown)
    }

    /// Returns the author of the content of an object that differs from ours; `None` if nobody else wrote it.
    pub(super) fn of_content(metadata: &ObjectMeta) -> Option<Self> {
        match Self::of(metadata, &["zones", "attributes", POLICIES]) {
            Self::SameName | Self::Unknown => None,
            author => Some(author),
        }
    }

    fn named(manager: &str) -> Self {
        match manager {
            "" => Self::Unknown,
            FIELD_MANAGER => Self::SameName,
            name if name.starts_with("kubectl") => Self::Person(name.to_owned()),
            name => Self::Program(name.to_owned()),
        }
    }

    /// Returns the program, if it is a known publisher: by its name, or by what it wrote of the object with this
    /// metadata and these zones.
    pub(super) fn publisher(&self, metadata: &ObjectMeta, zones: &[Zone]) -> Option<&'static Publisher> {
        let Self::Program(name) = self else { return None };
        let own =
            metadata.managed_fields.iter().flatten().filter(|entry| entry.manager.as_ref() == Some(name));
        let of_content = |entry: &ManagedFieldsEntry| {
            let version = entry.api_version.as_deref().unwrap_or_default();
            let fields = &entry.fields_v1.as_ref()?.0;
            Publisher::of_content(version, fields, metadata.annotations.as_ref(), zones)
        };
        Publisher::of_manager(name).or_else(|| own.filter_map(of_content).next())
    }
}

impl fmt::Display for FieldManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Person(name) => write!(f, "a person with `{name}`"),
            Self::Program(name) => write!(f, "`{name}`"),
            Self::SameName => write!(f, "another `{FIELD_MANAGER}`"),
            Self::Unknown => f.write_str("an unknown client"),
        }
    }
}

/// Returns true if an entry of the managed fields owns a field: one of the root, an annotation or the owner
/// references.
pub(super) fn owns(entry: &ManagedFieldsEntry, field: &str) -> bool {
    let Some(fields) = &entry.fields_v1 else { return false };
    let fields = &fields.0;
    let metadata = &fields["f:metadata"];
    let key = format!("f:{field}");
    [fields, metadata, &metadata["f:annotations"]].into_iter().any(|level| level.get(&key).is_some())
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(in super::super) fn metadata(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    pub(in super::super) fn entry(manager: &str, second: u32, fields: Value) -> Value {
        json!({"manager": manager, "operation": "Update", "apiVersion": "topology.node.k8s.io/v1alpha2",
            "time": format!("2026-01-01T00:00:{second:02}Z"), "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    fn author(entries: &[Value], fields: &[&str]) -> String {
        FieldManager::of(&metadata(json!({"managedFields": entries})), fields).to_string()
    }

    #[test]
    fn the_author_owns_what_differs_and_wrote_last() {
        let ours = entry(FIELD_MANAGER, 9, json!({"f:attributes": {}}));
        let nfd = entry("nfd", 3, json!({"f:zones": {}}));
        let edit = entry("kubectl-edit", 5, json!({"f:zones": {}}));
        let label = entry("labeller", 8, json!({"f:metadata": {"f:labels": {"f:x": {}}}}));
        let all = [ours.clone(), nfd, edit, label.clone()];
        assert_eq!(author(&all, &["zones"]), "a person with `kubectl-edit`");
        assert_eq!(author(&all[..2], &["zones"]), "`nfd`");
        assert_eq!(author(&[ours.clone(), label.clone()], &["attributes"]), "another `numacast`");
        assert_eq!(author(&[ours.clone(), label], &["zones"]), "`labeller`", "the nearest there is");
        assert_eq!(author(&[ours], &["zones"]), "an unknown client");
        assert_eq!(author(&[], &["zones"]), "an unknown client");
    }

    #[test]
    fn content_that_nobody_else_owns_is_ours() {
        let of = |entries: &[Value]| FieldManager::of_content(&metadata(json!({"managedFields": entries})));
        let ours =
            entry(FIELD_MANAGER, 9, json!({"f:zones": {}, "f:attributes": {}, "f:topologyPolicies": {}}));
        let edit = entry("kubectl-edit", 5, json!({"f:zones": {}}));
        let nfd = entry("nfd", 3, json!({"f:attributes": {}}));
        assert_eq!(of(std::slice::from_ref(&ours)), None);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[ours.clone(), edit]), Some(FieldManager::Person("kubectl-edit".to_owned())));
        assert_eq!(of(&[ours, nfd]), Some(FieldManager::Program("nfd".to_owned())));
    }

    #[test]
    fn a_program_with_another_name_is_known_by_what_it_wrote() {
        let annotations = json!({"f:metadata": {"f:annotations": {"f:k8stopoawareschedwg/rte-update": {}}}});
        let metadata =
            metadata(json!({"managedFields": [entry("app", 1, annotations), entry("x", 2, json!({}))]}));
        let label = |manager: &str| {
            let publisher = FieldManager::Program(manager.to_owned()).publisher(&metadata, &[]);
            publisher.map(|publisher| publisher.label)
        };
        assert_eq!((label("app"), label("x"), label("koordlet")), (Some("rte"), None, Some("koordlet")));
        assert_eq!(FieldManager::Person("app".to_owned()).publisher(&metadata, &[]), None);
    }

    #[test]
    fn annotations_and_owner_references_have_authors_too() {
        let fields = json!({"f:metadata": {"f:annotations": {".": {}, "f:topology.node.k8s.io/fingerprint": {}},
            "f:ownerReferences": {"k:{\"uid\":\"u\"}": {}}}});
        let rte = [entry("rte", 1, fields)];
        assert_eq!(author(&rte, &["topology.node.k8s.io/fingerprint"]), "`rte`");
        assert_eq!(author(&rte, &["ownerReferences"]), "`rte`");
    }
}
