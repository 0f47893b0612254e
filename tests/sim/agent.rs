//! The agent's loop against the simulated kubelet and API server, in this process.

use std::time::Duration;

use numacast::agent::Agent;
use numacast::cluster::Cluster;
use numacast::config::Config;
use numacast::sim::api_server::{ApiServer, PODS, TOPOLOGIES};
use numacast::sim::kubelet::{Call, ContainerSpec, Fault, Options, PodSpec, RestartTiming, Role, Split};
use numacast::telemetry::registry::Registry;
use numacast::topology::Exclude;
use numacast::util::glob::PodPattern;
use serde_json::json;
use tonic::Code;

use crate::support::Node;
use crate::world::{World, api_server, quick, with_terminated_pods_listed};

const GIB: u64 = 1 << 30;

fn rate_limited() -> Fault {
    Fault::Status(Code::ResourceExhausted, "rejected by rate limit".into())
}

#[tokio::test]
async fn terminated_pods_that_an_old_kubelet_lists_are_not_counted() {
    // Resources of terminated pods stay listed until the next admission, which never happens here.
    let options = Options { release_lag: Duration::from_secs(3600), ..quick() };
    let world = with_terminated_pods_listed(options).await;
    let job = PodSpec::guaranteed("job", 2, GIB).devices("example.com/nic", 1);
    world.node.kubelet.start_pod(job.clone()).await.unwrap();
    world.put_pod(&job, "Running");
    world.converges().await;
    assert_eq!(world.available(0, "example.com/nic"), 1);
    assert!(world.node.kubelet.terminate_pod("default", "job"));
    world.put_pod(&job, "Succeeded");
    world.converges().await;
    assert_eq!(world.available(0, "example.com/nic"), 2);
    // Another pod gets the same name.
    assert!(world.server.delete(&PODS, "default", "job"));
    assert!(world.node.kubelet.stop_pod("default", "job"));
    let again = PodSpec { uid: "again".into(), ..job.clone() };
    world.node.kubelet.start_pod(again).await.unwrap();
    world.put_pod(&job, "Running");
    world.converges().await;
    assert_eq!(world.available(0, "example.com/nic"), 1);
    world.stop().await;
}

#[tokio::test]
async fn a_pod_that_is_rejected_right_after_its_allocation_is_not_counted() {
    // Resources of terminated pods stay listed until the next admission, which never happens here.
    let options = Options { release_lag: Duration::from_secs(3600), ..quick() };
    let world = with_terminated_pods_listed(options).await;
    let pod = PodSpec::guaranteed("rejected", 2, GIB).devices("example.com/nic", 1);
    world.converges().await;
    world.put_pod(&pod, "Pending");
    world.node.kubelet.add_pod(pod.clone()).unwrap();
    world.wait_for_lists(world.node.kubelet.calls().list + 2).await;
    // Between two Lists the pod is allocated its resources, and then rejected.
    world.node.kubelet.admit_pod(&pod.uid).unwrap();
    assert!(world.node.kubelet.terminate_pod("default", "rejected"));
    world.put_pod(&pod, "Failed");
    world.wait_for_lists(world.node.kubelet.calls().list + 3).await;
    // The CPU Manager releases CPUs by itself, memory and devices stay.
    world.node.kubelet.reconcile();
    world.converges().await;
    assert_eq!(world.available(0, "example.com/nic"), 2);
    world.stop().await;
}

