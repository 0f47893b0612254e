//! Synthetic nodes: the hardware, and the kubelet's responses as the kubelet encodes them.

use std::collections::BTreeSet;

use numacast::kubelet::proto::v1;
use numacast::kubelet::{Allocatable, Checkpoints, KubeletConfig, Usage};
use numacast::machine::{Id, Machine, NumaNode};
use numacast::topology::{Inputs, ZoneRules};
use prost::Message;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Bytes of memory in each zone, of which an eighth are huge pages.
const ZONE_MEMORY: u64 = 256 * GIB;

/// A node's size, and how much of it is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) zones: u16,
    /// CPUs of the whole node.
    pub(crate) cpus: u16,
    pub(crate) pods: u16,
    /// Devices of the whole node.
    pub(crate) devices: u16,
    /// Whether all devices are allocated to pods, or none.
    pub(crate) full: bool,
}

const fn shape(zones: u16, cpus: u16, pods: u16, devices: u16) -> Shape {
    Shape { zones, cpus, pods, devices, full: true }
}

/// The nodes with a budget, the largest with increasing numbers of CPUs, and one without allocated devices.
pub(crate) const SHAPES: [Shape; 6] = [
    shape(8, 512, 250, 1_000),
    shape(64, 64, 500, 4_000),
    shape(64, 256, 500, 4_000),
    shape(64, 1_024, 500, 4_000),
    shape(64, 4_096, 500, 4_000),
    Shape { full: false, ..shape(64, 1_024, 500, 4_000) },
];

/// A node to account for.
pub(crate) struct Node {
    pub(crate) shape: Shape,
    /// The encoded List response.
    pub(crate) list: Vec<u8>,
    pub(crate) machine: Machine,
    pub(crate) allocatable: Allocatable,
    pub(crate) config: KubeletConfig,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) terminated: BTreeSet<(String, String)>,
    pub(crate) rules: ZoneRules,
    pub(crate) remembered: BTreeSet<String>,
}

impl Shape {
    pub(crate) fn name(self) -> String {
        let Self { zones, cpus, pods, devices, full } = self;
        let free = if full { "" } else { ", all free" };
        format!("{zones} zones, {cpus} CPUs, {pods} pods, {devices} devices{free}")
    }
}

impl Node {
    pub(crate) fn new(shape: Shape) -> Self {
        let machine = Machine {
            nodes: (0..shape.zones).map(|id| zone(shape, id)).collect(),
            numa: true,
            ..Machine::default()
        };
        let pod_resources = (0..shape.pods).map(|index| pod(shape, index)).collect();
        let config = KubeletConfig {
            cpu_manager_policy: "static".into(),
            memory_manager_policy: "Static".into(),
            ..KubeletConfig::default()
        };
        let response = v1::ListPodResourcesResponse { pod_resources };
        Self {
            list: response.encode_to_vec(),
            checkpoints: checkpoints(response.into()),
            terminated: BTreeSet::new(),
            rules: ZoneRules { fillers: true, ..ZoneRules::default() },
            machine,
            allocatable: allocatable(shape).into(),
            config,
            remembered: RESOURCES.iter().map(|name| (*name).to_owned()).collect(),
            shape,
        }
    }

    pub(crate) fn inputs<'a>(&'a self, usage: &'a Usage) -> Inputs<'a> {
        Inputs {
            machine: &self.machine,
            allocatable: &self.allocatable,
            usage,
            terminated: &self.terminated,
            claims: None,
            checkpoints: Some(&self.checkpoints),
            config: Some(&self.config),
            policies: None,
            remembered: &self.remembered,
            rules: &self.rules,
        }
    }
}

/// Returns the managers' checkpoints for these pods, as the agent has them from its second scan on: it knows
/// the pod of each entry.
fn checkpoints(usage: Usage) -> Checkpoints {
    let mut checkpoints = Checkpoints::default();
    for pod in usage.pods {
        let uid = format!("uid-of-{}", pod.name);
        checkpoints.names.insert(uid.clone(), (pod.namespace, pod.name));
        checkpoints.pods.insert(uid, pod.containers);
    }
    checkpoints
}

