//! The agent's probes over loopback while the kubelet or the API server is down.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use numacast::agent::{Agent, ConfigSource, FileReplaced, Settings};
use numacast::cluster::Cluster;
use numacast::config::{Config, Consumer, Endpoint};
use numacast::telemetry::registry::Registry;
use numacast::telemetry::server::{Endpoints, Server};
use numacast_sim::api_server::ApiServer;
use numacast_sim::kubelet::PodSpec;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{advance, pause, resume, sleep};

use crate::support::{ANY_PORT, Node, get};

const OK: (u16, &str) = (200, "ok\n");

/// A node, an API server, the agent between them, and the server of its probes.
struct Environment {
    node: Node,
    api: ApiServer,
    agent: JoinHandle<Result<(), FileReplaced>>,
    probes: Server,
}

impl Environment {
    async fn start(with_api_server: bool) -> Self {
        Self::configured(with_api_server, |_, _| {}).await
    }

    /// Starts an agent with a changed configuration; without an object, it waits for policies for a short time.
    async fn configured(with_api_server: bool, configure: impl FnOnce(&mut Config, &Node)) -> Self {
        let node = Node::start();
        let api = ApiServer::start_on_any_port(0).await.unwrap();
        api.add_node("worker").unwrap();
        if !with_api_server {
            api.stop();
        }
        let mut config = Config { node_name: "worker".into(), ..Config::default() };
        config.host.root = node.root().to_owned();
        configure(&mut config, &node);
        let cluster = Cluster::with_client(api.client().unwrap(), api.url(), Duration::from_millis(500));
        let mut registry = Registry::default();
        let settings = Settings { restart_wait: Duration::from_millis(100), ..config.agent_settings() };
        let agent = Agent::new(settings, cluster, &mut registry);
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
    // ResourceClaims cannot be read, so that no scan succeeds.
    env.wait_for("/metrics", |response| !response.contains(r#"outcome="failed"} 0"#)).await;
    env.expect("/startupz", (503, "nothing was published yet\n")).await;
    let reasons = "no scan of the node has succeeded yet\nnothing was published yet\n";
    env.expect("/readyz", (503, reasons)).await;
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

const NO_POLICIES: &str =
    "the kubelet's policies are unknown, so the object has none and schedulers ignore its zones: ";

#[tokio::test]
async fn without_policies_that_a_scheduler_needs_the_agent_is_not_ready() {
    let file = |node: &Node| node.root().join("kubelet.yaml");
    let env =
        Environment::configured(true, |config, node| config.kubelet.config_file = Some(file(node))).await;
    // It is written without them, and that is the only thing that is wrong.
    env.wait_until_ok("/startupz").await;
    let cause = "cannot read the kubelet's configuration ";
    let is_only_reason =
        |body: &str| body.starts_with(NO_POLICIES) && body.contains(cause) && body.lines().count() == 1;
    env.wait_for("/readyz", |response| {
        response.starts_with("HTTP/1.1 503 ") && is_only_reason(response.split_once("\r\n\r\n").unwrap().1)
    })
    .await;
    env.expect("/livez", OK).await;
    std::fs::write(file(&env.node), "topologyManagerPolicy: restricted\n").unwrap();
    env.wait_until_ok("/readyz").await;
    // They stay known to a kubelet whose file is gone.
    std::fs::remove_file(file(&env.node)).unwrap();
    env.node.kubelet.stop();
    env.node.kubelet.boot().unwrap();
    env.node.kubelet.set_ready(true, true);
    env.node.kubelet.register_plugins();
    let unreadable = "numacast_findings{kind=\"unreadable\"} 1\n";
    env.wait_for("/metrics", |response| response.contains(unreadable)).await;
    env.expect("/readyz", OK).await;
}

#[tokio::test]
async fn without_a_source_of_policies_the_agent_is_ready_if_none_are_needed_or_they_are_given() {
    let none = |config: &mut Config| config.kubelet.config_source = ConfigSource::None;
    let env = Environment::configured(true, |config, _| none(config)).await;
    env.wait_until_ok("/startupz").await;
    let (code, body) = env.probe("/readyz").await;
    let cause = "`kubelet.configSource` is `none`, and `kubelet.configOverrides` does not set the policies\n";
    assert!(code == 503 && body.starts_with(NO_POLICIES) && body.ends_with(cause), "{code} {body}");
    let given = json!({"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"});
    let env = Environment::configured(true, |config, _| {
        none(config);
        config.kubelet.config_overrides = serde_json::from_value(given).unwrap();
    })
    .await;
    env.wait_until_ok("/readyz").await;
    let env = Environment::configured(true, |config, _| {
        none(config);
        config.consumer = Consumer::None;
    })
    .await;
    env.wait_until_ok("/readyz").await;
}

#[tokio::test]
async fn an_agent_exits_if_only_a_new_container_sees_the_file_that_the_kubelet_has_read() {
    // As a mount does, an open file stays what it is when another one takes its name.
    let mount = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(mount.path(), "topologyManagerPolicy: restricted\n").unwrap();
    let mounted = format!("/proc/self/fd/{}", mount.as_file().as_raw_fd());
    let env =
        Environment::configured(true, |config, _| config.kubelet.config_file = Some(mounted.into())).await;
    env.wait_until_ok("/readyz").await;
    std::fs::remove_file(mount.path()).unwrap();
    let scans = |metrics: &str| -> u32 {
        let line = metrics.lines().find(|line| line.starts_with("numacast_scan_duration_seconds_count "));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap()
    };
    // The kubelet has not read the new file yet.
    let before = scans(&env.probe("/metrics").await.1);
    advance_clock(6).await;
    env.wait_for("/metrics", |response| scans(response) > before).await;
    env.node.kubelet.stop();
    env.node.kubelet.boot().unwrap();
    let error = env.agent.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("was replaced on the host before the kubelet restarted"), "{error}");
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
