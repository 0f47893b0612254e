//! The agent's loop against the simulated kubelet and API server, in this process.

use std::time::Duration;

use numacast::agent::{Agent, Settings};
use numacast::cluster::Cluster;
use numacast::config::Config;
use numacast::util::glob::PodPattern;
use numacast::sim::api_server::{ApiServer, Fault, NODES, PODS, TOPOLOGIES};
use numacast::sim::kubelet::{KubeletVersion, Call, ContainerSpec, Options, PodSpec, RestartTiming, Role, Split};
use numacast::telemetry::registry::Registry;
use numacast::topology::Exclude;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::SimNode;

const GIB: u64 = 1 << 30;

/// A node, an API server, and the agent between them.
pub(crate) struct World {
    pub(crate) node: SimNode,
    pub(crate) server: ApiServer,
    pub(crate) metrics: Registry,
    stop: Option<oneshot::Sender<()>>,
    agent: JoinHandle<()>,
}

impl World {
    pub(crate) async fn start(options: Options) -> Self {
        let server = server().await;
        Self::with(SimNode::with(options), server, |_| {})
    }

    pub(crate) fn with(node: SimNode, server: ApiServer, change: impl FnOnce(&mut Settings)) -> Self {
        Self::configured(node, server, |_| {}, change)
    }

