//! The simulated kubelet itself, through the agent's client and the kubelet's files.

mod api;
mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use numacast::kubelet::proto::v1;
use numacast::kubelet::{ContainerUsage, PodUsage, Request};
use numacast::machine::IdSet;
use numacast::quantity::Quantity;
use numacast_sim::kubelet::{
    Allocation, Amounts, ContainerSpec, KubeletVersion, Model, Options, PodLevel, PodSpec, RestartTiming,
    Role, SimKubelet, Stage,
};
use numacast_sim::machine::{Device, MachineSpec, NodeSpec};
use prost::Message as _;
use serde_json::{Value, json};

use crate::support::Client;

/// A machine of two nodes with four cores each.
fn spec(policy: &str) -> MachineSpec {
    MachineSpec::from_yaml(&format!(
        "
description: two nodes of four cores
threadsPerCore: 2
nodes:
  - {{id: 0, cpus: '0-7', memory: 8Gi, hugepages: {{2Mi: 512}}}}
  - {{id: 1, cpus: '8-15', memory: 8Gi, hugepages: {{2Mi: 512}}}}
devices:
  - resource: example.com/nic
    devices: [{{id: a, numa: [0]}}, {{id: b, numa: [1]}}, {{id: both, numa: [0, 1]}}, {{id: far}}]
kubelet:
  cpuManagerPolicy: static
  memoryManagerPolicy: Static
  topologyManagerPolicy: {policy}
  reservedSystemCPUs: '0,4'
  reservedMemory: [{{numaNode: 0, limits: {{memory: 1Gi}}}}]
"
    ))
    .unwrap()
}

struct Node {
    kubelet: SimKubelet,
    client: Client,
    dir: tempfile::TempDir,
}

impl Node {
    fn new(spec: &MachineSpec, options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kubelet = SimKubelet::start(spec, dir.path(), options).unwrap();
        let client = Client::new(kubelet.socket(), Duration::from_secs(5));
        Self { kubelet, client, dir }
    }

    /// Calls `Get`. Returns the status's message if it fails.
    async fn get(&mut self, name: &str) -> Result<PodUsage, String> {
        let request = Request::Get { namespace: "default".to_owned(), name: name.to_owned() };
        let response = self.client.request(&request).await;
        let (bytes, _) = response.map_err(|error| error.status.message().to_owned())?;
        Ok(v1::GetPodResourcesResponse::decode(bytes).unwrap().pod_resources.unwrap().into())
    }

    /// Returns a file of the kubelet.
    fn file(&self, name: &str) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.dir.path().join(name)).unwrap()).unwrap()
    }

    /// Returns what `List` reports of claimed devices for the only container.
    async fn dynamic_resources(&mut self) -> Vec<v1::DynamicResource> {
        let (bytes, _) = self.client.request(&Request::List).await.unwrap();
        let mut list = v1::ListPodResourcesResponse::decode(bytes).unwrap();
        list.pod_resources.remove(0).containers.remove(0).dynamic_resources
    }
}

/// A kubelet without delays and without a rate limit.
fn immediate() -> Options {
    let zero = RestartTiming {
        down: Duration::ZERO,
        managers: Duration::ZERO,
        pods: Duration::ZERO,
        plugins: Duration::ZERO,
    };
    Options { release_lag: Duration::ZERO, restart: zero, limited: false, ..Options::default() }
}

fn cpus(allocations: &[Allocation]) -> String {
    let mut all = IdSet::new();
    allocations.iter().for_each(|allocation| all.union_with(&allocation.cpus));
    all.to_string()
}

