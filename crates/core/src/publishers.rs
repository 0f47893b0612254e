//! Other programs that write NodeResourceTopology objects, or the annotation that KAI-Scheduler reads, and the setting
//! that disables each.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::nrt::Zone;

/// A program that writes what an agent writes.
#[derive(Debug, PartialEq, Eq)]
pub struct Publisher {
    /// Its name, as its users know it.
    pub name: &'static str,
    /// Its name in one word, for metrics.
    pub label: &'static str,
    /// The field managers with which it writes objects. A Go program that sets none has the first part of its user
    /// agent, which is its program's name unless it sets that.
    managers: &'static [&'static str],
    /// The names of its program or image.
    programs: &'static [&'static str],
    /// What of an object only it writes.
    content: Content,
    /// A word in an argument with which it writes none.
    off: Option<&'static str>,
    /// Whether it does nothing else and nobody creates it again, so that its DaemonSet can be deleted.
    pub is_only_publisher: bool,
    /// What ends its writes: an order, without a full stop.
    pub switch: &'static str,
}

/// What of an object only one program writes.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    /// This annotation, in v1alpha2.
    Annotation(&'static str),
    /// Anything in v1alpha1, of an object that has this annotation.
    OldVersion(&'static str),
    /// Owner references and deprecated policies, in v1alpha2.
    OwnerAndPolicies,
    /// Zones with this resource, in v1alpha1.
    Resource(&'static str),
    /// Zones of these types.
    ZoneTypes(&'static [&'static str]),
    /// It writes no objects.
    None,
}

/// The only one that annotates pods.
pub const KAI_EXPORTER: Publisher = Publisher {
    name: "KAI's numa-placement-exporter",
    label: "kai",
    managers: &[],
    programs: &["numa-placement-exporter"],
    content: Content::None,
    off: None,
    is_only_publisher: false,
    switch: "set `numaPlacementExporter.enabled: false` in KAI's chart",
};

/// All that are known. Sources: node-feature-discovery 76e6cc8cc (to v0.19.0 it updates, then it applies),
/// resource-topology-exporter ef567ef3, koordinator a7a1b76 (`pkg/koordlet/config`, `cmd/koord-manager`, both set the
/// user agent), nri-plugins 0705acc (`pkg/agent/node-resource-topology.go`, zone types of `cmd/plugins/*/policy`),
/// KAI-Scheduler d5bc503 (`pkg/npe`, `deployments/kai-scheduler`).
pub const PUBLISHERS: [Publisher; 6] = [
    Publisher {
        name: "NFD's topology updater",
        label: "nfd",
        managers: &["node-feature-discovery-topology-updater", "nfd-topology-updater"],
        programs: &["nfd-topology-updater"],
        content: Content::OwnerAndPolicies,
        off: None,
        is_only_publisher: true,
        switch: "set `topologyUpdater.enable: false` in NFD's chart, or delete the DaemonSet",
    },
    Publisher {
        name: "resource-topology-exporter",
        label: "rte",
        managers: &["resource-topology-exporter"],
        programs: &["resource-topology-exporter"],
        content: Content::Annotation("k8stopoawareschedwg/rte-update"),
        off: None,
        is_only_publisher: true,
        switch: "delete its DaemonSet",
    },
    Publisher {
        name: "koordlet",
        label: "koordlet",
        managers: &["koordlet"],
        programs: &["koordlet"],
        content: Content::OldVersion("node.koordinator.sh/cpu-topology"),
        off: Some("NodeTopologyReport=false"),
        is_only_publisher: false,
        switch: "add `NodeTopologyReport=false` to its --feature-gates (`koordlet.features` in Koordinator's chart)",
    },
    Publisher {
        name: "koord-manager",
        label: "koord-manager",
        managers: &["koordinator-manager"],
        programs: &["koord-manager"],
        content: Content::Resource("kubernetes.io/batch-cpu"),
        off: None,
        is_only_publisher: false,
        switch: "set `enable: false` for these nodes in `colocation-config` of the ConfigMap slo-controller-config",
    },
    Publisher {
        name: "nri-plugins",
        label: "nri-plugins",
        managers: &[
            "nri-resource-policy-topology-aware",
            "nri-resource-policy-balloons",
            "nri-resource-policy-template",
        ],
        programs: &[
            "nri-resource-policy-topology-aware",
            "nri-resource-policy-balloons",
            "nri-resource-policy-template",
        ],
        content: Content::ZoneTypes(&[
            "socket",
            "die",
            "numa node",
            "L3 cache",
            "virtual node",
            "balloon",
            "allocation for container",
        ]),
        off: None,
        is_only_publisher: false,
        switch: "set `config.agent.nodeResourceTopology: false` in its chart",
    },
    KAI_EXPORTER,
];

impl Publisher {
    /// Returns the publisher that writes with this field manager.
    #[must_use]
    pub fn of_manager(manager: &str) -> Option<&'static Self> {
        PUBLISHERS.iter().find(|publisher| publisher.managers.contains(&manager))
    }

    /// Returns the publisher that wrote the fields of an entry of an object's `managedFields`, by what only it writes:
    /// its program may have been built or wrapped under another name. `version` is the entry's `apiVersion`, `fields`
    /// its `fieldsV1`; annotations and zones are those of the object.
    #[must_use]
    pub fn of_content(
        version: &str,
        fields: &Value,
        annotations: Option<&BTreeMap<String, String>>,
        zones: &[Zone],
    ) -> Option<&'static Self> {
        let is = |expected: &str| version.rsplit('/').next() == Some(expected);
        let owns = |path: &[&str]| path.iter().try_fold(fields, |level, key| level.get(*key)).is_some();
        let mut resources = zones.iter().flat_map(|zone| zone.resources.iter().flatten());
        let mut types = zones.iter().map(|zone| zone.kind.as_str());
        PUBLISHERS.iter().find(|publisher| match publisher.content {
            Content::Annotation(key) => {
                is("v1alpha2") && owns(&["f:metadata", "f:annotations", &format!("f:{key}")])
            }
            Content::OldVersion(key) => {
                is("v1alpha1") && annotations.is_some_and(|all| all.contains_key(key))
            }
            Content::OwnerAndPolicies => {
                is("v1alpha2") && owns(&["f:metadata", "f:ownerReferences"]) && owns(&["f:topologyPolicies"])
            }
            Content::Resource(name) => {
                is("v1alpha1") && owns(&["f:zones"]) && resources.any(|resource| resource.name == name)
            }
            Content::ZoneTypes(all) => owns(&["f:zones"]) && types.any(|kind| all.contains(&kind)),
            Content::None => false,
        })
    }

    /// Returns the publisher that a container with these words runs, its image and arguments, unless an argument
    /// turns the writes off.
    #[must_use]
    pub fn of_container<'a>(words: impl Iterator<Item = &'a str> + Clone) -> Option<&'static Self> {
        let (found, _) = known_program(words.clone())?;
        let is_off = found.off.is_some_and(|off| words.clone().any(|word| word.contains(off)));
        (!is_off).then_some(found)
    }

    /// Returns whether it writes objects. Otherwise it annotates pods.
    #[must_use]
    pub const fn writes_objects(&self) -> bool {
        !matches!(self.content, Content::None)
    }
}

