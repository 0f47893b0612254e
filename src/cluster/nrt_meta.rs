use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::FIELD_MANAGER;
use crate::nrt::{AttributeInfo, Zone};
use crate::publishers::Publisher;

/// Maximum length of a field manager's name: the API server's limit.
const MAX_MANAGER: usize = 128;

/// Annotation that keeps an object without a Node, if set to `true`.
pub const KEEP: &str = "numacast.io/keep";

/// The field managers of an object's zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writers {
    /// We wrote them.
    pub ours: bool,
    /// Another manager that wrote them, by its name in `managedFields`.
    pub other: Option<String>,
}

/// The decoded part of an object's metadata.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawObject")]
pub struct NrtMeta {
    /// The object's name, which is that of its Node.
    pub name: String,
    /// The UID.
    pub uid: String,
    /// The resource version.
    pub version: String,
    /// The creation time.
    pub created: Option<Timestamp>,
    /// The field managers of the zones.
    pub writers: Writers,
    /// How often the content was changed, the creation included.
    pub generation: u64,
    /// The UID of the Node that owns it.
    pub node_uid: Option<String>,
    /// Whether the object must be kept: it has the annotation [`KEEP`] or an owner. A Node does not count as
    /// owner, nor a Namespace, which NFD sets as owner.
    pub is_kept: bool,
    /// Whether it is deleted already and waits for a finalizer.
    pub is_deleted: bool,
}

/// An object; `Z` is what is decoded of each zone.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawTopology<Z> {
    pub(super) metadata: RawMetadata,
    #[serde(default)]
    pub(super) attributes: Option<Vec<AttributeInfo>>,
    #[serde(default)]
    pub(super) topology_policies: Option<Vec<String>>,
    #[serde(default = "Option::default")]
    pub(super) zones: Option<Vec<Z>>,
}

#[derive(Deserialize)]
pub(super) struct RawObject {
    pub(super) metadata: RawMetadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawMetadata {
    name: String,
    uid: String,
    resource_version: String,
    creation_timestamp: Option<Timestamp>,
    generation: Option<u64>,
    deletion_timestamp: Option<IgnoredAny>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<RawOwner>>,
    managed_fields: Option<Vec<RawManaged>>,
}

impl RawMetadata {
    pub(super) fn annotation(&self, key: &str) -> Option<String> {
        self.annotations.as_ref()?.get(key).cloned()
    }
}

#[derive(Deserialize)]
struct RawOwner {
    kind: String,
    #[serde(default)]
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawManaged {
    manager: String,
    /// Anything that Go accepts as a time, also the last day of the year 9999.
    time: Option<String>,
    api_version: String,
    /// Lists are owned as a whole.
    #[serde(rename = "fieldsV1")]
    fields: Option<RawFields>,
}

/// The fields that tell publishers apart.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawFields {
    #[serde(rename = "f:zones")]
    zones: Option<IgnoredAny>,
    #[serde(rename = "f:topologyPolicies")]
    policies: Option<IgnoredAny>,
    #[serde(rename = "f:metadata")]
    metadata: Option<RawFieldsOfMetadata>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawFieldsOfMetadata {
    #[serde(rename = "f:annotations")]
    annotations: Option<BTreeMap<String, IgnoredAny>>,
    #[serde(rename = "f:ownerReferences")]
    owner_references: Option<IgnoredAny>,
}

impl RawMetadata {
    /// Returns when a manager last changed the zones.
    pub(super) fn zones_changed(&self) -> Option<Timestamp> {
        let managed = self.managed_fields.iter().flatten();
        managed.filter(|entry| entry.has_zones()).filter_map(|entry| entry.time.as_ref()?.parse().ok()).max()
    }
}

impl RawMetadata {
    /// Returns the publisher that wrote the zones, if it is another one that is known.
    pub(super) fn publisher(&self, zones: impl FnOnce() -> Vec<Zone>) -> Option<&'static Publisher> {
        let mut managed = self.managed_fields.iter().flatten();
        let foreign = managed.find(|entry| entry.has_zones() && entry.manager != FIELD_MANAGER)?;
        foreign.publisher(self.annotations.as_ref(), &zones())
    }
}

impl RawManaged {
    fn has_zones(&self) -> bool {
        self.fields.as_ref().is_some_and(|fields| fields.zones.is_some())
    }

    /// Returns the known publisher that wrote this of an object with these annotations and zones.
    fn publisher(
        &self,
        annotations: Option<&BTreeMap<String, String>>,
        zones: &[Zone],
    ) -> Option<&'static Publisher> {
        let fields = || Some(self.fields.as_ref()?.json());
        let of_content = || Publisher::of_content(&self.api_version, &fields()?, annotations, zones);
        Publisher::of_manager(&self.manager).or_else(of_content)
    }
}

