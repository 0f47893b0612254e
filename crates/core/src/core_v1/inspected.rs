//! What `doctor` needs of pods: that of every pod, and the containers of those that it checks.

use std::borrow::Cow;

use prost::Message;
use prost::bytes::Bytes;

use super::placed::{PlacedPod, read_placed_pod};
use super::text;
use crate::pod::Wanted;

#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
mod proto {
    include!(concat!(env!("OUT_DIR"), "/core/inspected.rs"));
}

/// A pod, and its containers if they are of interest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InspectedPod {
    /// The pod and its node.
    pub placed: PlacedPod,
    /// Of a pod of interest.
    pub details: Option<Box<PodDetails>>,
}

/// What runs in a pod, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDetails {
    /// The account.
    pub service_account: String,
    /// Whether the condition `Ready` is true.
    pub ready: bool,
    /// The names of mounted ConfigMaps.
    pub config_maps: Vec<String>,
    /// Whether a directory or file of the node is mounted.
    pub has_host_path: bool,
    /// The containers, without init containers.
    pub containers: Vec<ContainerDetails>,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDetails {
    /// Its name.
    pub name: String,
    /// The image of the specification.
    pub image: String,
    /// The image that runs, with its digest; empty if unknown.
    pub image_id: String,
    /// Command and arguments.
    pub arguments: Vec<String>,
    /// How often it was restarted.
    pub restarts: u32,
    /// When it was started, in seconds since 1970, if it is running.
    pub started: Option<i64>,
    /// Why it ended before, such as `OOMKilled`, and when, in seconds since 1970.
    pub ended: Option<(String, i64)>,
}

impl PodDetails {
    /// Returns when the oldest of the running containers was started, in seconds since 1970.
    #[must_use]
    pub fn started(&self) -> Option<i64> {
        self.containers.iter().filter_map(|container| container.started).min()
    }
}

/// Decodes a `core/v1` Pod. `is_of_interest` is also passed images, commands and arguments.
///
/// # Errors
/// If the bytes are invalid, or the pod has no name or no namespace.
pub fn read_inspected_pod(
    bytes: &[u8],
    is_of_interest: impl Fn(&PlacedPod, &[Cow<'_, str>]) -> bool,
) -> Result<InspectedPod, String> {
    let placed = read_placed_pod(bytes, &Wanted::default())?;
    let pod = proto::Pod::decode(bytes).map_err(|error| error.to_string())?;
    let spec = pod.spec.unwrap_or_default();
    let words: Vec<_> = spec.containers.iter().flat_map(words).map(|word| text(word)).collect();
    let details =
        is_of_interest(&placed, &words).then(|| Box::new(details(spec, pod.status.unwrap_or_default())));
    Ok(InspectedPod { placed, details })
}

fn words(container: &proto::Container) -> impl Iterator<Item = &Bytes> {
    std::iter::once(&container.image).chain(&container.command).chain(&container.args)
}

fn own(bytes: &Bytes) -> String {
    text(bytes).into_owned()
}

fn details(spec: proto::PodSpec, status: proto::PodStatus) -> PodDetails {
    let sources = || spec.volumes.iter().filter_map(|volume| volume.volume_source.as_ref());
    let config_maps =
        sources().filter_map(|source| source.config_map.as_ref()?.local_object_reference.as_ref());
    let is_ready =
        |condition: &proto::Condition| *condition.r#type == *b"Ready" && *condition.status == *b"True";
    PodDetails {
        service_account: own(&spec.service_account_name),
        ready: status.conditions.iter().any(is_ready),
        config_maps: config_maps.map(|reference| own(&reference.name)).collect(),
        has_host_path: sources().any(|source| source.host_path.is_some()),
        containers: spec.containers.iter().map(|of| container(of, &status.container_statuses)).collect(),
    }
}

fn container(of: &proto::Container, statuses: &[proto::ContainerStatus]) -> ContainerDetails {
    let status = statuses.iter().find(|status| status.name == of.name).cloned().unwrap_or_default();
    let state = status.state.unwrap_or_default();
    let seconds = |time: Option<proto::Time>| time.map_or(0, |time| time.seconds);
    let ended = state.terminated.or_else(|| status.last_state.and_then(|last| last.terminated));
    ContainerDetails {
        name: own(&of.name),
        image: own(&of.image),
        image_id: own(&status.image_id),
        arguments: of.command.iter().chain(&of.args).map(own).collect(),
        restarts: u32::try_from(status.restart_count).unwrap_or_default(),
        started: state.running.map(|running| seconds(running.started_at)),
        ended: ended.map(|ended| (own(&ended.reason), seconds(ended.finished_at))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Bytes {
        text.as_bytes().to_vec().into()
    }

    fn pod() -> Vec<u8> {
        let time = |seconds| Some(proto::Time { seconds });
        let map = proto::ConfigMap {
            local_object_reference: Some(proto::LocalObjectReference { name: bytes("config") }),
        };
        let source = proto::VolumeSource { config_map: Some(map), ..proto::VolumeSource::default() };
        let volume = proto::Volume { name: bytes("v"), volume_source: Some(source) };
        let container = proto::Container {
            name: bytes("agent"),
            image: bytes("registry/numacast:1"),
            command: vec![bytes("/numacast")],
            args: vec![bytes("agent")],
        };
        let spec = proto::PodSpec {
            volumes: vec![volume],
            containers: vec![container],
            service_account_name: bytes("sa"),
        };
        let ended = proto::Terminated { reason: bytes("OOMKilled"), finished_at: time(7) };
        let status = proto::ContainerStatus {
            name: bytes("agent"),
            state: Some(proto::ContainerState {
                running: Some(proto::Running { started_at: time(9) }),
                terminated: None,
            }),
            last_state: Some(proto::ContainerState { running: None, terminated: Some(ended) }),
            restart_count: 3,
            image: bytes("registry/numacast:1"),
            image_id: bytes("registry/numacast@sha256:1"),
        };
        let status = proto::PodStatus {
            phase: bytes("Running"),
            conditions: vec![proto::Condition { r#type: bytes("Ready"), status: bytes("True") }],
            container_statuses: vec![status],
        };
        let identity = crate::core_v1::proto::ObjectMeta {
            name: "a".into(),
            namespace: "ns".into(),
            ..Default::default()
        };
        let identity = crate::core_v1::proto::Pod { metadata: Some(identity), ..Default::default() };
        let pod = proto::Pod { metadata: None, spec: Some(spec), status: Some(status) };
        // Concatenated messages are merged.
        [identity.encode_to_vec(), pod.encode_to_vec()].concat()
    }

    #[test]
    fn containers_of_pods_of_interest_are_read() {
        let read = read_inspected_pod(&pod(), |_, words| words[1] == "/numacast").unwrap();
        let details = read.details.unwrap();
        assert_eq!((read.placed.pod.name.as_str(), details.service_account.as_str()), ("a", "sa"));
        assert_eq!((details.ready, details.has_host_path, details.started()), (true, false, Some(9)));
        assert_eq!(details.config_maps, ["config"]);
        let container = &details.containers[0];
        assert_eq!(container.arguments, ["/numacast", "agent"]);
        assert_eq!((container.restarts, container.image_id.as_str()), (3, "registry/numacast@sha256:1"));
        assert_eq!(container.ended, Some(("OOMKilled".to_owned(), 7)));
        assert_eq!(read_inspected_pod(&pod(), |_, _| false).unwrap().details, None);
    }
}
