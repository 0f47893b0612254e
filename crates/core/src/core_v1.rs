//! Decoding of pods in protocol buffers: a `core/v1` Pod as the Pods API and the API server send it, without
//! an envelope.

mod inspected;
mod outline;
mod placed;

use std::borrow::Cow;
use std::collections::BTreeMap;

use prost::Message;
use prost::bytes::Bytes;
use serde::de::IgnoredAny;

use crate::pod::api::{self, Amount, Amounts, ApiContainer, ApiPod, Resources};
use crate::pod::{Pod, RawPod, Wanted};

/// The parts of `core/v1` that are read from a Pod; generated from `proto/core`.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/core/v1.rs"));
}
use proto as core;

pub use inspected::{ContainerDetails, InspectedPod, PodDetails, read_inspected_pod};
pub use outline::{MAX_RAW_BYTES, SOURCE_ANNOTATIONS, outline, reduce_to};
pub use placed::{PlacedPod, read_placed_pod};

/// Decodes a `core/v1` Pod.
///
/// # Errors
/// If the bytes are invalid, or the pod has no name or no namespace.
pub fn decode_pod(bytes: &[u8]) -> Result<Pod, String> {
    let pod = core::Pod::decode(bytes).map_err(|error| error.to_string())?;
    Pod::from(ApiPod::from(pod)).identified()
}

/// Like [`decode_pod`], keeping only what is wanted. `bytes` may be part of a larger buffer, which is not
/// retained.
///
/// # Errors
/// As [`decode_pod`].
pub fn read_pod(bytes: &[u8], wanted: &Wanted) -> Result<Pod, String> {
    let mut pod = decode_pod(bytes)?.keeping(wanted);
    if wanted.has_raw() {
        pod.raw = Some(Box::new(RawPod::Protobuf(Bytes::copy_from_slice(bytes))));
    }
    Ok(pod)
}

/// Decodes text as Go does: each byte that is not part of valid text becomes a replacement character.
#[must_use]
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
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

impl From<core::Pod> for ApiPod {
    fn from(pod: core::Pod) -> Self {
        let metadata = pod.metadata.unwrap_or_default();
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let mut annotations = api::Annotations::default();
        for (key, value) in &metadata.annotations {
            // As it would be written in JSON.
            annotations.put(key, &text(value));
        }
        Self {
            metadata: api::Metadata {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                deletion_timestamp: metadata.deletion_timestamp.map(|_| IgnoredAny),
                annotations,
            },
            spec: api::Spec {
                init_containers: spec.init_containers.into_iter().map(ApiContainer::from).collect(),
                containers: spec.containers.into_iter().map(ApiContainer::from).collect(),
                resources: spec.resources.map(Resources::from),
                resource_claims: spec
                    .resource_claims
                    .into_iter()
                    .map(|of| claim(of.resource_claim_name))
                    .collect(),
            },
            status: api::Status {
                phase: status.phase.into(),
                qos_class: status.qos_class.into(),
                init_container_statuses: statuses(status.init_container_statuses),
                container_statuses: statuses(status.container_statuses),
                resource_claim_statuses: status
                    .resource_claim_statuses
                    .into_iter()
                    .map(|of| claim(of.resource_claim_name))
                    .collect(),
                extended_resource_claim_status: status
                    .extended_resource_claim_status
                    .map(|of| claim(of.resource_claim_name)),
            },
        }
    }
}

impl From<core::Container> for ApiContainer {
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
    // Go parses an empty quantity as zero.
    let text = |quantity: core::Quantity| match quantity.string {
        empty if empty.is_empty() => "0".to_owned(),
        text => text,
    };
    quantities.into_iter().map(|(name, quantity)| (name.into(), Amount::read(&text(quantity)))).collect()
}

fn claim(name: String) -> api::ClaimReference {
    api::ClaimReference { resource_claim_name: Some(name.into()) }
}

fn statuses(statuses: Vec<core::ContainerStatus>) -> Vec<api::ContainerStatus> {
    let running = |status: core::ContainerStatus| status.state.and_then(|state| state.running);
    let state = |status| api::State { running: running(status).map(|_| IgnoredAny) };
    statuses.into_iter().map(|status| api::ContainerStatus { state: state(status) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Annotation;

    #[test]
    fn only_wanted_parts_of_a_pod_are_kept() {
        let annotation = |key: &str| (key.to_owned(), b"v".to_vec().into());
        let metadata = core::ObjectMeta {
            name: "a".to_owned(),
            namespace: "ns".to_owned(),
            annotations: [annotation("k"), annotation("other")].into(),
            ..core::ObjectMeta::default()
        };
        let bytes = core::Pod { metadata: Some(metadata), ..core::Pod::default() }.encode_to_vec();
        let pod = read_pod(&bytes, &Wanted::of(["k"])).unwrap();
        assert_eq!((&*pod.name, pod.raw), ("a", None));
        assert_eq!(*pod.annotations, [("k".into(), Annotation::Text("v".into()))]);
        let pod = read_pod(&bytes, &Wanted::default().with_raw()).unwrap();
        assert_eq!(pod.raw.as_deref(), Some(&RawPod::Protobuf(bytes.into())));
    }

    #[test]
    fn an_empty_quantity_is_zero() {
        let containers = |text: &str| {
            let quantity = core::Quantity { string: text.to_owned() };
            let requests = [("cpu".to_owned(), quantity)].into();
            let resources = Some(core::ResourceRequirements { requests, ..Default::default() });
            let container = core::Container { name: "c".to_owned(), resources, ..Default::default() };
            let spec = Some(core::PodSpec { containers: vec![container], ..Default::default() });
            let metadata =
                core::ObjectMeta { name: "a".into(), namespace: "ns".into(), ..Default::default() };
            let pod = core::Pod { metadata: Some(metadata), spec, ..Default::default() };
            decode_pod(&pod.encode_to_vec()).unwrap().containers
        };
        assert_eq!(containers(""), containers("0"));
        assert_ne!(containers(""), containers("1"));
    }
}
