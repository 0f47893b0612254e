//! Converts a state to the object. Everything is sorted: the same state gives the same bytes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::nrt::{
    AttributeInfo, CostInfo, FINGERPRINT, FINGERPRINT_METHOD, NodeResourceTopology,
    NodeResourceTopologyFields, ResourceInfo, ZONE_TYPE, Zone, zone_name,
};
use crate::scheduler::{Fingerprint, Placement, PodFingerprint, Publishable};
use crate::topology::{self, Amounts};

/// Returns the object of `node`; `owner` is the Node's UID, if the Node should own it.
#[must_use]
pub fn object(node: &str, owner: Option<&str>, state: &Publishable) -> NodeResourceTopology {
    let attributes = attributes(state);
    let fields = NodeResourceTopologyFields {
        topology_policies: None,
        zones: state.zones.iter().map(|of| zone(of, state)).collect(),
        attributes: (!attributes.is_empty()).then_some(attributes),
    };
    let mut object = NodeResourceTopology::new(node, fields);
    object.metadata.owner_references = owner.map(|uid| vec![node_reference(node, uid)]);
    object
}

/// Returns the same object with its fingerprint withheld; `None` if it has no fingerprint, or that is
/// withheld already.
pub(super) fn withheld(object: &NodeResourceTopology) -> Option<NodeResourceTopology> {
    let withheld = Fingerprint::WITHHELD.to_string();
    let mut object = object.clone();
    let attributes = object.spec.attributes.iter_mut().flatten();
    let mut other = attributes.filter(|it| it.name == FINGERPRINT && it.value != withheld);
    other.next()?.value = withheld.clone();
    Some(object)
}

/// Returns an owner reference without `controller` and `blockOwnerDeletion`: it only makes Kubernetes'
/// garbage collector delete the object with the Node.
pub(super) fn node_reference(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

fn attributes(state: &Publishable) -> Vec<AttributeInfo> {
    let attributes = state.attributes.iter().map(|(name, value)| attribute(name, value));
    let placement = state.placement.iter().map(Placement::attribute);
    let placement = placement.map(|(name, value)| attribute(name, value));
    let fingerprint = state.fingerprint.into_iter().flat_map(fingerprint);
    attributes.chain(placement).chain(fingerprint).collect()
}

/// Returns the attributes of the fingerprint. The plugin takes a fingerprint without its method for one of
/// all pods.
fn fingerprint(PodFingerprint { value, method }: PodFingerprint) -> [AttributeInfo; 2] {
    [attribute(FINGERPRINT, &value.to_string()), attribute(FINGERPRINT_METHOD, method.name())]
}

fn attribute(name: &str, value: &str) -> AttributeInfo {
    AttributeInfo { name: name.to_owned(), value: value.to_owned() }
}

fn zone(zone: &topology::Zone, state: &Publishable) -> Zone {
    let costs = zone.costs.iter();
    let costs = costs.map(|(peer, value)| CostInfo { name: zone_name(*peer), value: i64::from(*value) });
    let placement = state.placement.as_ref().and_then(|placement| placement.zone_attribute(zone.id));
    let own = zone.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let attributes: Vec<AttributeInfo> =
        own.chain(placement).map(|(name, value)| attribute(name, value)).collect();
    Zone {
        name: zone_name(zone.id),
        kind: ZONE_TYPE.to_owned(),
        costs: Some(costs.collect()),
        attributes: (!attributes.is_empty()).then_some(attributes),
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
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::scheduler::{FingerprintMethod, Placement};
    use crate::topology::Topology;

    fn state(fingerprint: Option<Fingerprint>, placement: Option<Placement>) -> Publishable {
        let amounts = Amounts { capacity: 8, allocatable: 7, available: 3 };
        let zone = |id: u16| topology::Zone {
            id,
            costs: [(0, 10 + 10 * u32::from(id)), (1, 20 - 10 * u32::from(id))].into(),
            resources: [("cpu".to_owned(), amounts)].into(),
            attributes: if id == 0 {
                [("of a zone".to_owned(), "v".to_owned())].into()
            } else {
                BTreeMap::new()
            },
        };
        let topology = Topology {
            zones: vec![zone(0), zone(1)],
            attributes: vec![("of the node".to_owned(), "v".to_owned())],
            ..Topology::default()
        };
        let method = FingerprintMethod::WithExclusiveResources;
        let fingerprint = fingerprint.map(|value| PodFingerprint { value, method });
        Publishable::new(&topology, fingerprint, &[], placement)
    }

    #[test]
    fn an_object_has_everything_of_its_state() {
        let fingerprint = Fingerprint::of([1]).to_string();
        let cpu = json!([{"name": "cpu", "capacity": "8", "allocatable": "7", "available": "3"}]);
        let costs = |values: [u8; 2]| json!([{"name": "node-0", "value": values[0]}, {"name": "node-1", "value": values[1]}]);
        let expected = json!({
            "attributes": [
                {"name": "of the node", "value": "v"},
                {"name": "topology.node.k8s.io/numaplacement-metadata", "value": "m"},
                {"name": "nodeTopologyPodsFingerprint", "value": fingerprint},
                {"name": "nodeTopologyPodsFingerprintMethod", "value": "with-exclusive-resources"},
            ],
            "zones": [
                {
                    "name": "node-0", "type": "Node", "costs": costs([10, 20]), "resources": cpu,
                    "attributes": [
                        {"name": "of a zone", "value": "v"},
                        {"name": "topology.node.k8s.io/numaplacement-vector", "value": "v"},
                    ],
                },
                {"name": "node-1", "type": "Node", "costs": costs([20, 10]), "resources": cpu},
            ],
        });
        let placement = Placement { metadata: "m".into(), vectors: [(0, "v".into())].into() };
        let full = object("a", None, &state(Some(Fingerprint::of([1])), Some(placement)));
        assert_eq!(serde_json::to_value(&full.spec).unwrap(), expected);
        assert_eq!((full.metadata.name.as_deref(), full.metadata.owner_references), (Some("a"), None));
        let empty = object("a", None, &Publishable::default());
        assert_eq!(serde_json::to_value(&empty.spec).unwrap(), json!({"zones": []}));
    }

    #[test]
    fn an_object_may_be_owned_by_its_node() {
        let owners = object("a", Some("u"), &state(None, None)).metadata.owner_references.unwrap();
        let expected = json!([{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "u"}]);
        assert_eq!(serde_json::to_value(owners).unwrap(), expected);
    }

    #[test]
    fn a_withheld_object_differs_in_its_fingerprint_alone() {
        let once = withheld(&object("a", None, &state(Some(Fingerprint::of([1])), None))).unwrap();
        assert_eq!(once, object("a", None, &state(Some(Fingerprint::WITHHELD), None)));
        assert_eq!(withheld(&once), None, "it is withheld already");
        assert_eq!(withheld(&object("a", None, &state(None, None))), None, "there is no fingerprint");
    }
}
