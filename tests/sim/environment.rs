//! An agent in this process between a simulated kubelet and API server.

use std::time::Duration;

use numacast::agent::{Agent, FileReplaced, Settings};
use numacast::cluster::Cluster;
use numacast::config::Config;
use numacast::telemetry::registry::Registry;
use numacast_sim::api_server::{ApiServer, EVENTS, NODES, PODS};
use numacast_sim::kubelet::{KubeletVersion, Options, PodSpec, Split};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::{Node, poll};

/// A node, an API server, and the agent between them.
pub(crate) struct Environment {
    pub(crate) node: Node,
    pub(crate) server: ApiServer,
    pub(crate) metrics: Registry,
    stop: Option<oneshot::Sender<()>>,
    agent: JoinHandle<Result<(), FileReplaced>>,
}

impl Environment {
    pub(crate) async fn start(options: Options) -> Self {
        let server = api_server();
        Self::with(Node::with(options), server, |_| {})
    }

    pub(crate) fn with(node: Node, server: ApiServer, change: impl FnOnce(&mut Settings)) -> Self {
        Self::configured(node, server, |_| {}, change)
    }

    /// Starts an agent with another configuration, and with settings that no configuration can express.
    pub(crate) fn configured(
        node: Node,
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
    pub(crate) fn restart_agent_configured(
        self,
        configure: impl FnOnce(&mut Config),
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        Self::configured(self.node, self.server, configure, change)
    }

    /// Replaces a stopped agent by another one.
    pub(crate) fn restart_agent(self, change: impl FnOnce(&mut Settings)) -> Self {
        Self::with(self.node, self.server, change)
    }

    /// Waits until the object in the API server matches the simulated kubelet's own state.
    pub(crate) async fn converges(&self) {
        let differences = || match self.server.topology("worker") {
            Some(object) => self.node.kubelet.expected().differences(&object, Split::PerGroup),
            None => vec!["there is no object".to_owned()],
        };
        for _ in 0..3000 {
            assert!(!self.agent.is_finished(), "the agent exited");
            if differences().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the object is wrong: {:#?}", differences());
    }

    /// Waits until `probe` returns something.
    pub(crate) async fn wait_for(&self, what: &str, probe: impl Fn() -> Option<()>) {
        let found = poll(async || {
            assert!(!self.agent.is_finished(), "the agent exited");
            probe()
        });
        if found.await.is_none() {
            panic!("timed out while waiting until {what}: {:#?}", self.server.topology("worker"));
        }
    }

    /// Waits until the kubelet has received `count` Lists.
    pub(crate) async fn wait_for_lists(&self, count: u64) {
        let what = format!("the kubelet has received {count} Lists");
        self.wait_for(&what, || (self.node.kubelet.calls().list >= count).then_some(())).await;
    }

    /// Waits until an Event reports that the kubelet did not admit this pod in time.
    pub(crate) async fn wait_for_admission_timeout(&self, pod: &str) {
        let is_reported = || {
            let events = self.server.list(&EVENTS, "default");
            let mut timeouts = events.iter().filter(|event| event["reason"] == "PodAdmissionTimeout");
            timeouts.any(|event| event["note"].to_string().contains(pod)).then_some(())
        };
        self.wait_for(&format!("the admission timeout of {pod} is reported"), is_reported).await;
    }

    /// Writes a pod with this phase to the API server.
    pub(crate) fn put_pod(&self, pod: &PodSpec, phase: &str) {
        self.server.put(&PODS, pod.object("worker", phase)).unwrap();
    }

    /// Returns what the object reports as available.
    pub(crate) fn available(&self, zone: usize, resource: &str) -> u64 {
        let object = self.server.topology("worker").unwrap();
        let resources = object.spec.zones[zone].resources.clone().unwrap();
        resources.iter().find(|r| r.name == resource).unwrap().available.ceil()
    }

    /// Stops the agent; the node and the API server keep running.
    pub(crate) async fn stop_agent(mut self) -> Self {
        drop(self.stop.take());
        (&mut self.agent).await.unwrap().unwrap();
        self
    }

    /// Aborts the agent; the node and the API server keep running.
    pub(crate) async fn kill_agent(mut self) -> Self {
        self.agent.abort();
        assert!((&mut self.agent).await.unwrap_err().is_cancelled());
        self
    }

    pub(crate) async fn stop(self) {
        self.stop_agent().await;
    }
}

/// Starts an API server with the Node.
pub(crate) fn api_server() -> ApiServer {
    let server = ApiServer::start_in_process(0);
    server.add_node("worker").unwrap();
    server
}

/// Starts an agent with a kubelet that lists terminated pods with their resources, as those before 1.34 do.
pub(crate) async fn with_terminated_pods_listed(options: Options) -> Environment {
    let server = ApiServer::start_in_process(0);
    let node =
        json!({"metadata": {"name": "worker"}, "status": {"nodeInfo": {"kubeletVersion": "v1.33.13"}}});
    server.put(&NODES, node).unwrap();
    Environment::with(Node::with(Options { version: KubeletVersion::V1_29, ..options }), server, |_| {})
}

/// A kubelet that releases resources soon and has no rate limit.
pub(crate) fn quick() -> Options {
    Options { release_lag: Duration::from_millis(20), limited: false, ..Options::default() }
}
