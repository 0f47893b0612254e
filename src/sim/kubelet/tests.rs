//! Tests of the simulated kubelet from outside: through the agent's client and the files.

use std::collections::BTreeSet;
use std::path::Path;

use prost::Message as _;
use serde_json::json;
use tonic::Code;

use super::*;
use crate::kubelet::proto::v1;
use crate::kubelet::{Api, Client, ClientError, ConfigFiles, KubeletConfig, PodUsage, Request};

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
        let (bytes, _) = response.map_err(|failed| failed.status.message().to_owned())?;
        Ok(v1::GetPodResourcesResponse::decode(bytes).unwrap().pod_resources.unwrap().into())
    }

    fn file(&self, name: &str) -> Value {
        read(self.dir.path(), name)
    }
}

fn read(root: &Path, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(root.join(name)).unwrap()).unwrap()
}

fn at_once() -> Options {
    let zero = RestartTiming {
        down: Duration::ZERO,
        managers: Duration::ZERO,
        pods: Duration::ZERO,
        plugins: Duration::ZERO,
    };
    Options { release_lag: Duration::ZERO, restart: zero, limited: false, ..Options::default() }
}

fn cpus(given: &[Given]) -> String {
    let mut all = crate::machine::IdSet::new();
    given.iter().for_each(|given| all.union_with(&given.cpus));
    all.to_string()
}

