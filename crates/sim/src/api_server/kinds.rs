//! The kinds that the server serves, and their discovery documents.

use serde_json::{Value, json};

/// One kind of object.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The versions, the preferred and stored one first.
    pub versions: &'static [&'static str],
    /// `nodes`.
    pub plural: &'static str,
    /// `node`.
    pub singular: &'static str,
    /// `Node`.
    pub kind: &'static str,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
    /// Short names for `kubectl`.
    pub short: &'static [&'static str],
}

/// `nodes`.
pub static NODES: Kind = core("nodes", "node", "Node", false, &["no"]);
/// `pods`.
pub static PODS: Kind = core("pods", "pod", "Pod", true, &["po"]);
/// `namespaces`.
pub static NAMESPACES: Kind = core("namespaces", "namespace", "Namespace", false, &["ns"]);
/// `events` of the core group.
pub static CORE_EVENTS: Kind = core("events", "event", "Event", true, &["ev"]);
/// `events.events.k8s.io`.
pub static EVENTS: Kind = Kind {
    group: "events.k8s.io",
    versions: &["v1"],
    plural: "events",
    singular: "event",
    kind: "Event",
    namespaced: true,
    short: &["ev"],
};
/// `leases.coordination.k8s.io`.
pub static LEASES: Kind = Kind {
    group: "coordination.k8s.io",
    versions: &["v1"],
    plural: "leases",
    singular: "lease",
    kind: "Lease",
    namespaced: true,
    short: &[],
};
/// `noderesourcetopologies.topology.node.k8s.io`.
pub static TOPOLOGIES: Kind = Kind {
    group: "topology.node.k8s.io",
    versions: &["v1alpha2", "v1alpha1"],
    plural: "noderesourcetopologies",
    singular: "noderesourcetopology",
    kind: "NodeResourceTopology",
    namespaced: false,
    short: &["node-res-topo"],
};
/// `devices.scheduling.koordinator.sh`, without validation. Not served unless Koordinator is installed.
pub static DEVICES: Kind = Kind {
    group: "scheduling.koordinator.sh",
    versions: &["v1alpha1"],
    plural: "devices",
    singular: "device",
    kind: "Device",
    namespaced: false,
    short: &[],
};

/// `daemonsets.apps`, without validation and without a controller.
pub static DAEMON_SETS: Kind = Kind {
    group: "apps",
    versions: &["v1"],
    plural: "daemonsets",
    singular: "daemonset",
    kind: "DaemonSet",
    namespaced: true,
    short: &["ds"],
};

pub(super) static KINDS: [&Kind; 9] =
    [&NODES, &PODS, &NAMESPACES, &CORE_EVENTS, &EVENTS, &LEASES, &TOPOLOGIES, &DEVICES, &DAEMON_SETS];

const fn core(
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    namespaced: bool,
    short: &'static [&'static str],
) -> Kind {
    Kind { group: "", versions: &["v1"], plural, singular, kind, namespaced, short }
}

impl Kind {
    /// Returns true for custom resources.
    #[must_use]
    pub fn is_custom(&self) -> bool {
        self == &TOPOLOGIES || self == &DEVICES
    }

    /// `nodes`, `noderesourcetopologies.topology.node.k8s.io`.
    pub(super) fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `v1`, `topology.node.k8s.io/v1alpha2`.
    pub(super) fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() { version.to_owned() } else { format!("{}/{version}", self.group) }
    }
}

/// The discovery document at a path, if there is one. `served` reports whether a kind is installed.
pub(super) fn discovery(path: &[&str], served: impl Fn(&Kind) -> bool) -> Option<Value> {
    let kinds = || KINDS.iter().copied().filter(|kind| served(kind));
    match path {
        ["version"] => Some(version()),
        ["api"] => Some(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        })),
        ["apis"] => {
            let mut groups: Vec<&Kind> = kinds().filter(|kind| !kind.group.is_empty()).collect();
            groups.dedup_by_key(|kind| kind.group);
            let groups: Vec<Value> = groups.into_iter().map(group).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", name] => kinds().find(|kind| kind.group == *name).map(|kind| {
            let mut group = group(kind);
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            group
        }),
        ["api", "v1"] => resources(kinds().filter(|kind| kind.group.is_empty()), "v1"),
        ["apis", group, version] => resources(
            kinds().filter(|kind| kind.group == *group && kind.versions.contains(version)),
            &format!("{group}/{version}"),
        ),
        _ => None,
    }
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": "v1.36.0+numacast.sim",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

fn group(kind: &Kind) -> Value {
    let version = |version: &&str| json!({"groupVersion": kind.api_version(version), "version": version});
    let versions: Vec<Value> = kind.versions.iter().map(version).collect();
    json!({"name": kind.group, "preferredVersion": versions[0], "versions": versions})
}

fn resources<'a>(kinds: impl Iterator<Item = &'a Kind>, group_version: &str) -> Option<Value> {
    let resources: Vec<Value> = kinds
        .map(|kind| {
            json!({
                "name": kind.plural,
                "singularName": kind.singular,
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                "shortNames": kind.short,
            })
        })
        .collect();
    let is_served = !resources.is_empty();
    is_served.then(|| {
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": resources,
        })
    })
}
