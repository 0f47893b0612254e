//! The object in the API server when the agent starts.

use std::collections::BTreeSet;

use crate::names::is_device_or_driver;
use crate::nrt::{NodeResourceTopology, POLICY, SCOPE, ZONE_TYPE, Zone};
use crate::topology::is_policy_attribute;

/// The live object before this agent's first write.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum LiveObject {
    /// Not known yet.
    #[default]
    Unknown,
    Missing,
    /// We may not read it.
    Unreadable,
    Object(Box<NodeResourceTopology>),
}

impl LiveObject {
    pub(super) fn object(&self) -> Option<&NodeResourceTopology> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// Returns the zones that are NUMA nodes.
    pub(super) fn zones(&self) -> impl Iterator<Item = &Zone> {
        let zones = self.object().into_iter().flat_map(|object| &object.spec.zones);
        zones.filter(|zone| zone.kind == ZONE_TYPE)
    }

    /// Returns the device resources that its zones listed.
    pub(super) fn devices(&self) -> BTreeSet<String> {
        let resources = self.zones().flat_map(|zone| zone.resources.iter().flatten());
        let names = resources.map(|resource| resource.name.as_str());
        // Resources of the kubelet's own managers have no domain, and another writer may have invented names.
        names.filter(|name| is_device_or_driver(name)).map(str::to_owned).collect()
    }

    /// Returns the attributes from the kubelet's configuration; none if the policy or the scope is missing,
    /// since consumers misread one without the other.
    pub(super) fn policies(&self) -> Vec<(String, String)> {
        let attributes =
            self.object().and_then(|object| object.spec.attributes.as_deref()).unwrap_or_default();
        let has = |name: &str| attributes.iter().any(|attribute| attribute.name == name);
        if !has(POLICY) || !has(SCOPE) {
            return Vec::new();
        }
        let policies = attributes.iter().filter(|attribute| is_policy_attribute(&attribute.name));
        policies.map(|attribute| (attribute.name.clone(), attribute.value.clone())).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a live object with these attributes, and one of each of these resources in `node-0`.
    pub(in super::super) fn live_object(attributes: &[(&str, &str)], resources: &[&str]) -> LiveObject {
        let attributes: Vec<_> =
            attributes.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let one = |name: &&str| json!({"name": name, "capacity": 1, "allocatable": 1, "available": 1});
        let resources: Vec<_> = resources.iter().map(one).collect();
        let object = json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": "w"},
            "zones": [
                {"name": "node-0", "type": "Node", "resources": resources},
                {"name": "balloon", "type": "balloon", "resources": [one(&"example.com/no")]},
            ],
            "attributes": attributes,
        });
        LiveObject::Object(Box::new(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn devices_are_resources_with_a_domain() {
        let names = [
            "cpu",
            "memory",
            "hugepages-2Mi",
            "example.com/nic",
            "made up/nic",
            "gpu.example.com",
            "a b.c",
            "kubernetes.io/batch-cpu",
        ];
        assert_eq!(
            live_object(&[], &names).devices(),
            ["example.com/nic", "gpu.example.com"].map(str::to_owned).into()
        );
        assert_eq!(LiveObject::Missing.devices(), BTreeSet::new());
    }

    #[test]
    fn there_are_no_policies_without_policy_and_scope() {
        let (policy, scope) = (("topologyManagerPolicy", "restricted"), ("topologyManagerScope", "pod"));
        assert_eq!(live_object(&[policy], &[]).policies(), []);
        assert_eq!(live_object(&[scope], &[]).policies(), []);
        let fingerprint = ("nodeTopologyPodsFingerprint", "pfp0v001ef46db3751d8e999");
        assert_eq!(live_object(&[fingerprint, policy], &[]).policies(), []);
        let option = ("topologyManagerOptionPreferClosestNumaNodes", "true");
        let policies = live_object(&[fingerprint, policy, option, scope], &[]).policies();
        let names: Vec<&str> = policies.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [policy.0, option.0, scope.0], "a fingerprint is no policy");
    }
}