#[tokio::test]
async fn a_pod_is_aligned_listed_checkpointed_and_released() {
    let mut node = Node::new(&spec("single-numa-node"), immediate());
    let pod = PodSpec::guaranteed("db", 4, 2 << 30)
        .hugepages("hugepages-2Mi", 64 << 20)
        .devices("example.com/nic", 1);
    let allocations = node.kubelet.start_pod(pod).await.unwrap();
    assert_eq!(cpus(&allocations), "1-2,5-6", "whole cores of node 0, past the reserved one");

    let (usage, _) = node.client.list().await.unwrap();
    let listed = &usage.pods[0].containers[0];
    assert_eq!(listed.cpus.to_string(), "1-2,5-6");
    assert_eq!(listed.memory.iter().map(|block| block.bytes).sum::<u64>(), (2 << 30) + (64 << 20));
    assert_eq!(listed.devices[0].ids, ["a"]);

    let state = node.file("cpu_manager_state");
    assert_eq!(state["defaultCpuSet"], "0,3-4,7-15");
    assert_eq!(state["entries"]["uid-db"]["main"], "1-2,5-6");
    let state = node.file("memory_manager_state");
    let table = &state["machineState"]["0"]["memoryMap"]["memory"];
    assert_eq!(table["total"], 8_u64 << 30);
    assert_eq!(table["allocatable"], 6_u64 << 30, "less 1Gi of huge pages and 1Gi reserved");
    assert_eq!(table["free"], 4_u64 << 30);
    assert_eq!(state["entries"]["uid-db"]["main"][1]["type"], "memory");
    let state = node.file("device-plugins/kubelet_internal_checkpoint");
    assert_eq!(state["Data"]["PodDeviceEntries"][0]["DeviceIDs"], json!({"0": ["a"]}));

    assert!(node.kubelet.stop_pod("default", "db"));
    assert!(node.client.list().await.unwrap().0.pods.is_empty());
    assert_eq!(node.file("cpu_manager_state")["entries"], Value::Null);
    assert!(!node.kubelet.stop_pod("default", "db"));
}

#[tokio::test]
async fn a_deleted_pod_leaves_the_list_before_the_checkpoint() {
    let options = Options { release_lag: Duration::from_secs(3600), ..immediate() };
    let mut node = Node::new(&spec("single-numa-node"), options);
    for name in ["one", "two"] {
        node.kubelet.start_pod(PodSpec::guaranteed(name, 6, 1 << 30)).await.unwrap();
    }
    let rejection = node.kubelet.start_pod(PodSpec::guaranteed("three", 6, 1 << 30)).await.unwrap_err();
    assert_eq!(rejection.reason, "TopologyAffinityError");
    node.kubelet.stop_pod("default", "one");
    assert_eq!(node.client.list().await.unwrap().0.pods.len(), 1);
    assert_ne!(node.file("cpu_manager_state")["entries"]["uid-one"], Value::Null);
    assert_eq!(node.kubelet.expected().zones[&0]["cpu"].available, 6);
    node.kubelet.start_pod(PodSpec::guaranteed("three", 6, 1 << 30)).await.unwrap();
    assert_eq!(node.file("cpu_manager_state")["entries"]["uid-one"], Value::Null);
}

#[tokio::test]
async fn policies_spread_or_reject_pods_that_exceed_a_node() {
    for (policy, outcome) in [
        ("none", Some("1-2,5-6,8-15")),
        ("best-effort", Some("1-2,5-6,8-15")),
        // The CPUs need two nodes and the memory one, which are not the same nodes.
        ("restricted", None),
        ("single-numa-node", None),
    ] {
        let node = Node::new(&spec(policy), immediate());
        let allocations = node.kubelet.start_pod(PodSpec::guaranteed("wide", 12, 1 << 30)).await;
        assert_eq!(allocations.ok().map(|allocations| cpus(&allocations)).as_deref(), outcome, "{policy}");
    }
    let node = Node::new(&spec("restricted"), immediate());
    for name in ["one", "two"] {
        node.kubelet.start_pod(PodSpec::guaranteed(name, 4, 1 << 30)).await.unwrap();
    }
    let rejection = node.kubelet.start_pod(PodSpec::guaranteed("three", 5, 1 << 30)).await.unwrap_err();
    assert_eq!(rejection.reason, "TopologyAffinityError", "an empty node would have five");
}

