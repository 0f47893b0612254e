//! A pod from the bytes in which the Pods API and the API server have it: a `core/v1` Pod in protocol buffers, without an
//! envelope.

mod json;
mod outline;

use std::borrow::Cow;
use std::collections::BTreeMap;

use prost::Message;
use prost::bytes::Bytes;
use serde::de::IgnoredAny;

use crate::pod::raw::{self, Amount, Amounts, RawContainer, RawPod, Resources};
use crate::pod::{Pod, Wanted, Whole};

/// Of `core/v1`, what we look at in a Pod; generated from `proto/core`.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod proto {
    tonic::include_proto!("core/v1");
}
use proto as core;

pub use json::pod_json;
pub use outline::outline;
pub(crate) use outline::{BUDGET, ORIGINS, keep_within};

/// Reads a pod from the bytes of a `core/v1` Pod.
///
/// # Errors
/// What is wrong with them. A pod without a name or a namespace is an error as well: nobody could tell it from others.
pub fn decode_pod(bytes: &[u8]) -> Result<Pod, String> {
    let pod = core::Pod::decode(bytes).map_err(|error| error.to_string())?;
    Pod::from(RawPod::from(pod)).identified()
}

/// As [`decode_pod`], with what is wanted of it. `bytes` may be a part of something larger, which is not kept.
///
/// # Errors
/// As [`decode_pod`].
pub fn read_pod(bytes: &[u8], wanted: &Wanted) -> Result<Pod, String> {
    let mut pod = decode_pod(bytes)?.keeping(wanted);
    if wanted.wants_whole() {
        pod.whole = Some(Box::new(Whole::Protobuf(Bytes::copy_from_slice(bytes))));
    }
    Ok(pod)
}

/// As Go writes what is no text: one sign for each byte that belongs to none.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(text)
}

impl From<core::Pod> for RawPod {
    fn from(pod: core::Pod) -> Self {
        let metadata = pod.metadata.unwrap_or_default();
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let mut annotations = raw::Annotations::default();
        for (key, value) in &metadata.annotations {
            // In JSON it would have been written so.
            annotations.put(key, &text(value));
        }
        Self {
            metadata: raw::Metadata {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                deletion_timestamp: metadata.deletion_timestamp.map(|_| IgnoredAny),
                annotations,
            },
            spec: raw::Spec {
                init_containers: spec.init_containers.into_iter().map(RawContainer::from).collect(),
                containers: spec.containers.into_iter().map(RawContainer::from).collect(),
                resources: spec.resources.map(Resources::from),
            },
            status: raw::Status {
                phase: status.phase.into(),
                qos_class: status.qos_class.into(),
                init_container_statuses: statuses(status.init_container_statuses),
                container_statuses: statuses(status.container_statuses),
            },
        }
    }
}

impl From<core::Container> for RawContainer {
    fn from(container: core::Container) -> Self {
        Self {
            name: container.name.into(),
            restart_policy: container.restart_policy.into(),
            resources: container.resources.map(Resources::from).unwrap_or_default(),
        }
    }
}

impl From<core::ResourceRequirements> for Resources {
    fn from(resources: core::ResourceRequirements) -> Self {
        Self { requests: amounts(resources.requests), limits: amounts(resources.limits) }
    }
}

fn amounts(quantities: BTreeMap<String, core::Quantity>) -> Amounts {
    // Go reads an empty one as nothing.
    let text = |quantity: core::Quantity| match quantity.string {
        empty if empty.is_empty() => "0".to_owned(),
        text => text,
    };
    quantities.into_iter().map(|(name, quantity)| (name.into(), Amount::read(&text(quantity)))).collect()
}

