//! A simulated node and cluster, the agent on its own thread, and ordinary changes on the node.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use numacast::agent::{Agent, Settings};
use numacast::cluster::Cluster;
use numacast::sim::api_server::{NODES, PODS};
use numacast::sim::kubelet::{KubeletVersion, Options, PodSpec, Split, Stage};
use numacast::sim::machine::MachineSpec;
use numacast::sim::node::SimNode;
use numacast::telemetry::registry::Registry;
use serde_json::json;
use tokio::sync::oneshot;

use super::{DEADLINE, POLL, REFRESH, SETTLE};

/// The node's name.
pub(crate) const NODE: &str = "worker";
const NAMESPACE: &str = "default";
/// A pod that exists from the start and is never deleted.
const ANCHOR: &str = "anchor";
/// Maximum number of pods at a time.
const CROWD: usize = 9;
/// Maximum number of actions that a failure report lists.
const MAX_LISTED: usize = 30;
const GIB: u64 = 1 << 30;
const RESOURCES: [&str; 2] = ["example.com/nic", "example.com/bridge"];

/// The state of the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kubelet {
    Down,
    /// It has started but does not know its pods yet.
    Starting,
    Up,
}

/// The settings that differ between shards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) age: KubeletVersion,
    /// Whether the agent can read the kubelet's root directory with the state files, or only sockets and
    /// device plugins.
    pub(crate) state_files: bool,
}

impl Variant {
    pub(crate) fn of_shard(shard: usize) -> Self {
        let age = [KubeletVersion::V1_34, KubeletVersion::V1_37, KubeletVersion::V1_29][shard % 3];
        Self { age, state_files: shard.is_multiple_of(2) }
    }

    fn version(self) -> &'static str {
        match self.age {
            KubeletVersion::V1_29 => "v1.29.9",
            KubeletVersion::V1_37 => "v1.37.0",
            _ => "v1.34.4",
        }
    }
}

/// The agent's thread, with a runtime on one thread like the binary's.
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
                let cluster = Cluster::new(Some(&kubeconfig), DEADLINE).await;
                let cluster = cluster.map_err(|error| error.to_string())?;
                Agent::new(settings, cluster, &mut Registry::default()).run(async { drop(stopped.await) }).await;
                Ok(())
            })
        });
        Self { stop, thread }
    }
}

/// The simulated parts and the agent.
pub(crate) struct World {
    pub(crate) node: SimNode,
    pub(crate) client: kube::Client,
    pub(crate) variant: Variant,
    settings: Settings,
    agent: RefCell<Option<AgentThread>>,
    pub(crate) kubelet: Cell<Kubelet>,
    /// The uid of the Node, which owns the object.
    owner: RefCell<String>,
    pods: Cell<usize>,
    deeds: RefCell<VecDeque<(Duration, String)>>,
    start: Instant,
}

impl World {
    /// Starts a node with one pod, without an agent.
    pub(crate) async fn start(variant: Variant, seed: u64) -> Result<Self, String> {
        let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines/two-by-eight.yaml");
        let machine = MachineSpec::read(&machine)?;
        let options =
            Options { seed, age: variant.age, release_lag: Duration::from_millis(100), ..Options::default() };
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let node = SimNode::start(NODE, &machine, anywhere, options).await.map_err(text)?;
        let mut config = node.config();
        if !variant.state_files {
            config.kubelet.device_plugins_dir = Some(node.kubelet.root().join("device-plugins"));
            config.kubelet.socket = Some(node.kubelet.socket());
            config.kubelet.dir = Some(node.directory().join("nowhere"));
        }
        let mut settings = config.agent_settings();
        (settings.poll, settings.settle, settings.refresh) = (POLL, SETTLE, REFRESH);
        settings.kubelet_timeout = DEADLINE;
        let hooks = node.directory().join("hooks");
        std::fs::create_dir(&hooks).map_err(text)?;
        settings.notify_file = Some(hooks.join("notify"));
        let world = Self {
            client: node.server.client().map_err(text)?,
            node,
            variant,
            settings,
            agent: RefCell::default(),
            kubelet: Cell::new(Kubelet::Up),
            owner: RefCell::default(),
            pods: Cell::new(0),
            deeds: RefCell::default(),
            start: Instant::now(),
        };
        world.register_node()?;
        world.node.start_pod(PodSpec::guaranteed(ANCHOR, 1, GIB)).await.map_err(text)?;
        Ok(world)
    }