#[tokio::test]
async fn only_guaranteed_pods_with_whole_cpus_get_exclusive_cpus() {
    let node = Node::new(&spec("best-effort"), immediate());
    let mut fraction = PodSpec::guaranteed("fraction", 1, 1 << 30);
    fraction.containers[0].milli_cpu = 1500;
    assert_eq!(cpus(&node.kubelet.start_pod(fraction).await.unwrap()), "");
    let burstable = PodSpec { guaranteed: false, ..PodSpec::guaranteed("burstable", 2, 1 << 30) };
    let allocations = node.kubelet.start_pod(burstable).await.unwrap();
    assert_eq!((cpus(&allocations).as_str(), allocations[0].memory.len()), ("", 0));
    assert_eq!(
        node.kubelet.expected().zones[&0]["memory"].available,
        5 << 30,
        "the fraction's memory counts"
    );
}

#[tokio::test]
async fn a_block_on_several_nodes_reports_the_total_and_groups_them() {
    let mut node = Node::new(&spec("best-effort"), immediate());
    node.kubelet.start_pod(PodSpec::guaranteed("huge", 1, 9 << 30)).await.unwrap();
    let (usage, ..) = node.client.list().await.unwrap();
    let block = &usage.pods[0].containers[0].memory[0];
    assert_eq!((block.bytes, block.nodes.to_string().as_str()), (9 << 30, "0-1"));
    let state = node.file("memory_manager_state");
    assert_eq!(state["machineState"]["1"]["cells"], json!([0, 1]));
    assert_eq!(state["machineState"]["0"]["memoryMap"]["memory"]["free"], 0);
    assert_eq!(state["machineState"]["1"]["memoryMap"]["memory"]["free"], 4_u64 << 30);
    // A node in a group cannot take a pod alone; the pod's memory is on the whole group.
    node.kubelet.start_pod(PodSpec::guaranteed("small", 1, 1 << 30)).await.unwrap();
    let (usage, ..) = node.client.list().await.unwrap();
    assert!(usage.pods.iter().all(|pod| pod.containers[0].memory[0].nodes.len() == 2));
    let expected = node.kubelet.expected();
    assert_eq!(expected.groups, [BTreeSet::from([0, 1])].into());
    assert_eq!(expected.zones[&1]["memory"].available, 3 << 30);
    node.kubelet.stop_pod("default", "huge");
    node.kubelet.stop_pod("default", "small");
    assert!(node.kubelet.expected().groups.is_empty());
}

#[tokio::test]
async fn a_forced_affinity_creates_the_requested_group() {
    let node = Node::new(&spec("best-effort"), immediate());
    let group = PodSpec::guaranteed("group", 2, 1 << 30).on([0, 1]);
    let allocations = node.kubelet.start_pod(group).await.unwrap();
    assert_eq!(allocations[0].memory[0].split, [(0, 1 << 30), (1, 0)].into());
    let allocations = node.kubelet.start_pod(PodSpec::guaranteed("right", 2, 0).on([1])).await.unwrap();
    assert_eq!(cpus(&allocations), "8,12");
}

#[tokio::test]
async fn near_devices_are_preferred_then_those_without_topology() {
    let mut node = Node::new(&spec("best-effort"), immediate());
    let pod = PodSpec::guaranteed("nets", 2, 1 << 30).devices("example.com/nic", 4);
    let allocations = node.kubelet.start_pod(pod).await.unwrap();
    assert_eq!(allocations[0].devices["example.com/nic"].len(), 4);
    let (usage, ..) = node.client.list().await.unwrap();
    let both = usage.pods[0].containers[0].devices.iter().filter(|group| group.ids == ["both"]);
    assert_eq!(both.count(), 2, "a device on two nodes is listed twice");
    assert_eq!(node.kubelet.expected().zones[&1]["example.com/nic"].capacity, 2);
    assert_eq!(node.kubelet.expected().zones[&1]["example.com/nic"].available, 0);
    let rejection =
        node.kubelet.start_pod(PodSpec::new("late").devices("example.com/nic", 1)).await.unwrap_err();
    assert_eq!(
        rejection.to_string(),
        "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for \
         example.com/nic. Requested: 1, Available: 0, which is unexpected"
    );
}

