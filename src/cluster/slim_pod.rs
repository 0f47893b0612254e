//! The part of a pod that the controller uses.

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::list_watch::PartialObject;

/// Messages of `NodeResourceTopologyMatch` about a node that it rejects; the scheduler joins those of all
/// plugins.
const MESSAGES: [&str; 5] = [
    "cannot align container",
    "cannot align init container",
    "cannot align sidecar container",
    "cannot align pod",
    "invalid node topology data",
];

/// The decoded part of a pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawPod")]
pub struct SlimPod {
    version: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The node it is bound to; empty before.
    pub node: String,
    /// Whether the condition `Ready` is true.
    pub ready: bool,
    /// The DaemonSet that owns it.
    pub daemon_set: Option<String>,
    /// Whether it is pending because the plugin rejected nodes.
    pub rejected: bool,
    /// When the oldest of its running containers started, unless it is being deleted: nothing identifies the
    /// scheduler's container.
    pub(super) started: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawPod {
    metadata: RawMetadata,
    spec: RawSpec,
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMetadata {
    name: String,
    namespace: String,
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
    owner_references: Option<Vec<RawOwner>>,
}

#[derive(Deserialize)]
struct RawOwner {
    kind: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    node_name: Option<String>,
}

/// The status of a pod, or of a Node, which has conditions too.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawStatus {
    phase: String,
    conditions: Option<Vec<RawCondition>>,
    container_statuses: Option<Vec<RawContainer>>,
}

/// A condition of a pod or of a Node.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawCondition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawContainer {
    state: RawState,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawState {
    running: Option<RawRunning>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRunning {
    /// Text, since Go accepts times that jiff does not: one such pod must not end the watch of all.
    started_at: Option<String>,
}

impl RawStatus {
    pub(super) fn is_ready(&self) -> bool {
        self.conditions.iter().flatten().any(RawCondition::is_ready)
    }
}

impl RawCondition {
    pub(super) fn is_ready(&self) -> bool {
        self.r#type == "Ready" && self.status == "True"
    }

    /// Returns true if the plugin rejected a node. Pods with scheduling gates have another reason.
    fn is_rejection(&self) -> bool {
        self.r#type == "PodScheduled"
            && self.status == "False"
            && self.reason == "Unschedulable"
            && MESSAGES.iter().any(|message| self.message.contains(message))
    }
}

impl From<RawPod> for SlimPod {
    fn from(raw: RawPod) -> Self {
        let RawPod { metadata, spec, status } = raw;
        // The scheduler skips pods that are being deleted or have terminated.
        let is_deleted = metadata.deletion_timestamp.is_some();
        let is_pending = !is_deleted && matches!(&*status.phase, "" | "Pending");
        let mut owners = metadata.owner_references.into_iter().flatten();
        let containers = status.container_statuses.iter().flatten().filter(|_| !is_deleted);
        let running = containers.filter_map(|one| one.state.running.as_ref());
        Self {
            version: metadata.resource_version,
            namespace: metadata.namespace,
            name: metadata.name,
            node: spec.node_name.unwrap_or_default(),
            ready: status.is_ready(),
            daemon_set: owners.find(|owner| owner.kind == "DaemonSet").map(|owner| owner.name),
            rejected: is_pending && status.conditions.iter().flatten().any(RawCondition::is_rejection),
            started: running.filter_map(|running| running.started_at.as_deref()?.parse().ok()).min(),
        }
    }
}

impl PartialObject for SlimPod {
    fn version(&self) -> &str {
        &self.version
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

    fn read(pod: Value) -> SlimPod {
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_is_rejected_if_its_condition_has_a_message_of_the_plugin() {
        let found = read(rejected("0/50 nodes are available: 3 cannot align pod, 47 Insufficient cpu."));
        assert_eq!((&*found.namespace, &*found.name, found.version()), ("default", "db-0", "7"));
        assert!(found.rejected);
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

    fn started(containers: Value) -> Option<String> {
        let pod = json!({"metadata": {"name": "a"}, "status": {"containerStatuses": containers}});
        let pod: SlimPod = serde_json::from_value(pod).unwrap();
        pod.started.map(|started| started.to_string())
    }

    fn running(since: &str) -> Value {
        json!({"name": "c", "state": {"running": {"startedAt": since}}})
    }

    #[test]
    fn a_pod_runs_since_its_oldest_running_container_started() {
        let (first, second) = ("2026-11-23T07:00:00Z", "2026-11-23T08:00:00Z");
        assert_eq!(started(json!([running(second), running(first)])).as_deref(), Some(first));
        let waiting = json!({"name": "d", "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
        assert_eq!(started(json!([waiting, running(second)])).as_deref(), Some(second));
        assert_eq!(started(json!([waiting])), None);
        assert_eq!(started(Value::Null), None);
    }
}
