//! The agent's probes over loopback while the kubelet or the API server is down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use numacast::agent::Agent;
use numacast::cluster::Cluster;
use numacast::config::{Config, Endpoint};
use numacast::sim::api_server::ApiServer;
use numacast::sim::kubelet::PodSpec;
use numacast::telemetry::health::{All, Probes};
use numacast::telemetry::registry::Registry;
use numacast::telemetry::server::{Endpoints, Server};
use tokio::task::JoinHandle;
use tokio::time::{advance, pause, resume, sleep};

use crate::support::{ANYWHERE, SimNode, get};

const OK: (u16, &str) = (200, "ok\n");

/// A node, an API server, the agent between them, and the server of its probes.
struct World {
    node: SimNode,
    api: ApiServer,
    agent: JoinHandle<()>,
    probes: Server,
}

impl World {
    async fn start(api_is_up: bool) -> Self {
        let node = SimNode::start();
        let api = ApiServer::start_on_any_port(0).await.unwrap();
        api.add_node("worker").unwrap();
        if !api_is_up {
            api.stop();
        }
        let mut config = Config { node_name: "worker".into(), ..Config::default() };
        config.host.root = node.root().to_owned();
        let cluster = Cluster::with_client(api.client().unwrap(), api.url(), Duration::from_millis(500));
        let mut registry = Registry::default();
        let agent = Agent::new(config.agent_settings(), cluster, &mut registry);
        let endpoints = Endpoints { metrics: Some(Arc::new(registry)), health: Some(agent.health()) };
        let probes = Server::start(Endpoint::At(ANYWHERE), endpoints, None).await.unwrap().unwrap();
        Self { node, api, agent: tokio::spawn(agent.run(std::future::pending())), probes }
    }

    fn address(&self) -> SocketAddr {
        self.probes.address()
    }

    /// Returns the status code and the body.
    async fn probe(&self, path: &str) -> (u16, String) {
        let answer = get(self.address(), path).await;
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (code, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    async fn is(&self, path: &str, expected: (u16, &str)) {
        let (code, body) = self.probe(path).await;
        assert_eq!((code, body.as_str()), expected, "{path}");
    }

    /// Waits until a probe returns 200.
    async fn until_ok(&self, path: &str) {
        self.until(path, |answer| answer.starts_with("HTTP/1.1 200 ")).await;
    }

    async fn until(&self, path: &str, wanted: impl Fn(&str) -> bool) {
        for _ in 0..1200 {
            assert!(!self.agent.is_finished(), "the agent has ended");
            if wanted(&get(self.address(), path).await) {
                return;
            }
            // Within the rate of an address.
            sleep(Duration::from_millis(25)).await;
        }
        panic!("{path} stays {:?}", self.probe(path).await);
    }
}

/// Advances the monotonic clock.
async fn later(seconds: u64) {
    pause();
    advance(Duration::from_secs(seconds)).await;
    resume();
}

#[tokio::test]
async fn started_and_ready_only_when_the_object_is_there() {
    let world = World::start(false).await;
    world.until("/metrics", |answer| !answer.contains("numacast_last_scan_timestamp_seconds 0\n")).await;
    world.is("/startupz", (503, "nothing was published yet\n")).await;
    world.is("/readyz", (503, "nothing was published yet\n")).await;
    world.is("/livez", OK).await;
    world.api.resume().await.unwrap();
    world.until_ok("/startupz").await;
    world.until_ok("/readyz").await;
}

#[tokio::test]
async fn a_kubelet_that_is_away_makes_it_unready_but_not_dead() {
    let world = World::start(true).await;
    world.until_ok("/readyz").await;
    world.node.kubelet.stop();
    world.until("/metrics", |answer| !answer.contains(r#"outcome="failed"} 0"#)).await;
    world.is("/readyz", OK).await;
    for _ in 0..6 {
        later(30).await;
        // The loop is alive, since it keeps retrying.
        world.is("/livez", OK).await;
        let (code, body) = world.probe("/readyz").await;
        assert!(code == 503 && body.starts_with("no scan of the node has succeeded for "), "{code} {body}");
    }
    world.is("/startupz", OK).await;
    world.node.kubelet.boot().unwrap();
    world.node.kubelet.set_ready(true, true);
    world.node.kubelet.register_plugins();
    world.until_ok("/readyz").await;
}

#[tokio::test]
async fn an_api_server_that_takes_nothing_makes_it_unready_but_not_dead() {
    for frozen in [false, true] {
        let world = World::start(true).await;
        world.until_ok("/readyz").await;
        if frozen {
            world.api.set_frozen(true);
        } else {
            world.api.stop();
        }
        world.node.kubelet.start_pod(PodSpec::guaranteed("a", 1, 1 << 30)).await.unwrap();
        world.until("/metrics", |answer| answer.contains("numacast_publish_errors_total{")).await;
        // Still ready: a short failure needs no attention.
        world.is("/readyz", OK).await;
        later(31).await;
        let (code, body) = world.probe("/readyz").await;
        assert!(code == 503 && body.contains("the newest state was not published for "), "{code} {body}");
        world.is("/livez", OK).await;
        if frozen {
            world.api.set_frozen(false);
        } else {
            world.api.resume().await.unwrap();
        }
        world.until_ok("/readyz").await;
    }
}

#[tokio::test]
async fn a_loop_that_stands_still_is_dead() {
    let world = World::start(true).await;
    world.until_ok("/readyz").await;
    world.agent.abort();
    later(101).await;
    let (code, body) = world.probe("/livez").await;
    assert!(code == 503 && body.starts_with("the main loop has not run for 101 s"), "{code} {body}");
}

#[tokio::test]
async fn each_address_has_its_own_paths() {
    let health: Option<Arc<dyn Probes>> = Some(Arc::new(All(Vec::new())));
    let server = Server::start(Endpoint::At(ANYWHERE), Endpoints { metrics: None, health }, None)
        .await
        .unwrap()
        .unwrap();
    let answer = get(server.address(), "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nthere is only /livez, /readyz and /startupz\n"), "{answer}");
}
