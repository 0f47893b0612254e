//! What each choice of `consumer` publishes with the chart's default mounts: the directories of
//! the kubelet's sockets, without its checkpoints.

use std::path::PathBuf;
use std::time::Duration;

use numacast::agent::Settings;
use numacast::config::{Config, Consumer, PodSource};
use numacast::scheduler::FingerprintMethod;
use numacast::sim::api_server::{EVENTS, PODS, TOPOLOGIES};
use numacast::sim::kubelet::{Call, Fault, PodSpec};
use numacast::topology::Exclude;
use numacast::util::glob::PodPattern;
use serde_json::{Value, json};

use crate::agent::{World, quick, server};
use crate::support::SimNode;

const GIB: u64 = 1 << 30;

/// Every consumer.
const CHOICES: [Consumer; 4] =
    [Consumer::SchedulerPlugins, Consumer::SchedulerPluginsDirect, Consumer::Kai, Consumer::None];

/// Hides the directories that the chart does not mount, and disables polling.
fn in_the_charts_mounts(settings: &mut Settings) {
    settings.kubelet_dir = PathBuf::from("/nowhere");
    settings.poll = Duration::from_secs(3600);
}

async fn start(
    consumer: Consumer,
    configure: impl FnOnce(&mut Config),
    change: impl FnOnce(&mut Settings),
) -> World {
    let choose = |config: &mut Config| {
        config.consumer = consumer;
        configure(config);
    };
    let change = |settings: &mut Settings| {
        in_the_charts_mounts(settings);
        change(settings);
    };
    let world = World::configured(SimNode::with(quick()), server().await, choose, change);
    world.agrees().await;
    world
}

async fn world(choice: Consumer) -> World {
    world_with(choice, |_| {}).await
}

/// As [`world`], with settings that no configuration can express.
async fn world_with(choice: Consumer, change: impl FnOnce(&mut Settings)) -> World {
    let world = start(choice, |_| {}, change).await;
    quiet(&world).await;
    world
}

/// Waits until the kubelet gets no more requests, and returns the number of Lists by then.
async fn quiet(world: &World) -> u64 {
    loop {
        let before = world.node.kubelet.calls().list;
        tokio::time::sleep(Duration::from_millis(300)).await;
        if world.node.kubelet.calls().list == before {
            return before;
        }
    }
}

fn show(world: &World, pod: &PodSpec, phase: &str) {
    world.server.put(&PODS, pod.object("worker", phase)).unwrap();
}

/// Returns the object in the API server as JSON.
fn published(world: &World) -> String {
    serde_json::to_string(&world.server.topology("worker").unwrap()).unwrap()
}

#[tokio::test]
async fn an_allocation_and_a_release_show_at_once_in_every_choice() {
    for choice in CHOICES {
        let world = world(choice).await;
        let pod = PodSpec::guaranteed("a", 2, GIB);
        show(&world, &pod, "Pending");
        // The kubelet needs some time, and neither a checkpoint nor a poll shows when it is done.
        tokio::time::sleep(Duration::from_millis(30)).await;
        world.node.kubelet.start_pod(pod.clone()).await.unwrap();
        world.agrees().await;
        show(&world, &pod, "Running");
        assert!(world.node.kubelet.stop_pod("default", "a"));
        assert!(world.server.delete(&PODS, "default", "a"));
        world.agrees().await;
        world.stop().await;
    }
}

