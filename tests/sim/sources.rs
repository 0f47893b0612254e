//! The agent with pod sources other than the API server.

use std::time::Duration;

use numacast::agent::Settings;
use numacast::pod_source::PodSourceKind;
use numacast::scheduler::FingerprintView;
use numacast::sim::api_server::{Fault, Rule};
use numacast::sim::kubelet::{Options, PodSpec};
use numacast::sim::pods_api::SimPodsApi;

use crate::agent::{World, quick, server};
use crate::pods_api::pod;
use crate::support::SimNode;

/// Effectively disables polling.
fn patient(settings: &mut Settings) {
    settings.poll = Duration::from_secs(3600);
    settings.settle = Duration::from_secs(3600);
    settings.gate.view = FingerprintView::Kubelet;
    settings.pods.order = vec![PodSourceKind::ApiServer, PodSourceKind::PodsApi];
}

#[tokio::test]
async fn a_release_shows_when_the_pods_api_says_so_where_the_api_server_does_not() {
    let server = server().await;
    server.inject(Rule { verb: None, resource: Some("pods"), times: None, fault: Fault::Status(403) });
    // The kubelet's checkpoints do not show a release.
    let node = SimNode::with(Options { release_lag: Duration::MAX, ..quick() });
    let directory = node.root().join("var/lib/kubelet/pods-api");
    std::fs::create_dir(&directory).unwrap();
    let api = SimPodsApi::start(directory.join("pods-api.sock")).unwrap();
    api.set(&pod("db"));
    let world = World::with(node, server, patient);
    world.node.kubelet.start_pod(PodSpec::guaranteed("db", 3, 1 << 30)).await.unwrap();
    world.agrees().await;
    // The socket is new, so the kubelet is not trusted for a while. After that, only pod events cause scans.
    while looks(&world).await > 1 {}
    assert!(world.node.kubelet.stop_pod("default", "db"));
    api.remove(&pod("db"));
    world.agrees().await;
    world.stop().await;
}

/// Returns the number of Lists in two seconds.
async fn looks(world: &World) -> u64 {
    let before = world.node.kubelet.calls().list;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.node.kubelet.calls().list - before
}
