//! Allocations from annotations, merged into the kubelet's responses: tables of samples, and random responses
//! against a model in `random`.

mod cpus_and_memory;
mod koordinator;
mod malformed;
mod mapping;
mod numa_nodes;
mod random;
mod response;
mod shared_devices;
mod zones;

use std::sync::Arc;

use prost::Message;
use prost::bytes::Bytes;

use super::allocations::Allocations;
use super::annotations::{
    Annotations, MAX_ADDED_BYTES, MAX_ID_BYTES, NodeDevices, PciDevices, Rules, part_number,
};
use super::merge::{Omitted, PodResourcesVersion};
use crate::cluster::{Device, KoordinatorDevices};
use crate::kubelet::proto::{v1, v1alpha1};
use crate::machine::{Id, RecordedFiles};
use crate::pod::{Annotation, Container, ContainerKind, Phase, Pod, Termination};

const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";

/// A container, its kind by the first letter of its name: `sidecar`, `init`, else an app container.
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
fn pod(name: &str, key: &str, text: &str, containers: &[Container]) -> Pod {
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

/// As `<pod>/<container>: <resource>=<id>,<id>@<nodes> ...`.
fn shown(list: &Bytes) -> Vec<String> {
    let list = v1::ListPodResourcesResponse::decode(list.clone()).unwrap();
    list.pod_resources.iter().flat_map(shown_pod).collect()
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

/// The kubelet's response about these pods, with nothing allocated.
fn kubelet_list(pods: &[Pod]) -> v1::ListPodResourcesResponse {
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

fn bytes(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// Rules as configured in YAML.
fn rules(yaml: &str) -> Rules {
    Rules::new(&serde_saphyr::from_str(yaml).unwrap(), false)
}

/// The rules of the default configuration.
fn default_rules() -> Rules {
    Rules::new(&Annotations::default(), false)
}

/// What these pods' annotations allocate by default on a node whose devices are not reported.
fn read(pods: &[Pod]) -> Allocations {
    default_rules().read(pods.iter(), &unreported())
}

/// A node whose devices are not reported.
fn unreported() -> NodeDevices {
    NodeDevices::default()
}

/// A device as Koordinator reports it.
fn device(kind: &str, id: &str, minor: i64, node: Option<Id>) -> Device {
    let (kind, id) = (kind.into(), id.into());
    Device { kind, id, minor: Some(minor), healthy: true, node, ..Device::default() }
}

/// A node whose devices are reported.
fn reported(vendor: &str, devices: &[Device]) -> NodeDevices {
    let devices = KoordinatorDevices { vendor: vendor.into(), devices: devices.into() };
    NodeDevices::new(Some(Arc::new(devices)), Arc::default())
}

/// What the List shows for these pods on that node, merged according to `rules`.
fn merged(rules: &Rules, pods: &[Pod], node: &NodeDevices) -> Vec<String> {
    let list = bytes(&kubelet_list(pods));
    shown(&rules.read(pods.iter(), node).merge_list(&list, PodResourcesVersion::V1).unwrap().bytes)
}

/// The same for one pod with these containers.
fn of_pod(text: &str, containers: &[Container], node: &NodeDevices) -> Vec<String> {
    merged(&default_rules(), &[pod("p", DEVICES, text, containers)], node)
}

/// The same for one pod with one container that requests nothing.
fn of(text: &str, node: &NodeDevices) -> String {
    of_pod(text, &[container("main", &[])], node).remove(0)
}

/// The kinds of errors.
fn errors(allocations: &Allocations) -> Vec<&'static str> {
    allocations.errors().iter().map(|error| error.kind.name()).collect()
}

/// The messages of errors.
fn messages(allocations: &Allocations) -> Vec<&str> {
    allocations.errors().iter().map(|error| error.message.as_str()).collect()
}

/// The allocations for one pod with one container.
fn read_one(text: &str, node: &NodeDevices) -> Allocations {
    default_rules().read([pod("p", DEVICES, text, &[container("main", &[])])].iter(), node)
}
