//! One node as the page's map shows it. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cluster::PublishedObject;
use crate::machine::Id;
use crate::nrt::{FINGERPRINT, POLICY, SCOPE};
use crate::scheduler::Fingerprint;
use crate::topology::{Zone, real_zones};

/// The most bytes of a label's value or of a policy that are shown; Kubernetes allows 63 for labels.
const MAX_TEXT: usize = 63;
/// The most labels of one node that are sent.
const MAX_LABELS: usize = 16;
/// Words in the keys of labels by which people group nodes.
const GROUPING: [&str; 8] =
    ["pool", "rack", "zone", "region", "instance-type", "nodegroup", "node-group", "row"];

/// The labels of a Node by which nodes are grouped.
pub(super) type Labels = BTreeMap<String, String>;

/// Returns the labels by which people group nodes, and `also`.
pub(super) fn grouping_labels(labels: Labels, also: &[String]) -> Labels {
    let is_wanted = |key: &str| {
        let name = key.rsplit('/').next().unwrap_or(key);
        also.iter().any(|wanted| wanted == key) || GROUPING.iter().any(|word| name.contains(word))
    };
    let wanted = labels.into_iter().filter(|(key, value)| is_wanted(key) && value.len() <= MAX_TEXT);
    wanted.take(MAX_LABELS).collect()
}

/// Whether a node's numbers can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Status {
    Ok,
    /// The fingerprint is withheld.
    Withheld,
    /// Nothing keeps the object up to date now.
    Stale,
    /// Another program writes the zones.
    OtherWriter,
    NoZones,
    /// A part of the object cannot be read.
    Unreadable,
    NoObject,
}

/// A node as it is sent to the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tile {
    pub(super) name: String,
    pub(super) status: Status,
    /// Why the status is not `ok`: a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: Labels,
    /// When the zones changed: milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<i64>,
    /// The resources of the node's zones, sorted.
    resources: Vec<String>,
    pub(super) zones: Vec<TileZone>,
}

/// A zone of a [`Tile`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TileZone {
    id: Id,
    /// For each of the tile's resources what is allocatable, in CPUs, bytes or devices.
    of: Vec<u64>,
    /// Likewise what is available.
    free: Vec<u64>,
}

impl Tile {
    /// Returns the tile of a node. `has_node` is whether its Node exists, and `has_agent` whether it has an agent that is
    /// Ready, if that is known. The agent of a Node that is not Ready is not, as Kubernetes' node controller sets its pods.
    pub(super) fn new(
        name: &str,
        object: Option<&PublishedObject>,
        labels: Option<&Labels>,
        has_node: Option<bool>,
        has_agent: Option<bool>,
    ) -> Self {
        let (status, why) = status(object, has_node, has_agent);
        let zones = object.map(|object| real_zones(&object.zones)).unwrap_or_default();
        let mut resources: Vec<&str> =
            zones.iter().flat_map(|zone| zone.resources.keys().map(String::as_str)).collect();
        resources.sort_unstable();
        resources.dedup();
        let zone = |zone: &&Zone| {
            let amounts = |name: &&str| zone.resources.get(*name).copied().unwrap_or_default();
            TileZone {
                id: zone.id,
                of: resources.iter().map(|name| amounts(name).allocatable).collect(),
                free: resources.iter().map(|name| amounts(name).available).collect(),
            }
        };
        let attribute = |name: &str| {
            let value = object.and_then(|object| object.attributes.get(name));
            value.filter(|value| value.len() <= MAX_TEXT).cloned()
        };
        Self {
            name: name.to_owned(),
            status,
            why,
            policy: attribute(POLICY),
            scope: attribute(SCOPE),
            labels: labels.cloned().unwrap_or_default(),
            changed: object.and_then(|object| object.changed).map(jiff::Timestamp::as_millisecond),
            zones: zones.iter().map(zone).collect(),
            resources: resources.into_iter().map(str::to_owned).collect(),
        }
    }

