//! The agent's probes over loopback while the kubelet or the API server is down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use numacast::agent::Agent;
use numacast::cluster::Cluster;
use numacast::config::{Config, Endpoint};
use numacast::telemetry::registry::Registry;
use numacast::telemetry::server::{Endpoints, Server};
use numacast_sim::api_server::ApiServer;
use numacast_sim::kubelet::PodSpec;
use tokio::task::JoinHandle;
use tokio::time::{advance, pause, resume, sleep};

use crate::support::{ANY_PORT, Node, get};

const OK: (u16, &str) = (200, "ok\n");

/// A node, an API server, the agent between them, and the server of its probes.
struct Environment {
    node: Node,
    api: ApiServer,
    agent: JoinHandle<()>,
    probes: Server,
}

impl Environment {
    async fn start(with_api_server: bool) -> Self {
        let node = Node::start();
        let api = ApiServer::start_on_any_port(0).await.unwrap();
        api.add_node("worker").unwrap();
        if !with_api_server {
            api.stop();
        }
        let mut config = Config { node_name: "worker".into(), ..Config::default() };
        config.host.root = node.root().to_owned();
        let cluster = Cluster::with_client(api.client().unwrap(), api.url(), Duration::from_millis(500));
        let mut registry = Registry::default();
        let agent = Agent::new(config.agent_settings(), cluster, &mut registry);
        let endpoints = Endpoints { metrics: Some(Arc::new(registry)), health: Some(agent.health()) };
        let probes = Server::start(Endpoint::At(ANY_PORT), endpoints, None).await.unwrap().unwrap();
        Self { node, api, agent: tokio::spawn(agent.run(std::future::pending())), probes }
    }

    fn address(&self) -> SocketAddr {
        self.probes.address()
    }

    /// Returns the status code and the body.
    async fn probe(&self, path: &str) -> (u16, String) {
        let response = get(self.address(), path).await;
        let code = response.split(' ').nth(1).unwrap().parse().unwrap();
        (code, response.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    async fn expect(&self, path: &str, expected: (u16, &str)) {
        let (code, body) = self.probe(path).await;
        assert_eq!((code, body.as_str()), expected, "{path}");
    }

    /// Waits until a probe returns 200.
    async fn wait_until_ok(&self, path: &str) {
        self.wait_for(path, |response| response.starts_with("HTTP/1.1 200 ")).await;
    }

    async fn wait_for(&self, path: &str, condition: impl Fn(&str) -> bool) {
        for _ in 0..1200 {
            assert!(!self.agent.is_finished(), "the agent exited");
            if condition(&get(self.address(), path).await) {
                return;
            }
            // Within the rate of an address.
            sleep(Duration::from_millis(25)).await;
        }
        panic!("{path} stays {:?}", self.probe(path).await);
    }
}

/// Advances the monotonic clock.
async fn advance_clock(seconds: u64) {
    pause();
    advance(Duration::from_secs(seconds)).await;
    resume();
}

#[tokio::test]
async fn the_agent_is_started_and_ready_once_its_object_is_written() {
    let env = Environment::start(false).await;
    let not_scanned = "numacast_last_scan_timestamp_seconds 0\n";
    env.wait_for("/metrics", |response| !response.contains(not_scanned)).await;
    env.expect("/startupz", (503, "nothing was published yet\n")).await;
    env.expect("/readyz", (503, "nothing was published yet\n")).await;
    env.expect("/livez", OK).await;
    env.api.resume();
    env.wait_until_ok("/startupz").await;
    env.wait_until_ok("/readyz").await;
}

#[tokio::test]
async fn without_the_kubelet_the_agent_is_alive_but_not_ready() {
    let env = Environment::start(true).await;
    env.wait_until_ok("/readyz").await;
    env.node.kubelet.stop();
    env.wait_for("/metrics", |response| !response.contains(r#"outcome="failed"} 0"#)).await;
    env.expect("/readyz", OK).await;
    for _ in 0..6 {
        advance_clock(30).await;
        // The loop is alive, since it keeps retrying.
        env.expect("/livez", OK).await;
        let (code, body) = env.probe("/readyz").await;
        assert!(code == 503 && body.starts_with("no scan of the node has succeeded for "), "{code} {body}");
    }
    env.expect("/startupz", OK).await;
    env.node.kubelet.boot().unwrap();
    env.node.kubelet.set_ready(true, true);
    env.node.kubelet.register_plugins();
    env.wait_until_ok("/readyz").await;
}

#[tokio::test]
async fn without_the_api_server_the_agent_is_alive_but_not_ready() {
    for frozen in [false, true] {
        let env = Environment::start(true).await;
        env.wait_until_ok("/readyz").await;
        if frozen {
            env.api.set_frozen(true);
        } else {
            env.api.stop();
        }
        env.node.kubelet.start_pod(PodSpec::guaranteed("a", 1, 1 << 30)).await.unwrap();
        env.wait_for("/metrics", |response| response.contains("numacast_publish_errors_total{")).await;
        // A short failure does not count.
        env.expect("/readyz", OK).await;
        advance_clock(31).await;
        let (code, body) = env.probe("/readyz").await;
        assert!(code == 503 && body.contains("the newest state was not published for "), "{code} {body}");
        env.expect("/livez", OK).await;
        if frozen {
            env.api.set_frozen(false);
        } else {
            env.api.resume();
        }
        env.wait_until_ok("/readyz").await;
    }
}

#[tokio::test]
async fn an_agent_whose_loop_stops_is_not_alive() {
    let env = Environment::start(true).await;
    env.wait_until_ok("/readyz").await;
    env.agent.abort();
    advance_clock(101).await;
    let (code, body) = env.probe("/livez").await;
    assert!(code == 503 && body.starts_with("the main loop has not run for 101 s"), "{code} {body}");
}