#[tokio::test]
async fn a_pod_gets_the_nearest_free_device() {
    let node = Node::new(&spec("best-effort"), immediate());
    for nearest in ["a", "both", "b", "far"] {
        let pod = PodSpec::guaranteed(nearest, 1, 0).devices("example.com/nic", 1);
        let allocations = node.kubelet.start_pod(pod).await.unwrap();
        assert!(allocations[0].devices["example.com/nic"].keys().eq([nearest]));
    }
}

#[tokio::test]
async fn an_unhealthy_device_leaves_the_inventory_and_stays_allocated() {
    let mut node = Node::new(&spec("best-effort"), immediate());
    node.kubelet.start_pod(PodSpec::guaranteed("net", 2, 0).devices("example.com/nic", 1)).await.unwrap();
    assert!(node.kubelet.set_device_health("example.com/nic", "a", false));
    assert!(!node.kubelet.set_device_health("example.com/nic", "missing", false));
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert!(allocatable.devices.iter().all(|group| group.ids != ["a"]));
    let (usage, ..) = node.client.list().await.unwrap();
    assert_eq!(usage.pods[0].containers[0].devices[0].ids, ["a"]);
    let amounts = node.kubelet.expected().zones[&0]["example.com/nic"];
    assert_eq!(amounts, Amounts { capacity: 2, allocatable: 1, available: 1 });
}

#[tokio::test]
async fn disabled_managers_report_nothing() {
    let mut spec = spec("none");
    spec.kubelet = serde_json::Map::new();
    let mut node = Node::new(&spec, immediate());
    let allocations = node.kubelet.start_pod(PodSpec::guaranteed("db", 4, 2 << 30)).await.unwrap();
    assert_eq!((cpus(&allocations).as_str(), allocations[0].memory.len()), ("", 0));
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert!(allocatable.cpus.is_empty() && allocatable.memory.is_empty());
    assert_eq!(node.file("cpu_manager_state")["policyName"], "none");
    assert!(!node.dir.path().join("memory_manager_state").exists());
    assert_eq!(
        node.kubelet.expected().zones[&0]["memory"],
        Amounts { capacity: 8 << 30, allocatable: 7 << 30, available: 7 << 30 }
    );
}

#[tokio::test]
async fn cpus_reserved_by_number_are_the_lowest_cores() {
    let mut spec = spec("none");
    spec.kubelet.remove("reservedSystemCPUs");
    spec.kubelet.insert("kubeReserved".into(), json!({"cpu": "1500m"}));
    spec.kubelet.insert("systemReserved".into(), json!({"cpu": "1"}));
    let mut node = Node::new(&spec, immediate());
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert_eq!(allocatable.cpus.to_string(), "2-3,5-15", "0, its sibling 4, and 1");
}

#[tokio::test]
async fn full_pcpus_only_rejects_partial_cores() {
    let mut spec = spec("single-numa-node");
    spec.kubelet.insert("cpuManagerPolicyOptions".into(), json!({"full-pcpus-only": "true"}));
    let node = Node::new(&spec, immediate());
    let rejection = node.kubelet.start_pod(PodSpec::guaranteed("odd", 3, 0)).await.unwrap_err();
    assert_eq!(rejection.reason, "SMTAlignmentError");
}

#[tokio::test]
async fn pod_scope_aligns_all_containers_together() {
    let mut spec = spec("single-numa-node");
    let two = || {
        let mut pod = PodSpec::guaranteed("two", 4, 1 << 30);
        let second = ContainerSpec { name: "second".into(), ..pod.containers[0].clone() };
        pod.containers.push(second);
        pod
    };
    let node = Node::new(&spec, immediate());
    assert_eq!(cpus(&node.kubelet.start_pod(two()).await.unwrap()), "1-2,5-6,8-9,12-13");
    spec.kubelet.insert("topologyManagerScope".into(), json!("pod"));
    let node = Node::new(&spec, immediate());
    assert_eq!(cpus(&node.kubelet.start_pod(two()).await.unwrap()), "8-15", "node 0 has only six CPUs");
}