    /// Returns the amounts that differ from those of an earlier tile of the node.
    pub(super) fn changes(&self, before: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for zone in &self.zones {
            let Some(old) = before.zones.iter().find(|old| old.id == zone.id) else { continue };
            for (at, resource) in self.resources.iter().enumerate() {
                let Some(old_at) = before.resources.iter().position(|name| name == resource) else {
                    continue;
                };
                let (from, to) = (old.free[old_at], zone.free[at]);
                if from != to {
                    changes.push(Change { zone: zone.id, resource: resource.clone(), from, to });
                }
            }
        }
        changes
    }
}

/// A change of what is available in a zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Change {
    zone: Id,
    resource: String,
    from: u64,
    to: u64,
}

fn status(
    object: Option<&PublishedObject>,
    has_node: Option<bool>,
    has_agent: Option<bool>,
) -> (Status, Option<String>) {
    let no = |status, why: &str| (status, Some(why.to_owned()));
    let Some(object) = object else {
        return no(Status::NoObject, "no agent has published an object for this node");
    };
    if let Some(error) = object.errors.first() {
        return (Status::Unreadable, Some(error.clone()));
    }
    if has_node == Some(false) {
        return no(Status::Stale, "there is no Node of this name any more");
    }
    if has_agent == Some(false) {
        return no(Status::Stale, "the node has no agent that is Ready: its object may be out of date");
    }
    if object.zones.is_empty() {
        return no(Status::NoZones, "its object has no zones");
    }
    if let Some(other) = &object.meta.writers.other {
        return (Status::OtherWriter, Some(format!("{other} writes the zones")));
    }
    let withheld = Fingerprint::WITHHELD.to_string();
    if object.attributes.get(FINGERPRINT) == Some(&withheld) {
        let why = "the fingerprint is withheld: the scheduler plugin does not place pods here now";
        return no(Status::Withheld, why);
    }
    (Status::Ok, None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(available: u64) -> PublishedObject {
        let cpu = json!({"name": "cpu", "capacity": 4, "allocatable": 4, "available": available});
        let zones = json!([{"name": "node-0", "type": "Node", "resources": [cpu]}]);
        serde_json::from_value(json!({"metadata": {"name": "w"}, "zones": zones})).unwrap()
    }

    #[test]
    fn the_status_tells_whether_the_numbers_can_be_relied_on() {
        let of = |has_node, has_agent| Tile::new("w", Some(&object(4)), None, has_node, has_agent).status;
        let yes = Some(true);
        assert_eq!(of(yes, None), Status::Ok);
        assert_eq!(of(yes, yes), Status::Ok);
        assert_eq!(of(yes, Some(false)), Status::Stale);
        assert_eq!(of(Some(false), None), Status::Stale);
        assert_eq!(of(None, None), Status::Ok, "Nodes are not known");
        assert_eq!(Tile::new("w", None, None, yes, None).status, Status::NoObject);
        let mut withheld = object(4);
        withheld.attributes.insert(FINGERPRINT.to_owned(), Fingerprint::WITHHELD.to_string());
        let tile = Tile::new("w", Some(&withheld), None, yes, None);
        assert_eq!(tile.status, Status::Withheld);
        assert!(tile.why.is_some());
    }

    #[test]
    fn changes_are_those_of_available_amounts() {
        let tile = |available| Tile::new("w", Some(&object(available)), None, None, None);
        let changes = tile(1).changes(&tile(4));
        assert_eq!(changes, [Change { zone: 0, resource: "cpu".to_owned(), from: 4, to: 1 }]);
        assert_eq!(tile(1).changes(&tile(1)), []);
    }

    #[test]
    fn labels_to_group_by_are_kept() {
        let labels =
            ["topology.kubernetes.io/zone", "example.com/rack", "kubernetes.io/hostname", "my.io/team"];
        let labels = labels.map(|key| (key.to_owned(), "x".to_owned())).into();
        let kept = grouping_labels(labels, &["my.io/team".to_owned()]);
        let keys: Vec<&String> = kept.keys().collect();
        assert_eq!(keys, ["example.com/rack", "my.io/team", "topology.kubernetes.io/zone"]);
    }
}