/// An old kubelet lists a terminated pod, and the object has a resource whose device plugin is not running.
#[tokio::test]
async fn a_single_pass_publishes_the_same_object_as_a_running_agent() {
    let world = with_terminated_pods_listed(quick()).await;
    let job = PodSpec::guaranteed("job", 2, GIB).devices("example.com/nic", 1);
    world.node.kubelet.start_pod(job.clone()).await.unwrap();
    world.put_pod(&job, "Running");
    world.converges().await;
    world.node.kubelet.terminate_pod("default", "job");
    world.put_pod(&job, "Succeeded");
    world.converges().await;
    let world = world.kill_agent().await;
    let mut object = serde_json::to_value(world.server.topology("worker").unwrap()).unwrap();
    for zone in object["zones"].as_array_mut().unwrap() {
        let unregistered =
            json!({"name": "example.com/gone", "capacity": "0", "allocatable": "0", "available": "0"});
        // Resource names are sorted.
        zone["resources"].as_array_mut().unwrap().insert(2, unregistered);
    }
    world.server.put(&TOPOLOGIES, object).unwrap();
    let expected = world.server.topology("worker").unwrap().spec;
    let mut config = Config { node_name: "worker".into(), ..Config::default() };
    config.host.root = world.node.root().to_owned();
    let cluster =
        Cluster::with_client(world.server.client().unwrap(), world.server.url(), Duration::from_secs(5));
    Agent::new(config.agent_settings(), cluster, &mut Registry::default()).run_once().await.unwrap();
    assert_eq!(world.server.topology("worker").unwrap().spec, expected);
}

