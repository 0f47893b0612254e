use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::nrt_meta::{NrtMeta, RawObject, RawTopology};
use crate::nrt::{Amounts, ZONE_TYPE, describes_node, policy_and_scope};
use crate::quantity::Quantity;

/// Maximum length of a resource's name in a message: that of a qualified name.
const MAX_NAME: usize = 317;

/// An object, reduced to what its zones have of each resource.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawTopology<RawZone>")]
pub struct NrtSummary {
    /// The metadata.
    pub meta: NrtMeta,
    /// The kubelet's Topology Manager policy.
    pub policy: Option<String>,
    /// The kubelet's Topology Manager scope.
    pub scope: Option<String>,
    /// What zones have, by resource, without invalid quantities.
    pub resources: BTreeMap<String, ByZone>,
    /// The resource of the first invalid quantity, and the error.
    pub invalid: Option<String>,
    /// Whether a zone is a NUMA node or there is no zone at all. Otherwise no scheduler reads the object as
    /// that of a Node.
    pub describes_node: bool,
}

/// What zones have of a resource: their positions in the object, ascending, and the amounts. Zones without it are
/// missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByZone(Vec<(usize, Amounts)>);

impl ByZone {
    fn add(&mut self, zone: usize, more: Amounts) {
        match self.0.last_mut() {
            Some((last, amounts)) if *last == zone => *amounts = amounts.plus(more),
            _ => self.0.push((zone, more)),
        }
    }

    /// Returns the total over all zones.
    pub fn total(&self) -> Amounts {
        self.0.iter().fold(Amounts::default(), |total, (_, amounts)| total.plus(*amounts))
    }

    /// Returns the amounts of the zones in their order, up to the last one that has the resource.
    pub fn in_order(&self) -> Vec<Amounts> {
        let mut zones = vec![Amounts::default(); self.0.last().map_or(0, |(last, _)| last + 1)];
        for (zone, amounts) in &self.0 {
            zones[*zone] = *amounts;
        }
        zones
    }
}

/// The huge page sizes of Kubernetes' architectures.
const PAGE_SIZES: [&str; 10] = ["64Ki", "1Mi", "2Mi", "4Mi", "16Mi", "32Mi", "512Mi", "1Gi", "2Gi", "16Gi"];

/// Returns true for Kubernetes' own resources. Their number is limited; that of other names is not, whatever
/// objects contain.
pub fn is_built_in(resource: &str) -> bool {
    match resource.strip_prefix("hugepages-") {
        Some(size) => PAGE_SIZES.contains(&size),
        None => matches!(resource, "cpu" | "memory" | "ephemeral-storage"),
    }
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
    // Any JSON: one invalid quantity must not fail the whole list.
    capacity: Value,
    allocatable: Value,
    available: Value,
}

impl RawResource {
    fn amounts(&self) -> Result<Amounts, String> {
        Ok(Amounts {
            capacity: rounded_up(&self.capacity)?,
            allocatable: rounded_up(&self.allocatable)?,
            available: rounded_up(&self.available)?,
        })
    }
}

fn rounded_up(quantity: &Value) -> Result<u64, String> {
    match quantity {
        Value::Null => Ok(0),
        given => Quantity::deserialize(given).map(Quantity::ceil).map_err(|error| error.to_string()),
    }
}

