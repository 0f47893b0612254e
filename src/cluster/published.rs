//! Objects as consumers read them, with every zone.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::nrt_meta::{NrtMeta, RawObject, RawTopology};
use crate::machine::Id;
use crate::nrt::{
    Amounts, AttributeInfo, FINGERPRINT, FINGERPRINT_ANNOTATION, POLICY, SCOPE, ZONE_TYPE, Zone as NrtZone,
    describes_node, policy_and_scope,
};
use crate::publishers::Publisher;
use crate::topology::Zone;

/// The object of one node. What cannot be read, such as one invalid zone, is left out and noted: another publisher may have written it.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawTopology<Box<RawValue>>")]
pub struct PublishedObject {
    /// The metadata.
    pub meta: NrtMeta,
    /// When a field manager last changed the zones.
    pub changed: Option<Timestamp>,
    /// The zones that are NUMA nodes, ascending by id.
    pub zones: Vec<Zone>,
    /// The attributes, with policy and scope also where they are in the deprecated list of policies, and the
    /// fingerprint also where it is an annotation.
    pub attributes: BTreeMap<String, String>,
    /// The publisher that wrote the zones, if it is another one that is known.
    pub publisher: Option<&'static Publisher>,
    /// What could not be read, one sentence each.
    pub errors: Vec<String>,
    /// Whether a zone is a NUMA node or there is no zone at all. Otherwise no scheduler reads the object as
    /// that of a Node.
    pub describes_node: bool,
}

/// The type of a zone of which the rest cannot be read.
#[derive(Default, Deserialize)]
struct ZoneKind {
    #[serde(rename = "type")]
    kind: String,
}

impl From<RawTopology<Box<RawValue>>> for PublishedObject {
    fn from(raw: RawTopology<Box<RawValue>>) -> Self {
        let attributes = raw.attributes.unwrap_or_default();
        let (policy, scope) = policy_and_scope(&attributes, &raw.topology_policies.unwrap_or_default());
        let zones: Vec<_> = raw.zones.unwrap_or_default().iter().map(|zone| read_zone(zone)).collect();
        let types = zones.iter().map(|zone| match zone {
            Ok(zone) => &*zone.kind,
            Err((kind, _)) => kind,
        });
        let annotation = raw.metadata.annotation(FINGERPRINT_ANNOTATION);
        let readable = || zones.iter().filter_map(|zone| zone.as_ref().ok().cloned()).collect();
        let mut object = Self {
            describes_node: describes_node(types),
            changed: raw.metadata.zones_changed(),
            publisher: raw.metadata.publisher(readable),
            meta: RawObject { metadata: raw.metadata }.into(),
            zones: Vec::new(),
            attributes: by_name(attributes),
            errors: Vec::new(),
        };
        object.attributes.extend(policy.map(|policy| (POLICY.to_owned(), policy)));
        object.attributes.extend(scope.map(|scope| (SCOPE.to_owned(), scope)));
        if let Some(fingerprint) = annotation {
            object.attributes.entry(FINGERPRINT.to_owned()).or_insert(fingerprint);
        }
        for zone in zones {
            match zone {
                Ok(zone) if zone.kind != ZONE_TYPE => {}
                Ok(zone) => object.add(zone),
                Err((_, error)) => object.errors.push(format!("a zone cannot be read: {error}")),
            }
        }
        object.zones.sort_by_key(|zone| zone.id);
        object
    }
}

impl PublishedObject {
    fn add(&mut self, zone: NrtZone) {
        let Some(id) = zone_id(&zone.name) else {
            self.errors.push(format!("the zone {:?} has no id in its name", zone.name));
            return;
        };
        if self.zones.iter().any(|other| other.id == id) {
            self.errors.push(format!("there are several zones {}", zone.name));
            return;
        }
        let costs = zone.costs.unwrap_or_default().into_iter();
        let costs = costs.filter_map(|cost| Some((zone_id(&cost.name)?, u32::try_from(cost.value).ok()?)));
        let resources = zone.resources.unwrap_or_default().into_iter().map(|resource| {
            let amounts = Amounts {
                capacity: resource.capacity.ceil(),
                allocatable: resource.allocatable.ceil(),
                available: resource.available.floor(),
            };
            (resource.name, amounts)
        });
        self.zones.push(Zone {
            id,
            costs: costs.collect(),
            resources: resources.collect(),
            attributes: by_name(zone.attributes.unwrap_or_default()),
        });
    }
}

/// Returns a zone, or its type and why the rest cannot be read.
fn read_zone(json: &RawValue) -> Result<NrtZone, (String, serde_json::Error)> {
    serde_json::from_str(json.get()).map_err(|error| {
        let kind: ZoneKind = serde_json::from_str(json.get()).unwrap_or_default();
        (kind.kind, error)
    })
}

/// Returns the first value of each name, which is the one that counts.
fn by_name(attributes: Vec<AttributeInfo>) -> BTreeMap<String, String> {
    attributes.into_iter().rev().map(|attribute| (attribute.name, attribute.value)).collect()
}

/// Returns the id in a zone's name, such as `node-1`.
fn zone_id(name: &str) -> Option<Id> {
    name.strip_prefix("node-")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_left_out_and_said() {
        let cpu = json!({"name": "cpu", "capacity": "8", "allocatable": 7, "available": "3"});
        let zone = |name: &str, kind: &str| {
            json!({"name": name, "type": kind, "costs": [{"name": "node-0", "value": 21}], "resources": [cpu],
                   "attributes": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]})
        };
        let object: PublishedObject = serde_json::from_value(json!({
            "metadata": {"name": "w", "annotations": {FINGERPRINT_ANNOTATION: "pfp0v001ef46db3751d8e999"}},
            "topologyPolicies": ["RestrictedPodLevel"],
            "zones": [zone("node-1", "Node"), zone("node-0", "Node"), zone("rack", "Rack"), zone("x", "Node"),
                      zone("node-1", "Node"), {"name": 7}],
        }))
        .unwrap();
        let ids: Vec<Id> = object.zones.iter().map(|zone| zone.id).collect();
        assert_eq!(ids, [0, 1]);
        assert_eq!(object.zones[1].resources["cpu"], Amounts { capacity: 8, allocatable: 7, available: 3 });
        assert_eq!((object.zones[1].costs[&0], object.zones[1].attributes["a"].as_str()), (21, "1"));
        assert_eq!(
            (object.attributes[POLICY].as_str(), object.attributes[SCOPE].as_str()),
            ("restricted", "pod")
        );
        assert_eq!(object.attributes[FINGERPRINT], "pfp0v001ef46db3751d8e999");
        assert!(object.describes_node);
        assert_eq!(object.errors.len(), 3, "{:?}", object.errors);
        assert!(object.errors[0].contains("\"x\"") && object.errors[1].contains("several zones node-1"));
    }

    #[test]
    fn zones_may_be_any_json() {
        let deep = ["[".repeat(10_000), "]".repeat(10_000)].concat();
        for (odd, describes_node) in [
            ("7", false),
            ("null", false),
            (r#"{"name":[],"type":{}}"#, false),
            (r#"{"name":[],"type":"Rack"}"#, false),
            (r#"{"name":[],"type":"Node"}"#, true),
            (&deep, false),
        ] {
            let object: PublishedObject =
                serde_json::from_str(&format!(r#"{{"metadata":{{"name":"w"}},"zones":[{odd}]}}"#)).unwrap();
            assert_eq!((object.zones.len(), object.errors.len()), (0, 1), "{odd:.40}");
            assert_eq!(object.describes_node, describes_node, "{odd:.40}");
        }
    }
}