fn statuses(statuses: Vec<core::ContainerStatus>) -> Vec<raw::ContainerStatus> {
    let running = |status: core::ContainerStatus| status.state.and_then(|state| state.running);
    let state = |status| raw::State { running: running(status).map(|_| IgnoredAny) };
    statuses.into_iter().map(|status| raw::ContainerStatus { state: state(status) }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn resources(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> core::ResourceRequirements {
        let amounts = |amounts: &[(&str, &str)]| {
            let quantity = |text: &str| core::Quantity { string: text.to_owned() };
            amounts.iter().map(|(name, text)| ((*name).to_owned(), quantity(text))).collect()
        };
        core::ResourceRequirements { requests: amounts(requests), limits: amounts(limits) }
    }

    fn container(name: &str, restart_policy: &str, resources: core::ResourceRequirements) -> core::Container {
        core::Container {
            name: name.to_owned(),
            restart_policy: restart_policy.to_owned(),
            resources: Some(resources),
        }
    }

    /// A pod that was deleted, with a sidecar and a container that run or do not.
    fn pod(init: bool, app: bool) -> core::Pod {
        let status = |running: bool| core::ContainerStatus {
            state: Some(core::ContainerState { running: running.then_some(core::Present {}) }),
        };
        core::Pod {
            metadata: Some(core::ObjectMeta {
                name: "a".to_owned(),
                namespace: "ns".to_owned(),
                uid: "u".to_owned(),
                deletion_timestamp: Some(core::Present {}),
                annotations: [("k", "v"), ("other", "v")]
                    .map(|(key, value)| (key.to_owned(), value.into()))
                    .into(),
            }),
            spec: Some(core::PodSpec {
                init_containers: vec![container("s", "Always", resources(&[("cpu", "500m")], &[]))],
                containers: vec![container(
                    "c",
                    "",
                    resources(&[("a.b/c", "")], &[("cpu", "2"), ("a.b/d", "3")]),
                )],
                resources: Some(resources(&[("cpu", "4")], &[("memory", "1Gi")])),
            }),
            status: Some(core::PodStatus {
                phase: "Running".to_owned(),
                qos_class: "Burstable".to_owned(),
                init_container_statuses: vec![status(init)],
                container_statuses: vec![status(app)],
            }),
        }
    }

    /// The same in JSON.
    fn pod_in_json(init: bool, app: bool) -> Value {
        let status = |running: bool| match running {
            true => json!([{"state": {"running": {}}}]),
            false => json!([{"state": {"terminated": {}}}]),
        };
        json!({
            "metadata": {
                "name": "a", "namespace": "ns", "uid": "u", "deletionTimestamp": "2026-11-23T12:00:00Z",
                "annotations": {"k": "v", "other": "v"},
            },
            "spec": {
                "initContainers": [
                    {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
                ],
                "containers": [
                    {"name": "c", "resources": {"requests": {"a.b/c": "0"}, "limits": {"cpu": "2", "a.b/d": "3"}}},
                ],
                "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "1Gi"}},
            },
            "status": {
                "phase": "Running", "qosClass": "Burstable",
                "initContainerStatuses": status(init), "containerStatuses": status(app),
            },
        })
    }

    #[test]
    fn a_pod_is_the_same_in_protocol_buffers_and_in_json() {
        let wanted = Wanted::of(["k"]);
        let lives = [(true, false), (false, true), (false, false)].map(|(init, app)| {
            let bytes = pod(init, app).encode_to_vec();
            let expected = Pod::from_json(pod_in_json(init, app).to_string().as_bytes()).unwrap();
            let expected = expected.keeping(&wanted);
            assert_eq!(read_pod(&bytes, &wanted).unwrap(), expected, "{init} {app}");
            let whole = read_pod(&bytes, &wanted.clone().whole()).unwrap();
            assert_eq!(whole.whole.as_deref(), Some(&Whole::Protobuf(bytes.into())));
            (expected.life, expected.annotations.len())
        });
        assert_ne!(lives[0], lives[2], "whether a sidecar runs counts");
        assert_ne!(lives[1], lives[2], "whether a container runs counts");
    }
}
