//! Nodes, decoding only what is needed: all Nodes for the controller, and the agent's own.

use std::collections::BTreeMap;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeDaemonEndpoints, NodeSystemInfo, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{GetParams, ListParams, WatchParams};
use kube::core::Request;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::list_watch::{ListWatchParams, ListWatchStream, PartialObject};
use super::metadata::OnlyMetadata;
use super::pages::{Listing, Pages};
use super::slim_pod::{RawCondition, RawStatus};
use super::timed_backoff::TimedBackoff;
use super::{Built, Cluster, ClusterError, Failure, chain};
use crate::quantity::{NodeAmounts, Quantity};
use crate::watch_event::WatchEvent;

/// Page size. A Node has some 15 KiB, mostly names of images, and a page is briefly held as text.
const PAGE: u32 = 100;
/// Page size of lists for people: fewer requests, some 15 MiB at a time.
const NODES_OF_PEOPLE: u32 = 1000;
/// Watch timeout requested by kube's watcher. Load balancers drop connections that are silent for longer.
const WATCH_SECONDS: u32 = 240;

/// What the controller decodes of each Node.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = "Node")]
#[serde(from = "RawNode")]
pub struct SlimNode {
    /// Name and version, for kube's watcher.
    metadata: ObjectMeta,
    /// The Node's name.
    pub name: String,
    /// The UID.
    pub uid: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The taints.
    pub taints: Vec<Taint>,
    /// Whether the condition `Ready` is true.
    pub ready: bool,
}

