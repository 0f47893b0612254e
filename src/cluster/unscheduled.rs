//! Pods that are pending because the scheduler plugin rejected nodes for them, and the objects whose updates
//! make the scheduler retry them.

use kube::api::{ListParams, WatchParams};
use serde_json::json;
use tokio::time::Instant;

use super::list_watch::{ListWatchParams, ListWatchStream, PartialObject};
use super::slim_pod::SlimPod;
use super::{Cluster, ClusterError, NrtMeta};

/// The annotation that a nudge changes.
pub const NUDGE: &str = "numacast.io/nudge";

impl PartialObject for NrtMeta {
    fn version(&self) -> &str {
        &self.version
    }
}

impl Cluster {
    /// Lists and watches all pods without a node; the list contains only those that the plugin rejected. A
    /// pod that is bound or deleted is reported as deleted.
    ///
    /// The API server has an index of pods by node, and serves list and watch from its cache.
    pub fn unscheduled_pods(&self) -> ListWatchStream<SlimPod> {
        let params = ListWatchParams {
            what: "pods without a node",
            path: "/api/v1/pods".to_owned(),
            list: ListParams::default().fields("spec.nodeName=").match_any(),
            watch: WatchParams::default().fields("spec.nodeName="),
            metadata: false,
            keep: |pod: &SlimPod| pod.rejected,
            limit: None,
        };
        self.list_watch(params, Instant::now())
    }

    /// Watches the metadata of all objects, starting at `not_before`. The list has only the first object by
    /// name.
    pub fn changed_topologies(&self, not_before: Instant) -> ListWatchStream<NrtMeta> {
        let params = ListWatchParams {
            what: "noderesourcetopologies",
            path: self.topologies_path(),
            list: ListParams::default().limit(1),
            watch: WatchParams::default(),
            metadata: true,
            keep: |_: &NrtMeta| true,
            limit: None,
        };
        self.list_watch(params, not_before)
    }

    /// Sets the annotation [`NUDGE`] of an object to `value`. Returns the object's new version;
    /// [`ClusterError::is_not_found`] if there is no such object.
    pub async fn nudge(&self, name: &str, value: &str) -> Result<String, ClusterError> {
        let patch = json!({"metadata": {"annotations": {NUDGE: value}}});
        let metadata = self.merge(name, &patch).await?;
        Ok(metadata.resource_version.unwrap_or_default())
    }
}