fn zone(shape: Shape, id: Id) -> NumaNode {
    let distance = |peer| if peer == id { 10 } else { 21 };
    NumaNode {
        id,
        cpus: cpus_of_zone(shape, id).collect(),
        memory: ZONE_MEMORY,
        hugepages: [(2 * MIB, ZONE_MEMORY / 16 / (2 * MIB)), (GIB, ZONE_MEMORY / 16 / GIB)].into(),
        hugepages_unread: false,
        distances: (0..shape.zones).map(|peer| (peer, distance(peer))).collect(),
    }
}

/// CPUs are numbered zone by zone, as on most machines.
fn cpus_of_zone(shape: Shape, zone: u16) -> impl Iterator<Item = u16> {
    let each = shape.cpus / shape.zones;
    zone * each..(zone + 1) * each
}

fn allocatable(shape: Shape) -> v1::AllocatableResourcesResponse {
    let block = |(zone, kind): (u16, &str)| {
        memory(kind, if kind == "memory" { ZONE_MEMORY * 7 / 8 } else { ZONE_MEMORY / 16 }, &[zone])
    };
    let kinds = ["memory", "hugepages-2Mi", "hugepages-1Gi"];
    v1::AllocatableResourcesResponse {
        devices: (0..shape.devices).flat_map(|index| device(shape, index)).collect(),
        cpu_ids: (0..shape.cpus).map(i64::from).collect(),
        memory: (0..shape.zones).flat_map(|zone| kinds.map(|kind| (zone, kind))).map(block).collect(),
    }
}

/// Returns a pod. The pods split the CPUs and the devices among them; each has memory in one zone, every
/// eighth in two.
fn pod(shape: Shape, index: u16) -> v1::PodResources {
    let mine = |total: u16| (0..total).skip(usize::from(index)).step_by(usize::from(shape.pods));
    let zone = index % shape.zones;
    let wide = [zone, (zone + 1) % shape.zones];
    let zones = if index.is_multiple_of(8) { &wide[..] } else { &wide[..1] };
    let cpus: Vec<i64> = share(shape.cpus, shape.pods, index).map(i64::from).collect();
    let app = v1::ContainerResources {
        name: "application".into(),
        devices: mine(shape.devices)
            .filter(|_| shape.full)
            .flat_map(|device_index| device(shape, device_index))
            .collect(),
        cpu_ids: cpus,
        memory: vec![memory("memory", 4 * GIB, zones), memory("hugepages-2Mi", 64 * MIB, zones)],
        dynamic_resources: vec![],
    };
    // The kubelet also lists containers without allocated resources.
    let sidecar = v1::ContainerResources { name: "sidecar-proxy".into(), ..Default::default() };
    v1::PodResources {
        name: format!("training-job-{index:05}-7f9c6b5d8-x2k4q"),
        namespace: format!("tenant-{}", index % 20),
        containers: vec![app, sidecar],
        ..Default::default()
    }
}

/// Returns adjacent CPUs, as the CPU manager allocates them.
fn share(total: u16, pods: u16, index: u16) -> std::ops::Range<u32> {
    let at = |index: u16| u32::from(total) * u32::from(index) / u32::from(pods);
    at(index)..at(index + 1)
}

const RESOURCES: [&str; 4] =
    ["example.com/gpu", "example.com/nic-vf", "example.com/nvme", "example.com/fpga"];

/// Returns one message per NUMA node of a device: every eighth device is on two.
fn device(shape: Shape, index: u16) -> impl Iterator<Item = v1::ContainerDevices> {
    let kind = usize::from(index % 4);
    // IDs as device plugins choose them: UUIDs and PCI addresses.
    let id = match kind {
        0 => format!("GPU-{index:08x}-5a1d-4c3b-9e2f-{index:012x}"),
        _ => format!("0000:{:02x}:{:02x}.{}", index / 256, index % 256 / 8, index % 8),
    };
    let first = index % shape.zones;
    let count = if index.is_multiple_of(8) { 2 } else { 1 };
    (0..count).map(move |offset| v1::ContainerDevices {
        resource_name: RESOURCES[kind].to_owned(),
        device_ids: vec![id.clone()],
        topology: Some(nodes(&[(first + offset) % shape.zones])),
    })
}

fn memory(kind: &str, bytes: u64, zones: &[u16]) -> v1::ContainerMemory {
    v1::ContainerMemory { memory_type: kind.to_owned(), size: bytes, topology: Some(nodes(zones)) }
}

fn nodes(zones: &[u16]) -> v1::TopologyInfo {
    v1::TopologyInfo { nodes: zones.iter().map(|zone| v1::NumaNode { id: i64::from(*zone) }).collect() }
}