fn role(name: &str, role: Role, cpus: u64, memory: u64) -> ContainerSpec {
    ContainerSpec { name: name.into(), role, milli_cpu: cpus * 1000, memory, ..ContainerSpec::default() }
}

/// A pod with pod-level resources for all containers but one.
fn pod_level(name: &str) -> PodSpec {
    let containers = vec![
        role("init", Role::Init, 3, 2 << 30),
        role("mesh", Role::Sidecar, 1, 1 << 29),
        role("main", Role::App, 2, 1 << 30),
        role("helper", Role::App, 0, 0),
    ];
    let total = PodLevel { milli_cpu: 5000, memory: 3 << 30, hugepages: BTreeMap::new() };
    PodSpec { guaranteed: true, containers, pod_level: Some(total), ..PodSpec::new(name) }
}

#[tokio::test]
async fn pod_level_resources_are_allocated_as_a_whole() {
    let mut spec = spec("single-numa-node");
    spec.kubelet.insert("topologyManagerScope".into(), json!("pod"));
    spec.kubelet.insert("featureGates".into(), json!({"PodLevelResourceManagers": true}));
    let mut node = Node::new(&spec, Options { version: KubeletVersion::V1_37, ..immediate() });
    node.kubelet.start_pod(pod_level("db")).await.unwrap();
    let (usage, ..) = node.client.list().await.unwrap();
    let pod = &usage.pods[0];
    let of = |name: &str| pod.containers.iter().find(|container| container.name == name).unwrap();
    assert_eq!((pod.cpus.len(), pod.containers.len()), (5, 3));
    assert_eq!(pod.memory.iter().map(|block| block.bytes).sum::<u64>(), 3 << 30);
    let (mesh, main) = (of("mesh").cpus.clone(), of("main").cpus.clone());
    assert_eq!((mesh.len(), main.len()), (1, 2));
    assert!(!mesh.intersects(&main) && mesh.difference(&pod.cpus).is_empty());
    assert_eq!(
        (of("main").memory[0].bytes, of("helper")),
        (1 << 30, &ContainerUsage { name: "helper".into(), ..Default::default() })
    );
    let zone = &node.kubelet.expected().zones[&0];
    assert_eq!((zone["cpu"].available, zone["memory"].available), (1, 3 << 30));
    let data = |state: &Value| serde_json::from_str::<Value>(state["data"].as_str().unwrap()).unwrap();
    let state = node.file("cpu_manager_state");
    assert_eq!(data(&state)["podEntries"]["uid-db"]["cpuSet"], pod.cpus.to_string());
    assert_eq!(state["entries"]["uid-db"]["helper"].as_str().unwrap().split(',').count(), 2);
    assert_eq!((&data(&state)["entries"], state.get("podEntries")), (&state["entries"], None));
    let memory = node.file("memory_manager_state");
    assert_eq!(data(&memory)["podEntries"]["uid-db"]["memoryBlocks"][0]["size"], 3_u64 << 30);
    assert_eq!(memory.get("podEntries"), None);
    node.kubelet.set_version(KubeletVersion::V1_36);
    node.kubelet.release_stale();
    assert_eq!(node.file("cpu_manager_state")["podEntries"]["uid-db"]["cpuSet"], pod.cpus.to_string());
    node.kubelet.set_version(KubeletVersion::V1_37);

    let mut greedy = pod_level("greedy");
    greedy.pod_level.as_mut().unwrap().milli_cpu = 3000;
    let rejection = node.kubelet.start_pod(greedy).await.unwrap_err();
    assert_eq!(rejection.reason, "TopologyAffinityError", "nothing would be left for the helper");
    node.kubelet.stop_pod("default", "db");
    assert_eq!(node.kubelet.expected(), Model::new(&spec).expected());
}

#[tokio::test]
async fn pod_level_resources_are_ignored_without_their_feature_gate() {
    let options = Options { version: KubeletVersion::V1_37, ..immediate() };
    let mut node = Node::new(&spec("single-numa-node"), options);
    node.kubelet.start_pod(pod_level("db")).await.unwrap();
    let (usage, ..) = node.client.list().await.unwrap();
    assert!(usage.pods[0].cpus.is_empty() && usage.pods[0].containers.iter().all(|c| c.cpus.is_empty()));
}

