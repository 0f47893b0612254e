//! What is published for each `consumer` with the chart's default mounts: the directories of the kubelet's
//! sockets, without its checkpoints.

use std::path::PathBuf;
use std::time::Duration;

use numacast::agent::Settings;
use numacast::config::{Config, Consumer, PodSource};
use numacast::scheduler::FingerprintMethod;
use numacast::topology::NodeExclusions;
use numacast::util::glob::PodPattern;
use numacast_sim::api_server::{PODS, TOPOLOGIES};
use numacast_sim::kubelet::{Call, Fault, PodSpec};
use serde_json::json;

use crate::environment::{Environment, api_server, quick};
use crate::support::{Node, eventually, sample};

const GIB: u64 = 1 << 30;

/// Every consumer.
const CONSUMERS: [Consumer; 4] =
    [Consumer::SchedulerPlugins, Consumer::SchedulerPluginsDirect, Consumer::KaiDirect, Consumer::None];

/// Hides the directories that the chart does not mount, and effectively disables the periodic full scan.
fn with_default_mounts(settings: &mut Settings) {
    settings.kubelet_dir = PathBuf::from("/nowhere");
    settings.poll = Duration::from_secs(3600);
}

async fn start(
    consumer: Consumer,
    configure: impl FnOnce(&mut Config),
    change: impl FnOnce(&mut Settings),
) -> Environment {
    let choose = |config: &mut Config| {
        config.consumer = consumer;
        configure(config);
    };
    let change = |settings: &mut Settings| {
        with_default_mounts(settings);
        change(settings);
    };
    let env = Environment::configured(Node::with(quick()), api_server(), choose, change);
    env.converges().await;
    env
}

async fn start_idle(consumer: Consumer) -> Environment {
    start_idle_with(consumer, |_| {}).await
}

/// As [`start_idle`], with settings that no configuration can express.
async fn start_idle_with(consumer: Consumer, change: impl FnOnce(&mut Settings)) -> Environment {
    let env = start(consumer, |_| {}, change).await;
    idle(&env).await;
    env
}

/// Waits until the kubelet gets no more requests, and returns the number of Lists by then.
async fn idle(env: &Environment) -> u64 {
    let lists = async || {
        let before = env.node.kubelet.calls().list;
        tokio::time::sleep(Duration::from_millis(300)).await;
        (env.node.kubelet.calls().list == before).then_some(before)
    };
    eventually("the kubelet gets no more requests", lists).await
}