/// Returns the resource of the API group `config.nri` with the configuration of the nri-plugin that a container with
/// these words runs.
pub fn nri_configuration<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let (_, program) = known_program(words)?;
    Some(format!("{}policies", program.strip_prefix("nri-resource-policy-")?.replace('-', "")))
}

fn known_program<'a>(words: impl Iterator<Item = &'a str>) -> Option<(&'static Publisher, &'static str)> {
    let mut names = words
        .map(|word| word.rsplit('/').next().unwrap_or_default().split([':', '@']).next().unwrap_or_default());
    let all = || PUBLISHERS.iter().flat_map(|one| one.programs.iter().map(move |program| (one, *program)));
    names.find_map(|name| all().find(|(_, program)| *program == name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn name(publisher: Option<&Publisher>) -> Option<&'static str> {
        publisher.map(|publisher| publisher.name)
    }

    #[test]
    fn publishers_are_known_by_field_manager_and_program() {
        assert_eq!(name(Publisher::of_manager("koordlet")), Some("koordlet"));
        assert_eq!(name(Publisher::of_manager("koordinator-manager")), Some("koord-manager"));
        assert_eq!(name(Publisher::of_manager("numacast")), None);
        for (words, expected) in [
            (
                &["registry.k8s.io/nfd/node-feature-discovery:v0.19", "nfd-topology-updater"][..],
                Some("NFD's topology updater"),
            ),
            (&["ghcr.io/containers/nri-plugins/nri-resource-policy-balloons@sha256:1"], Some("nri-plugins")),
            (&["koordlet:v1.8", "/koordlet", "--feature-gates=A=true"], Some("koordlet")),
            (&["koordlet:v1.8", "--feature-gates=A=true,NodeTopologyReport=false"], None),
            (&["pause:latest", "/pause"], None),
            (&[], None),
        ] {
            assert_eq!(name(Publisher::of_container(words.iter().copied())), expected, "{words:?}");
        }
        for (program, expected) in [
            ("nri-resource-policy-topology-aware:v1", Some("topologyawarepolicies")),
            ("x/nri-resource-policy-balloons", Some("balloonspolicies")),
            ("koordlet", None),
            ("nri-resource-policy-other", None),
        ] {
            assert_eq!(nri_configuration([program].into_iter()).as_deref(), expected, "{program}");
        }
    }

    #[test]
    fn publishers_are_known_by_what_only_they_write() {
        let zone = |kind: &str, resource: &str| -> Vec<Zone> {
            let resource = json!({"name": resource, "capacity": "1", "allocatable": "1", "available": "1"});
            serde_json::from_value(json!([{"name": "node-0", "type": kind, "resources": [resource]}]))
                .unwrap()
        };
        let (ours, batch, balloon) =
            (zone("Node", "cpu"), zone("Node", "kubernetes.io/batch-cpu"), zone("balloon", "cpu"));
        let zones = json!({"f:zones": {}});
        let of = |version: &str, fields: &Value, zones: &[Zone]| {
            name(Publisher::of_content(&format!("topology.node.k8s.io/{version}"), fields, None, zones))
        };
        let annotated = BTreeMap::from([("node.koordinator.sh/cpu-topology".to_owned(), String::new())]);
        let of_annotated = |version| name(Publisher::of_content(version, &zones, Some(&annotated), &ours));
        assert_eq!(of_annotated("topology.node.k8s.io/v1alpha1"), Some("koordlet"));
        assert_eq!(of_annotated("topology.node.k8s.io/v1alpha2"), None, "koordlet writes the other version");
        let rte = json!({"f:metadata": {"f:annotations": {"f:k8stopoawareschedwg/rte-update": {}}}});
        assert_eq!(of("v1alpha2", &rte, &[]), Some("resource-topology-exporter"));
        assert_eq!(of("v1alpha1", &zones, &batch), Some("koord-manager"));
        assert_eq!(of("v1alpha2", &zones, &batch), None);
        assert_eq!(of("v1alpha2", &zones, &balloon), Some("nri-plugins"));
        assert_eq!(
            of("v1alpha2", &json!({"f:attributes": {}}), &balloon),
            None,
            "another one wrote the zones"
        );
        let nfd = json!({"f:topologyPolicies": {}, "f:metadata": {"f:ownerReferences": {}}});
        assert_eq!(of("v1alpha2", &nfd, &[]), Some("NFD's topology updater"));
        assert_eq!(of("v1alpha2", &zones, &ours), None);
    }

    #[test]
    fn labels_are_single_words() {
        let labels: BTreeSet<&str> = PUBLISHERS.iter().map(|publisher| publisher.label).collect();
        assert_eq!(labels.len(), PUBLISHERS.len());
        assert!(
            labels.iter().all(|label| label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'))
        );
    }
}