#[tokio::test]
async fn a_bound_pod_is_looked_for_until_the_list_shows_it_and_no_longer() {
    for choice in CHOICES {
        let world = world(choice).await;
        let before = world.node.kubelet.calls().list;
        let pod = PodSpec::guaranteed("a", 2, GIB);
        show(&world, &pod, "Pending");
        world.lists_reach(before + 3).await;
        world.node.kubelet.start_pod(pod.clone()).await.unwrap();
        world.agrees().await;
        let shown = world.node.kubelet.calls().list;
        let after = quiet(&world).await;
        assert!(after <= shown + 1, "{choice:?}: {shown} Lists, and {after} when nothing was left to find");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_pod_that_holds_nothing_alone_is_not_looked_for() {
    for choice in CHOICES {
        let world = world(choice).await;
        let before = world.node.kubelet.calls().list;
        show(&world, &PodSpec::new("modest"), "Pending");
        assert_eq!(quiet(&world).await, before, "{choice:?}");
        world.stop().await;
    }
}

#[tokio::test]
async fn only_the_overreserving_cache_is_told_of_pods() {
    for choice in CHOICES {
        let world = world(choice).await;
        let overreserving = choice == Consumer::SchedulerPlugins;
        let object = published(&world);
        assert_eq!(object.contains("nodeTopologyPodsFingerprint"), overreserving, "{choice:?}: {object}");
        let mut changes = world.server.changes();
        let before = world.server.writes().changes;
        show(&world, &PodSpec::new("modest"), "Pending");
        show(&world, &PodSpec::new("modest"), "Running");
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(world.server.writes().changes, before + u64::from(overreserving), "{choice:?}");
        // And no fingerprint is withheld.
        while let Ok(change) = changes.try_recv() {
            let object: &Value = &change.object;
            assert!(change.kind != &TOPOLOGIES || !object.to_string().contains("0000000000000000"), "{object}");
        }
        world.stop().await;
    }
}

/// The choices whose consumer reads the object directly, without an overreserving cache.
const DIRECT: [Consumer; 2] = [Consumer::SchedulerPluginsDirect, Consumer::Kai];

fn free(world: &World) -> [u64; 2] {
    [0, 1].map(|zone| world.available(zone, "cpu"))
}

/// Waits until this number of CPUs is available in each zone.
async fn frees(world: &World, cpus: [u64; 2]) {
    world.until(|| (free(world) == cpus).then_some(())).await;
}

/// Returns the value of one of the agent's metrics.
fn metric(world: &World, series: &str) -> Option<String> {
    let text = world.metrics.encode();
    text.lines().find_map(|line| Some(line.strip_prefix(series)?.strip_prefix(' ')?.to_owned()))
}

fn db(name: &str) -> PodSpec {
    PodSpec::guaranteed(name, 2, GIB)
}

#[tokio::test]
async fn what_a_bound_pod_asks_for_is_taken_from_every_zone_until_the_list_shows_it() {
    for choice in DIRECT {
        let world = world(choice).await;
        let ([one, other], writes) = (free(&world), world.server.writes().changes);
        let memory = world.available(1, "memory");
        show(&world, &db("a"), "Pending");
        frees(&world, [one - 2, other - 2]).await;
        assert_eq!(world.available(1, "memory"), memory - GIB);
        assert_eq!(metric(&world, r#"numacast_reserved_resources{resource="cpu"}"#).as_deref(), Some("2"));
        world.node.kubelet.start_pod(db("a").on([1])).await.unwrap();
        world.agrees().await;
        assert_eq!(free(&world), [one, other - 2]);
        assert_eq!(world.server.writes().changes, writes + 2, "{choice:?}: the binding, and the account");
        assert_eq!(metric(&world, r#"numacast_reserved_resources{resource="cpu"}"#), None);
        show(&world, &db("a"), "Running");
        assert!(world.node.kubelet.stop_pod("default", "a"));
        assert!(world.server.delete(&PODS, "default", "a"));
        world.agrees().await;
        assert_eq!(world.server.writes().changes, writes + 3, "{choice:?}: the release");
        world.stop().await;
    }
}

#[tokio::test]
async fn a_reservation_needs_no_answer_of_the_kubelet() {
    for choice in DIRECT {
        let world = world(choice).await;
        let [one, other] = free(&world);
        world.node.kubelet.fail_next(Call::List, 1000, &Fault::Hang);
        // The agent's List for this pod hangs.
        show(&world, &db("a"), "Pending");
        frees(&world, [one - 2, other - 2]).await;
        world.lists_reach(world.node.kubelet.calls().list).await;
        show(&world, &db("b"), "Pending");
        frees(&world, [one - 4, other - 4]).await;
        world.stop().await;
    }
}

#[tokio::test]
async fn a_reservation_goes_with_the_pod_and_with_its_refusal() {
    for choice in DIRECT {
        let world = world(choice).await;
        let [one, other] = free(&world);
        show(&world, &db("deleted"), "Pending");
        show(&world, &db("refused"), "Pending");
        frees(&world, [one - 4, other - 4]).await;
        show(&world, &db("refused"), "Failed");
        frees(&world, [one - 2, other - 2]).await;
        assert!(world.server.delete(&PODS, "default", "deleted"));
        frees(&world, [one, other]).await;
        // More than the node has: nothing is available, and all of it returns afterwards.
        show(&world, &PodSpec::guaranteed("large", 100, GIB), "Pending");
        frees(&world, [0, 0]).await;
        assert!(world.server.delete(&PODS, "default", "large"));
        frees(&world, [one, other]).await;
        world.agrees().await;
        world.stop().await;
    }
}

#[tokio::test]
async fn nothing_is_reserved_for_a_pod_for_ever() {
    let world = world_with(Consumer::Kai, |settings| {
        settings.gate.give_up_after = Duration::from_millis(700);
    })
    .await;
    let [one, other] = free(&world);
    show(&world, &db("lost"), "Pending");
    frees(&world, [one - 2, other - 2]).await;
    frees(&world, [one, other]).await;
    let told = || {
        let events = world.server.list(&EVENTS, "default");
        let lost = |event: &Value| {
            event["reason"] == "PodAdmissionTimeout" && event["note"].to_string().contains("default/lost")
        };
        events.iter().any(|event| lost(event)).then_some(())
    };
    world.until(told).await;
    assert_eq!(metric(&world, "numacast_pod_admission_timeouts_total").as_deref(), Some("1"));
    world.stop().await;
}

#[tokio::test]
async fn what_was_bound_while_the_agent_was_away_is_reserved_with_the_first_write() {
    for choice in DIRECT {
        let world = world(choice).await;
        let [one, other] = free(&world);
        let world = world.kill().await;
        show(&world, &db("a"), "Pending");
        // The kubelet knows the pod but has not allocated anything to it yet.
        world.node.kubelet.add_pod(db("a")).unwrap();
        let mut changes = world.server.changes();
        let choose = |config: &mut Config| config.consumer = choice;
        let world = world.again_configured(choose, in_the_charts_mounts);
        frees(&world, [one - 2, other - 2]).await;
        let mut writes = 0;
        while let Ok(change) = changes.try_recv() {
            writes += usize::from(change.kind == &TOPOLOGIES);
        }
        assert_eq!(writes, 1, "{choice:?}: none without it");
        world.stop().await;
    }
}

#[tokio::test]
async fn nothing_is_reserved_for_pods_whose_resources_are_to_look_free() {
    let world = world_with(Consumer::Kai, |settings| {
        let mine = PodPattern { namespace: "default".parse().unwrap(), name: "mine".parse().unwrap() };
        settings.rules.exclude = Exclude { pods: vec![mine], ..Exclude::default() };
    })
    .await;
    let [one, other] = free(&world);
    show(&world, &db("mine"), "Pending");
    show(&world, &db("a"), "Pending");
    frees(&world, [one - 2, other - 2]).await;
    world.stop().await;
}

#[tokio::test]
async fn without_reservations_a_binding_is_no_write() {
    let world = world(Consumer::None).await;
    let writes = world.server.writes().changes;
    show(&world, &db("a"), "Pending");
    let lists = world.node.kubelet.calls().list;
    world.lists_reach(lists + 3).await;
    assert_eq!(world.server.writes().changes, writes);
    world.node.kubelet.start_pod(db("a")).await.unwrap();
    world.agrees().await;
    assert_eq!(world.server.writes().changes, writes + 1);
    world.stop().await;
}

/// The pods that the fingerprint covers.
#[derive(Clone, Copy, Debug)]
enum Counted {
    All,
    Exclusive,
}

/// Returns the number of writes that a pod causes from its binding to its end in the common case: the kubelet
/// admits it soon, it runs for a while, and it is deleted.
async fn writes_in_a_life(choice: Consumer, counted: Counted, pod: &PodSpec) -> u64 {
    let world = world_with(choice, |settings| {
        if let Counted::Exclusive = counted {
            settings.gate.method = FingerprintMethod::WithExclusiveResources;
        }
        // On a busy machine this kubelet may take longer than a real one.
        settings.gate.withhold_after = Duration::from_secs(1);
    })
    .await;
    let before = world.server.writes().changes;
    show(&world, pod, "Pending");
    world.node.kubelet.start_pod(pod.clone()).await.unwrap();
    world.agrees().await;
    settled(&world).await;
    show(&world, pod, "Running");
    settled(&world).await;
    // Its containers end, the kubelet releases its resources, then it is removed from the API server.
    let mut ended = pod.object("worker", "Succeeded");
    ended["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
    ended["metadata"]["finalizers"] = json!(["example.com/slow"]);
    world.server.put(&PODS, ended).unwrap();
    assert!(world.node.kubelet.stop_pod("default", &pod.name));
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert!(world.server.delete(&PODS, "default", &pod.name));
    world.agrees().await;
    settled(&world).await;
    let writes = world.server.writes().changes - before;
    world.stop().await;
    writes
}

/// Waits until there are no more writes.
async fn settled(world: &World) {
    loop {
        let before = world.server.writes().changes;
        tokio::time::sleep(Duration::from_millis(600)).await;
        if world.server.writes().changes == before {
            return;
        }
    }
}

#[tokio::test]
async fn the_life_of_a_pod_costs_few_writes() {
    let [overreserving, direct, kai, none] = CHOICES;
    let modest = PodSpec::new("modest");
    for (choice, counted, pod, most) in [
        // The allocation, the phase Running, and the end.
        (overreserving, Counted::All, db("a"), 3),
        (overreserving, Counted::All, modest.clone(), 2),
        (overreserving, Counted::Exclusive, db("a"), 3),
        (overreserving, Counted::Exclusive, modest.clone(), 0),
        // The binding, the allocation and the release.
        (direct, Counted::All, db("a"), 3),
        (direct, Counted::All, modest.clone(), 0),
        (kai, Counted::All, db("a"), 3),
        (kai, Counted::All, modest.clone(), 0),
        (none, Counted::All, db("a"), 2),
        (none, Counted::All, modest.clone(), 0),
    ] {
        assert_eq!(
            writes_in_a_life(choice, counted, &pod).await,
            most,
            "{choice:?}, {counted:?}: {}",
            pod.name
        );
    }
}

#[tokio::test]
async fn what_only_says_that_pods_agree_goes_out_with_what_changes_a_zone() {
    let world = world(Consumer::SchedulerPlugins).await;
    let before = world.server.writes().changes;
    for number in 0..20 {
        show(&world, &PodSpec::new(&format!("modest-{number}")), "Running");
    }
    settled(&world).await;
    let joined = world.server.writes().changes - before;
    assert!(joined < 20, "{joined} writes for 20 pods that started together");
    world.stop().await;
}

#[tokio::test]
async fn where_nobody_tells_of_pods_the_poll_looks_for_allocations() {
    let nobody = |config: &mut Config| config.pods.source = PodSource::None;
    let world = start(Consumer::None, nobody, |_| {}).await;
    let before = world.node.kubelet.calls().list;
    // No fingerprint is withheld and nothing happens: only the poll sends requests.
    world.lists_reach(before + 2).await;
    world.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    world.agrees().await;
    world.stop().await;
}