#[tokio::test]
async fn apps_reuse_the_resources_of_init_containers() {
    let mut node = Node::new(&spec("single-numa-node"), immediate());
    let mut init = role("init", Role::Init, 4, 3 << 30);
    init.devices.insert("example.com/nic".into(), 2);
    let mut main = role("main", Role::App, 2, 1 << 30);
    main.devices.insert("example.com/nic".into(), 1);
    let pod = PodSpec { guaranteed: true, containers: vec![main, init], ..PodSpec::new("db") };
    node.kubelet.add_pod(pod).unwrap();
    let allocations = node.kubelet.admit_pod("uid-db").unwrap();
    assert!(allocations[0].cpus.difference(&allocations[1].cpus).is_empty(), "{allocations:?}");

    let (usage, ..) = node.client.list().await.unwrap();
    let names: Vec<&str> = usage.pods[0].containers.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["main"], "regular init containers are never listed");
    let zone = |node: &Node| node.kubelet.expected().zones[&0].clone();
    assert_eq!((zone(&node)["cpu"].available, zone(&node)["memory"].available), (2, 3 << 30));
    assert_eq!(zone(&node)["example.com/nic"].available, 0, "a, and both");
    let entries = node.file("memory_manager_state")["entries"]["uid-db"].clone();
    assert_eq!(
        (&entries["init"][0]["size"], &entries["main"][0]["size"]),
        (&json!(2_u64 << 30), &json!(1 << 30))
    );

    // Only the Memory Manager releases the init container's resources now.
    assert!(node.kubelet.terminate_init_containers("default", "db"));
    assert_eq!((zone(&node)["cpu"].available, zone(&node)["memory"].available), (2, 5 << 30));
    assert_eq!(node.file("cpu_manager_state")["entries"]["uid-db"]["init"], "1-2,5-6");
    assert_eq!(node.file("memory_manager_state")["entries"]["uid-db"]["init"], Value::Null);
    node.kubelet.stop_pod("default", "db");
    assert_eq!(zone(&node)["cpu"].available, 6);
    assert_eq!(node.file("cpu_manager_state")["entries"], Value::Null);
}

#[tokio::test]
async fn memory_released_by_a_group_is_credited_to_its_lowest_nodes() {
    let node = Node::new(&spec("best-effort"), immediate());
    for (name, memory) in [("one", 4), ("two", 6)] {
        let pod = PodSpec::guaranteed(name, 1, memory << 30).on([0, 1]);
        node.kubelet.start_pod(pod).await.unwrap();
    }
    let free = |node: &Node| [0, 1].map(|id| node.kubelet.expected().zones[&id]["memory"].available >> 30);
    assert_eq!(free(&node), [0, 3]);
    node.kubelet.stop_pod("default", "two");
    assert_eq!(free(&node), [6, 3], "although two had four of its six on node 1");
}

#[tokio::test]
async fn the_memory_manager_releases_at_the_next_admission() {
    let node = Node::new(&spec("best-effort"), immediate());
    node.kubelet.start_pod(PodSpec::guaranteed("db", 2, 1 << 30)).await.unwrap();
    node.kubelet.stop_pod("default", "db");
    assert_eq!(node.file("cpu_manager_state")["entries"], Value::Null);
    assert_ne!(node.file("memory_manager_state")["entries"]["uid-db"], Value::Null);
    assert_eq!(node.kubelet.expected().zones[&0]["memory"].available, 6 << 30);
    node.kubelet.start_pod(PodSpec::new("web")).await.unwrap();
    assert_eq!(node.file("memory_manager_state")["entries"], Value::Null);
}

