//! Converts a topology to the object. Everything is sorted: the same topology gives the same bytes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::nrt::{
    AttributeInfo, CostInfo, FINGERPRINT, FINGERPRINT_METHOD, NodeResourceTopology,
    NodeResourceTopologyFields, ResourceInfo, ZONE_TYPE, Zone, zone_name,
};
use crate::topology::{self, Amounts, Fingerprint, PodSet, Topology};

/// Returns the object of `node`; `owner` is the Node's UID, if the Node should own it.
#[must_use]
pub fn object(node: &str, owner: Option<&str>, topology: &Topology) -> NodeResourceTopology {
    let fields = NodeResourceTopologyFields {
        topology_policies: None,
        zones: topology.zones.iter().map(zone).collect(),
        attributes: Some(attributes(&topology.attributes, topology.pods)).filter(|all| !all.is_empty()),
    };
    let mut object = NodeResourceTopology::new(node, fields);
    object.metadata.owner_references = owner.map(|uid| vec![node_reference(node, uid)]);
    object
}

/// Returns the attributes of the fingerprint. The plugin takes a fingerprint without its method for one of
/// all pods.
fn of_pods(set: PodSet) -> [AttributeInfo; 2] {
    [attribute(FINGERPRINT, &set.fingerprint.to_string()), attribute(FINGERPRINT_METHOD, set.method.name())]
}

/// Returns the same object, held (its fingerprint is withheld); `None` if it has no fingerprint, or is held
/// already.
pub(super) fn held(object: &NodeResourceTopology) -> Option<NodeResourceTopology> {
    let held = Fingerprint::HELD.to_string();
    let mut object = object.clone();
    let attributes = object.spec.attributes.iter_mut().flatten();
    let mut said = attributes.filter(|attribute| attribute.name == FINGERPRINT && attribute.value != held);
    said.next()?.value = held.clone();
    Some(object)
}

/// Returns an owner reference without `controller` and `blockOwnerDeletion`: it only makes garbage collection
/// delete the object with the Node.
pub(super) fn node_reference(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

fn attributes(pairs: &[(String, String)], pods: Option<PodSet>) -> Vec<AttributeInfo> {
    let pairs = pairs.iter().map(|(name, value)| attribute(name, value));
    pairs.chain(pods.into_iter().flat_map(of_pods)).collect()
}

fn attribute(name: &str, value: &str) -> AttributeInfo {
    AttributeInfo { name: name.to_owned(), value: value.to_owned() }
}

fn zone(zone: &topology::Zone) -> Zone {
    let costs = zone.costs.iter();
    Zone {
        name: zone_name(zone.id),
        kind: ZONE_TYPE.to_owned(),
        costs: Some(
            costs
                .map(|(peer, value)| CostInfo { name: zone_name(*peer), value: i64::from(*value) })
                .collect(),
        ),
        attributes: Some(attributes(&zone.attributes, None)).filter(|all| !all.is_empty()),
        resources: Some(zone.resources.iter().map(|(name, amounts)| resource(name, *amounts)).collect()),
        ..Zone::default()
    }
}

fn resource(name: &str, amounts: Amounts) -> ResourceInfo {
    let Amounts { capacity, allocatable, available } = amounts;
    ResourceInfo {
        name: name.to_owned(),
        capacity: capacity.into(),
        allocatable: allocatable.into(),
        available: available.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::topology::Method;

    fn account() -> Topology {
        let amounts = Amounts { capacity: 8, allocatable: 7, available: 3 };
        let zone = |id: u16, attributes: Vec<(String, String)>| topology::Zone {
            id,
            costs: [(0, 10 + 10 * u32::from(id)), (1, 20 - 10 * u32::from(id))].into(),
            resources: [("cpu".to_owned(), amounts)].into(),
            attributes,
        };
        let attribute = |name: &str| (name.to_owned(), "v".to_owned());
        Topology {
            zones: vec![zone(0, vec![attribute("of the zone")]), zone(1, vec![])],
            attributes: vec![attribute("of the node")],
            pods: Some(PodSet { fingerprint: Fingerprint::of([1]), method: Method::WithExclusiveResources }),
            ..Topology::default()
        }
    }

    #[test]
    fn an_object_has_all_that_its_account_has() {
        let fingerprint = Fingerprint::of([1]).to_string();
        let cpu = json!([{"name": "cpu", "capacity": "8", "allocatable": "7", "available": "3"}]);
        let costs = |values: [u8; 2]| json!([{"name": "node-0", "value": values[0]}, {"name": "node-1", "value": values[1]}]);
        let expected = json!({
            "attributes": [
                {"name": "of the node", "value": "v"},
                {"name": "nodeTopologyPodsFingerprint", "value": fingerprint},
                {"name": "nodeTopologyPodsFingerprintMethod", "value": "with-exclusive-resources"},
            ],
            "zones": [
                {
                    "name": "node-0", "type": "Node", "costs": costs([10, 20]), "resources": cpu,
                    "attributes": [{"name": "of the zone", "value": "v"}],
                },
                {"name": "node-1", "type": "Node", "costs": costs([20, 10]), "resources": cpu},
            ],
        });
        let made = object("a", None, &account());
        assert_eq!(serde_json::to_value(&made.spec).unwrap(), expected);
        assert_eq!((made.metadata.name.as_deref(), made.metadata.owner_references), (Some("a"), None));
        let bare = object("a", None, &Topology::default());
        assert_eq!(serde_json::to_value(&bare.spec).unwrap(), json!({"zones": []}));
    }

    #[test]
    fn an_object_may_be_owned_by_its_node() {
        let owners = object("a", Some("u"), &account()).metadata.owner_references.unwrap();
        let expected = json!([{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "u"}]);
        assert_eq!(serde_json::to_value(owners).unwrap(), expected);
    }

    #[test]
    fn a_held_object_differs_in_its_fingerprint_alone() {
        let once = held(&object("a", None, &account())).unwrap();
        let hold = PodSet { fingerprint: Fingerprint::HELD, method: Method::WithExclusiveResources };
        assert_eq!(once, object("a", None, &Topology { pods: Some(hold), ..account() }));
        assert_eq!(held(&once), None, "it is held already");
        assert_eq!(held(&object("a", None, &Topology { pods: None, ..account() })), None, "nothing of pods");
    }
}
