//! A simulated node and API server, the agent on its own thread, and an ordinary workload on the node.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use numacast::agent::{Agent, Settings};
use numacast::cluster::Cluster;
use numacast::config::Config;
use numacast::telemetry::registry::Registry;
use numacast_sim::api_server::{NODES, PODS};
use numacast_sim::kubelet::{KubeletVersion, Options, PodSpec, Split, Stage};
use numacast_sim::machine::MachineSpec;
use numacast_sim::node::SimNode;
use serde_json::json;
use tokio::sync::oneshot;

use super::{POLL, REFRESH, RESTART_WAIT, TIMEOUT, pause};

/// The node's name.
pub(super) const NODE: &str = "worker";
const NAMESPACE: &str = "default";
/// A pod that exists from the start and is never deleted.
const PERMANENT: &str = "permanent";
/// Maximum number of pods at a time.
const MAX_PODS: usize = 9;
/// Maximum number of actions that a failure report lists.
const MAX_ACTIONS: usize = 30;
const GIB: u64 = 1 << 30;
const RESOURCES: [&str; 2] = ["example.com/nic", "example.com/bridge"];

/// The state of the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KubeletState {
    Down,
    /// It has started but does not know its pods yet.
    Starting,
    Up,
}

/// The settings that differ between shards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    pub(super) version: KubeletVersion,
    /// Whether the agent can read the kubelet's root directory with the checkpoints, or only sockets and
    /// device plugins.
    pub(super) checkpoints: bool,
}

impl Variant {
    pub(super) fn of_shard(shard: usize) -> Self {
        let version = [KubeletVersion::V1_34, KubeletVersion::V1_37, KubeletVersion::V1_29][shard % 3];
        Self { version, checkpoints: shard.is_multiple_of(2) }
    }

    /// Returns the version as the Node shows it.
    fn version_text(self) -> &'static str {
        match self.version {
            KubeletVersion::V1_29 => "v1.29.9",
            KubeletVersion::V1_37 => "v1.37.0",
            _ => "v1.34.4",
        }
    }
}

/// The agent's thread, with a single-threaded runtime like the binary's.
struct AgentThread {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), String>>,
}

impl AgentThread {
    fn start(settings: Settings, kubeconfig: &Path) -> Self {
        let (stop, stopped) = oneshot::channel();
        let kubeconfig = kubeconfig.to_owned();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            runtime.block_on(async move {
                let cluster = Cluster::new(Some(&kubeconfig), TIMEOUT).await;
                let cluster = cluster.map_err(|error| error.to_string())?;
                let agent = Agent::new(settings, cluster, &mut Registry::default());
                agent.run(async { drop(stopped.await) }).await.map_err(|error| error.to_string())
            })
        });
        Self { stop, thread }
    }
}

/// The simulated node and API server, and the agent.
pub(super) struct Environment {
    pub(super) node: SimNode,
    pub(super) client: kube::Client,
    pub(super) variant: Variant,
    settings: Settings,
    agent: RefCell<Option<AgentThread>>,
    pub(super) kubelet: Cell<KubeletState>,
    /// The uid of the Node, which owns the object.
    owner: RefCell<String>,
    /// Number of pods so far.
    pods: Cell<usize>,
    /// The latest actions, and when they happened.
    actions: RefCell<VecDeque<(Duration, String)>>,
    start: Instant,
}

impl Environment {
    /// Starts a node with one pod, without an agent.
    pub(super) async fn start(variant: Variant, seed: u64) -> Result<Self, String> {
        let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines/two-by-eight.yaml");
        let machine = MachineSpec::read(&machine)?;
        let release_lag = Duration::from_millis(100);
        let options = Options { seed, version: variant.version, release_lag, ..Options::default() };
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let node = SimNode::start(NODE, &machine, any_port, options).await.map_err(text)?;
        let mut settings = config(&node, variant).agent_settings();
        (settings.poll, settings.restart_wait, settings.refresh) = (POLL, RESTART_WAIT, REFRESH);
        settings.kubelet_timeout = TIMEOUT;
        let hooks = node.directory().join("hooks");
        std::fs::create_dir(&hooks).map_err(text)?;
        settings.notify_file = Some(hooks.join("notify"));
        let environment = Self {
            client: node.server.client().map_err(text)?,
            node,
            variant,
            settings,
            agent: RefCell::default(),
            kubelet: Cell::new(KubeletState::Up),
            owner: RefCell::default(),
            pods: Cell::new(0),
            actions: RefCell::default(),
            start: Instant::now(),
        };
        environment.register_node()?;
        environment.node.start_pod(PodSpec::guaranteed(PERMANENT, 1, GIB)).await.map_err(text)?;
        Ok(environment)
    }

