//! Pods that are pending because the scheduler plugin rejected nodes for them, and the objects whose updates
//! make the scheduler retry them.

use kube::api::{ListParams, WatchParams};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::list_watch::{ListWatchParams, ListWatchStream, PartialObject};
use super::{Cluster, ClusterError, NrtMeta};

/// The annotation that a nudge changes.
pub const NUDGE: &str = "numacast.io/nudge";

/// Messages of `NodeResourceTopologyMatch` about a node that it rejects; the scheduler joins those of all
/// plugins.
const MESSAGES: [&str; 5] = [
    "cannot align container",
    "cannot align init container",
    "cannot align sidecar container",
    "cannot align pod",
    "invalid node topology data",
];

/// The decoded part of an unscheduled pod.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RawPod")]
pub struct UnscheduledPod {
    /// Namespace and name: `default/db-0`.
    pub name: Box<str>,
    /// Whether it is pending because the plugin rejected nodes.
    pub rejected: bool,
    version: String,
}

#[derive(Deserialize)]
struct RawPod {
    metadata: RawMetadata,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMetadata {
    name: String,
    namespace: String,
    resource_version: String,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    phase: String,
    conditions: Option<Vec<RawCondition>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawCondition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
}

impl RawCondition {
    /// Returns true if the plugin rejected a node. Pods with scheduling gates have another reason.
    fn is_rejection(&self) -> bool {
        self.r#type == "PodScheduled"
            && self.status == "False"
            && self.reason == "Unschedulable"
            && MESSAGES.iter().any(|message| self.message.contains(message))
    }
}

impl From<RawPod> for UnscheduledPod {
    fn from(raw: RawPod) -> Self {
        let RawPod { metadata, status } = raw;
        // The scheduler skips pods that are being deleted or have terminated.
        let is_pending = metadata.deletion_timestamp.is_none() && matches!(&*status.phase, "" | "Pending");
        Self {
            name: format!("{}/{}", metadata.namespace, metadata.name).into(),
            rejected: is_pending && status.conditions.iter().flatten().any(RawCondition::is_rejection),
            version: metadata.resource_version,
        }
    }
}

impl PartialObject for UnscheduledPod {
    fn version(&self) -> &str {
        &self.version
    }

    fn is_kept(&self) -> bool {
        self.rejected
    }
}

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
    pub fn unscheduled_pods(&self) -> ListWatchStream<UnscheduledPod> {
        let params = ListWatchParams {
            what: "pods without a node",
            path: "/api/v1/pods".to_owned(),
            list: ListParams::default().fields("spec.nodeName=").match_any(),
            watch: WatchParams::default().fields("spec.nodeName="),
            metadata: false,
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
        };
        self.list_watch(params, not_before)
    }

    /// Sets the annotation [`NUDGE`] of an object to `value`. Returns the object's new version.
    /// Error: [`ClusterError::is_not_found`] if there is no such object.
    pub async fn nudge(&self, name: &str, value: &str) -> Result<String, ClusterError> {
        let patch = json!({"metadata": {"annotations": {NUDGE: value}}});
        let metadata = self.merge(name, &patch).await?;
        Ok(metadata.resource_version.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(condition: Value) -> Value {
        json!({
            "metadata": {"name": "db-0", "namespace": "default", "resourceVersion": "7", "uid": "u"},
            "spec": {"containers": [{"name": "db"}]},
            "status": {"phase": "Pending", "conditions": [condition]},
        })
    }

    fn rejected(message: &str) -> Value {
        pod(json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}))
    }

    fn read(pod: Value) -> UnscheduledPod {
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_is_rejected_if_its_condition_has_a_message_of_the_plugin() {
        let found = read(rejected("0/50 nodes are available: 3 cannot align pod, 47 Insufficient cpu."));
        assert_eq!((&*found.name, found.rejected, found.version()), ("default/db-0", true, "7"));
        for message in MESSAGES {
            let all = format!("0/1 nodes are available: 1 {message}.");
            assert!(read(rejected(&all)).rejected, "{message}");
        }
        assert!(!read(rejected("0/50 nodes are available: 50 Insufficient cpu.")).rejected);
        let bare = json!({"metadata": {"name": "new", "namespace": "a", "resourceVersion": "1"}});
        assert!(!read(bare).rejected, "not tried yet");
    }

    #[test]
    fn pods_that_the_scheduler_skips_are_not_rejected() {
        let message = "0/1 nodes are available: 1 cannot align pod.";
        let gated = json!({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message});
        assert!(!read(pod(gated)).rejected);
        let mut deleted = rejected(message);
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!read(deleted).rejected);
        let mut failed = rejected(message);
        failed["status"]["phase"] = json!("Failed");
        assert!(!read(failed).rejected);
        let scheduled = json!({"type": "PodScheduled", "status": "True", "message": message});
        assert!(!read(pod(scheduled)).rejected);
    }
}
