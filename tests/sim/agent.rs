//! The agent's loop against the simulated kubelet and API server, in this process.

use std::time::Duration;

use numacast::agent::Agent;
use numacast::cluster::Cluster;
use numacast::config::Config;
use numacast::telemetry::registry::Registry;
use numacast::topology::NodeExclusions;
use numacast::util::glob::PodPattern;
use numacast_sim::api_server::{ApiServer, PODS, TOPOLOGIES};
use numacast_sim::kubelet::{Call, ContainerSpec, Fault, Options, PodSpec, RestartTiming, Role, Split};
use serde_json::json;

use crate::environment::{Environment, api_server, quick, with_terminated_pods_listed};
use crate::support::Node;

const GIB: u64 = 1 << 30;

#[tokio::test(start_paused = true)]
async fn terminated_pods_that_an_old_kubelet_lists_are_not_counted() {
    // Resources of terminated pods stay listed until the next admission, which never happens here.
    let options = Options { release_lag: Duration::from_secs(3600), ..quick() };
    let env = with_terminated_pods_listed(options).await;
    let job = PodSpec::guaranteed("job", 2, GIB).devices("example.com/nic", 1);
    env.node.kubelet.start_pod(job.clone()).await.unwrap();
    env.put_pod(&job, "Running");
    env.converges().await;
    assert_eq!(env.available(0, "example.com/nic"), 1);
    assert!(env.node.kubelet.terminate_pod("default", "job"));
    env.put_pod(&job, "Succeeded");
    env.converges().await;
    assert_eq!(env.available(0, "example.com/nic"), 2);
    // Another pod gets the same name.
    assert!(env.server.delete(&PODS, "default", "job"));
    assert!(env.node.kubelet.stop_pod("default", "job"));
    let again = PodSpec { uid: "again".into(), ..job.clone() };
    env.node.kubelet.start_pod(again).await.unwrap();
    env.put_pod(&job, "Running");
    env.converges().await;
    assert_eq!(env.available(0, "example.com/nic"), 1);
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_rejected_right_after_its_allocation_is_not_counted() {
    // Resources of terminated pods stay listed until the next admission, which never happens here.
    let options = Options { release_lag: Duration::from_secs(3600), ..quick() };
    let env = with_terminated_pods_listed(options).await;
    let pod = PodSpec::guaranteed("rejected", 2, GIB).devices("example.com/nic", 1);
    env.converges().await;
    env.put_pod(&pod, "Pending");
    env.node.kubelet.add_pod(pod.clone()).unwrap();
    env.wait_for_lists(env.node.kubelet.calls().list + 2).await;
    // Between two Lists the pod is allocated its resources, and then rejected.
    env.node.kubelet.admit_pod(&pod.uid).unwrap();
    assert!(env.node.kubelet.terminate_pod("default", "rejected"));
    env.put_pod(&pod, "Failed");
    env.wait_for_lists(env.node.kubelet.calls().list + 3).await;
    // The CPU Manager releases CPUs by itself, memory and devices stay.
    env.node.kubelet.reconcile();
    env.converges().await;
    assert_eq!(env.available(0, "example.com/nic"), 2);
    env.stop().await;
}

/// An old kubelet lists a terminated pod, and the object has a resource whose device plugin is not running.
#[tokio::test(start_paused = true)]
async fn a_single_pass_publishes_the_same_object_as_a_running_agent() {
    let env = with_terminated_pods_listed(quick()).await;
    let job = PodSpec::guaranteed("job", 2, GIB).devices("example.com/nic", 1);
    env.node.kubelet.start_pod(job.clone()).await.unwrap();
    env.put_pod(&job, "Running");
    env.converges().await;
    env.node.kubelet.terminate_pod("default", "job");
    env.put_pod(&job, "Succeeded");
    env.converges().await;
    let env = env.kill_agent().await;
    let mut object = serde_json::to_value(env.server.topology("worker").unwrap()).unwrap();
    for zone in object["zones"].as_array_mut().unwrap() {
        let unregistered =
            json!({"name": "example.com/gone", "capacity": "0", "allocatable": "0", "available": "0"});
        // Resource names are sorted.
        zone["resources"].as_array_mut().unwrap().insert(2, unregistered);
    }
    env.server.put(&TOPOLOGIES, object).unwrap();
    let expected = env.server.topology("worker").unwrap().spec;
    let mut config = Config { node_name: "worker".into(), ..Config::default() };
    config.host.root = env.node.root().to_owned();
    let cluster =
        Cluster::with_client(env.server.client().unwrap(), env.server.url(), Duration::from_secs(5));
    Agent::new(config.agent_settings(), cluster, &mut Registry::default()).run_once().await.unwrap();
    assert_eq!(env.server.topology("worker").unwrap().spec, expected);
}

#[tokio::test(start_paused = true)]
async fn the_object_follows_pods() {
    let env = Environment::start(quick()).await;
    env.converges().await;
    let kubelet = &env.node.kubelet;
    kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB).devices("example.com/nic", 1)).await.unwrap();
    env.converges().await;
    kubelet.start_pod(PodSpec::guaranteed("b", 4, GIB).hugepages("hugepages-2Mi", 64 << 20)).await.unwrap();
    env.converges().await;
    assert!(kubelet.stop_pod("default", "a"));
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn of_two_similar_pods_the_deleted_one_is_not_counted() {
    let (node, server) = (Node::with(quick()), api_server());
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
    let env = Environment::with(node, server, |_| {});
    env.converges().await;
    // Triggers a List that is read with the pods known.
    env.node.kubelet.start_pod(PodSpec::guaranteed("other", 1, GIB)).await.unwrap();
    env.converges().await;
    assert!(env.server.delete(&PODS, "default", "large"));
    assert!(env.node.kubelet.stop_pod("default", "large"));
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_reads_the_inventory_once() {
    let env = Environment::with(Node::with(quick()), api_server(), |settings| {
        settings.poll = Duration::from_secs(3600)
    });
    env.converges().await;
    // All requests of the start are sent before this change is visible.
    env.node.kubelet.start_pod(PodSpec::guaranteed("a", 1, GIB)).await.unwrap();
    env.converges().await;
    // A kubelet that has just started is queried again once the pods are known.
    let calls = env.node.kubelet.calls().allocatable;
    assert!((1..=2).contains(&calls), "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn the_node_owns_the_object() {
    let server = ApiServer::start_in_process(0);
    let uid = server.add_node("worker").unwrap();
    let env = Environment::with(Node::with(quick()), server, |_| {});
    env.converges().await;
    let object = env.server.topology("worker").unwrap();
    let owners = object.metadata.owner_references.unwrap();
    assert_eq!(owners.len(), 1);
    assert_eq!(
        (owners[0].kind.as_str(), owners[0].name.as_str(), owners[0].uid.as_str()),
        ("Node", "worker", &*uid)
    );
    assert_eq!((owners[0].controller, owners[0].block_owner_deletion), (None, None));
}

#[tokio::test(start_paused = true)]
async fn excluded_pods_and_resources_are_left_out() {
    let server = api_server();
    let env = Environment::with(Node::with(quick()), server, |settings| {
        settings.rules.exclude = NodeExclusions {
            resources: ["example.com/nic".to_owned()].into(),
            pods: vec![PodPattern { namespace: "infra".parse().unwrap(), name: "dns-?".parse().unwrap() }],
            outside_namespace: None,
        };
    });
    let kubelet = &env.node.kubelet;
    let dns = |name: &str| PodSpec { namespace: "infra".into(), ..PodSpec::guaranteed(name, 2, GIB) };
    // While no other pod runs, the object without excluded pods is that of the empty node.
    let empty = kubelet.expected();
    kubelet.start_pod(dns("dns-1")).await.unwrap();
    let nic = ["node-0", "node-1"].map(|zone| format!("{zone} example.com/nic: nothing instead of"));
    let only_nics_differ = || {
        let object = env.server.topology("worker")?;
        let differences = empty.differences(&object, Split::PerGroup);
        let is_nic = differences.iter().zip(&nic).all(|(line, start)| line.starts_with(start));
        (differences.len() == nic.len() && is_nic).then_some(())
    };
    env.wait_for("only the devices differ", only_nics_differ).await;
    let free = |resource| (0..2).map(|zone| env.available(zone, resource)).sum::<u64>();
    let (cpus, writes) = (free("cpu"), env.server.writes().changes);
    kubelet.start_pod(dns("dns-2")).await.unwrap();
    assert!(kubelet.stop_pod("infra", "dns-1"));
    // All writes for the others happen before that for a pod that matches no pattern.
    kubelet.start_pod(dns("cache").devices("example.com/nic", 1)).await.unwrap();
    env.wait_for("the pod is allocated CPUs", || (free("cpu") == cpus - 2).then_some(())).await;
    assert_eq!(env.server.writes().changes, writes + 1, "excluded pods cause no write");
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_scan_without_a_change_writes_nothing() {
    let node = Node::with(quick());
    let server = api_server();
    let env = Environment::with(node, server, |settings| settings.poll = Duration::from_millis(20));
    env.converges().await;
    let (writes, lists) = (env.server.writes().requests, env.node.kubelet.calls().list);
    env.wait_for_lists(lists + 10).await;
    assert_eq!(env.server.writes().requests, writes);
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_restart_never_makes_the_node_look_free() {
    let restart = RestartTiming {
        down: Duration::from_millis(50),
        managers: Duration::from_millis(300),
        pods: Duration::from_millis(300),
        plugins: Duration::from_millis(300),
    };
    let env = Environment::start(Options { restart, ..quick() }).await;
    let kubelet = &env.node.kubelet;
    for name in ["a", "b"] {
        let pod = PodSpec::guaranteed(name, 3, GIB).devices("example.com/nic", 1);
        kubelet.start_pod(pod).await.unwrap();
    }
    env.converges().await;
    let free: u64 = (0..2).map(|zone| env.available(zone, "cpu")).sum();
    let writes = env.server.writes().changes;
    kubelet.restart().await.unwrap();
    // All writes of the restart happen before that for a new pod.
    kubelet.start_pod(PodSpec::guaranteed("c", 1, GIB)).await.unwrap();
    env.converges().await;
    let after: u64 = (0..2).map(|zone| env.available(zone, "cpu")).sum();
    assert_eq!(after, free - 1);
    assert_eq!(env.server.writes().changes, writes + 1, "the restart itself changed nothing");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_does_not_finish_its_start_is_waited_for() {
    let node = Node::with(quick());
    let server = api_server();
    // The start takes many times longer than the agent waits for missing pods.
    let env = Environment::with(node, server, |settings| settings.restart_wait = Duration::from_millis(20));
    let kubelet = &env.node.kubelet;
    kubelet.start_pod(PodSpec::guaranteed("a", 3, GIB)).await.unwrap();
    env.converges().await;
    let writes = env.server.writes().changes;
    let free = |zone| (env.available(zone, "cpu"), env.available(zone, "memory"));
    let before = [free(0), free(1)];
    kubelet.stop();
    kubelet.boot().unwrap();
    kubelet.set_ready(false, false);
    let lists = kubelet.calls().list;
    env.wait_for_lists(lists + 5).await;
    for (zone, was) in before.into_iter().enumerate() {
        let now = free(zone);
        assert!(now.0 <= was.0 && now.1 <= was.1, "zone {zone} looks freer: {was:?} -> {now:?}");
    }
    kubelet.set_ready(true, true);
    env.converges().await;
    // At first nothing is offered, then pods return, then everything else.
    assert!(env.server.writes().changes <= writes + 3);
}

#[tokio::test(start_paused = true)]
async fn an_event_during_a_failed_list_is_not_lost() {
    let env = Environment::start(quick()).await;
    env.converges().await;
    let kubelet = &env.node.kubelet;
    kubelet.fail_next(Call::List, 1, &Fault::rate_limited());
    assert!(kubelet.set_device_health("example.com/nic", "nic-0", false));
    env.converges().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_list_leaves_the_last_good_object() {
    let env = Environment::start(quick()).await;
    let kubelet = &env.node.kubelet;
    kubelet.start_pod(PodSpec::guaranteed("a", 3, GIB)).await.unwrap();
    env.converges().await;
    let writes = env.server.writes().changes;
    kubelet.fail_next(Call::List, 3, &Fault::rate_limited());
    kubelet.start_pod(PodSpec::guaranteed("b", 1, GIB)).await.unwrap();
    env.converges().await;
    assert_eq!(env.server.writes().changes, writes + 1);
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_of_the_api_server_only_the_newest_state_is_written() {
    let env = Environment::start(quick()).await;
    env.converges().await;
    let kubelet = &env.node.kubelet;
    let writes = env.server.writes().changes;
    env.server.stop();
    for name in ["a", "b", "c"] {
        kubelet.start_pod(PodSpec::guaranteed(name, 1, GIB)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    env.server.resume();
    env.converges().await;
    assert_eq!(env.server.writes().changes, writes + 1);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_write_blocks_neither_scans_nor_the_shutdown() {
    let env = Environment::start(quick()).await;
    env.converges().await;
    env.server.set_frozen(true);
    let lists = env.node.kubelet.calls().list;
    for name in ["a", "b"] {
        env.node.kubelet.start_pod(PodSpec::guaranteed(name, 1, GIB)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    env.wait_for_lists(lists + 2).await;
    // Stops although a write hangs; the timeout only keeps a failing test from hanging.
    tokio::time::timeout(Duration::from_secs(60), env.stop()).await.unwrap();
}

#[tokio::test]
async fn an_event_storm_respects_the_rate_limit_of_lists() {
    let env = Environment::start(quick()).await;
    env.converges().await;
    let dir = env.node.kubelet.root().to_owned();
    let before = env.node.kubelet.calls().list;
    let lists = || env.node.kubelet.calls().list - before;
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let start = std::time::Instant::now();
    // A busy machine may take longer than a second for the first four Lists.
    while start.elapsed() < second || (lists() < 4 && start.elapsed() < minute) {
        std::fs::write(dir.join(".storm"), "x").unwrap();
        std::fs::rename(dir.join(".storm"), dir.join("memory_manager_state")).unwrap();
        tokio::task::yield_now().await;
    }
    let lists = lists();
    let bound = 10.0_f64.mul_add(start.elapsed().as_secs_f64(), 4.0 + 1.0);
    assert!(lists >= 4 && (lists as f64) <= bound, "{lists} Lists in {:?}", start.elapsed());
}
