//! What each choice of `consumer` and `cache` publishes, in the mounts that the chart makes by default: the directories of
//! the kubelet's sockets, and none with its state files.

use std::path::PathBuf;
use std::time::Duration;

use numacast::agent::Settings;
use numacast::config::{Cache, Config, Consumer, PodSource};
use numacast::sim::api_server::{PODS, TOPOLOGIES};
use numacast::sim::kubelet::PodSpec;
use serde_json::Value;

use crate::agent::{World, quick, server};
use crate::support::SimNode;

const GIB: u64 = 1 << 30;

/// Every choice that a configuration can make.
const CHOICES: [(Consumer, Option<Cache>); 4] = [
    (Consumer::SchedulerPlugins, Some(Cache::OverReserve)),
    (Consumer::SchedulerPlugins, Some(Cache::Direct)),
    (Consumer::Kai, None),
    (Consumer::None, None),
];

/// The agent sees what the chart mounts, and nothing ever happens because time has passed.
fn in_the_charts_mounts(settings: &mut Settings) {
    settings.kubelet_dir = PathBuf::from("/nowhere");
    settings.poll = Duration::from_secs(3600);
}

async fn start((consumer, cache): (Consumer, Option<Cache>), configure: impl FnOnce(&mut Config)) -> World {
    let choose = |config: &mut Config| {
        (config.consumer, config.cache) = (consumer, cache);
        configure(config);
    };
    let world = World::configured(SimNode::with(quick()), server().await, choose, in_the_charts_mounts);
    world.agrees().await;
    world
}

async fn world(choice: (Consumer, Option<Cache>)) -> World {
    let world = start(choice, |_| {}).await;
    quiet(&world).await;
    world
}

/// Waits until nothing is asked of the kubelet any more; the number of Lists by then.
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

/// The object as it is in the API server, in JSON.
fn published(world: &World) -> String {
    serde_json::to_string(&world.server.topology("worker").unwrap()).unwrap()
}

#[tokio::test]
async fn an_allocation_and_a_release_show_at_once_in_every_choice() {
    for choice in CHOICES {
        let world = world(choice).await;
        let pod = PodSpec::guaranteed("a", 2, GIB);
        show(&world, &pod, "Pending");
        // The kubelet takes its time, and no file and no poll tells when it is done.
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
        let overreserving = choice.1 == Some(Cache::OverReserve);
        let object = published(&world);
        assert_eq!(object.contains("nodeTopologyPodsFingerprint"), overreserving, "{choice:?}: {object}");
        let mut changes = world.server.changes();
        let before = world.server.writes().changes;
        show(&world, &PodSpec::new("modest"), "Pending");
        show(&world, &PodSpec::new("modest"), "Running");
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(world.server.writes().changes, before + u64::from(overreserving), "{choice:?}");
        // And nobody's object is held.
        while let Ok(change) = changes.try_recv() {
            let object: &Value = &change.object;
            assert!(change.of != &TOPOLOGIES || !object.to_string().contains("0000000000000000"), "{object}");
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn where_nobody_tells_of_pods_the_poll_looks_for_allocations() {
    let nobody = |config: &mut Config| config.pods.source = Some(PodSource::None);
    let world = start((Consumer::None, None), nobody).await;
    let before = world.node.kubelet.calls().list;
    // Nothing is held, and nothing happens: the poll alone asks.
    world.lists_reach(before + 2).await;
    world.node.kubelet.start_pod(PodSpec::guaranteed("a", 2, GIB)).await.unwrap();
    world.agrees().await;
    world.stop().await;
}