    /// Creates the Node object as its kubelet registers it.
    pub(crate) fn register_node(&self) -> Result<(), String> {
        let version = self.variant.version();
        let node = json!({
            "metadata": {"name": NODE},
            "status": {"nodeInfo": {"kubeletVersion": version}, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let node = self.node.server.put(&NODES, node).map_err(text)?;
        *self.owner.borrow_mut() = node["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        Ok(())
    }

    pub(crate) fn start_agent(&self) {
        let agent = AgentThread::start(self.settings.clone(), &self.node.directory().join("kubeconfig"));
        *self.agent.borrow_mut() = Some(agent);
    }

    /// Stops the agent as SIGTERM does.
    pub(crate) async fn stop_agent(&self) -> Result<(), String> {
        let Some(AgentThread { stop, thread }) = self.agent.borrow_mut().take() else { return Ok(()) };
        drop(stop);
        while !thread.is_finished() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        thread.join().unwrap_or_else(|_| Err("the agent has panicked".to_owned()))
    }

    /// The errors in the object; empty if it is correct.
    pub(crate) fn differences(&self) -> Vec<String> {
        if self.agent.borrow().as_ref().is_some_and(|agent| agent.thread.is_finished()) {
            return vec!["the agent has ended".to_owned()];
        }
        let Some(object) = self.node.server.topology(NODE) else {
            return vec!["there is no object".to_owned()];
        };
        let split = if self.variant.state_files { Split::PerNode } else { Split::PerGroup };
        let mut differences = self.node.kubelet.expected().differences(&object, split);
        let owners = object.metadata.owner_references.unwrap_or_default();
        if owners.len() != 1 || owners[0].uid != *self.owner.borrow() {
            differences.push(format!("its owner is not the Node: {owners:?}"));
        }
        differences
    }

    /// Records an action.
    pub(crate) fn note(&self, deed: String) {
        let deeds = &mut *self.deeds.borrow_mut();
        deeds.push_back((self.start.elapsed(), deed));
        if deeds.len() > MAX_LISTED {
            deeds.pop_front();
        }
    }

    /// The file that hooks touch after a change.
    pub(crate) fn notify_file(&self) -> PathBuf {
        self.node.directory().join("hooks/notify")
    }

    /// The latest actions.
    pub(crate) fn deeds(&self) -> String {
        let deeds = self.deeds.borrow();
        let lines = deeds.iter().map(|(at, deed)| format!("  {:9.3} s  {deed}", at.as_secs_f64()));
        lines.collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Makes an ordinary change, of the kind that happens on any node.
    pub(crate) async fn live(&self, rng: &mut Rng) {
        let running = self.names(Stage::Active);
        match (self.kubelet.get(), rng.u8(0..20)) {
            // The pod is deleted in the API server while the kubelet is down.
            (Kubelet::Down, 0..5) => self.stop_pod(rng, &running),
            (Kubelet::Down | Kubelet::Starting, _) => {}
            (Kubelet::Up, 0..8) if running.len() < CROWD => self.start_pod(rng).await,
            (Kubelet::Up, 0..12) => self.stop_pod(rng, &running),
            (Kubelet::Up, 12..14) => self.replace_pod(rng, &running).await,
            (Kubelet::Up, 14) => self.terminate_pod(rng, &running),
            (Kubelet::Up, 15) => self.resize_pod(rng, &running),
            (Kubelet::Up, _) => self.change_device(rng),
        }
    }

    /// Makes ordinary changes until the expected object changes.
    pub(crate) async fn change(&self, rng: &mut Rng) {
        let before = self.node.kubelet.expected();
        while self.node.kubelet.expected() == before {
            self.live(rng).await;
        }
    }

    fn names(&self, stage: Stage) -> Vec<String> {
        self.node.kubelet.with_model(|model| {
            let pods = model.pods().values().filter(|pod| pod.stage == stage);
            pods.map(|pod| pod.spec.name.clone()).filter(|name| name != ANCHOR).collect()
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
        self.run(spec).await;
    }

    async fn run(&self, spec: PodSpec) {
        let said = format!("{} asks for {}m CPU, {:?}", spec.name, spec.containers[0].milli_cpu, {
            let container = &spec.containers[0];
            (container.memory / GIB, &container.hugepages, &container.devices)
        });
        match self.node.start_pod(spec).await {
            Ok(_) => self.note(format!("{said}: admitted")),
            Err(refusal) => self.note(format!("{said}: {refusal}")),
        }
    }

    fn stop_pod(&self, rng: &mut Rng, running: &[String]) {
        let Some(name) = pick(rng, running) else { return };
        self.node.stop_pod(NAMESPACE, name);
        self.note(format!("{name} is deleted"));
    }

    /// Replaces a pod by another with the same name, like a StatefulSet.
    async fn replace_pod(&self, rng: &mut Rng, running: &[String]) {
        let ended = self.names(Stage::Terminated);
        let again = if ended.is_empty() { running } else { &ended };
        let Some(name) = pick(rng, again) else { return };
        self.node.stop_pod(NAMESPACE, name);
        self.note(format!("{name} is deleted and comes back"));
        let spec = self.spec(rng, name);
        self.run(spec).await;
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
        self.note(format!("{name} ends"));
    }

    fn resize_pod(&self, rng: &mut Rng, running: &[String]) {
        let Some(name) = pick(rng, running) else { return };
        let kubelet = &self.node.kubelet;
        let memory = kubelet
            .with_model(|model| model.pod(NAMESPACE, name).map_or(0, |pod| pod.spec.containers[0].memory));
        let milli_cpu = 1000 * rng.u64(1..5);
        let outcome = kubelet.resize_pod(NAMESPACE, name, "main", milli_cpu, memory);
        self.note(format!("{name} is resized to {milli_cpu}m CPU: {outcome:?}"));
    }

    pub(crate) fn change_device(&self, rng: &mut Rng) {
        let (resource, id, well) = match rng.u8(0..2) {
            0 => (RESOURCES[0], format!("nic-{}", rng.u8(0..4)), rng.bool()),
            _ => (RESOURCES[1], format!("bridge-{}", rng.u8(0..2)), rng.bool()),
        };
        self.node.kubelet.set_device_health(resource, &id, well);
        self.note(format!("{id} is well: {well}"));
    }

    pub(crate) fn plugin(&self, rng: &mut Rng) -> &'static str {
        RESOURCES[rng.usize(0..2)]
    }
}

fn pick<'a>(rng: &mut Rng, names: &'a [String]) -> Option<&'a String> {
    (!names.is_empty()).then(|| &names[rng.usize(0..names.len())])
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