#[tokio::test]
async fn a_rejected_pod_keeps_allocations_until_the_next_release() {
    let options = Options { release_lag: Duration::MAX, ..immediate() };
    let node = Node::new(&spec("single-numa-node"), options);
    let containers = vec![role("first", Role::App, 2, 1 << 30), role("second", Role::App, 12, 1 << 30)];
    let pod = PodSpec { guaranteed: true, containers, ..PodSpec::new("wide") };
    assert!(node.kubelet.start_pod(pod).await.is_err());
    // The CPU Manager's file contains it although the pod was rejected.
    assert_eq!(node.file("cpu_manager_state")["entries"]["uid-wide"]["first"], "1,5");
    assert_eq!(node.kubelet.expected().zones[&0]["cpu"].available, 6);
    node.kubelet.reconcile();
    assert_eq!(node.file("cpu_manager_state")["entries"], Value::Null);
}

#[tokio::test]
async fn resizing_exclusive_resources_is_infeasible() {
    let options = Options { version: KubeletVersion::V1_37, ..immediate() };
    let node = Node::new(&spec("single-numa-node"), options);
    node.kubelet.start_pod(PodSpec::guaranteed("db", 2, 1 << 30)).await.unwrap();
    let mut web = PodSpec::guaranteed("web", 2, 1 << 30);
    web.guaranteed = false;
    node.kubelet.start_pod(web).await.unwrap();
    let resize = |name: &str, milli| node.kubelet.resize_pod("default", name, "main", milli, 1 << 30);
    assert_eq!(resize("db", 3000).unwrap_err().reason, "Infeasible");
    let before = node.kubelet.expected();
    resize("web", 5000).unwrap();
    assert_eq!(node.kubelet.expected(), before);
    assert_eq!(resize("missing", 1000).unwrap_err().reason, "Infeasible");
}

#[tokio::test]
async fn an_allocated_device_stays_on_its_node_when_its_plugin_registers_others() {
    let mut node = Node::new(&spec("best-effort"), immediate());
    node.kubelet.start_pod(PodSpec::guaranteed("net", 1, 0).devices("example.com/nic", 1)).await.unwrap();
    let device = |id: &str, numa: &[u16]| Device { id: id.into(), numa: numa.to_vec(), unhealthy: false };
    let of = |node: &Node, zone: u16| node.kubelet.expected().zones[&zone]["example.com/nic"];
    let amounts = |capacity, allocatable, available| Amounts { capacity, allocatable, available };

    node.kubelet.offer_devices("example.com/nic", &[device("a", &[1]), device("new", &[1])]);
    let (usage, ..) = node.client.list().await.unwrap();
    assert_eq!(usage.pods[0].containers[0].devices[0].nodes.to_string(), "0", "as when it was allocated");
    assert_eq!((of(&node, 0), of(&node, 1)), (amounts(1, 0, 0), amounts(2, 2, 1)));

    node.kubelet.offer_devices("example.com/nic", &[device("new", &[])]);
    assert_eq!((of(&node, 0), of(&node, 1)), (amounts(1, 0, 0), amounts(0, 0, 0)));
    node.kubelet.register_plugin("example.com/nic", false);
    assert_eq!(of(&node, 0), amounts(1, 0, 0));
    assert!(node.client.allocatable().await.unwrap().0.devices.is_empty());
}

#[test]
fn admission_is_fast_on_large_machines() {
    for (nodes, cpus) in [(34_u16, 2_u16), (2, 512)] {
        let node = |id: u16| NodeSpec {
            id,
            cpus: (id * cpus..(id + 1) * cpus).collect(),
            memory: Quantity::whole(64 << 30),
            ..Default::default()
        };
        let mut machine = spec("best-effort");
        machine.nodes = (0..nodes).map(node).collect();
        let mut model = Model::new(&machine);
        // The kubelet itself would try 2^34 combinations for the second pod of each pair.
        for number in 0..64 {
            let memory = if number % 2 == 0 { 1 << 30 } else { 100 << 30 };
            let pod = PodSpec::guaranteed(&format!("p{number}"), 1, memory);
            let uid = pod.uid.clone();
            model.add(pod).unwrap();
            let _ = model.admit(&uid);
        }
        let admitted = model.pods().values().filter(|pod| pod.stage == Stage::Active).count();
        assert!(admitted > 30, "{admitted}");
    }
}
