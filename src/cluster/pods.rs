//! The pods of one node, from a watch on the API server, trimmed to what the agent needs.

use std::borrow::Cow;

use futures::{Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Resource};
use serde::{Deserialize, Serialize};

use super::{Cluster, chain};
use crate::pod::{Life, Phase, Pod, PodEvent};

/// A node's pods are listed in pages of so many: a page is held as text for a moment, at some 10 KiB a pod.
const PAGE: u32 = 32;

/// Longer than this a watch is never asked for: load balancers cut flows that are silent for some minutes.
const WATCH_SECONDS: u32 = 240;

impl Cluster {
    /// Follows the pods of `node`. An error is one sentence, and the watch goes on after a back-off.
    pub fn pods_of(&self, node: &str) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static {
        let pods: Api<Trimmed> = Api::all(self.client.clone());
        let config = Config::default().fields(&format!("spec.nodeName={node}"));
        let config = config.page_size(PAGE).timeout(WATCH_SECONDS);
        watcher(pods, config).default_backoff().map(|event| match event {
            Ok(event) => Ok(translate(event)),
            Err(error) => Err(format!("cannot watch the node's pods: {}", chain(&error))),
        })
    }
}

fn translate(event: Event<Trimmed>) -> PodEvent {
    match event {
        Event::Init => PodEvent::Listing,
        Event::InitApply(pod) => PodEvent::Listed(pod.digest()),
        Event::InitDone => PodEvent::Complete,
        Event::Apply(pod) => PodEvent::Is(pod.digest()),
        Event::Delete(pod) => PodEvent::Gone(pod.digest()),
    }
}

/// The parts of a Pod that are decoded at all: the rest is skipped while it is read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Trimmed {
    #[serde(deserialize_with = "identity")]
    metadata: ObjectMeta,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    init_container_statuses: Vec<ContainerStatus>,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    state: ContainerState,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerState {
    running: Option<Running>,
}

/// Since when does not matter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Running {}

/// Metadata without labels, annotations and managed fields.
fn identity<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Identity {
        name: String,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        deletion_timestamp: Option<Time>,
    }
    let Identity { name, namespace, uid, resource_version, deletion_timestamp } =
        Identity::deserialize(deserializer)?;
    let name = Some(name);
    Ok(ObjectMeta { name, namespace, uid, resource_version, deletion_timestamp, ..ObjectMeta::default() })
}

impl Trimmed {
    fn digest(self) -> Pod {
        let (life, phase) = (self.life(), self.phase());
        let ObjectMeta { name, namespace, uid, deletion_timestamp, .. } = self.metadata;
        Pod {
            namespace: namespace.unwrap_or_default(),
            name: name.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            phase,
            deleted: deletion_timestamp.is_some(),
            life,
            ..Pod::default()
        }
    }

    fn phase(&self) -> Phase {
        match self.status.phase.as_str() {
            "Pending" | "" => Phase::Pending,
            "Running" => Phase::Running,
            "Succeeded" => Phase::Succeeded,
            "Failed" => Phase::Failed,
            _ => Phase::Unknown,
        }
    }

    fn life(&self) -> Life {
        let Status { phase: _, init_container_statuses, container_statuses } = &self.status;
        if self.phase().is_terminal() {
            return Life::Ended;
        }
        let runs = |container: &ContainerStatus| container.state.running.is_some();
        let any_runs = init_container_statuses.iter().chain(container_statuses).any(runs);
        match self.metadata.deletion_timestamp {
            Some(_) if !any_runs => Life::Leaving,
            _ => Life::Living,
        }
    }
}

/// A Pod to whoever asks for it.
impl Resource for Trimmed {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn life(metadata: Value, status: Value) -> Life {
        let mut object = json!({
            "metadata": {"name": "a", "namespace": "ns", "uid": "u", "labels": {"x": "y"}, "managedFields": [{}]},
            "spec": {"nodeName": "w", "containers": [{"name": "c"}]},
            "status": status,
        });
        if let (Some(all), Value::Object(more)) = (object["metadata"].as_object_mut(), metadata) {
            all.extend(more);
        }
        let pod: Trimmed = serde_json::from_value(object).unwrap();
        assert_eq!(pod.metadata.labels, None, "it is skipped");
        pod.digest().life
    }

    #[test]
    fn a_pod_leaves_when_it_was_deleted_and_nothing_of_it_runs() {
        let deleted = || json!({"deletionTimestamp": "2026-11-21T14:00:00Z"});
        let running = json!({"phase": "Running", "containerStatuses": [
            {"name": "c", "state": {"running": {"startedAt": "2026-11-21T14:00:00Z"}}},
            {"name": "d", "state": {"terminated": {"exitCode": 0}}},
        ]});
        let stopped = json!({"phase": "Running", "containerStatuses": [
            {"name": "c", "state": {"terminated": {"exitCode": 137}}},
        ]});
        let sidecar = json!({"phase": "Running", "initContainerStatuses": [
            {"name": "s", "state": {"running": {}}},
        ]});
        assert_eq!(life(json!({}), running.clone()), Life::Living);
        assert_eq!(life(json!({}), stopped.clone()), Life::Living, "it starts again");
        assert_eq!(life(deleted(), running), Life::Living);
        assert_eq!(life(deleted(), sidecar), Life::Living);
        assert_eq!(life(deleted(), stopped), Life::Leaving);
        assert_eq!(life(deleted(), json!({"phase": "Failed"})), Life::Ended);
        assert_eq!(life(json!({}), json!({"phase": "Succeeded"})), Life::Ended);
        assert_eq!(life(json!({}), json!({})), Life::Living);
    }
}