impl From<RawTopology<RawZone>> for NrtSummary {
    fn from(raw: RawTopology<RawZone>) -> Self {
        let zones = raw.zones.unwrap_or_default();
        let describes_node = describes_node(zones.iter().map(|zone| &*zone.r#type));
        let mut resources: BTreeMap<String, ByZone> = BTreeMap::new();
        let mut invalid = None;
        let numa = zones.into_iter().filter(|zone| zone.r#type == ZONE_TYPE).enumerate();
        let of_zone = |(at, zone): (usize, RawZone)| {
            zone.resources.unwrap_or_default().into_iter().map(move |resource| (at, resource))
        };
        for (zone, resource) in numa.flat_map(of_zone) {
            match resource.amounts() {
                Ok(more) => resources.entry(resource.name).or_default().add(zone, more),
                Err(error) if invalid.is_none() => {
                    let name: String = resource.name.chars().take(MAX_NAME).collect();
                    invalid = Some(format!("{name}: {error}"));
                }
                Err(_) => {}
            }
        }
        let policies = raw.topology_policies.unwrap_or_default();
        let (policy, scope) = policy_and_scope(&raw.attributes.unwrap_or_default(), &policies);
        let meta = RawObject { metadata: raw.metadata }.into();
        Self { meta, policy, scope, resources, invalid, describes_node }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    impl From<Amounts> for ByZone {
        fn from(amounts: Amounts) -> Self {
            Self(vec![(0, amounts)])
        }
    }

    impl NrtSummary {
        /// Returns the summary of a Node's object without resources.
        pub(crate) fn new(meta: NrtMeta) -> Self {
            let resources = BTreeMap::new();
            Self { meta, policy: None, scope: None, resources, invalid: None, describes_node: true }
        }
    }

    #[test]
    fn an_object_is_reduced_to_amounts() {
        let zone = |kind: &str, cpus: Value| {
            json!({"name": "z", "type": kind, "costs": [{"name": "z", "value": 10}], "resources": [
                {"name": "cpu", "capacity": cpus, "allocatable": "7", "available": 3},
                {"name": "memory", "capacity": "16Gi", "allocatable": "15Gi", "available": "500m"}]})
        };
        let object = |zones: Vec<Value>| -> NrtSummary {
            let attributes = json!([{"name": "topologyManagerPolicy", "value": "restricted"},
                                    {"name": "topologyManagerScope", "value": "pod"}]);
            let value = json!({"metadata": {"name": "a"}, "attributes": attributes, "zones": zones});
            serde_json::from_value(value).unwrap()
        };
        let summary =
            object(vec![zone("Node", json!("8")), zone("Node", json!("8000e-3")), zone("Rack", json!("64"))]);
        assert_eq!((summary.policy.as_deref(), summary.scope.as_deref()), (Some("restricted"), Some("pod")));
        let gi = 1 << 30;
        let cpu = Amounts { capacity: 16, allocatable: 14, available: 6 };
        let memory = Amounts { capacity: 32 * gi, allocatable: 30 * gi, available: 2 };
        assert_eq!((summary.resources["cpu"].total(), summary.resources["memory"].total()), (cpu, memory));
        let of_zone = Amounts { capacity: 8, allocatable: 7, available: 3 };
        assert_eq!(summary.resources["cpu"].in_order(), [of_zone; 2]);
        assert!(summary.describes_node && summary.invalid.is_none());
        let summary =
            object(vec![zone("Node", json!("8")), zone("Node", json!("1e-3x")), zone("Node", json!(["x"]))]);
        let cpu = Amounts { capacity: 8, allocatable: 7, available: 3 };
        let [of_cpu, of_memory] = ["cpu", "memory"].map(|name| &summary.resources[name]);
        assert_eq!((of_cpu.total(), of_memory.total().capacity), (cpu, 48 * gi));
        let invalid = "cpu: `1e-3x` is not a Kubernetes quantity such as 4, 500m, 64Mi or 16Gi";
        assert_eq!(summary.invalid.as_deref(), Some(invalid));
        assert!(!object(vec![zone("Rack", json!("64"))]).describes_node);
        assert!(object(Vec::new()).describes_node, "not filled yet");
        let old =
            json!({"metadata": {"name": "a"}, "topologyPolicies": ["BestEffortPodLevel"], "zones": null});
        let old: NrtSummary = serde_json::from_value(old).unwrap();
        assert_eq!((old.policy.as_deref(), old.scope.as_deref()), (Some("best-effort"), Some("pod")));
    }
}