    /// Creates the Node object as its kubelet registers it.
    pub(super) fn register_node(&self) -> Result<(), String> {
        let version = self.variant.version_text();
        let node = json!({
            "metadata": {"name": NODE},
            "status": {
                "nodeInfo": {"kubeletVersion": version},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        let node = self.node.server.put(&NODES, node).map_err(text)?;
        *self.owner.borrow_mut() = node["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        Ok(())
    }

    pub(super) fn start_agent(&self) {
        let agent = AgentThread::start(self.settings.clone(), &self.node.kubeconfig());
        *self.agent.borrow_mut() = Some(agent);
    }

    /// Stops the agent as SIGTERM does.
    pub(super) async fn stop_agent(&self) -> Result<(), String> {
        let Some(AgentThread { stop, thread }) = self.agent.borrow_mut().take() else { return Ok(()) };
        drop(stop);
        let stopping = Instant::now();
        while !thread.is_finished() {
            if stopping.elapsed() > Duration::from_secs(60) {
                return Err("the agent does not stop".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        thread.join().unwrap_or_else(|_| Err("the agent has panicked".to_owned()))
    }

    pub(super) async fn restart_agent(&self, rng: &mut Rng) -> Result<(), String> {
        self.stop_agent().await?;
        self.record("the agent has stopped".to_owned());
        pause(rng, 300).await;
        self.start_agent();
        self.record("the agent starts".to_owned());
        Ok(())
    }

    /// Returns the errors in the object; empty if it is correct.
    pub(super) fn differences(&self) -> Vec<String> {
        if self.agent.borrow().as_ref().is_some_and(|agent| agent.thread.is_finished()) {
            return vec!["the agent exited".to_owned()];
        }
        let Some(object) = self.node.server.topology(NODE) else {
            return vec!["there is no object".to_owned()];
        };
        let split = if self.variant.checkpoints { Split::PerNode } else { Split::PerGroup };
        let mut differences = self.node.kubelet.expected().differences(&object, split);
        let owners = object.metadata.owner_references.unwrap_or_default();
        if owners.len() != 1 || owners[0].uid != *self.owner.borrow() {
            differences.push(format!("its owner is not the Node: {owners:?}"));
        }
        differences
    }

    /// Records an action for a failure report.
    pub(super) fn record(&self, action: String) {
        let actions = &mut *self.actions.borrow_mut();
        actions.push_back((self.start.elapsed(), action));
        if actions.len() > MAX_ACTIONS {
            actions.pop_front();
        }
    }

    /// Returns the file that hooks touch after a change.
    pub(super) fn notify_file(&self) -> PathBuf {
        self.node.directory().join("hooks/notify")
    }

    /// Returns the latest actions, one per line.
    pub(super) fn actions(&self) -> String {
        let actions = self.actions.borrow();
        let lines = actions.iter().map(|(at, action)| format!("  {:9.3} s  {action}", at.as_secs_f64()));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Returns the time since the start in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Changes the workload in an ordinary way.
    pub(super) async fn change_workload(&self, rng: &mut Rng) {
        let running = self.names(Stage::Active);
        match (self.kubelet.get(), rng.u8(0..20)) {
            // The pod is deleted in the API server while the kubelet is down.
            (KubeletState::Down, 0..5) => self.stop_pod(rng, &running),
            (KubeletState::Down | KubeletState::Starting, _) => {}
            (KubeletState::Up, 0..8) if running.len() < MAX_PODS => self.start_pod(rng).await,
            (KubeletState::Up, 0..12) => self.stop_pod(rng, &running),
            (KubeletState::Up, 12..14) => self.replace_pod(rng, &running).await,
            (KubeletState::Up, 14) => self.terminate_pod(rng, &running),
            (KubeletState::Up, 15) => self.resize_pod(rng, &running),
            (KubeletState::Up, _) => self.change_device(rng),
        }
    }

    /// Changes the workload until the expected object changes.
    pub(super) async fn change_expected(&self, rng: &mut Rng) {
        let before = self.node.kubelet.expected();
        while self.node.kubelet.expected() == before {
            self.change_workload(rng).await;
        }
    }

    fn names(&self, stage: Stage) -> Vec<String> {
        self.node.kubelet.with_model(|model| {
            let pods = model.pods().values().filter(|pod| pod.stage == stage);
            pods.map(|pod| pod.spec.name.clone()).filter(|name| name != PERMANENT).collect()
        })
    }

    fn spec(&self, rng: &mut Rng, name: &str) -> PodSpec {
        let number = self.pods.get() + 1;
        self.pods.set(number);
        let mut pod = PodSpec::guaranteed(name, rng.u64(1..4), rng.u64(1..4) * GIB);
        pod.uid = format!("uid-{number}");
        pod.guaranteed = rng.u8(0..8) > 0;
        if rng.u8(0..3) == 0 {
            pod = pod.devices(RESOURCES[rng.usize(0..2)], rng.u64(1..3));
        }
        if rng.u8(0..4) == 0 {
            pod = pod.hugepages("hugepages-2Mi", rng.u64(1..5) << 26);
        }
        pod
    }

    async fn start_pod(&self, rng: &mut Rng) {
        let name = format!("p{}", self.pods.get() + 1);
        let spec = self.spec(rng, &name);
        self.admit(spec).await;
    }

    async fn admit(&self, spec: PodSpec) {
        let request = format!("{} requests {}m CPU, {:?}", spec.name, spec.containers[0].milli_cpu, {
            let container = &spec.containers[0];
            (container.memory / GIB, &container.hugepages, &container.devices)
        });
        match self.node.start_pod(spec).await {
            Ok(_) => self.record(format!("{request}: admitted")),
            Err(rejection) => self.record(format!("{request}: {rejection}")),
        }
    }

    fn stop_pod(&self, rng: &mut Rng, running: &[String]) {
        let Some(name) = pick(rng, running) else { return };
        self.node.stop_pod(NAMESPACE, name);
        self.record(format!("{name} is deleted"));
    }

    /// Replaces a pod by another with the same name, like a StatefulSet.
    async fn replace_pod(&self, rng: &mut Rng, running: &[String]) {
        let terminated = self.names(Stage::Terminated);
        let candidates = if terminated.is_empty() { running } else { &terminated };
        let Some(name) = pick(rng, candidates) else { return };
        self.node.stop_pod(NAMESPACE, name);
        self.record(format!("{name} is deleted and created again"));
        let spec = self.spec(rng, name);
        self.admit(spec).await;
    }

    /// Terminates a pod's containers; its object stays.
    fn terminate_pod(&self, rng: &mut Rng, running: &[String]) {
        let Some(name) = pick(rng, running) else { return };
        let spec =
            self.node.kubelet.with_model(|model| model.pod(NAMESPACE, name).map(|pod| pod.spec.clone()));
        let Some(spec) = spec else { return };
        self.node.kubelet.terminate_pod(NAMESPACE, name);
        // Cannot fail: the pod has a name.
        let _ = self.node.server.put(&PODS, spec.object(NODE, "Succeeded"));
        self.record(format!("{name} terminates"));
    }

    fn resize_pod(&self, rng: &mut Rng, running: &[String]) {
        let Some(name) = pick(rng, running) else { return };
        let kubelet = &self.node.kubelet;
        let memory = kubelet
            .with_model(|model| model.pod(NAMESPACE, name).map_or(0, |pod| pod.spec.containers[0].memory));
        let milli_cpu = 1000 * rng.u64(1..5);
        let outcome = kubelet.resize_pod(NAMESPACE, name, "main", milli_cpu, memory);
        self.record(format!("{name} is resized to {milli_cpu}m CPU: {outcome:?}"));
    }

    pub(super) fn change_device(&self, rng: &mut Rng) {
        let (resource, id, healthy) = match rng.u8(0..2) {
            0 => (RESOURCES[0], format!("nic-{}", rng.u8(0..4)), rng.bool()),
            _ => (RESOURCES[1], format!("bridge-{}", rng.u8(0..2)), rng.bool()),
        };
        self.node.kubelet.set_device_health(resource, &id, healthy);
        self.record(format!("{id} is healthy: {healthy}"));
    }

    /// Returns the resource of one of the device plugins.
    pub(super) fn plugin(&self, rng: &mut Rng) -> &'static str {
        RESOURCES[rng.usize(0..2)]
    }
}

fn config(node: &SimNode, variant: Variant) -> Config {
    let mut config = Config { node_name: NODE.to_owned(), ..Config::default() };
    config.host.root = node.directory().to_owned();
    config.kubelet.dir = Some(node.kubelet.root().to_owned());
    if !variant.checkpoints {
        config.kubelet.device_plugins_dir = Some(node.kubelet.root().join("device-plugins"));
        config.kubelet.socket = Some(node.kubelet.socket());
        config.kubelet.dir = Some(node.directory().join("missing"));
    }
    config
}

fn pick<'a>(rng: &mut Rng, names: &'a [String]) -> Option<&'a String> {
    (!names.is_empty()).then(|| &names[rng.usize(0..names.len())])
}

/// Returns an error's text.
pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