#[tokio::test]
async fn the_object_follows_pods() {
    let world = World::start(quick()).await;
    world.converges().await;
    let kubelet = &world.node.kubelet;
    kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB).devices("example.com/nic", 1)).await.unwrap();
    world.converges().await;
    kubelet.start_pod(PodSpec::guaranteed("b", 4, GIB).hugepages("hugepages-2Mi", 64 << 20)).await.unwrap();
    world.converges().await;
    assert!(kubelet.stop_pod("default", "a"));
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn of_two_similar_pods_the_deleted_one_is_not_counted() {
    let (node, server) = (Node::with(quick()), api_server().await);
    let replica = |name: &str, init: u64| {
        let container = |name: &str, role, memory| ContainerSpec {
            name: name.into(),
            role,
            milli_cpu: 500,
            memory,
            ..ContainerSpec::default()
        };
        let containers = vec![container("init", Role::Init, init), container("main", Role::App, GIB)];
        PodSpec { guaranteed: true, containers, ..PodSpec::new(name) }.on([0])
    };
    // The List shows both the same. What the init containers were allocated is only in the kubelet's
    // checkpoints, by UID, and stays there until the next admission.
    let pods = [replica("large", 3 * GIB), replica("small", 2 * GIB)];
    for pod in pods {
        server.put(&PODS, pod.object("worker", "Running")).unwrap();
        let uid = pod.uid.clone();
        node.kubelet.add_pod(pod).unwrap();
        node.kubelet.admit_pod(&uid).unwrap();
    }
    let world = World::with(node, server, |_| {});
    world.converges().await;
    // Triggers a List that is read with the pods known.
    world.node.kubelet.start_pod(PodSpec::guaranteed("other", 1, GIB)).await.unwrap();
    world.converges().await;
    assert!(world.server.delete(&PODS, "default", "large"));
    assert!(world.node.kubelet.stop_pod("default", "large"));
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn a_start_reads_the_inventory_once() {
    let server = api_server().await;
    let world =
        World::with(Node::with(quick()), server, |settings| settings.poll = Duration::from_secs(3600));
    world.converges().await;
    // All requests of the start are sent before this change is visible.
    world.node.kubelet.start_pod(PodSpec::guaranteed("a", 1, GIB)).await.unwrap();
    world.converges().await;
    // A kubelet that has just started is queried again once the pods are known.
    let calls = world.node.kubelet.calls().allocatable;
    assert!((1..=2).contains(&calls), "{calls} calls");
}

#[tokio::test]
async fn the_node_owns_the_object() {
    let server = ApiServer::start_on_any_port(0).await.unwrap();
    let uid = server.add_node("worker").unwrap();
    let world = World::with(Node::with(quick()), server, |_| {});
    world.converges().await;
    let object = world.server.topology("worker").unwrap();
    let owners = object.metadata.owner_references.unwrap();
    assert_eq!(owners.len(), 1);
    assert_eq!(
        (owners[0].kind.as_str(), owners[0].name.as_str(), owners[0].uid.as_str()),
        ("Node", "worker", &*uid)
    );
    assert_eq!((owners[0].controller, owners[0].block_owner_deletion), (None, None));
}

#[tokio::test]
async fn excluded_pods_and_resources_are_left_out() {
    let server = api_server().await;
    let world = World::with(Node::with(quick()), server, |settings| {
        settings.rules.exclude = Exclude {
            resources: ["example.com/nic".to_owned()].into(),
            pods: vec![PodPattern { namespace: "infra".parse().unwrap(), name: "dns-?".parse().unwrap() }],
            outside_namespace: None,
        };
    });
    let kubelet = &world.node.kubelet;
    let dns = |name: &str| PodSpec { namespace: "infra".into(), ..PodSpec::guaranteed(name, 2, GIB) };
    // While no other pod runs, the object without excluded pods is that of the empty node.
    let empty = kubelet.expected();
    kubelet.start_pod(dns("dns-1")).await.unwrap();
    let nic = ["node-0", "node-1"].map(|zone| format!("{zone} example.com/nic: nothing instead of"));
    let only_nics_differ = || {
        let object = world.server.topology("worker")?;
        let differences = empty.differences(&object, Split::PerGroup);
        let is_nic = differences.iter().zip(&nic).all(|(line, start)| line.starts_with(start));
        (differences.len() == nic.len() && is_nic).then_some(())
    };
    world.wait_for(only_nics_differ).await;
    let free = |resource| (0..2).map(|zone| world.available(zone, resource)).sum::<u64>();
    let (cpus, writes) = (free("cpu"), world.server.writes().changes);
    kubelet.start_pod(dns("dns-2")).await.unwrap();
    assert!(kubelet.stop_pod("infra", "dns-1"));
    // All writes for the others happen before that for a pod that matches no pattern.
    kubelet.start_pod(dns("cache").devices("example.com/nic", 1)).await.unwrap();
    world.wait_for(|| (free("cpu") == cpus - 2).then_some(())).await;
    assert_eq!(world.server.writes().changes, writes + 1, "excluded pods cause no write");
    world.stop().await;
}

#[tokio::test]
async fn a_scan_without_a_change_writes_nothing() {
    let node = Node::with(quick());
    let server = api_server().await;
    let world = World::with(node, server, |settings| settings.poll = Duration::from_millis(20));
    world.converges().await;
    let (writes, lists) = (world.server.writes().requests, world.node.kubelet.calls().list);
    world.wait_for_lists(lists + 10).await;
    assert_eq!(world.server.writes().requests, writes);
}

#[tokio::test]
async fn a_kubelet_restart_never_makes_the_node_look_free() {
    let restart = RestartTiming {
        down: Duration::from_millis(50),
        managers: Duration::from_millis(300),
        pods: Duration::from_millis(300),
        plugins: Duration::from_millis(300),
    };
    let world = World::start(Options { restart, ..quick() }).await;
    let kubelet = &world.node.kubelet;
    for name in ["a", "b"] {
        let pod = PodSpec::guaranteed(name, 3, GIB).devices("example.com/nic", 1);
        kubelet.start_pod(pod).await.unwrap();
    }
    world.converges().await;
    let free: u64 = (0..2).map(|zone| world.available(zone, "cpu")).sum();
    let writes = world.server.writes().changes;
    kubelet.restart().await.unwrap();
    // All writes of the restart happen before that for a new pod.
    kubelet.start_pod(PodSpec::guaranteed("c", 1, GIB)).await.unwrap();
    world.converges().await;
    let after: u64 = (0..2).map(|zone| world.available(zone, "cpu")).sum();
    assert_eq!(after, free - 1);
    assert_eq!(world.server.writes().changes, writes + 1, "the restart itself changed nothing");
}

#[tokio::test]
async fn a_kubelet_that_does_not_finish_its_start_is_waited_for() {
    let node = Node::with(quick());
    let server = api_server().await;
    // The start takes many times longer than the agent waits for missing pods.
    let world = World::with(node, server, |settings| settings.settle = Duration::from_millis(20));
    let kubelet = &world.node.kubelet;
    kubelet.start_pod(PodSpec::guaranteed("a", 3, GIB)).await.unwrap();
    world.converges().await;
    let writes = world.server.writes().changes;
    let free = |zone| (world.available(zone, "cpu"), world.available(zone, "memory"));
    let before = [free(0), free(1)];
    kubelet.stop();
    kubelet.boot().unwrap();
    kubelet.set_ready(false, false);
    let lists = kubelet.calls().list;
    world.wait_for_lists(lists + 5).await;
    for (zone, was) in before.into_iter().enumerate() {
        let now = free(zone);
        assert!(now.0 <= was.0 && now.1 <= was.1, "zone {zone} looks freer: {was:?} -> {now:?}");
    }
    kubelet.set_ready(true, true);
    world.converges().await;
    // At first nothing is offered, then pods return, then everything else.
    assert!(world.server.writes().changes <= writes + 3);
}

#[tokio::test]
async fn an_event_during_a_failed_list_is_not_lost() {
    let world = World::start(quick()).await;
    world.converges().await;
    let kubelet = &world.node.kubelet;
    kubelet.fail_next(Call::List, 1, &rate_limited());
    assert!(kubelet.set_device_health("example.com/nic", "nic-0", false));
    world.converges().await;
}

#[tokio::test]
async fn a_failed_list_leaves_the_last_good_object() {
    let world = World::start(quick()).await;
    let kubelet = &world.node.kubelet;
    kubelet.start_pod(PodSpec::guaranteed("a", 3, GIB)).await.unwrap();
    world.converges().await;
    let writes = world.server.writes().changes;
    kubelet.fail_next(Call::List, 3, &rate_limited());
    kubelet.start_pod(PodSpec::guaranteed("b", 1, GIB)).await.unwrap();
    world.converges().await;
    assert_eq!(world.server.writes().changes, writes + 1);
}

#[tokio::test]
async fn after_an_outage_of_the_api_server_only_the_newest_state_is_written() {
    let world = World::start(quick()).await;
    world.converges().await;
    let kubelet = &world.node.kubelet;
    let writes = world.server.writes().changes;
    world.server.stop();
    for name in ["a", "b", "c"] {
        kubelet.start_pod(PodSpec::guaranteed(name, 1, GIB)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.server.resume().await.unwrap();
    world.converges().await;
    assert_eq!(world.server.writes().changes, writes + 1);
}

#[tokio::test]
async fn a_hanging_write_blocks_neither_scans_nor_the_shutdown() {
    let world = World::start(quick()).await;
    world.converges().await;
    world.server.set_frozen(true);
    let lists = world.node.kubelet.calls().list;
    for name in ["a", "b"] {
        world.node.kubelet.start_pod(PodSpec::guaranteed(name, 1, GIB)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.wait_for_lists(lists + 2).await;
    // Stops although a write hangs; the timeout only keeps a failing test from hanging.
    tokio::time::timeout(Duration::from_secs(60), world.stop()).await.unwrap();
}

#[tokio::test]
async fn an_event_storm_respects_the_rate_limit_of_lists() {
    let world = World::start(quick()).await;
    world.converges().await;
    let dir = world.node.kubelet.root().to_owned();
    let before = world.node.kubelet.calls().list;
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        std::fs::write(dir.join(".storm"), "x").unwrap();
        std::fs::rename(dir.join(".storm"), dir.join("memory_manager_state")).unwrap();
        tokio::task::yield_now().await;
    }
    let lists = world.node.kubelet.calls().list - before;
    let bound = 10.0_f64.mul_add(start.elapsed().as_secs_f64(), 4.0 + 1.0);
    assert!(lists >= 4 && (lists as f64) <= bound, "{lists} Lists in {:?}", start.elapsed());
}
