//! Tables: every sample of Koordinator's formats, and every defect of its proxy by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;
use prost::bytes::Bytes;

use super::*;
use crate::cluster::{Device, Devices};
use crate::config::ProxyAnnotations;
use crate::kubelet::proto::{v1, v1alpha1};
use crate::machine::RecordedFiles;
use crate::pod::{Annotation, Container, ContainerKind, Phase, Pod};

pub(super) const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";

/// A container, its kind by the first letter of its name: `sidecar`, `init`, else a regular one.
pub(super) fn container(name: &str, others: &[(&str, u64)]) -> Container {
    let kind = match name.as_bytes()[0] {
        b's' => ContainerKind::Sidecar,
        b'i' => ContainerKind::Init,
        _ => ContainerKind::App,
    };
    let mut others: Vec<(Box<str>, u64)> = others.iter().map(|(name, n)| ((*name).into(), *n)).collect();
    others.sort();
    Container { name: name.into(), kind, others: others.into(), ..Container::default() }
}

/// A pod with one annotation.
pub(super) fn pod(name: &str, key: &str, text: &str, containers: &[Container]) -> Pod {
    Pod {
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        phase: Phase::Running,
        containers: containers.into(),
        annotations: [(key.into(), Annotation::Text(text.into()))].into(),
        ..Pod::default()
    }
}

/// As `<container>: <resource>=<id>,<id>@<nodes> ...`, pod by pod.
pub(super) fn shown(answer: &Bytes) -> Vec<String> {
    let answer = v1::ListPodResourcesResponse::decode(answer.clone()).unwrap();
    answer.pod_resources.iter().flat_map(shown_pod).collect()
}

fn shown_pod(pod: &v1::PodResources) -> Vec<String> {
    let group = |group: &v1::ContainerDevices| {
        let nodes = group.topology.iter().flat_map(|topology| &topology.nodes).map(|node| node.id);
        let nodes: Vec<String> = nodes.map(|id| id.to_string()).collect();
        let place = if nodes.is_empty() { String::new() } else { format!("@{}", nodes.join("+")) };
        format!(" {}={}{place}", group.resource_name, group.device_ids.join(","))
    };
    let shown = |container: &v1::ContainerResources| {
        let groups: String = container.devices.iter().map(group).collect();
        format!("{}/{}:{groups}", pod.name, container.name)
    };
    pod.containers.iter().map(shown).collect()
}

/// The kubelet's answer about these pods, with nothing allocated.
pub(super) fn answer(pods: &[Pod]) -> v1::ListPodResourcesResponse {
    let container = |container: &Container| v1::ContainerResources {
        name: container.name.to_string(),
        ..Default::default()
    };
    let listed = |pod: &Pod| v1::PodResources {
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        containers: pod
            .containers
            .iter()
            .filter(|container| container.kind != ContainerKind::Init)
            .map(container)
            .collect(),
        ..Default::default()
    };
    v1::ListPodResourcesResponse { pod_resources: pods.iter().map(listed).collect() }
}

pub(super) fn bytes(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

fn rules() -> Rules {
    Rules::new(&ProxyAnnotations::default(), false).unwrap()
}

/// What the List shows of pods with one container `main` each, by this annotation.
fn listed(annotations: &[&str], node: &Node) -> Vec<String> {
    let pods: Vec<Pod> = (0..)
        .zip(annotations)
        .map(|(n, text)| pod(&format!("p{n}"), DEVICES, text, &[container("main", &[])]))
        .collect();
    let plan = rules().plan(pods.iter(), node);
    shown(&plan.list(&bytes(&answer(&pods)), Version::V1).unwrap().bytes)
}

#[test]
fn every_sample_of_the_format_is_read() {
    let nothing = Node::default();
    let of = |text: &str| listed(&[text], &nothing).remove(0);
    let samples = [
        (
            r#"{"gpu":[{"minor":0,"id":"GPU-8c25ea37"}],"rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"100"},"id":"0000:1f:00.0"}]}"#,
            "p0/main: nvidia.com/gpu=GPU-8c25ea37 koordinator.sh/rdma=0000:1f:00.0",
        ),
        (
            r#"{"gpu":[{"id":"0"}],"rdma":[{"minor":0,"resources":{"koordinator.sh/rdma":"1"},"id":"0000:01:00.0","extension":{"vfs":[{"minor":-1,"busID":"0000:01:00.2"}]}}]}"#,
            "p0/main: nvidia.com/gpu=0 koordinator.sh/rdma=0000:01:00.2",
        ),
        (r#"{"gpu":[{"id":"0"}]}"#, "p0/main: nvidia.com/gpu=0"),
        (r#"{"gpu":[{"minor":0,"resources":null,"id":"GPU-a"}]}"#, "p0/main: nvidia.com/gpu=GPU-a"),
        (r#"{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"100"}}]}"#, "p0/main:"),
        ("incorrect-device-allocation-annotation", "p0/main:"),
        ("{}", "p0/main:"),
    ];
    for (text, expected) in samples {
        assert_eq!(of(text), expected, "{text}");
    }
}
