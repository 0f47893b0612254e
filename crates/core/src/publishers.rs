//! Other programs that write the objects of Nodes, or the annotation that KAI-Scheduler reads, and how each is told to
//! stop.

/// A program that writes what an agent writes.
#[derive(Debug, PartialEq, Eq)]
pub struct Publisher {
    /// Its name, as its users know it.
    pub name: &'static str,
    /// The field managers with which it writes.
    managers: &'static [&'static str],
    /// The names of its program or image.
    programs: &'static [&'static str],
    /// A word in an argument with which it writes none.
    off: Option<&'static str>,
    /// Whether it does nothing else, so that it can be deleted.
    pub is_only_publisher: bool,
    /// What ends its writes: an order, without a full stop.
    pub switch: &'static str,
}

/// All that are known. Sources: node-feature-discovery 76e6cc8cc, resource-topology-exporter ef567ef3, koordinator
/// a7a1b76, nri-plugins 0705acc (`pkg/agent/node-resource-topology.go`), KAI-Scheduler d5bc503 (`pkg/npe`).
pub const PUBLISHERS: [Publisher; 6] = [
    Publisher {
        name: "NFD's topology updater",
        managers: &["node-feature-discovery-topology-updater", "nfd-topology-updater"],
        programs: &["nfd-topology-updater"],
        off: None,
        is_only_publisher: true,
        switch: "set `topologyUpdater.enable: false` in NFD's chart, or delete the DaemonSet",
    },
    Publisher {
        name: "resource-topology-exporter",
        managers: &["resource-topology-exporter"],
        programs: &["resource-topology-exporter"],
        off: None,
        is_only_publisher: true,
        switch: "delete its DaemonSet",
    },
    Publisher {
        name: "koordlet",
        managers: &["koordlet"],
        programs: &["koordlet"],
        off: Some("NodeTopologyReport=false"),
        is_only_publisher: false,
        switch: "add `NodeTopologyReport=false` to its --feature-gates (`koordlet.features` in Koordinator's chart)",
    },
    Publisher {
        name: "koord-manager",
        managers: &["koord-manager"],
        programs: &["koord-manager"],
        off: None,
        is_only_publisher: false,
        switch: "set `enable: false` for these nodes in `colocation-config` of the ConfigMap slo-controller-config",
    },
    Publisher {
        name: "nri-plugins",
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
        off: None,
        is_only_publisher: false,
        switch: "set `config.agent.nodeResourceTopology: false` in its chart",
    },
    Publisher {
        name: "KAI's numa-placement-exporter",
        managers: &["numa-placement-exporter"],
        programs: &["numa-placement-exporter"],
        off: None,
        is_only_publisher: true,
        switch: "set `numaPlacementExporter.enabled: false` in KAI's chart",
    },
];

impl Publisher {
    /// Returns the publisher that writes with this field manager.
    #[must_use]
    pub fn of_manager(manager: &str) -> Option<&'static Self> {
        PUBLISHERS.iter().find(|publisher| publisher.managers.contains(&manager))
    }

    /// Returns the publisher that a container with these words runs, its image and arguments, unless an argument
    /// turns the writes off.
    #[must_use]
    pub fn of_container<'a>(words: impl Iterator<Item = &'a str> + Clone) -> Option<&'static Self> {
        let names = words.clone().map(|word| {
            word.rsplit('/').next().unwrap_or_default().split([':', '@']).next().unwrap_or_default()
        });
        let found =
            names.filter_map(|name| PUBLISHERS.iter().find(|one| one.programs.contains(&name))).next()?;
        let is_off = found.off.is_some_and(|off| words.clone().any(|word| word.contains(off)));
        (!is_off).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(publisher: Option<&Publisher>) -> Option<&'static str> {
        publisher.map(|publisher| publisher.name)
    }

    #[test]
    fn publishers_are_known_by_field_manager_and_program() {
        assert_eq!(name(Publisher::of_manager("koordlet")), Some("koordlet"));
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
    }
}
