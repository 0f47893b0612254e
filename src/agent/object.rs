//! An account as the object that goes out. Everything is sorted: same account, same bytes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::nrt::{
    AttributeInfo, CostInfo, NodeResourceTopology, NodeResourceTopologyFields, ResourceInfo, ZONE_TYPE, Zone,
    zone_name,
};
use crate::topology::{self, Amounts, Topology};

/// The object of `node`; `owner` is the Node's UID, if the Node is to own it.
#[must_use]
pub fn object(node: &str, owner: Option<&str>, topology: &Topology) -> NodeResourceTopology {
    let fields = NodeResourceTopologyFields {
        topology_policies: None,
        zones: topology.zones.iter().map(zone).collect(),
        attributes: attributes(&topology.attributes),
    };
    let mut object = NodeResourceTopology::new(node, fields);
    object.metadata.owner_references = owner.map(|uid| vec![node_reference(node, uid)]);
    object
}

/// No `controller` and no `blockOwnerDeletion`: the reference only lets garbage collection follow the Node.
pub(super) fn node_reference(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

fn attributes(pairs: &[(String, String)]) -> Option<Vec<AttributeInfo>> {
    let attribute =
        |(name, value): &(String, String)| AttributeInfo { name: name.clone(), value: value.clone() };
    (!pairs.is_empty()).then(|| pairs.iter().map(attribute).collect())
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
        attributes: attributes(&zone.attributes),
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
