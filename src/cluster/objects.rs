//! Lists and deletes the cluster's objects, decoding only what is needed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::api::{DeleteParams, GetParams, Preconditions};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::pages::{Listing, Pages};
use super::{Cluster, ClusterError, FIELD_MANAGER, Failure};
use crate::nrt::{AttributeInfo, ZONE_TYPE, policy_and_scope};
use crate::quantity::Quantity;

/// Page size of metadata lists. An object's metadata takes some 2 KiB.
const MARKS: u32 = 250;
/// Page size of object lists. The object of a large node takes some 50 KiB.
const OBJECTS: u32 = 50;
/// Maximum length of a manager's name: the API server's limit.
const MANAGER: usize = 128;
/// Maximum length of a resource's name: that of a qualified name.
const NAME: usize = 317;

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

/// The relevant part of an object's metadata.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawMark")]
pub struct Mark {
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
    /// Whether the object must be kept: it has the annotation [`KEEP`] or an owner. A Node does not count as
    /// owner, nor a Namespace, which NFD sets as owner.
    pub kept: bool,
    /// Whether it is deleted already and waits for a finalizer.
    pub going: bool,
}

/// An object, reduced to the totals of each resource.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawObject")]
pub struct Brief {
    /// The metadata.
    pub mark: Mark,
    /// The kubelet's Topology Manager policy.
    pub policy: Option<String>,
    /// The kubelet's Topology Manager scope.
    pub scope: Option<String>,
    /// Totals over all zones, by resource, without unreadable quantities.
    pub resources: BTreeMap<String, Sum>,
    /// The resource of the first unreadable quantity, and what is wrong with it.
    pub unread: Option<String>,
    /// Whether a zone is a NUMA node or there is no zone at all. Otherwise no scheduler reads the object as
    /// that of a Node.
    pub of_numa: bool,
}

/// Kubernetes' own resources, and the huge page sizes of its architectures.
const NATIVE: [&str; 13] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "hugepages-64Ki",
    "hugepages-1Mi",
    "hugepages-2Mi",
    "hugepages-4Mi",
    "hugepages-16Mi",
    "hugepages-32Mi",
    "hugepages-512Mi",
    "hugepages-1Gi",
    "hugepages-2Gi",
    "hugepages-16Gi",
];

/// Returns true for Kubernetes' own resources. Their number is limited; that of other names is not, whatever
/// objects contain.
#[must_use]
pub fn is_native(resource: &str) -> bool {
    NATIVE.contains(&resource)
}

/// The totals of a resource: CPUs, bytes or devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// What the hardware has.
    pub capacity: u64,
    /// What kubelets may allocate.
    pub allocatable: u64,
    /// What of that is free.
    pub available: u64,
}