/// Returns the object in the API server as JSON.
fn published(env: &Environment) -> String {
    serde_json::to_string(&env.server.topology("worker").unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn allocations_and_releases_are_published_for_every_consumer() {
    for consumer in CONSUMERS {
        let env = start_idle(consumer).await;
        let pod = PodSpec::guaranteed("a", 2, GIB);
        env.put_pod(&pod, "Pending");
        // The kubelet needs some time, and neither a checkpoint nor a poll shows when it has admitted the
        // pod.
        tokio::time::sleep(Duration::from_millis(30)).await;
        env.node.kubelet.start_pod(pod.clone()).await.unwrap();
        env.converges().await;
        env.put_pod(&pod, "Running");
        assert!(env.node.kubelet.stop_pod("default", "a"));
        assert!(env.server.delete(&PODS, "default", "a"));
        env.converges().await;
        env.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lists_are_repeated_until_a_bound_pod_is_listed() {
    for consumer in CONSUMERS {
        let env = start_idle(consumer).await;
        let before = env.node.kubelet.calls().list;
        let pod = PodSpec::guaranteed("a", 2, GIB);
        env.put_pod(&pod, "Pending");
        env.wait_for_lists(before + 3).await;
        env.node.kubelet.start_pod(pod.clone()).await.unwrap();
        env.converges().await;
        let shown = env.node.kubelet.calls().list;
        let after = idle(&env).await;
        assert!(after <= shown + 1, "{consumer:?}: {shown} Lists, then {after}");
        env.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_without_exclusive_resources_cause_no_lists() {
    for consumer in CONSUMERS {
        let env = start_idle(consumer).await;
        let before = env.node.kubelet.calls().list;
        env.put_pod(&PodSpec::new("best-effort"), "Pending");
        assert_eq!(idle(&env).await, before, "{consumer:?}");
        env.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_overreserving_cache_gets_a_fingerprint() {
    for consumer in CONSUMERS {
        let env = start_idle(consumer).await;
        let overreserving = consumer == Consumer::SchedulerPlugins;
        let object = published(&env);
        assert_eq!(object.contains("nodeTopologyPodsFingerprint"), overreserving, "{consumer:?}: {object}");
        let mut changes = env.server.changes();
        let before = env.server.writes().changes;
        env.put_pod(&PodSpec::new("best-effort"), "Pending");
        env.put_pod(&PodSpec::new("best-effort"), "Running");
        let expected = before + u64::from(overreserving);
        let written = || (env.server.writes().changes >= expected).then_some(());
        env.wait_for("the object is written", written).await;
        wait_for_no_writes(&env).await;
        assert_eq!(env.server.writes().changes, expected, "{consumer:?}");
        // No fingerprint is withheld.
        while let Ok(change) = changes.try_recv() {
            let is_withheld = change.object.to_string().contains("0000000000000000");
            assert!(change.kind != &TOPOLOGIES || !is_withheld, "{}", change.object);
        }
        env.stop().await;
    }
}

/// The consumers that read the object directly, without an overreserving cache.
const DIRECT: [Consumer; 2] = [Consumer::SchedulerPluginsDirect, Consumer::KaiDirect];

fn free(env: &Environment) -> [u64; 2] {
    [0, 1].map(|zone| env.available(zone, "cpu"))
}

/// Waits until this number of CPUs is available in each zone.
async fn wait_for_free(env: &Environment, cpus: [u64; 2]) {
    env.wait_for(&format!("{cpus:?} CPUs are available"), || (free(env) == cpus).then_some(())).await;
}

/// Returns the value of one of the agent's metrics.
fn metric(env: &Environment, series: &str) -> Option<String> {
    sample(&env.metrics.encode(), series).map(str::to_owned)
}

fn db(name: &str) -> PodSpec {
    PodSpec::guaranteed(name, 2, GIB)
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_bound_pod_are_reserved_in_every_zone_until_it_is_listed() {
    for consumer in DIRECT {
        let env = start_idle(consumer).await;
        let ([one, other], writes) = (free(&env), env.server.writes().changes);
        let memory = env.available(1, "memory");
        env.put_pod(&db("a"), "Pending");
        wait_for_free(&env, [one - 2, other - 2]).await;
        assert_eq!(env.available(1, "memory"), memory - GIB);
        assert_eq!(metric(&env, r#"numacast_reserved_resources{resource="cpu"}"#).as_deref(), Some("2"));
        env.node.kubelet.start_pod(db("a").on([1])).await.unwrap();
        env.converges().await;
        assert_eq!(free(&env), [one, other - 2]);
        assert_eq!(env.server.writes().changes, writes + 2, "{consumer:?}: the binding and the allocation");
        assert_eq!(metric(&env, r#"numacast_reserved_resources{resource="cpu"}"#), None);
        env.put_pod(&db("a"), "Running");
        assert!(env.node.kubelet.stop_pod("default", "a"));
        assert!(env.server.delete(&PODS, "default", "a"));
        env.converges().await;
        assert_eq!(env.server.writes().changes, writes + 3, "{consumer:?}: the release");
        env.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn reservations_need_no_response_of_the_kubelet() {
    for consumer in DIRECT {
        let env = start_idle(consumer).await;
        let [one, other] = free(&env);
        env.node.kubelet.fail_next(Call::List, 1000, &Fault::Hang);
        // The agent's List for this pod hangs.
        env.put_pod(&db("a"), "Pending");
        wait_for_free(&env, [one - 2, other - 2]).await;
        env.wait_for_lists(env.node.kubelet.calls().list).await;
        env.put_pod(&db("b"), "Pending");
        wait_for_free(&env, [one - 4, other - 4]).await;
        env.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_ends_with_the_deletion_or_rejection_of_its_pod() {
    for consumer in DIRECT {
        let env = start_idle(consumer).await;
        let [one, other] = free(&env);
        env.put_pod(&db("deleted"), "Pending");
        env.put_pod(&db("rejected"), "Pending");
        wait_for_free(&env, [one - 4, other - 4]).await;
        env.put_pod(&db("rejected"), "Failed");
        wait_for_free(&env, [one - 2, other - 2]).await;
        assert!(env.server.delete(&PODS, "default", "deleted"));
        wait_for_free(&env, [one, other]).await;
        // A pod that requests more than the node has: nothing is available until it is deleted.
        env.put_pod(&PodSpec::guaranteed("large", 100, GIB), "Pending");
        wait_for_free(&env, [0, 0]).await;
        assert!(env.server.delete(&PODS, "default", "large"));
        wait_for_free(&env, [one, other]).await;
        env.converges().await;
        env.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_times_out() {
    let env = start_idle_with(Consumer::KaiDirect, |settings| {
        settings.gate.give_up_after = Duration::from_millis(700);
    })
    .await;
    let [one, other] = free(&env);
    env.put_pod(&db("lost"), "Pending");
    wait_for_free(&env, [one - 2, other - 2]).await;
    wait_for_free(&env, [one, other]).await;
    env.wait_for_admission_timeout("default/lost").await;
    assert_eq!(metric(&env, "numacast_pod_admission_timeouts_total").as_deref(), Some("1"));
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_write_after_a_restart_reserves_for_pods_bound_meanwhile() {
    for consumer in DIRECT {
        let env = start_idle(consumer).await;
        let [one, other] = free(&env);
        let env = env.kill_agent().await;
        env.put_pod(&db("a"), "Pending");
        // The kubelet knows the pod but has not allocated anything to it yet.
        env.node.kubelet.add_pod(db("a")).unwrap();
        let mut changes = env.server.changes();
        let choose = |config: &mut Config| config.consumer = consumer;
        let env = env.restart_agent_configured(choose, with_default_mounts);
        wait_for_free(&env, [one - 2, other - 2]).await;
        let mut writes = 0;
        while let Ok(change) = changes.try_recv() {
            writes += usize::from(change.kind == &TOPOLOGIES);
        }
        assert_eq!(writes, 1, "{consumer:?}: no write without the reservation");
        env.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_reserved_for_excluded_pods() {
    let env = start_idle_with(Consumer::KaiDirect, |settings| {
        let pattern = PodPattern { namespace: "default".parse().unwrap(), name: "mine".parse().unwrap() };
        settings.rules.exclude = NodeExclusions { pods: vec![pattern], ..NodeExclusions::default() };
    })
    .await;
    let [one, other] = free(&env);
    env.put_pod(&db("mine"), "Pending");
    env.put_pod(&db("a"), "Pending");
    wait_for_free(&env, [one - 2, other - 2]).await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_reservations_a_binding_causes_no_write() {
    let env = start_idle(Consumer::None).await;
    let writes = env.server.writes().changes;
    env.put_pod(&db("a"), "Pending");
    let lists = env.node.kubelet.calls().list;
    env.wait_for_lists(lists + 3).await;
    assert_eq!(env.server.writes().changes, writes);
    env.node.kubelet.start_pod(db("a")).await.unwrap();
    env.converges().await;
    assert_eq!(env.server.writes().changes, writes + 1);
    env.stop().await;
}

/// Returns the number of writes that a pod causes from its binding to its deletion in the common case: the
/// kubelet admits it soon, it runs for a while, and it is deleted.
async fn writes_per_pod(consumer: Consumer, method: FingerprintMethod, pod: &PodSpec) -> u64 {
    let env = start_idle_with(consumer, |settings| {
        settings.gate.method = method;
        // On a busy machine this kubelet may take longer than a real one.
        settings.gate.withhold_after = Duration::from_secs(1);
    })
    .await;
    let before = env.server.writes().changes;
    env.put_pod(pod, "Pending");
    env.node.kubelet.start_pod(pod.clone()).await.unwrap();
    env.converges().await;
    wait_for_no_writes(&env).await;
    env.put_pod(pod, "Running");
    wait_for_no_writes(&env).await;
    // Its containers terminate, the kubelet releases its resources, then it is removed from the API server.
    let mut terminated = pod.object("worker", "Succeeded");
    terminated["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
    terminated["metadata"]["finalizers"] = json!(["example.com/slow"]);
    env.server.put(&PODS, terminated).unwrap();
    assert!(env.node.kubelet.stop_pod("default", &pod.name));
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert!(env.server.delete(&PODS, "default", &pod.name));
    env.converges().await;
    wait_for_no_writes(&env).await;
    let writes = env.server.writes().changes - before;
    env.stop().await;
    writes
}

/// Waits until there are no more writes.
async fn wait_for_no_writes(env: &Environment) {
    let no_write = async || {
        let before = env.server.writes().changes;
        tokio::time::sleep(Duration::from_millis(600)).await;
        (env.server.writes().changes == before).then_some(())
    };
    eventually("there are no more writes", no_write).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_causes_few_writes() {
    use FingerprintMethod::{All, WithExclusiveResources};
    let [overreserving, direct, kai, none] = CONSUMERS;
    let best_effort = PodSpec::new("best-effort");
    for (consumer, method, pod, expected) in [
        // The allocation, the phase Running, and the release.
        (overreserving, All, db("a"), 2..=3),
        (overreserving, All, best_effort.clone(), 1..=2),
        (overreserving, WithExclusiveResources, db("a"), 2..=3),
        (overreserving, WithExclusiveResources, best_effort.clone(), 0..=0),
        // The binding, the allocation and the release.
        (direct, All, db("a"), 2..=3),
        (direct, All, best_effort.clone(), 0..=0),
        (kai, All, db("a"), 2..=3),
        (kai, All, best_effort.clone(), 0..=0),
        (none, All, db("a"), 2..=2),
        (none, All, best_effort.clone(), 0..=0),
    ] {
        let writes = writes_per_pod(consumer, method, &pod).await;
        // On a busy machine a write may contain two changes.
        assert!(expected.contains(&writes), "{consumer:?}, {method:?}: {}: {writes} writes", pod.name);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_pod_source_allocations_are_found_by_polling() {
    let without_source = |config: &mut Config| config.pods.source = PodSource::None;
    let env = start(Consumer::None, without_source, |_| {}).await;
    let before = env.node.kubelet.calls().list;
    // Nothing happens: only polls send requests.
    env.wait_for_lists(before + 2).await;
    env.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    env.converges().await;
    env.stop().await;
}