impl RawFields {
    /// Returns the fields as they are in `fieldsV1`.
    fn json(&self) -> Value {
        let mut fields = json!({});
        let metadata = self.metadata.as_ref();
        let owners = metadata.and_then(|metadata| metadata.owner_references);
        for (path, field) in [
            (&["f:zones"][..], self.zones),
            (&["f:topologyPolicies"], self.policies),
            (&["f:metadata", "f:ownerReferences"], owners),
        ] {
            if field.is_some() {
                *path.iter().fold(&mut fields, |level, key| &mut level[*key]) = json!({});
            }
        }
        for key in
            metadata.and_then(|metadata| metadata.annotations.as_ref()).into_iter().flat_map(BTreeMap::keys)
        {
            fields["f:metadata"]["f:annotations"][key] = json!({});
        }
        fields
    }
}

impl From<RawObject> for NrtMeta {
    fn from(RawObject { metadata: raw }: RawObject) -> Self {
        let keep = raw.annotations.iter().flatten().any(|(key, value)| key == KEEP && value == "true");
        let mut owners = raw.owner_references.iter().flatten();
        let owned = owners.any(|owner| !matches!(owner.kind.as_str(), "Node" | "Namespace"));
        let node = raw.owner_references.iter().flatten().find(|owner| owner.kind == "Node");
        let managed = raw.managed_fields.unwrap_or_default();
        Self {
            generation: raw.generation.unwrap_or_default(),
            node_uid: node.map(|owner| owner.uid.clone()),
            writers: writers(managed),
            name: raw.name,
            uid: raw.uid,
            version: raw.resource_version,
            created: raw.creation_timestamp,
            is_kept: keep || owned,
            is_deleted: raw.deletion_timestamp.is_some(),
        }
    }
}

fn writers(managed: Vec<RawManaged>) -> Writers {
    let mut writers = Writers::default();
    for entry in managed {
        match entry.has_zones() {
            true if entry.manager == FIELD_MANAGER => writers.ours = true,
            true => writers.other = Some(entry.manager.chars().take(MAX_MANAGER).collect()),
            false => {}
        }
    }
    writers
}

#[cfg(test)]
mod tests {
    use super::*;

    impl NrtMeta {
        /// Returns the metadata of an object that we wrote.
        pub(crate) fn ours(name: &str) -> Self {
            Self {
                name: name.to_owned(),
                uid: format!("uid-of-{name}"),
                version: "1".to_owned(),
                created: None,
                writers: Writers { ours: true, other: None },
                generation: 1,
                node_uid: None,
                is_kept: false,
                is_deleted: false,
            }
        }

        /// Returns the metadata of an object that another manager wrote.
        pub(crate) fn of_other(name: &str, manager: &str) -> Self {
            Self { writers: Writers { ours: false, other: Some(manager.to_owned()) }, ..Self::ours(name) }
        }
    }

    fn meta(metadata: Value) -> NrtMeta {
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn managed(manager: &str, field: &str) -> Value {
        json!({"manager": manager, "operation": "Apply", "fieldsV1": {field: {}, "f:metadata": {"f:labels": {}}}})
    }

    #[test]
    fn the_writers_are_the_managers_of_the_zones() {
        let of = |entries: Vec<Value>| meta(json!({"name": "a", "managedFields": entries})).writers;
        let other = |name: &str| Some(name.to_owned());
        assert_eq!(of(vec![managed("numacast", "f:zones")]), Writers { ours: true, other: None });
        assert_eq!(of(vec![managed("numacast", "f:attributes")]), Writers::default());
        let both = of(vec![managed("numacast", "f:zones"), managed("rte", "f:zones")]);
        assert_eq!(both, Writers { ours: true, other: other("rte") });
        let only_labels = of(vec![managed("kubectl", "f:other"), managed("nfd", "f:zones")]);
        assert_eq!(only_labels, Writers { ours: false, other: other("nfd") });
        assert_eq!(of(vec![managed(&"x".repeat(999), "f:zones")]).other.unwrap().len(), MAX_MANAGER);
    }

    #[test]
    fn the_owning_node_is_known() {
        let owners = json!([{"kind": "Namespace", "uid": "n"}, {"kind": "Node", "uid": "u"}]);
        let read = meta(json!({"name": "a", "generation": 7, "ownerReferences": owners}));
        assert_eq!((read.generation, read.node_uid.as_deref()), (7, Some("u")));
        assert_eq!(meta(json!({"name": "a"})).node_uid, None);
    }

    #[test]
    fn an_owner_or_the_annotation_keeps_an_object() {
        let owned = |kind: &str| meta(json!({"name": "a", "ownerReferences": [{"kind": kind}]})).is_kept;
        assert!(!owned("Node") && !owned("Namespace") && owned("Machine"));
        let annotated = |value: &str| meta(json!({"name": "a", "annotations": {KEEP: value}})).is_kept;
        assert!(annotated("true") && !annotated("false"));
    }
}