    /// Starts an agent with another configuration, and with settings that no configuration can express.
    pub(crate) fn configured(
        node: SimNode,
        server: ApiServer,
        configure: impl FnOnce(&mut Config),
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut config = Config { node_name: "worker".into(), ..Config::default() };
        config.host.root = node.root().to_owned();
        configure(&mut config);
        let mut settings = config.agent_settings();
        change(&mut settings);
        let cluster =
            Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_millis(500));
        let (stop, stopped) = oneshot::channel();
        let mut metrics = Registry::default();
        let agent = Agent::new(settings, cluster, &mut metrics);
        let agent = tokio::spawn(agent.run(async { drop(stopped.await) }));
        Self { node, server, metrics, stop: Some(stop), agent }
    }

    /// Replaces a stopped agent by one with another configuration.
    pub(crate) fn again_configured(
        self,
        configure: impl FnOnce(&mut Config),
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        Self::configured(self.node, self.server, configure, change)
    }

    /// Replaces a stopped agent by another one.
    pub(crate) fn again(self, change: impl FnOnce(&mut Settings)) -> Self {
        Self::with(self.node, self.server, change)
    }

    /// Waits until the object in the API server matches the simulated kubelet's own state.
    pub(crate) async fn agrees(&self) {
        let differences = || match self.server.topology("worker") {
            Some(object) => self.node.kubelet.expected().differences(&object, Split::PerGroup),
            None => vec!["there is no object".to_owned()],
        };
        for _ in 0..3000 {
            assert!(!self.agent.is_finished(), "the agent has ended");
            if differences().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the object does not agree: {:#?}", differences());
    }

    /// Waits until `probe` succeeds.
    pub(crate) async fn until(&self, probe: impl Fn() -> Option<()>) {
        for _ in 0..3000 {
            assert!(!self.agent.is_finished(), "the agent has ended");
            if probe().is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the object stays another: {:#?}", self.server.topology("worker"));
    }

    /// Waits until the kubelet has received `count` Lists.
    pub(crate) async fn lists_reach(&self, count: u64) {
        while self.node.kubelet.calls().list < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn available(&self, zone: usize, resource: &str) -> u64 {
        let object = self.server.topology("worker").unwrap();
        let resources = object.spec.zones[zone].resources.clone().unwrap();
        resources.iter().find(|r| r.name == resource).unwrap().available.ceil()
    }

    /// Stops the agent; the node and the API server keep running.
    pub(crate) async fn halt(mut self) -> Self {
        drop(self.stop.take());
        (&mut self.agent).await.unwrap();
        self
    }

    /// As [`World::halt`], but aborts the agent.
    pub(crate) async fn kill(mut self) -> Self {
        self.agent.abort();
        assert!((&mut self.agent).await.unwrap_err().is_cancelled());
        self
    }

    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        self.agent.await.unwrap();
    }
}

/// Starts an API server that has the Node.
pub(crate) async fn server() -> ApiServer {
    let server = ApiServer::start_on_any_port(0).await.unwrap();
    server.add_node("worker").unwrap();
    server
}

/// Starts an agent with a kubelet that lists terminated pods with what they were allocated, as those before
/// 1.34 do.
pub(crate) async fn with_terminated_pods_listed(options: Options) -> World {
    let server = ApiServer::start_on_any_port(0).await.unwrap();
    let node =
        json!({"metadata": {"name": "worker"}, "status": {"nodeInfo": {"kubeletVersion": "v1.33.13"}}});
    server.put(&NODES, node).unwrap();
    World::with(SimNode::with(Options { age: KubeletVersion::V1_29, ..options }), server, |_| {})
}

#[tokio::test]
async fn pods_that_have_ended_hold_nothing_although_an_old_kubelet_lists_them() {
    // Resources of ended pods stay listed until the next admission, which here never comes.
    let options = Options { release_lag: Duration::from_secs(3600), ..quick() };
    let world = with_terminated_pods_listed(options).await;
    let job = PodSpec::guaranteed("job", 2, GIB).devices("example.com/nic", 1);
    let show = |phase: &str| world.server.put(&PODS, job.object("worker", phase)).unwrap();
    world.node.kubelet.start_pod(job.clone()).await.unwrap();
    show("Running");
    world.agrees().await;
    assert_eq!(world.available(0, "example.com/nic"), 1);
    assert!(world.node.kubelet.terminate_pod("default", "job"));
    show("Succeeded");
    world.agrees().await;
    assert_eq!(world.available(0, "example.com/nic"), 2);
    // Another pod gets the same name.
    assert!(world.server.delete(&PODS, "default", "job"));
    assert!(world.node.kubelet.stop_pod("default", "job"));
    let again = PodSpec { uid: "again".into(), ..job.clone() };
    world.node.kubelet.start_pod(again).await.unwrap();
    show("Running");
    world.agrees().await;
    assert_eq!(world.available(0, "example.com/nic"), 1);
    world.stop().await;
}

#[tokio::test]
async fn a_pod_that_is_allocated_more_and_refused_at_once_holds_nothing() {
    // Resources of ended pods stay listed until the next admission, which here never comes.
    let options = Options { release_lag: Duration::from_secs(3600), ..quick() };
    let world = with_terminated_pods_listed(options).await;
    let pod = PodSpec::guaranteed("refused", 2, GIB).devices("example.com/nic", 1);
    world.agrees().await;
    world.server.put(&PODS, pod.object("worker", "Pending")).unwrap();
    world.node.kubelet.add_pod(pod.clone()).unwrap();
    world.lists_reach(world.node.kubelet.calls().list + 2).await;
    // Between two Lists the pod is allocated its resources, and then rejected.
    world.node.kubelet.admit_pod(&pod.uid).unwrap();
    assert!(world.node.kubelet.terminate_pod("default", "refused"));
    world.server.put(&PODS, pod.object("worker", "Failed")).unwrap();
    world.lists_reach(world.node.kubelet.calls().list + 3).await;
    // The CPU Manager releases CPUs by itself, memory and devices stay.
    world.node.kubelet.reconcile();
    world.agrees().await;
    assert_eq!(world.available(0, "example.com/nic"), 2);
    world.stop().await;
}

/// An old kubelet lists a pod that has ended, and the existing object names devices whose plugin is not
/// running.
#[tokio::test]
async fn a_single_pass_says_what_an_agent_says_that_goes_on() {
    let world = with_terminated_pods_listed(quick()).await;
    let job = PodSpec::guaranteed("job", 2, GIB).devices("example.com/nic", 1);
    world.node.kubelet.start_pod(job.clone()).await.unwrap();
    world.server.put(&PODS, job.object("worker", "Running")).unwrap();
    world.agrees().await;
    world.node.kubelet.terminate_pod("default", "job");
    world.server.put(&PODS, job.object("worker", "Succeeded")).unwrap();
    world.agrees().await;
    let world = world.kill().await;
    let mut object = serde_json::to_value(world.server.topology("worker").unwrap()).unwrap();
    for zone in object["zones"].as_array_mut().unwrap() {
        let gone = json!({"name": "example.com/gone", "capacity": "0", "allocatable": "0", "available": "0"});
        // Resource names are sorted.
        zone["resources"].as_array_mut().unwrap().insert(2, gone);
    }
    world.server.put(&TOPOLOGIES, object).unwrap();
    let goes_on = world.server.topology("worker").unwrap().spec;
    let mut config = Config { node_name: "worker".into(), ..Config::default() };
    config.host.root = world.node.root().to_owned();
    let cluster =
        Cluster::with_client(world.server.client().unwrap(), world.server.url(), Duration::from_secs(5));
    Agent::new(config.agent_settings(), cluster, &mut Registry::default()).run_once().await.unwrap();
    assert_eq!(world.server.topology("worker").unwrap().spec, goes_on);
}

pub(crate) fn quick() -> Options {
    Options { release_lag: Duration::from_millis(20), limited: false, ..Options::default() }
}

#[tokio::test]
async fn pods_come_and_go_and_the_object_follows() {
    let world = World::start(quick()).await;
    world.agrees().await;
    let kubelet = &world.node.kubelet;
    kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB).devices("example.com/nic", 1)).await.unwrap();
    world.agrees().await;
    kubelet.start_pod(PodSpec::guaranteed("b", 4, GIB).hugepages("hugepages-2Mi", 64 << 20)).await.unwrap();
    world.agrees().await;
    assert!(kubelet.stop_pod("default", "a"));
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn of_two_pods_that_look_alike_the_one_that_left_holds_nothing() {
    let (node, server) = (SimNode::with(quick()), server().await);
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
    world.agrees().await;
    // Triggers a List that is read with the pods known.
    world.node.kubelet.start_pod(PodSpec::guaranteed("other", 1, GIB)).await.unwrap();
    world.agrees().await;
    assert!(world.server.delete(&PODS, "default", "large"));
    assert!(world.node.kubelet.stop_pod("default", "large"));
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn a_start_reads_the_inventory_once() {
    let server = server().await;
    let world =
        World::with(SimNode::with(quick()), server, |settings| settings.poll = Duration::from_secs(3600));
    world.agrees().await;
    // A visible change marks the end: everything that the start caused was requested before it.
    world.node.kubelet.start_pod(PodSpec::guaranteed("a", 1, GIB)).await.unwrap();
    world.agrees().await;
    // A kubelet that has just started, as this one, is queried again once the pods are known.
    let asked = world.node.kubelet.calls().allocatable;
    assert!((1..=2).contains(&asked), "{asked} times");
}

#[tokio::test]
async fn the_node_owns_the_object() {
    let server = ApiServer::start_on_any_port(0).await.unwrap();
    let uid = server.add_node("worker").unwrap();
    let world = World::with(SimNode::with(quick()), server, |_| {});
    world.agrees().await;
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
async fn an_excluded_pod_and_an_excluded_resource_leave_no_trace() {
    let server = server().await;
    let world = World::with(SimNode::with(quick()), server, |settings| {
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
    world.until(only_nics_differ).await;
    let free = |resource| (0..2).map(|zone| world.available(zone, resource)).sum::<u64>();
    let (cpus, writes) = (free("cpu"), world.server.writes().changes);
    kubelet.start_pod(dns("dns-2")).await.unwrap();
    assert!(kubelet.stop_pod("infra", "dns-1"));
    // A pod that matches no pattern marks the end: everything that the others caused was written before.
    kubelet.start_pod(dns("cache").devices("example.com/nic", 1)).await.unwrap();
    world.until(|| (free("cpu") == cpus - 2).then_some(())).await;
    assert_eq!(world.server.writes().changes, writes + 1, "excluded pods come and go unseen");
    world.stop().await;
}

#[tokio::test]
async fn a_scan_without_a_change_sends_nothing() {
    let node = SimNode::with(quick());
    let server = server().await;
    let world = World::with(node, server, |settings| settings.poll = Duration::from_millis(20));
    world.agrees().await;
    let (writes, lists) = (world.server.writes().requests, world.node.kubelet.calls().list);
    world.lists_reach(lists + 10).await;
    assert_eq!(world.server.writes().requests, writes);
}

#[tokio::test]
async fn a_restarted_kubelet_never_makes_the_node_look_free() {
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
    world.agrees().await;
    let free: u64 = (0..2).map(|zone| world.available(zone, "cpu")).sum();
    let writes = world.server.writes().changes;
    kubelet.restart().await.unwrap();
    // A new pod marks the end: everything that the restart caused was written before.
    kubelet.start_pod(PodSpec::guaranteed("c", 1, GIB)).await.unwrap();
    world.agrees().await;
    let after: u64 = (0..2).map(|zone| world.available(zone, "cpu")).sum();
    assert_eq!(after, free - 1);
    assert_eq!(world.server.writes().changes, writes + 1, "the restart itself changed nothing");
}

#[tokio::test]
async fn a_kubelet_that_does_not_finish_its_start_is_never_believed() {
    let node = SimNode::with(quick());
    let server = server().await;
    // The start takes many times longer than the agent waits for missing pods.
    let world = World::with(node, server, |settings| settings.settle = Duration::from_millis(20));
    let kubelet = &world.node.kubelet;
    kubelet.start_pod(PodSpec::guaranteed("a", 3, GIB)).await.unwrap();
    world.agrees().await;
    let writes = world.server.writes().changes;
    let free = |zone| (world.available(zone, "cpu"), world.available(zone, "memory"));
    let before = [free(0), free(1)];
    kubelet.stop();
    kubelet.boot().unwrap();
    kubelet.set_ready(false, false);
    let lists = kubelet.calls().list;
    world.lists_reach(lists + 5).await;
    for (zone, was) in before.into_iter().enumerate() {
        let now = free(zone);
        assert!(now.0 <= was.0 && now.1 <= was.1, "zone {zone} looks freer: {was:?} -> {now:?}");
    }
    kubelet.set_ready(true, true);
    world.agrees().await;
    // At first nothing is offered, then pods return, then everything else.
    assert!(world.server.writes().changes <= writes + 3);
}

#[tokio::test]
async fn an_event_during_a_failed_list_is_not_forgotten() {
    let world = World::start(quick()).await;
    world.agrees().await;
    let kubelet = &world.node.kubelet;
    let limited = numacast::sim::kubelet::Fault::Status(
        tonic::Code::ResourceExhausted,
        "rejected by rate limit".into(),
    );
    kubelet.fail_next(Call::List, 1, &limited);
    assert!(kubelet.set_device_health("example.com/nic", "nic-0", false));
    world.agrees().await;
}

#[tokio::test]
async fn a_failed_list_leaves_the_last_good_object() {
    let world = World::start(quick()).await;
    let kubelet = &world.node.kubelet;
    kubelet.start_pod(PodSpec::guaranteed("a", 3, GIB)).await.unwrap();
    world.agrees().await;
    let writes = world.server.writes().changes;
    let limited = numacast::sim::kubelet::Fault::Status(
        tonic::Code::ResourceExhausted,
        "rejected by rate limit".into(),
    );
    kubelet.fail_next(Call::List, 3, &limited);
    kubelet.start_pod(PodSpec::guaranteed("b", 1, GIB)).await.unwrap();
    world.agrees().await;
    assert_eq!(world.server.writes().changes, writes + 1);
}

#[tokio::test]
async fn when_the_api_server_is_back_only_the_newest_account_goes_out() {
    let world = World::start(quick()).await;
    world.agrees().await;
    let kubelet = &world.node.kubelet;
    let writes = world.server.writes().changes;
    world.server.stop();
    for name in ["a", "b", "c"] {
        kubelet.start_pod(PodSpec::guaranteed(name, 1, GIB)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.server.resume().await.unwrap();
    world.agrees().await;
    assert_eq!(world.server.writes().changes, writes + 1);
}

#[tokio::test]
async fn a_frozen_write_does_not_stop_the_scans_nor_the_end() {
    let world = World::start(quick()).await;
    world.agrees().await;
    world.server.set_frozen(true);
    let lists = world.node.kubelet.calls().list;
    for name in ["a", "b"] {
        world.node.kubelet.start_pod(PodSpec::guaranteed(name, 1, GIB)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.lists_reach(lists + 2).await;
    // Stops although a write hangs; the timeout only keeps a failing test from hanging.
    tokio::time::timeout(Duration::from_secs(60), world.stop()).await.unwrap();
}

#[tokio::test]
async fn refused_writes_are_tried_again_with_what_is_true_by_then() {
    let world = World::start(quick()).await;
    world.agrees().await;
    let faults = [
        Fault::Status(500),
        Fault::Status(503),
        Fault::TooManyRequests { retry_after: 1 },
        Fault::Cut,
        Fault::CutAfterwards,
    ];
    for (index, fault) in faults.into_iter().enumerate() {
        world.server.fail_next("patch", TOPOLOGIES.plural, 1, fault);
        world.node.kubelet.start_pod(PodSpec::guaranteed(&format!("p{index}"), 1, GIB)).await.unwrap();
        world.agrees().await;
    }
}

#[tokio::test]
async fn an_event_storm_respects_the_list_budget() {
    let world = World::start(quick()).await;
    world.agrees().await;
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
