//! Lists and watches the pods of one node on the API server, in protocol buffers: a pod takes less than half
//! the bytes of its JSON, and can be forwarded unchanged.
//!
//! **The list** costs the API server only the pods of this node, and etcd nothing: it has no `limit`, and a
//! `resourceVersion` as the minimum version, so that it comes from the watch cache, by its index on
//! `spec.nodeName`. With 2,000 pods on 20 nodes one list fetched the node's 100 from the cache and none from
//! etcd (1.36.3; `tests/real/pod_list.rs`). Paged lists without a version are read from etcd before 1.34,
//! each page reading all pods of the cluster; since 1.34 they scan all pods of the cache from the second page
//! on. A watch with initial events (`sendInitialEvents`) is no better: in every version it scans all pods of
//! the cache as well and waits until the cache has caught up with etcd, and it is off by default before 1.32
//! and in 1.33.

mod frame;
mod list_decoder;
mod list_reader;
mod watcher;

use kube::api::GetParams;
use kube::core::Request;
use serde_json::Value;

use super::pages::{Listing, PAGE_OF_PEOPLE, Pages};
use super::{Cluster, ClusterError};
use crate::core_v1::{PlacedPod, read_placed_pod};
use crate::names::is_dns_name;
use crate::pod::{Pod, PodName, Wanted};

pub use frame::PodFrame;
pub use list_decoder::PodListDecoder;

pub(super) use list_reader::{ListItem, ListReader};

impl Cluster {
    /// Returns the pod of this name on `node`, as it is now, with what is `wanted` of it; `None` if there is
    /// none. It is listed rather than read: watching needs permission to list pods, but not to get one.
    ///
    /// The result must not be older than the kubelet's response that names the pod, so it is read from etcd:
    /// Kubernetes turns a list of one name in one namespace into a read of one key. Before 1.31 that is all;
    /// since 1.31 the API server asks etcd only for its current version, and responds when its cache has
    /// caught up, after some 100 ms at most.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn get_pod(
        &self,
        node: &str,
        (namespace, name): &PodName,
        wanted: &Wanted,
    ) -> Result<Option<Pod>, ClusterError> {
        // A client of the proxy may request any name: an invalid one must not get into the query.
        if !is_dns_name(namespace) || !is_dns_name(name) {
            return Ok(None);
        }
        // Constant, because messages with it are logged once.
        let what = "list one pod of the node";
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let path = format!("{path}?fieldSelector=metadata.name%3D{name}%2Cspec.nodeName%3D{node}");
        let mut list = ListReader::start(self, path, what, self.timeout).await?;
        let mut found = None;
        while let ListItem::Pod(pod) = list.next(self, wanted).await? {
            found = Some(pod.map_err(|reason| self.not_understood(what, reason))?);
        }
        Ok(found)
    }

    /// Lists the Pending pods that are not bound to a node, of one namespace or of all, as the API server has them.
    pub fn unbound_pods(&self, namespace: Option<&str>) -> Pages<Value> {
        let of = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
        let listing = Listing {
            what: "list pending pods".to_owned(),
            path: format!("/api/v1/{of}pods"),
            fields: Some("status.phase=Pending,spec.nodeName=".to_owned()),
            page: PAGE_OF_PEOPLE,
            ..Listing::default()
        };
        Pages::new(self.clone(), listing)
    }

    /// Returns a pod as the API server has it; `None` if it does not exist.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn whole_pod(&self, namespace: &str, name: &str) -> Result<Option<Value>, ClusterError> {
        let request = Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
        self.read_opt(&format!("get pod {namespace}/{name}"), request.get(name, &GetParams::default())).await
    }

    /// Returns all PodDisruptionBudgets as the API server has them.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn disruption_budgets(&self) -> Result<Vec<Value>, ClusterError> {
        let listing = Listing {
            what: "list poddisruptionbudgets".to_owned(),
            path: "/apis/policy/v1/poddisruptionbudgets".to_owned(),
            page: PAGE_OF_PEOPLE,
            ..Listing::default()
        };
        let mut budgets = Vec::new();
        Pages::new(self.clone(), listing).for_each(|budget| budgets.push(budget)).await?;
        Ok(budgets)
    }

    /// Returns all pods of the cluster or of one node, terminated ones included, as the API server's cache has
    /// them: one request, which etcd does not notice.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn placed_pods(
        &self,
        node: Option<&str>,
        wanted: &Wanted,
    ) -> Result<Vec<PlacedPod>, ClusterError> {
        let what = "list pods";
        let of_node = node.map(|node| format!("&fieldSelector=spec.nodeName%3D{node}")).unwrap_or_default();
        let path = format!("/api/v1/pods?resourceVersion=0{of_node}");
        let mut list = ListReader::start(self, path, what, self.timeout).await?;
        let mut pods = Vec::new();
        while let ListItem::Pod(pod) = list.next_as(self, |bytes| read_placed_pod(bytes, wanted)).await? {
            pods.push(pod.map_err(|reason| self.not_understood(what, reason))?);
        }
        Ok(pods)
    }
}
