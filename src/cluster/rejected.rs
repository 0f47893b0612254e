//! Pods that wait because the scheduler plugin rejected them, and the objects whose updates have them tried again.

use kube::api::{ListParams, WatchParams};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::list_watch::{Reduced, Tellings, Which};
use super::{Cluster, ClusterError};

/// The annotation whose change says nothing but that pods are to be tried again.
pub const NUDGE: &str = "numacast.io/nudge";

/// What `NodeResourceTopologyMatch` says of a node that it rejects; the scheduler puts the words of all plugins together.
const WORDS: [&str; 5] = [
    "cannot align container",
    "cannot align init container",
    "cannot align sidecar container",
    "cannot align pod",
    "invalid node topology data",
];

/// What is read of a pod that no node was found for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RawPod")]
pub struct UnscheduledPod {
    /// Namespace and name: `default/db-0`.
    pub name: Box<str>,
    /// Does it wait because the plugin rejected nodes?
    pub rejected: bool,
    version: String,
}

/// What is read of an object that changed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RawObject")]
pub struct ChangedObject {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

#[derive(Deserialize)]
struct RawPod {
    metadata: RawMetadata,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Deserialize)]
struct RawObject {
    metadata: RawMetadata,
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
    /// Does it say that the plugin rejected a node? A pod with scheduling gates has another reason.
    fn is_rejection(&self) -> bool {
        self.r#type == "PodScheduled"
            && self.status == "False"
            && self.reason == "Unschedulable"
            && WORDS.iter().any(|words| self.message.contains(words))
    }
}

impl From<RawPod> for UnscheduledPod {
    fn from(raw: RawPod) -> Self {
        let RawPod { metadata, status } = raw;
        // The scheduler tries neither pods that are being deleted nor such as have ended.
        let waits = metadata.deletion_timestamp.is_none() && matches!(&*status.phase, "" | "Pending");
        Self {
            name: format!("{}/{}", metadata.namespace, metadata.name).into(),
            rejected: waits && status.conditions.iter().flatten().any(RawCondition::is_rejection),
            version: metadata.resource_version,
        }
    }
}

impl From<RawObject> for ChangedObject {
    fn from(raw: RawObject) -> Self {
        Self { name: raw.metadata.name, version: raw.metadata.resource_version }
    }
}

impl Reduced for UnscheduledPod {
    fn version(&self) -> &str {
        &self.version
    }

    fn is_kept(&self) -> bool {
        self.rejected
    }
}

impl Reduced for ChangedObject {
    fn version(&self) -> &str {
        &self.version
    }
}

impl Cluster {
    /// Follows all pods that are on no node; of a list only those that the plugin rejected are told. One that is bound or
    /// deleted is gone.
    ///
    /// The API server has an index of pods by node, and answers list and watch from its cache.
    #[must_use]
    pub fn unscheduled_pods(&self) -> Tellings<UnscheduledPod> {
        let which = Which {
            what: "pods without a node",
            path: "/api/v1/pods".to_owned(),
            list: ListParams::default().fields("spec.nodeName=").match_any(),
            watch: WatchParams::default().fields("spec.nodeName="),
            metadata: false,
        };
        self.list_watch(which, Instant::now())
    }

    /// Follows the changes of all objects by their metadata, but not before this moment. What is listed is the first object
    /// by name alone.
    #[must_use]
    pub fn changed_topologies(&self, not_before: Instant) -> Tellings<ChangedObject> {
        let which = Which {
            what: "noderesourcetopologies",
            path: self.topologies_path(),
            list: ListParams::default().limit(1),
            watch: WatchParams::default(),
            metadata: true,
        };
        self.list_watch(which, not_before)
    }

    /// Changes the annotation [`NUDGE`] of an object to `value`, and nothing else. Returns the object's version.
    ///
    /// # Errors
    /// As [`Cluster::topology`]; [`ClusterError::is_not_found`] if there is no such object.
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
    fn a_pod_waits_because_of_the_plugin_when_its_condition_says_so() {
        let found = read(rejected("0/50 nodes are available: 3 cannot align pod, 47 Insufficient cpu."));
        assert_eq!((&*found.name, found.rejected, found.version()), ("default/db-0", true, "7"));
        for words in WORDS {
            assert!(read(rejected(&format!("0/1 nodes are available: 1 {words}."))).rejected, "{words}");
        }
        assert!(!read(rejected("0/50 nodes are available: 50 Insufficient cpu.")).rejected);
        let bare = json!({"metadata": {"name": "new", "namespace": "a", "resourceVersion": "1"}});
        assert!(!read(bare).rejected, "nobody tried it yet");
    }

    #[test]
    fn pods_that_the_scheduler_does_not_try_do_not_count() {
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