/// A Node's name and labels.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "LabelledNode")]
pub struct NodeMetadata {
    version: String,
    /// The Node's name.
    pub name: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct LabelledNode {
    metadata: RawMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawNode {
    metadata: RawMetadata,
    spec: RawSpec,
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMetadata {
    name: String,
    uid: String,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawSpec {
    taints: Option<Vec<Taint>>,
}

// No field is flattened: serde would keep all that it does not know, such as the names of the images, until the end.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawDetails {
    metadata: CreatedMetadata,
    spec: DetailedSpec,
    status: DetailedStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CreatedMetadata {
    name: String,
    uid: String,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DetailedSpec {
    taints: Option<Vec<Taint>>,
    unschedulable: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DetailedStatus {
    conditions: Option<Vec<RawCondition>>,
    // Any JSON: one invalid quantity must not fail the whole list.
    allocatable: Option<BTreeMap<String, Value>>,
    capacity: Option<BTreeMap<String, Value>>,
    node_info: NodeInfo,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeInfo {
    kubelet_version: String,
    architecture: String,
}

impl From<RawDetails> for NodeDetails {
    fn from(raw: RawDetails) -> Self {
        let RawDetails { metadata, spec, status } = raw;
        let CreatedMetadata { name, uid, resource_version, labels, creation_timestamp } = metadata;
        let common = RawMetadata { name, uid, resource_version, labels };
        let ready = status.conditions.iter().flatten().any(RawCondition::is_ready);
        let amount = |(name, quantity): (String, Value)| {
            let quantity = Quantity::deserialize(quantity).ok()?;
            let amount = quantity.of_node(&name);
            Some((name, amount))
        };
        Self {
            slim: SlimNode::from_parts(common, spec.taints, ready),
            created: creation_timestamp,
            unschedulable: spec.unschedulable,
            allocatable: status.allocatable.unwrap_or_default().into_iter().filter_map(amount).collect(),
            capacity: status.capacity.unwrap_or_default().into_iter().filter_map(amount).collect(),
            kubelet_version: status.node_info.kubelet_version,
            architecture: status.node_info.architecture,
        }
    }
}

impl From<RawNode> for SlimNode {
    fn from(raw: RawNode) -> Self {
        Self::from_parts(raw.metadata, raw.spec.taints, raw.status.is_ready())
    }
}

impl PartialObject for NodeMetadata {
    fn version(&self) -> &str {
        &self.version
    }
}

impl From<LabelledNode> for NodeMetadata {
    fn from(LabelledNode { metadata: raw }: LabelledNode) -> Self {
        let version = raw.resource_version.unwrap_or_default();
        Self { version, name: raw.name, labels: raw.labels.unwrap_or_default() }
    }
}

impl SlimNode {
    fn from_parts(metadata: RawMetadata, taints: Option<Vec<Taint>>, ready: bool) -> Self {
        let RawMetadata { name, uid, resource_version, labels } = metadata;
        Self {
            metadata: ObjectMeta { name: Some(name.clone()), resource_version, ..ObjectMeta::default() },
            name,
            uid,
            labels: labels.unwrap_or_default(),
            taints: taints.unwrap_or_default(),
            ready,
        }
    }
}

/// What the commands for people decode of each Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "RawDetails")]
pub struct NodeDetails {
    /// The part that the controller decodes as well.
    pub slim: SlimNode,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// What its kubelet can allocate: `cpu` in millicores, others in whole units. Quantities that cannot be read
    /// are left out.
    pub allocatable: NodeAmounts,
    /// What its hardware has, in the same units.
    pub capacity: NodeAmounts,
    /// The version that its kubelet reported, such as `v1.36.3`; empty if it has not yet.
    pub kubelet_version: String,
    /// `amd64`, `arm64` and the like.
    pub architecture: String,
}

impl NodeDetails {
    /// Returns the kubelet's minor version, such as 36.
    pub fn minor(&self) -> Option<u32> {
        self.kubelet_version.split('.').nth(1)?.parse().ok()
    }
}

/// The part of a Node that describes its kubelet. A whole Node also lists its images, some 15 KiB.
#[derive(Clone, Debug, Deserialize)]
struct KubeletNode {
    #[serde(default)]
    status: KubeletStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KubeletStatus {
    node_info: NodeSystemInfo,
    addresses: Option<Vec<NodeAddress>>,
    daemon_endpoints: NodeDaemonEndpoints,
}

impl KubeletNode {
    fn endpoint(self) -> KubeletEndpoint {
        let KubeletStatus { addresses, daemon_endpoints, .. } = self.status;
        let internal = addresses.into_iter().flatten().find(|address| address.type_ == "InternalIP");
        let port = daemon_endpoints.kubelet_endpoint.and_then(|endpoint| u16::try_from(endpoint.port).ok());
        KubeletEndpoint {
            host: internal.map(|address| address.address),
            port: port.filter(|port| *port != 0),
        }
    }
}

/// The address of a kubelet's HTTPS port, as far as reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletEndpoint {
    /// The Node's InternalIP.
    pub host: Option<String>,
    /// `status.daemonEndpoints.kubeletEndpoint.Port`
    pub port: Option<u16>,
}

fn watch_event<T>(event: watcher::Event<T>) -> WatchEvent<T> {
    match event {
        watcher::Event::Init => WatchEvent::Init,
        watcher::Event::InitApply(object) => WatchEvent::InitApply(object),
        watcher::Event::InitDone => WatchEvent::InitDone,
        watcher::Event::Apply(object) => WatchEvent::Apply(object),
        watcher::Event::Delete(object) => WatchEvent::Delete(object),
    }
}

fn nodes() -> Request {
    Request::new(Node::url_path(&(), None))
}

fn listing() -> Listing {
    let (what, path) = ("list nodes".to_owned(), "/api/v1/nodes".to_owned());
    Listing { what, path, page: PAGE, ..Listing::default() }
}

impl Cluster {
    /// Watches all Nodes. An error is one sentence; the watch resumes after a backoff.
    pub fn nodes(&self) -> impl Stream<Item = Result<WatchEvent<SlimNode>, String>> + Send + 'static {
        let nodes: Api<SlimNode> = Api::all(self.client_for_watcher());
        let config = watcher::Config::default().page_size(PAGE).timeout(WATCH_SECONDS);
        watcher(nodes, config).backoff(TimedBackoff::default()).map(|event| match event {
            Ok(event) => Ok(watch_event(event)),
            Err(error) => Err(format!("cannot watch the Nodes: {}", chain(&error))),
        })
    }

    /// Lists and watches the metadata of all Nodes, as the API server's cache has them: a tenth of the bytes of whole Nodes.
    /// There is an event whenever a kubelet reports, too.
    pub fn watch_node_metadata(&self) -> ListWatchStream<NodeMetadata> {
        let params = ListWatchParams {
            what: "nodes",
            path: Node::url_path(&(), None),
            list: ListParams::default().match_any(),
            watch: WatchParams::default(),
            metadata: true,
            keep: |_: &NodeMetadata| true,
            limit: None,
        };
        self.list_watch(params, Instant::now())
    }

    /// Lists all Nodes.
    pub fn node_pages(&self) -> Pages<SlimNode> {
        Pages::new(self.clone(), listing())
    }

    /// Lists all Nodes, or those with matching labels, with what people need to know of them.
    pub fn node_details(&self, labels: Option<String>) -> Pages<NodeDetails> {
        Pages::new(self.clone(), Listing { labels, page: NODES_OF_PEOPLE, ..listing() })
    }

    /// Returns one Node.
    ///
    /// # Errors
    /// See [`ClusterError`]; [`ClusterError::NoSuchNode`] if the Node does not exist.
    pub async fn node(&self, name: &str) -> Result<NodeDetails, ClusterError> {
        self.get_node(name, nodes().get(name, &GetParams::default())).await
    }

    /// Returns the number of Nodes.
    pub async fn node_count(&self) -> Result<u64, ClusterError> {
        self.count(&listing()).await
    }

    /// Returns true only if the API server reports that there is no Node of this name.
    pub async fn has_no_node(&self, name: &str) -> Result<bool, ClusterError> {
        let what = format!("get node {name}");
        let request = nodes().get_metadata(name, &GetParams::default());
        match self.in_time(&what, self.read::<OnlyMetadata>(request)).await {
            Ok(_) => Ok(false),
            Err(failure) if failure.is_missing("nodes", name) => Ok(true),
            Err(failure) => Err(failure.explain(&what)),
        }
    }

    /// Returns the UID of a Node, for the owner reference of its object.
    ///
    /// # Errors
    /// See [`ClusterError`]; only calls for a Node return [`ClusterError::NoSuchNode`].
    pub async fn node_uid(&self, name: &str) -> Result<String, ClusterError> {
        let request = nodes().get_metadata(name, &GetParams::default());
        let node: OnlyMetadata = self.get_node(name, request).await?;
        Ok(node.metadata.uid.unwrap_or_default())
    }

    /// Returns the version that a node's kubelet reported, such as `v1.36.3`; empty if it has not yet.
    pub async fn kubelet_version(&self, name: &str) -> Result<String, ClusterError> {
        Ok(self.kubelet_node(name).await?.status.node_info.kubelet_version)
    }

    /// Returns the address of a kubelet's HTTPS port, as it reported it.
    pub async fn kubelet_endpoint(&self, name: &str) -> Result<KubeletEndpoint, ClusterError> {
        Ok(self.kubelet_node(name).await?.endpoint())
    }

    async fn kubelet_node(&self, name: &str) -> Result<KubeletNode, ClusterError> {
        self.get_node(name, nodes().get(name, &GetParams::default())).await
    }

    /// Runs a request for a Node, or for a part of it.
    async fn get_node<T: DeserializeOwned>(&self, name: &str, request: Built) -> Result<T, ClusterError> {
        let what = format!("get node {name}");
        self.in_time(&what, self.read(request)).await.map_err(|failure| match failure {
            Failure::Status(status) if status.code == 404 => ClusterError::NoSuchNode(name.to_owned()),
            failure => failure.explain(&what),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    impl SlimNode {
        /// Creates a ready Node for tests.
        pub(crate) fn new(name: &str, labels: &[(&str, &str)]) -> Self {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let (name, uid) = (name.to_owned(), format!("uid-of-{name}"));
            Self { name, uid, labels, ready: true, ..Self::default() }
        }
    }

    #[test]
    fn only_the_needed_part_of_a_node_is_decoded() {
        let node: SlimNode = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "labels": {"k": "v"},
                         "annotations": {"x": "y"}},
            "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "t", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "DiskPressure", "status": "False"},
                                      {"type": "Ready", "status": "True"}], "images": [{"names": ["i"]}]},
        }))
        .unwrap();
        assert_eq!((node.name.as_str(), node.uid.as_str(), node.ready), ("a", "u", true));
        assert_eq!((node.labels.len(), node.taints[0].key.as_str()), (1, "t"));
        assert_eq!(node.metadata.resource_version.as_deref(), Some("7"));
        let bare: SlimNode = serde_json::from_value(json!({"metadata": {"name": "b"}})).unwrap();
        assert!(!bare.ready && bare.taints.is_empty(), "a Node that has not reported yet");
        let unknown = json!({"metadata": {"name": "b"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
        assert!(!serde_json::from_value::<SlimNode>(unknown).unwrap().ready);
    }

    #[test]
    fn people_are_told_more_of_a_node() {
        let node: NodeDetails = serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "u", "creationTimestamp": "2026-11-23T07:00:00Z", "labels": {"k": "v"}},
            "spec": {"unschedulable": true, "taints": [{"key": "t", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "7500m", "memory": "16Gi", "pods": "110", "odd": "x"},
                       "nodeInfo": {"kubeletVersion": "v1.36.3", "architecture": "arm64"},
                       "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        assert!(node.slim.ready && node.unschedulable && node.slim.labels["k"] == "v");
        assert_eq!((node.slim.name.as_str(), node.slim.taints.len(), node.minor()), ("a", 1, Some(36)));
        assert_eq!(node.created.unwrap().to_string(), "2026-11-23T07:00:00Z");
        let amounts: Vec<_> =
            node.allocatable.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
        assert_eq!(amounts, [("cpu", 7500), ("memory", 16 << 30), ("pods", 110)]);
        let bare: NodeDetails = serde_json::from_value(json!({"metadata": {"name": "b"}})).unwrap();
        assert!(!bare.slim.ready && bare.minor().is_none() && bare.allocatable.is_empty());
    }

    #[test]
    fn the_kubelets_version_and_address_are_those_reported() {
        let node = |status: serde_json::Value| {
            serde_json::from_value::<KubeletNode>(json!({"metadata": {"name": "a"}, "status": status}))
                .unwrap()
        };
        let whole = node(json!({
            "nodeInfo": {"kubeletVersion": "v1.36.3", "osImage": "x"},
            "addresses": [{"type": "Hostname", "address": "a"}, {"type": "InternalIP", "address": "10.0.0.7"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [{"names": ["i"], "sizeBytes": 1}],
        }));
        assert_eq!(whole.status.node_info.kubelet_version, "v1.36.3");
        let endpoint = |host: Option<&str>, port| KubeletEndpoint { host: host.map(str::to_owned), port };
        assert_eq!(whole.endpoint(), endpoint(Some("10.0.0.7"), Some(10250)));
        let port_only = node(json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 10350}}}));
        assert_eq!(port_only.status.node_info.kubelet_version, "");
        assert_eq!(port_only.endpoint(), endpoint(None, Some(10350)));
        for port in [0, -1, 65536] {
            let odd = node(json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}));
            assert_eq!(odd.endpoint(), KubeletEndpoint::default(), "{port}");
        }
        let address_only =
            json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.7"}], "daemonEndpoints": {}});
        assert_eq!(node(address_only).endpoint(), endpoint(Some("10.0.0.7"), None));
        let new: KubeletNode = serde_json::from_value(json!({"metadata": {"name": "b"}})).unwrap();
        assert_eq!(new.endpoint(), KubeletEndpoint::default());
    }
}