impl Sum {
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

#[derive(Deserialize)]
struct RawMark {
    metadata: RawMetadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMetadata {
    name: String,
    uid: String,
    resource_version: String,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<IgnoredAny>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<RawOwner>>,
    managed_fields: Option<Vec<RawManaged>>,
}

#[derive(Deserialize)]
struct RawOwner {
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawManaged {
    manager: String,
    /// Only the names at the root: lists are owned as a whole.
    #[serde(rename = "fieldsV1")]
    fields: Option<BTreeMap<String, IgnoredAny>>,
}

impl From<RawMark> for Mark {
    fn from(raw: RawMark) -> Self {
        raw.metadata.into()
    }
}

impl From<RawMetadata> for Mark {
    fn from(raw: RawMetadata) -> Self {
        let keep = raw.annotations.iter().flatten().any(|(key, value)| key == KEEP && value == "true");
        let others = raw.owner_references.iter().flatten();
        let owned = others.into_iter().any(|owner| !matches!(owner.kind.as_str(), "Node" | "Namespace"));
        Self {
            writers: writers(raw.managed_fields.unwrap_or_default()),
            name: raw.name,
            uid: raw.uid,
            version: raw.resource_version,
            created: raw.creation_timestamp,
            kept: keep || owned,
            going: raw.deletion_timestamp.is_some(),
        }
    }
}

fn writers(managed: Vec<RawManaged>) -> Writers {
    let mut writers = Writers::default();
    for entry in managed {
        let has_zones = entry.fields.is_some_and(|fields| fields.contains_key("f:zones"));
        match has_zones {
            true if entry.manager == FIELD_MANAGER => writers.ours = true,
            true => writers.other = Some(entry.manager.chars().take(MANAGER).collect()),
            false => {}
        }
    }
    writers
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawObject {
    metadata: RawMetadata,
    #[serde(default)]
    attributes: Option<Vec<AttributeInfo>>,
    #[serde(default)]
    topology_policies: Option<Vec<String>>,
    #[serde(default)]
    zones: Option<Vec<RawZone>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawZone {
    r#type: String,
    resources: Option<Vec<RawResource>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawResource {
    name: String,
    capacity: Amount,
    allocatable: Amount,
    available: Amount,
}

impl RawResource {
    fn sum(&self) -> Result<Sum, &str> {
        Ok(Sum {
            capacity: self.capacity.whole()?,
            allocatable: self.allocatable.whole()?,
            available: self.available.whole()?,
        })
    }
}

/// A quantity, or what is wrong with it: one object must not fail the whole list.
struct Amount(Result<Quantity, String>);

impl Default for Amount {
    fn default() -> Self {
        Self(Ok(Quantity::default()))
    }
}

impl Amount {
    fn whole(&self) -> Result<u64, &str> {
        self.0.as_ref().map(|quantity| quantity.ceil()).map_err(String::as_str)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self(Quantity::deserialize(&value).map_err(|error| error.to_string())))
    }
}

impl From<RawObject> for Brief {
    fn from(raw: RawObject) -> Self {
        let zones = raw.zones.unwrap_or_default();
        let of_numa = zones.is_empty() || zones.iter().any(|zone| zone.r#type == ZONE_TYPE);
        let mut resources: BTreeMap<String, Sum> = BTreeMap::new();
        let mut unread = None;
        let numa = zones.into_iter().filter(|zone| zone.r#type == ZONE_TYPE);
        for resource in numa.flat_map(|zone| zone.resources.unwrap_or_default()) {
            match resource.sum() {
                Ok(more) => {
                    let sum = resources.entry(resource.name).or_default();
                    *sum = sum.plus(more);
                }
                Err(error) if unread.is_none() => {
                    unread =
                        Some(format!("{}: {error}", resource.name.chars().take(NAME).collect::<String>()));
                }
                Err(_) => {}
            }
        }
        let policies = raw.topology_policies.unwrap_or_default();
        let (policy, scope) = policy_and_scope(&raw.attributes.unwrap_or_default(), &policies);
        Self { mark: raw.metadata.into(), policy, scope, resources, unread, of_numa }
    }
}

impl Cluster {
    /// Returns the path of all objects.
    pub(super) fn topologies_path(&self) -> String {
        format!("/apis/topology.node.k8s.io/{}/noderesourcetopologies", self.form.version.name())
    }

    fn listing_of_objects(&self, page: u32, metadata: bool) -> Listing {
        Listing {
            what: "list noderesourcetopologies".to_owned(),
            path: self.topologies_path(),
            labels: None,
            page,
            metadata,
        }
    }

    /// Lists the metadata of all objects.
    #[must_use]
    pub fn marks(&self) -> Pages<Mark> {
        Pages::new(self.clone(), self.listing_of_objects(MARKS, true))
    }

    /// Reads the metadata of an object; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`Cluster::topology`].
    pub async fn mark(&self, name: &str) -> Result<Option<Mark>, ClusterError> {
        let request = self.topologies().get_metadata(name, &GetParams::default());
        self.get_topology(name, self.read(request)).await
    }

    /// Lists all objects.
    #[must_use]
    pub fn briefs(&self) -> Pages<Brief> {
        Pages::new(self.clone(), self.listing_of_objects(OBJECTS, false))
    }

    /// Returns true if the object exists and a scheduler reads it as that of a Node.
    ///
    /// # Errors
    /// As [`Cluster::topology`].
    pub async fn is_of_numa(&self, name: &str) -> Result<bool, ClusterError> {
        let Some(object) = self.topology(name).await? else { return Ok(false) };
        let zones = &object.spec.zones;
        Ok(zones.is_empty() || zones.iter().any(|zone| zone.kind == ZONE_TYPE))
    }

    /// Deletes exactly this object, in the version that was listed; returns false if it is gone. If it was
    /// written since, it is not deleted: [`ClusterError::is_conflict`].
    ///
    /// # Errors
    /// As [`Cluster::topology`].
    pub async fn delete_object(&self, mark: &Mark) -> Result<bool, ClusterError> {
        let preconditions = Preconditions {
            uid: Some(mark.uid.clone()),
            resource_version: Some(mark.version.clone()).filter(|version| !version.is_empty()),
        };
        self.delete_if(&mark.name, preconditions).await
    }

    /// Deletes exactly this object, in any version; returns false if it is gone.
    ///
    /// # Errors
    /// As [`Cluster::topology`].
    pub async fn delete_object_of_any_version(&self, mark: &Mark) -> Result<bool, ClusterError> {
        let preconditions = Preconditions { uid: Some(mark.uid.clone()), resource_version: None };
        self.delete_if(&mark.name, preconditions).await
    }

    async fn delete_if(&self, name: &str, preconditions: Preconditions) -> Result<bool, ClusterError> {
        let what = format!("delete noderesourcetopology {name}");
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        // The response may be the object itself.
        let request = self.topologies().delete(name, &params);
        match self.in_time(&what, self.bytes(request)).await {
            Ok(_) => Ok(true),
            Err(Failure::Status(status)) if status.code == 404 && status.reason == "NotFound" => Ok(false),
            Err(failure) => Err(self.explain_object(failure, &what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mark(metadata: Value) -> Mark {
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn managed(manager: &str, field: &str) -> Value {
        json!({"manager": manager, "operation": "Apply", "fieldsV1": {field: {}, "f:metadata": {"f:labels": {}}}})
    }

    #[test]
    fn whoever_owns_the_zones_wrote_the_object() {
        let of = |entries: Vec<Value>| mark(json!({"name": "a", "managedFields": entries})).writers;
        let other = |name: &str| Some(name.to_owned());
        assert_eq!(of(vec![managed("numacast", "f:zones")]), Writers { ours: true, other: None });
        assert_eq!(of(vec![managed("numacast", "f:attributes")]), Writers::default());
        let both = of(vec![managed("numacast", "f:zones"), managed("rte", "f:zones")]);
        assert_eq!(both, Writers { ours: true, other: other("rte") });
        let only_labels = of(vec![managed("kubectl", "f:other"), managed("nfd", "f:zones")]);
        assert_eq!(only_labels, Writers { ours: false, other: other("nfd") });
        assert_eq!(of(vec![managed(&"x".repeat(999), "f:zones")]).other.unwrap().len(), MANAGER);
    }

    #[test]
    fn what_belongs_to_something_else_or_says_so_is_kept() {
        let owned = |kind: &str| mark(json!({"name": "a", "ownerReferences": [{"kind": kind}]})).kept;
        assert!(!owned("Node") && !owned("Namespace") && owned("Machine"));
        let annotated = |value: &str| mark(json!({"name": "a", "annotations": {KEEP: value}})).kept;
        assert!(annotated("true") && !annotated("false"));
    }

    #[test]
    fn an_object_is_reduced_to_sums() {
        let zone = |kind: &str, cpus: Value| {
            json!({"name": "z", "type": kind, "costs": [{"name": "z", "value": 10}], "resources": [
                {"name": "cpu", "capacity": cpus, "allocatable": "7", "available": 3},
                {"name": "memory", "capacity": "16Gi", "allocatable": "15Gi", "available": "500m"}]})
        };
        let object = |zones: Vec<Value>| -> Brief {
            let attributes = json!([{"name": "topologyManagerPolicy", "value": "restricted"},
                                    {"name": "topologyManagerScope", "value": "pod"}]);
            let value = json!({"metadata": {"name": "a"}, "attributes": attributes, "zones": zones});
            serde_json::from_value(value).unwrap()
        };
        let brief =
            object(vec![zone("Node", json!("8")), zone("Node", json!("8000e-3")), zone("Rack", json!("64"))]);
        assert_eq!((brief.policy.as_deref(), brief.scope.as_deref()), (Some("restricted"), Some("pod")));
        let gi = 1 << 30;
        assert_eq!(brief.resources["cpu"], Sum { capacity: 16, allocatable: 14, available: 6 });
        assert_eq!(brief.resources["memory"], Sum { capacity: 32 * gi, allocatable: 30 * gi, available: 2 });
        assert!(brief.of_numa && brief.unread.is_none());
        let brief =
            object(vec![zone("Node", json!("8")), zone("Node", json!("1e-3x")), zone("Node", json!(["x"]))]);
        assert_eq!(brief.resources["cpu"], Sum { capacity: 8, allocatable: 7, available: 3 });
        assert_eq!(brief.resources["memory"].capacity, 48 * gi);
        let unread = "cpu: `1e-3x` is not a Kubernetes quantity such as 4, 500m, 64Mi or 16Gi";
        assert_eq!(brief.unread.as_deref(), Some(unread));
        assert!(!object(vec![zone("Rack", json!("64"))]).of_numa);
        assert!(object(Vec::new()).of_numa, "one that nobody filled yet");
        let old =
            json!({"metadata": {"name": "a"}, "topologyPolicies": ["BestEffortPodLevel"], "zones": null});
        let old: Brief = serde_json::from_value(old).unwrap();
        assert_eq!((old.policy.as_deref(), old.scope.as_deref()), (Some("best-effort"), Some("pod")));
    }
}