#[tokio::test]
async fn a_pod_is_aligned_listed_written_down_and_freed() {
    let mut node = Node::new(&spec("single-numa-node"), at_once());
    let pod = PodSpec::guaranteed("db", 4, 2 << 30)
        .hugepages("hugepages-2Mi", 64 << 20)
        .devices("example.com/nic", 1);
    let given = node.kubelet.start_pod(pod).await.unwrap();
    assert_eq!(cpus(&given), "1-2,5-6", "whole cores of node 0, past the reserved one");

    let (usage, api, _) = node.client.list().await.unwrap();
    assert_eq!(api, Api::V1);
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
async fn a_pod_leaves_the_list_before_the_state_file_and_the_next_admission_frees_it() {
    let options = Options { release_lag: Duration::from_secs(3600), ..at_once() };
    let mut node = Node::new(&spec("single-numa-node"), options);
    for name in ["one", "two"] {
        node.kubelet.start_pod(PodSpec::guaranteed(name, 6, 1 << 30)).await.unwrap();
    }
    let refusal = node.kubelet.start_pod(PodSpec::guaranteed("three", 6, 1 << 30)).await.unwrap_err();
    assert_eq!(refusal.reason, "TopologyAffinityError");
    node.kubelet.stop_pod("default", "one");
    assert_eq!(node.client.list().await.unwrap().0.pods.len(), 1);
    assert_ne!(node.file("cpu_manager_state")["entries"]["uid-one"], Value::Null);
    assert_eq!(node.kubelet.expected().zones[&0]["cpu"].available, 6);
    node.kubelet.start_pod(PodSpec::guaranteed("three", 6, 1 << 30)).await.unwrap();
    assert_eq!(node.file("cpu_manager_state")["entries"]["uid-one"], Value::Null);
}

#[tokio::test]
async fn policies_decide_between_spreading_and_refusing() {
    for (policy, outcome) in [
        ("none", Some("1-3,5-10,12-14")),
        ("best-effort", Some("1-3,5-10,12-14")),
        // No single node has twelve allocatable CPUs, so two nodes are the best possible.
        ("restricted", Some("1-3,5-10,12-14")),
        ("single-numa-node", None),
    ] {
        let node = Node::new(&spec(policy), at_once());
        let given = node.kubelet.start_pod(PodSpec::guaranteed("wide", 12, 1 << 30)).await;
        assert_eq!(given.ok().map(|given| cpus(&given)).as_deref(), outcome, "{policy}");
    }
    let node = Node::new(&spec("restricted"), at_once());
    for name in ["one", "two"] {
        node.kubelet.start_pod(PodSpec::guaranteed(name, 4, 1 << 30)).await.unwrap();
    }
    let refusal = node.kubelet.start_pod(PodSpec::guaranteed("three", 5, 1 << 30)).await.unwrap_err();
    assert_eq!(refusal.reason, "TopologyAffinityError", "one node could give five if it were empty");
}

#[tokio::test]
async fn only_guaranteed_pods_with_whole_cpus_hold_cpus() {
    let node = Node::new(&spec("best-effort"), at_once());
    let mut fraction = PodSpec::guaranteed("fraction", 1, 1 << 30);
    fraction.containers[0].milli_cpu = 1500;
    assert_eq!(cpus(&node.kubelet.start_pod(fraction).await.unwrap()), "");
    let burstable = PodSpec { guaranteed: false, ..PodSpec::guaranteed("burstable", 2, 1 << 30) };
    let given = node.kubelet.start_pod(burstable).await.unwrap();
    assert_eq!((cpus(&given).as_str(), given[0].memory.len()), ("", 0));
    assert_eq!(
        node.kubelet.expected().zones[&0]["memory"].available,
        5 << 30,
        "the fraction's memory counts"
    );
}

#[tokio::test]
async fn a_block_over_several_nodes_carries_the_total_and_binds_them() {
    let mut node = Node::new(&spec("best-effort"), at_once());
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
async fn a_forced_affinity_makes_a_group_of_the_callers_choice() {
    let node = Node::new(&spec("best-effort"), at_once());
    let given = node.kubelet.start_pod(PodSpec::guaranteed("group", 2, 1 << 30).on([0, 1])).await.unwrap();
    assert_eq!(given[0].memory[0].split, [(0, 1 << 30), (1, 0)].into());
    let given = node.kubelet.start_pod(PodSpec::guaranteed("right", 2, 0).on([1])).await.unwrap();
    assert_eq!(cpus(&given), "8,12");
}

#[tokio::test]
async fn devices_come_from_near_then_without_topology_then_from_far() {
    let mut node = Node::new(&spec("best-effort"), at_once());
    let pod = PodSpec::guaranteed("nets", 2, 1 << 30).devices("example.com/nic", 4);
    let given = node.kubelet.start_pod(pod).await.unwrap();
    assert_eq!(given[0].devices["example.com/nic"].len(), 4);
    let (usage, ..) = node.client.list().await.unwrap();
    let both = usage.pods[0].containers[0].devices.iter().filter(|group| group.ids == ["both"]);
    assert_eq!(both.count(), 2, "a device on two nodes is told twice");
    assert_eq!(node.kubelet.expected().zones[&1]["example.com/nic"].capacity, 2);
    assert_eq!(node.kubelet.expected().zones[&1]["example.com/nic"].available, 0);
    let refusal =
        node.kubelet.start_pod(PodSpec::new("late").devices("example.com/nic", 1)).await.unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for \
         example.com/nic. Requested: 1, Available: 0, which is unexpected"
    );
}

#[tokio::test]
async fn a_pod_takes_the_nearest_device_that_is_left() {
    let node = Node::new(&spec("best-effort"), at_once());
    for nearest in ["a", "both", "far", "b"] {
        let pod = PodSpec::guaranteed(nearest, 1, 0).devices("example.com/nic", 1);
        let given = node.kubelet.start_pod(pod).await.unwrap();
        assert!(given[0].devices["example.com/nic"].keys().eq([nearest]));
    }
}

/// The object with exactly the oracle's zones.
fn truth(expected: &Expected) -> crate::nrt::NodeResourceTopology {
    let resource = |(name, amounts): (&String, &Amounts)| crate::nrt::ResourceInfo {
        name: name.clone(),
        capacity: amounts.capacity.into(),
        allocatable: amounts.allocatable.into(),
        available: amounts.available.into(),
    };
    let zone = |(id, resources): (&u16, &BTreeMap<String, Amounts>)| crate::nrt::Zone {
        name: crate::nrt::zone_name(*id),
        kind: crate::nrt::ZONE_TYPE.into(),
        resources: Some(resources.iter().map(resource).collect()),
        ..crate::nrt::Zone::default()
    };
    let zones = expected.zones.iter().map(zone).collect();
    let fields = crate::nrt::NodeResourceTopologyFields { zones, ..Default::default() };
    crate::nrt::NodeResourceTopology::new("w", fields)
}

#[tokio::test]
async fn the_oracle_names_every_number_that_is_wrong() {
    let node = Node::new(&spec("best-effort"), at_once());
    node.kubelet.start_pod(PodSpec::guaranteed("db", 2, 1 << 30)).await.unwrap();
    let expected = node.kubelet.expected();
    let object = truth(&expected);
    assert_eq!(expected.differences(&object, Split::PerNode), Vec::<String>::new());
    for zone in 0..2 {
        for resource in 0..expected.zones[&0].len() {
            for number in 0..3 {
                let mut wrong = object.clone();
                let resource = &mut wrong.spec.zones[zone].resources.as_mut().unwrap()[resource];
                let numbers = [&mut resource.capacity, &mut resource.allocatable, &mut resource.available];
                let number = numbers.into_iter().nth(number).unwrap();
                *number = (number.ceil() + 1).into();
                let differences = expected.differences(&wrong, Split::PerGroup);
                assert_eq!(differences.len(), 1, "{differences:?}");
            }
            let mut wrong = object.clone();
            wrong.spec.zones[zone].resources.as_mut().unwrap().remove(resource);
            assert_eq!(expected.differences(&wrong, Split::PerNode).len(), 1);
        }
        let mut wrong = object.clone();
        wrong.spec.zones.remove(zone);
        assert_eq!(expected.differences(&wrong, Split::PerNode), [format!("node-{zone} is missing")]);
    }
    let mut filled = object.clone();
    let filler = crate::nrt::Zone { name: "node-7".into(), ..object.spec.zones[0].clone() };
    filled.spec.zones.push(filler);
    assert_eq!(expected.differences(&filled, Split::PerNode).len(), 4, "a filler has nothing");
    for resource in filled.spec.zones[2].resources.as_mut().unwrap() {
        (resource.capacity, resource.allocatable, resource.available) = (0.into(), 0.into(), 0.into());
    }
    assert_eq!(expected.differences(&filled, Split::PerNode), Vec::<String>::new());
}

#[tokio::test]
async fn inside_a_group_only_the_sum_of_free_memory_is_known() {
    let node = Node::new(&spec("best-effort"), at_once());
    node.kubelet.start_pod(PodSpec::guaranteed("huge", 1, 9 << 30)).await.unwrap();
    let expected = node.kubelet.expected();
    let mut object = truth(&expected);
    for (zone, free) in [(0, 1_u64 << 30), (1, 3 << 30)] {
        let resources = object.spec.zones[zone].resources.as_mut().unwrap();
        let memory = resources.iter_mut().find(|resource| resource.name == "memory").unwrap();
        memory.available = free.into();
    }
    assert_eq!(expected.differences(&object, Split::PerGroup), Vec::<String>::new());
    assert_eq!(expected.differences(&object, Split::PerNode).len(), 2);
    let resources = object.spec.zones[0].resources.as_mut().unwrap();
    resources.iter_mut().find(|resource| resource.name == "memory").unwrap().available = 0.into();
    assert_eq!(
        expected.differences(&object, Split::PerGroup),
        ["nodes {0, 1} together memory: 3221225472 available instead of 4294967296"]
    );
}

#[tokio::test]
async fn an_unhealthy_device_leaves_the_inventory_and_stays_in_use() {
    let mut node = Node::new(&spec("best-effort"), at_once());
    node.kubelet.start_pod(PodSpec::guaranteed("net", 2, 0).devices("example.com/nic", 1)).await.unwrap();
    assert!(node.kubelet.set_device_health("example.com/nic", "a", false));
    assert!(!node.kubelet.set_device_health("example.com/nic", "nobody", false));
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert!(allocatable.devices.iter().all(|group| group.ids != ["a"]));
    let (usage, ..) = node.client.list().await.unwrap();
    assert_eq!(usage.pods[0].containers[0].devices[0].ids, ["a"]);
    let amounts = node.kubelet.expected().zones[&0]["example.com/nic"];
    assert_eq!(amounts, Amounts { capacity: 2, allocatable: 1, available: 1 });
}

#[tokio::test]
async fn managers_that_are_off_tell_nothing() {
    let mut spec = spec("none");
    spec.kubelet = serde_json::Map::new();
    let mut node = Node::new(&spec, at_once());
    let given = node.kubelet.start_pod(PodSpec::guaranteed("db", 4, 2 << 30)).await.unwrap();
    assert_eq!((cpus(&given).as_str(), given[0].memory.len()), ("", 0));
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
async fn allocatable_is_what_the_oracle_says() {
    let mut node = Node::new(&spec("best-effort"), at_once());
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert_eq!(allocatable.cpus.to_string(), "1-3,5-15");
    let expected = node.kubelet.expected();
    for block in &allocatable.memory {
        let zone = block.nodes.iter().next().unwrap();
        assert_eq!(expected.zones[&zone][&block.resource].allocatable, block.bytes);
    }
    assert_eq!(allocatable.memory.len(), 4);
    assert!(allocatable.devices.iter().any(|group| group.nodes.is_empty()), "a device without topology");
}

#[tokio::test]
async fn reservations_without_a_list_take_the_lowest_cores() {
    let mut spec = spec("none");
    spec.kubelet.remove("reservedSystemCPUs");
    spec.kubelet.insert("kubeReserved".into(), json!({"cpu": "1500m"}));
    spec.kubelet.insert("systemReserved".into(), json!({"cpu": "1"}));
    let mut node = Node::new(&spec, at_once());
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert_eq!(allocatable.cpus.to_string(), "2-3,5-15", "0, its sibling 4, and 1");
}

#[tokio::test]
async fn full_cores_only_refuses_halves() {
    let mut spec = spec("single-numa-node");
    spec.kubelet.insert("cpuManagerPolicyOptions".into(), json!({"full-pcpus-only": "true"}));
    let node = Node::new(&spec, at_once());
    let refusal = node.kubelet.start_pod(PodSpec::guaranteed("odd", 3, 0)).await.unwrap_err();
    assert_eq!(refusal.reason, "SMTAlignmentError");
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
    let node = Node::new(&spec, at_once());
    assert_eq!(cpus(&node.kubelet.start_pod(two()).await.unwrap()), "1-2,5-6,8-9,12-13");
    spec.kubelet.insert("topologyManagerScope".into(), json!("pod"));
    let node = Node::new(&spec, at_once());
    assert_eq!(cpus(&node.kubelet.start_pod(two()).await.unwrap()), "8-15", "node 0 has but six");
}

fn pod_level(name: &str) -> PodSpec {
    let container = |name: &str, role, cpus: u64, memory| ContainerSpec {
        name: name.into(),
        role,
        milli_cpu: cpus * 1000,
        memory,
        ..ContainerSpec::default()
    };
    let containers = vec![
        container("init", Role::Init, 3, 2 << 30),
        container("mesh", Role::Sidecar, 1, 1 << 29),
        container("main", Role::App, 2, 1 << 30),
        container("helper", Role::App, 0, 0),
    ];
    let whole = PodLevel { milli_cpu: 5000, memory: 3 << 30, hugepages: BTreeMap::new() };
    PodSpec { guaranteed: true, containers, pod_level: Some(whole), ..PodSpec::new(name) }
}

#[tokio::test]
async fn a_pod_with_resources_of_its_own_holds_them_as_a_whole() {
    let mut spec = spec("single-numa-node");
    spec.kubelet.insert("topologyManagerScope".into(), json!("pod"));
    spec.kubelet.insert("featureGates".into(), json!({"PodLevelResourceManagers": true}));
    let mut node = Node::new(&spec, Options { age: Age::V1_37, ..at_once() });
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
        (1 << 30, &crate::kubelet::ContainerUsage { name: "helper".into(), ..Default::default() })
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
    node.kubelet.set_age(Age::V1_36);
    node.kubelet.settle();
    assert_eq!(node.file("cpu_manager_state")["podEntries"]["uid-db"]["cpuSet"], pod.cpus.to_string());
    node.kubelet.set_age(Age::V1_37);

    let mut greedy = pod_level("greedy");
    greedy.pod_level.as_mut().unwrap().milli_cpu = 3000;
    let refusal = node.kubelet.start_pod(greedy).await.unwrap_err();
    assert_eq!(refusal.reason, "EmptyPodSharedPoolError", "nothing would be left for the helper");
    node.kubelet.stop_pod("default", "db");
    assert_eq!(node.kubelet.expected(), Model::new(&spec).expected());
}

#[tokio::test]
async fn without_their_feature_gate_managers_pass_over_pods_with_resources_of_their_own() {
    let mut node = Node::new(&spec("single-numa-node"), Options { age: Age::V1_37, ..at_once() });
    node.kubelet.start_pod(pod_level("db")).await.unwrap();
    let (usage, ..) = node.client.list().await.unwrap();
    assert!(usage.pods[0].cpus.is_empty() && usage.pods[0].containers.iter().all(|c| c.cpus.is_empty()));
}

#[tokio::test]
async fn an_announced_pod_is_listed_with_nothing_and_a_refused_one_leaves() {
    let mut node = Node::new(&spec("single-numa-node"), at_once());
    node.kubelet.announce_pod(PodSpec::guaranteed("wide", 12, 1 << 30)).unwrap();
    let (usage, ..) = node.client.list().await.unwrap();
    assert!(usage.pods[0].containers[0].cpus.is_empty());
    assert!(node.kubelet.announce_pod(PodSpec::new("wide")).is_err());
    assert!(node.kubelet.admit_pod("uid-wide").is_err());
    assert!(node.client.list().await.unwrap().0.pods.is_empty());
}

#[tokio::test]
async fn ended_pods_stay_in_the_list_of_an_old_kubelet_only() {
    let mut node = Node::new(&spec("best-effort"), at_once());
    node.kubelet.start_pod(PodSpec::guaranteed("job", 2, 0)).await.unwrap();
    assert!(node.kubelet.finish_pod("default", "job"));
    assert!(node.client.list().await.unwrap().0.pods.is_empty());
    node.kubelet.set_age(Age::V1_29);
    let (usage, ..) = node.client.list().await.unwrap();
    assert_eq!(usage.pods[0].name, "job");
    assert_eq!(node.get("job").await.unwrap_err(), "PodResources API Get method disabled");
}

#[tokio::test]
async fn get_answers_like_the_kubelet() {
    let mut node = Node::new(&spec("best-effort"), at_once());
    node.kubelet.start_pod(PodSpec::guaranteed("db", 2, 0)).await.unwrap();
    assert_eq!(node.get("db").await.unwrap().containers[0].cpus.to_string(), "1,5");
    assert_eq!(node.get("nobody").await.unwrap_err(), "pod nobody in namespace default not found");
}

#[tokio::test]
async fn old_kubelets_lack_methods() {
    let mut node = Node::new(&spec("best-effort"), at_once());
    node.kubelet.start_pod(PodSpec::new("net").devices("example.com/nic", 1)).await.unwrap();
    node.kubelet.set_age(Age::V1_20);
    let error = node.client.allocatable().await.unwrap_err();
    assert!(matches!(error, ClientError::Unsupported { .. }), "{error}");
    node.kubelet.set_age(Age::OnlyV1alpha1);
    let (usage, api, _) = node.client.list().await.unwrap();
    assert_eq!(api, Api::V1alpha1);
    assert_eq!(usage.pods[0].containers[0].devices[0].ids, ["a"]);
}

#[tokio::test]
async fn faults_hit_the_next_calls_in_order() {
    let mut node = Node::new(&spec("best-effort"), at_once());
    for name in ["c", "b", "a"] {
        node.kubelet.start_pod(PodSpec::new(name)).await.unwrap();
    }
    let kubelet = &node.kubelet;
    kubelet.fail_next(Call::List, 1, &Fault::Status(Code::Internal, "broken".into()));
    kubelet.fail_next(Call::List, 1, &Fault::Empty);
    kubelet.fail_next(Call::List, 1, &Fault::Partial(2));
    kubelet.fail_next(Call::List, 1, &Fault::Oversize(17 << 20));
    kubelet.fail_next(Call::List, 1, &Fault::Delay(Duration::from_millis(1)));
    let error = node.client.list().await.unwrap_err();
    assert_eq!(error.to_string(), "the kubelet answered List with Internal: broken");
    assert_eq!(node.client.list().await.unwrap().0.pods.len(), 0);
    let mut oldest: Vec<_> =
        node.client.list().await.unwrap().0.pods.iter().map(|pod| pod.name.clone()).collect();
    oldest.sort();
    assert_eq!(oldest, ["b", "c"]);
    let error = node.client.list().await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { .. }), "{error}");
    assert_eq!(node.client.list().await.unwrap().0.pods.len(), 3);
    assert_eq!(node.kubelet.calls().list, 5);
}

#[tokio::test]
async fn the_limiter_speaks_the_kubelets_words() {
    let mut node = Node::new(&spec("best-effort"), Options { limited: true, ..at_once() });
    let mut refused = None;
    // More requests than any machine can make while twenty tokens are refilled.
    for _ in 0..10_000 {
        if let Err(error) = node.client.list().await {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(refused, Some(ClientError::RateLimited("List")));
    assert!(node.kubelet.calls().refused >= 1);
}

#[tokio::test]
async fn a_restart_forgets_plugins_and_hides_pods_for_a_while() {
    let mut node = Node::new(&spec("best-effort"), at_once());
    node.kubelet.start_pod(PodSpec::guaranteed("net", 2, 0).devices("example.com/nic", 1)).await.unwrap();
    let first = node.client.list().await.unwrap().2;
    node.kubelet.stop();
    assert!(!node.kubelet.socket().exists());
    assert!(node.client.list().await.is_err(), "the old connection is dead");
    node.kubelet.boot().unwrap();
    let (usage, _, second) = node.client.list().await.unwrap();
    assert!(usage.pods.is_empty());
    assert_ne!(first, second);
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert_eq!(allocatable, crate::kubelet::Allocatable::default());
    node.kubelet.set_ready(true, true);
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert_eq!((allocatable.cpus.len(), allocatable.devices.len()), (14, 0));
    let (usage, ..) = node.client.list().await.unwrap();
    assert_eq!(usage.pods[0].containers[0].cpus.to_string(), "1,5", "allocations outlive the process");
    node.kubelet.register_plugin("example.com/nic", true);
    assert_ne!(node.client.allocatable().await.unwrap().0.devices.len(), 0);
    node.kubelet.restart().await.unwrap();
    assert_ne!(node.client.allocatable().await.unwrap().0.devices.len(), 0);
}

#[tokio::test]
async fn the_socket_and_the_state_files_appear_by_rename() {
    use inotify::{EventMask, Inotify, WatchMask};
    let node = Node::new(&spec("best-effort"), at_once());
    let mut inotify = Inotify::init().unwrap();
    for directory in ["pod-resources", "."] {
        let mask = WatchMask::CREATE | WatchMask::MODIFY | WatchMask::MOVED_TO;
        inotify.watches().add(node.dir.path().join(directory), mask).unwrap();
    }
    node.kubelet.stop();
    node.kubelet.boot().unwrap();
    node.kubelet.start_pod(PodSpec::guaranteed("db", 2, 1 << 30)).await.unwrap();
    let mut buffer = [0; 65536];
    let mut moved = BTreeSet::new();
    for event in inotify.read_events(&mut buffer).unwrap() {
        let name = event.name.unwrap().to_str().unwrap().to_owned();
        if event.mask == EventMask::MOVED_TO {
            moved.insert(name);
        } else {
            assert!(name.starts_with('.'), "{name}: {:?}", event.mask);
        }
    }
    let expected = ["cpu_manager_state", "kubelet.sock", "memory_manager_state"];
    assert_eq!(moved, expected.map(str::to_owned).into());
}

#[tokio::test]
async fn the_configuration_file_is_read_by_the_agents_reader() {
    let node = Node::new(&spec("single-numa-node"), at_once());
    let files = ConfigFiles { kubelet_dir: node.dir.path().to_owned(), ..ConfigFiles::default() };
    let (config, problems) = files.read().unwrap();
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(config.topology_manager_policy, "single-numa-node");
    assert_eq!(config.reserved_system_cpus.to_string(), "0,4");
    assert_ne!(config, KubeletConfig::default());
}

#[tokio::test]
async fn answers_come_in_no_order_and_the_seed_repeats_them() {
    let order = async |seed: u64| {
        let mut node = Node::new(&spec("best-effort"), Options { seed, ..at_once() });
        for number in 0..8 {
            node.kubelet.start_pod(PodSpec::new(&format!("pod-{number}"))).await.unwrap();
        }
        let pods = node.client.list().await.unwrap().0.pods;
        pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>()
    };
    assert_eq!(order(1).await, order(1).await);
    assert_ne!(order(1).await, order(2).await);
}

fn role(name: &str, role: Role, cpus: u64, memory: u64) -> ContainerSpec {
    ContainerSpec { name: name.into(), role, milli_cpu: cpus * 1000, memory, ..ContainerSpec::default() }
}

#[tokio::test]
async fn apps_reuse_what_init_containers_had_and_the_rest_stays_with_the_pod() {
    let mut node = Node::new(&spec("single-numa-node"), at_once());
    let mut init = role("init", Role::Init, 4, 3 << 30);
    init.devices.insert("example.com/nic".into(), 2);
    let mut main = role("main", Role::App, 2, 1 << 30);
    main.devices.insert("example.com/nic".into(), 1);
    let pod = PodSpec { guaranteed: true, containers: vec![main, init], ..PodSpec::new("db") };
    node.kubelet.announce_pod(pod).unwrap();
    let given = node.kubelet.admit_pod("uid-db").unwrap();
    assert!(given[0].cpus.difference(&given[1].cpus).is_empty(), "{given:?}");

    let (usage, ..) = node.client.list().await.unwrap();
    let names: Vec<&str> = usage.pods[0].containers.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["main"], "plain init containers are never listed");
    let zone = |node: &Node| node.kubelet.expected().zones[&0].clone();
    assert_eq!((zone(&node)["cpu"].available, zone(&node)["memory"].available), (2, 3 << 30));
    assert_eq!(zone(&node)["example.com/nic"].available, 0, "a, and both");
    let entries = node.file("memory_manager_state")["entries"]["uid-db"].clone();
    assert_eq!(
        (&entries["init"][0]["size"], &entries["main"][0]["size"]),
        (&json!(2_u64 << 30), &json!(1 << 30))
    );

    // From now on only the Memory Manager has released the init container's share.
    assert!(node.kubelet.end_init("default", "db"));
    assert_eq!((zone(&node)["cpu"].available, zone(&node)["memory"].available), (2, 5 << 30));
    assert_eq!(node.file("cpu_manager_state")["entries"]["uid-db"]["init"], "1-2,5-6");
    assert_eq!(node.file("memory_manager_state")["entries"]["uid-db"]["init"], Value::Null);
    node.kubelet.stop_pod("default", "db");
    assert_eq!(zone(&node)["cpu"].available, 6);
    assert_eq!(node.file("cpu_manager_state")["entries"], Value::Null);
}

#[tokio::test]
async fn what_a_group_gives_back_is_booked_on_its_lowest_nodes() {
    let node = Node::new(&spec("best-effort"), at_once());
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
async fn the_memory_manager_frees_at_the_next_admission_only() {
    let node = Node::new(&spec("best-effort"), at_once());
    node.kubelet.start_pod(PodSpec::guaranteed("db", 2, 1 << 30)).await.unwrap();
    node.kubelet.stop_pod("default", "db");
    assert_eq!(node.file("cpu_manager_state")["entries"], Value::Null);
    assert_ne!(node.file("memory_manager_state")["entries"]["uid-db"], Value::Null);
    assert_eq!(node.kubelet.expected().zones[&0]["memory"].available, 6 << 30);
    node.kubelet.start_pod(PodSpec::new("web")).await.unwrap();
    assert_eq!(node.file("memory_manager_state")["entries"], Value::Null);
}

#[tokio::test]
async fn an_ended_pod_of_an_old_kubelet_shows_cpus_and_memory_but_no_devices() {
    let options = Options { age: Age::V1_29, release_lag: Duration::MAX, ..at_once() };
    let mut node = Node::new(&spec("best-effort"), options);
    let pod = PodSpec::guaranteed("job", 2, 1 << 30).devices("example.com/nic", 1);
    node.kubelet.start_pod(pod).await.unwrap();
    node.kubelet.finish_pod("default", "job");
    let (usage, ..) = node.client.list().await.unwrap();
    let job = usage.pods[0].containers[0].clone();
    assert_eq!((job.cpus.len(), job.memory.len(), job.devices.len()), (2, 1, 0));
    assert_eq!(node.kubelet.expected().zones[&0]["cpu"].available, 6, "it holds nothing all the same");
    node.kubelet.reconcile();
    let (usage, ..) = node.client.list().await.unwrap();
    let job = usage.pods[0].containers[0].clone();
    assert_eq!((job.cpus.len(), job.memory.len()), (0, 1));
}

#[tokio::test]
async fn a_refused_pod_leaves_what_its_first_containers_were_given_until_the_next_release() {
    let options = Options { release_lag: Duration::MAX, ..at_once() };
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
async fn a_resize_of_anything_exclusive_is_infeasible() {
    let node = Node::new(&spec("single-numa-node"), Options { age: Age::V1_37, ..at_once() });
    node.kubelet.start_pod(PodSpec::guaranteed("db", 2, 1 << 30)).await.unwrap();
    let mut web = PodSpec::guaranteed("web", 2, 1 << 30);
    web.guaranteed = false;
    node.kubelet.start_pod(web).await.unwrap();
    let resize = |name: &str, milli| node.kubelet.resize_pod("default", name, "main", milli, 1 << 30);
    assert_eq!(resize("db", 3000).unwrap_err().reason, "Infeasible");
    let before = node.kubelet.expected();
    resize("web", 5000).unwrap();
    assert_eq!(node.kubelet.expected(), before);
    assert_eq!(resize("nobody", 1000).unwrap_err().reason, "Infeasible");
}

#[tokio::test]
async fn claimed_devices_are_listed_with_piling_cdi_names_and_are_in_no_zone() {
    let mut node = Node::new(&spec("single-numa-node"), Options { age: Age::V1_35, ..at_once() });
    let claimed = |device: &str, share: Option<&str>| Claimed {
        claim: "gpus".into(),
        driver: "gpu.example.com".into(),
        pool: "worker".into(),
        device: device.into(),
        share: share.map(str::to_owned),
    };
    let mut pod = PodSpec::new("train");
    pod.containers[0].claims = vec![claimed("gpu-0", None), claimed("gpu-1", Some("half"))];
    let empty = node.kubelet.expected();
    node.kubelet.start_pod(pod).await.unwrap();
    assert_eq!(node.kubelet.expected(), empty);
    let mut rng = Rng::with_seed(1);
    let told = |node: &Node, rng: &mut Rng| {
        let answer = node.kubelet.with_model(|model| answers::list(&mut model.clone(), usize::MAX, rng));
        answer.pod_resources[0].containers[0].dynamic_resources.clone()
    };
    let resources = told(&node, &mut rng);
    assert_eq!((resources.len(), resources[0].claim_name.as_str()), (1, "gpus"));
    let names: Vec<usize> = resources[0].claim_resources.iter().map(|of| of.cdi_devices.len()).collect();
    assert_eq!(names, [1, 2]);
    let (usage, ..) = node.client.list().await.unwrap();
    assert_eq!(usage.pods[0].containers[0].claimed[1].share.as_deref(), Some("half"));
    node.kubelet.set_age(Age::V1_34);
    assert_eq!(told(&node, &mut rng)[0].claim_resources[1].share_id, None);
    node.kubelet.set_age(Age::V1_29);
    assert!(told(&node, &mut rng).is_empty());
}

#[tokio::test]
async fn each_age_lacks_what_came_later() {
    let mut node = Node::new(&spec("best-effort"), Options { limited: true, ..at_once() });
    let containers = vec![role("mesh", Role::Sidecar, 1, 1 << 30), role("main", Role::App, 2, 1 << 30)];
    let pod = PodSpec { guaranteed: true, containers, ..PodSpec::new("web") };
    node.kubelet.start_pod(pod).await.unwrap();
    for (age, containers, memory, cpus) in
        [(Age::V1_21, 1, 0, 14), (Age::V1_23, 1, 4, 14), (Age::V1_29, 2, 4, 14), (Age::V1_37, 2, 4, 14)]
    {
        node.kubelet.set_age(age);
        let (usage, ..) = node.client.list().await.unwrap();
        let allocatable = node.client.allocatable().await.unwrap().0;
        let seen = (usage.pods[0].containers.len(), allocatable.memory.len(), allocatable.cpus.len());
        assert_eq!(seen, (containers, memory, cpus), "{age:?}");
    }
    // A kubelet 1.21 reports only the CPUs that were free at its start.
    node.kubelet.set_age(Age::V1_21);
    node.kubelet.restart().await.unwrap();
    assert_eq!(node.client.allocatable().await.unwrap().0.cpus.len(), 11);
    // No limiter before 1.27.
    for _ in 0..50 {
        node.client.list().await.unwrap();
    }
    assert_eq!(node.kubelet.calls().refused, 0);
}

#[tokio::test]
async fn a_device_in_use_stays_where_it_was_when_its_plugin_comes_back_with_others() {
    let mut node = Node::new(&spec("best-effort"), at_once());
    node.kubelet.start_pod(PodSpec::guaranteed("net", 1, 0).devices("example.com/nic", 1)).await.unwrap();
    let device = |id: &str, numa: &[u16]| Device { id: id.into(), numa: numa.to_vec(), unhealthy: false };
    let of = |node: &Node, zone: u16| node.kubelet.expected().zones[&zone]["example.com/nic"];
    let amounts = |capacity, allocatable, available| Amounts { capacity, allocatable, available };

    node.kubelet.offer_devices("example.com/nic", &[device("a", &[1]), device("new", &[1])]);
    let (usage, ..) = node.client.list().await.unwrap();
    assert_eq!(usage.pods[0].containers[0].devices[0].nodes.to_string(), "0", "as when it was given away");
    assert_eq!((of(&node, 0), of(&node, 1)), (amounts(1, 0, 0), amounts(2, 2, 1)));

    node.kubelet.offer_devices("example.com/nic", &[device("new", &[])]);
    assert_eq!((of(&node, 0), of(&node, 1)), (amounts(1, 0, 0), amounts(0, 0, 0)));
    node.kubelet.register_plugin("example.com/nic", false);
    assert_eq!(of(&node, 0), amounts(1, 0, 0));
    assert!(node.client.allocatable().await.unwrap().0.devices.is_empty());
}

#[tokio::test]
async fn hardware_that_changes_is_capacity_at_once_and_the_kubelets_after_its_next_start() {
    let machine = spec("best-effort");
    let mut node = Node::new(&machine, at_once());
    let mut changed = machine.clone();
    changed.nodes[0].cpus = "0-6".parse().unwrap();
    changed.nodes[0].offline_cpus = "7".parse().unwrap();
    changed.nodes[0].memory = crate::quantity::Quantity::whole((8 << 30) - 4096);
    changed.nodes[1].memory = crate::quantity::Quantity::whole(10 << 30);
    changed.nodes.push(crate::sim::machine::NodeSpec {
        id: 5,
        memory: crate::quantity::Quantity::whole(4 << 30),
        ..Default::default()
    });
    node.kubelet.set_hardware(&changed);
    assert_eq!(node.client.allocatable().await.unwrap().0.cpus.len(), 14, "the kubelet does not notice");
    let amounts = |capacity, allocatable| Amounts { capacity, allocatable, available: allocatable };
    let of = |node: &Node, zone: u16, name: &str| node.kubelet.expected().zones[&zone][name];
    assert_eq!(of(&node, 0, "cpu"), amounts(7, 5));
    assert_eq!(of(&node, 0, "memory"), amounts((8 << 30) - 4096, 6 << 30));
    assert_eq!(of(&node, 1, "memory"), amounts(10 << 30, 7 << 30));
    assert_eq!((of(&node, 5, "memory"), of(&node, 5, "cpu")), (amounts(4 << 30, 0), amounts(0, 0)));

    node.kubelet.stop();
    node.kubelet.reset();
    node.kubelet.boot().unwrap();
    node.kubelet.set_ready(true, true);
    assert_eq!(node.client.allocatable().await.unwrap().0.cpus.len(), 13);
    assert_eq!(of(&node, 1, "memory"), amounts(10 << 30, 9 << 30));
    assert_eq!(of(&node, 5, "memory"), amounts(4 << 30, 4 << 30));
}

#[tokio::test]
async fn without_managers_the_oracle_goes_by_the_hardware_as_it_is_now() {
    let mut machine = spec("none");
    machine.kubelet = json!({"kubeReserved": {"cpu": "1500m"}}).as_object().unwrap().clone();
    let node = Node::new(&machine, at_once());
    assert_eq!(node.kubelet.expected().zones[&0]["cpu"].allocatable, 6, "0 and 1 are the lowest");
    machine.nodes[0].cpus = "0,2-7".parse().unwrap();
    node.kubelet.set_hardware(&machine);
    let amounts = node.kubelet.expected().zones[&0]["cpu"];
    assert_eq!((amounts.capacity, amounts.allocatable), (7, 5), "0 and 2 now");
}

#[test]
fn admissions_on_the_largest_machines_are_quick_to_decide() {
    for (nodes, cpus) in [(34_u16, 2_u16), (2, 512)] {
        let node = |id: u16| crate::sim::machine::NodeSpec {
            id,
            cpus: (id * cpus..(id + 1) * cpus).collect(),
            memory: crate::quantity::Quantity::whole(64 << 30),
            ..Default::default()
        };
        let mut machine = spec("best-effort");
        machine.nodes = (0..nodes).map(node).collect();
        let mut model = Model::new(&machine);
        // The kubelet itself would try 2^34 combinations for the second pod of each pair.
        for number in 0..64 {
            let pod = PodSpec::guaranteed(
                &format!("p{number}"),
                1,
                if number % 2 == 0 { 1 << 30 } else { 100 << 30 },
            );
            let uid = pod.uid.clone();
            model.announce(pod).unwrap();
            let _ = model.admit(&uid);
        }
        let admitted = model.pods().values().filter(|pod| pod.stage == Stage::Active).count();
        assert!(admitted > 30, "{admitted}");
    }
}
