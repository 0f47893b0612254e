//! The fleet: Nodes and pods in a real API server, a simulated kubelet per Node, and numacast's own code as
//! configured by the chart.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use numacast::agent::Agent;
use numacast::cluster::Cluster as Connection;
use numacast::config::{Config, Layers, Origin};
use numacast::controller::Controller;
use numacast::telemetry::health::Probes;
use numacast::telemetry::registry::Registry;
use numacast_sim::kubelet::{Options as KubeletOptions, PodSpec, SimKubelet};
use numacast_sim::machine::MachineSpec;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::configz::Configz;
use crate::counting_proxy::CountingProxy;
use crate::pods::{self, LoadPod, NodePods};
use crate::samples::Samples;
use crate::support::chart::{self, AGENT, Chart, POLICIES, RELEASE, RIGHTS};
use crate::support::wait::until;
use crate::support::{Cluster, Parts, tokens};

/// Number of concurrent requests during setup.
const AT_ONCE: usize = 24;
/// Time within which all agents must become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// The release's other objects that the controller looks at, besides RBAC and policies.
const REST: [&str; 4] = ["ConfigMap", "DaemonSet", "Deployment", "Lease"];
/// Name of the controller's service account, Lease and ConfigMap.
const CONTROLLER: &str = "numacast-controller";

/// A node with 2 sockets of 24 CPUs: enough for the pods with exclusive CPUs and for their replacements.
const MACHINE: &str = "
description: two sockets of 24 CPUs
nodes:
  - {id: 0, cpus: 0-23, memory: 32Gi, distances: {0: 10, 1: 21}}
  - {id: 1, cpus: 24-47, memory: 32Gi, distances: {0: 21, 1: 10}}
kubelet:
  cpuManagerPolicy: static
  reservedSystemCPUs: '0,24'
  memoryManagerPolicy: Static
  topologyManagerPolicy: best-effort
  systemReserved: {memory: 924Mi}
  reservedMemory:
    - {numaNode: 0, limits: {memory: 512Mi}}
    - {numaNode: 1, limits: {memory: 512Mi}}
";

/// A task that runs until stopped.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    async fn end(self) -> Result<()> {
        // Sending fails if the task has ended already.
        let _ = self.stop.send(());
        Ok(self.task.await?)
    }
}

/// A running agent and its metrics.
struct RunningAgent {
    running: Running,
    metrics: Registry,
    health: Arc<dyn Probes>,
}

/// One node.
pub(crate) struct FleetNode {
    pub(crate) name: String,
    kubelet: SimKubelet,
    config: Config,
    agent: Mutex<Option<RunningAgent>>,
    /// Running pods that may be replaced.
    pods: Mutex<Vec<(usize, LoadPod)>>,
}

/// The whole fleet, which stops when dropped.
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<FleetNode>,
    pub(crate) pods: usize,
    pub(crate) agents: CountingProxy,
    pub(crate) controllers: CountingProxy,
    admin: Client,
    controller: Config,
    replicas: Vec<Running>,
    /// The counters of stopped agents.
    gone: Mutex<Vec<Samples>>,
    generations: std::sync::atomic::AtomicUsize,
    _configz: Configz,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// Installs the chart, creates Nodes and pods, and starts the kubelets, but no agents.
    pub(crate) async fn set_up(
        parts: &Parts,
        cluster: &Cluster,
        nodes: usize,
        pods: usize,
        set: &[String],
    ) -> Result<Self> {
        let admin = cluster.client();
        let chart = install(parts, cluster).await?;
        let upstream = cluster.address().parse()?;
        let agents = CountingProxy::start(upstream).await?;
        let controllers = CountingProxy::start(upstream).await?;

        let machine = MachineSpec::from_yaml(MACHINE).map_err(anyhow::Error::msg)?;
        let host = cluster.dir().join("host");
        machine.write_tree(&host)?;
        let kubelets: Vec<(String, SimKubelet)> = (0..nodes)
            .map(|number| {
                let name = format!("node-{number}");
                let options = KubeletOptions { seed: number as u64, ..KubeletOptions::default() };
                let kubelet =
                    SimKubelet::start(&machine, &cluster.dir().join(format!("k/{number}")), options)?;
                Ok((name, kubelet))
            })
            .collect::<Result<_>>()?;
        let first = kubelets.first().context("a fleet without nodes")?;
        let configz = Configz::start(&first.1.root().join("config.yaml"), cluster.dir()).await?;

        let text = config_of(&chart, AGENT)?;
        let owner = chart::api(&admin, chart.object("DaemonSet", AGENT)?)?.get(AGENT).await?;
        let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": AGENT, "uid": owner.metadata.uid, "controller": true});
        let template = chart.object("DaemonSet", AGENT)?.data["spec"]["template"].clone();
        let make = async |(name, kubelet): (String, SimKubelet)| {
            make_node(&admin, &name).await?;
            let pod = agent_pod(&admin, &name, &template, &owner).await?;
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let own =
                PodSpec { namespace: RELEASE.to_owned(), uid, ..PodSpec::new(&format!("{AGENT}-{name}")) };
            kubelet.start_pod(own).await.context("the simulated kubelet rejects the agent's pod")?;
            let token = tokens::request(&admin, RELEASE, AGENT, Some(tokens::to_pod(&pod))).await?;
            let kubeconfig = kubeconfig(cluster, &name, &token, &agents)?;
            let view = view(&kubelet)?;
            let places = [
                ("host.root", host.display().to_string()),
                ("host.proc", host.join("proc").display().to_string()),
                ("kubelet.dir", view.display().to_string()),
                ("kubelet.devicePluginsDir", view.join("device-plugins").display().to_string()),
                ("kubelet.address", configz.address().to_owned()),
                ("kubelet.caFile", configz.ca_file().display().to_string()),
            ];
            let mut config = config(&text, &places, set)?;
            (config.node_name, config.kubeconfig) = (name.clone(), Some(kubeconfig));
            let node = FleetNode { name, kubelet, config, agent: Mutex::default(), pods: Mutex::default() };
            // The agent's own pod is one of them.
            node.set_up(&admin, pods - 1).await?;
            anyhow::Ok(node)
        };
        let made = futures::stream::iter(kubelets).map(make).buffer_unordered(AT_ONCE);
        let nodes: Vec<FleetNode> = made.try_collect().await?;

        let token = tokens::request(&admin, RELEASE, CONTROLLER, None).await?;
        let kubeconfig = kubeconfig(cluster, CONTROLLER, &token, &controllers)?;
        let mut controller = config(&config_of(&chart, CONTROLLER)?, &[], &[])?;
        (controller.controller.namespace, controller.kubeconfig) = (RELEASE.to_owned(), Some(kubeconfig));
        Ok(Self {
            nodes,
            pods,
            agents,
            controllers,
            admin,
            controller,
            replicas: Vec::new(),
            gone: Mutex::default(),
            generations: std::sync::atomic::AtomicUsize::new(1),
            _configz: configz,
        })
    }

    /// Starts the chart's number of controller replicas.
    pub(crate) async fn start_controllers(&mut self) -> Result<()> {
        for replica in 0..2 {
            let pod = format!("{CONTROLLER}-{replica}");
            let settings = self.controller.controller_settings(Some(&pod))?;
            let connection = connection(&self.controller).await?;
            let (stop, stopped) = oneshot::channel();
            let task =
                tokio::spawn(Controller::new(settings, connection, &mut Registry::default()).run(async {
                    let _ = stopped.await;
                }));
            self.replicas.push(Running { stop, task });
        }
        Ok(())
    }

    /// Starts agents on these nodes and waits until they are ready. Returns how many are not.
    pub(crate) async fn start_agents(&self, nodes: &[FleetNode], method: &str) -> Result<usize> {
        for node in nodes {
            node.start_agent(method).await?;
        }
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let waiting = nodes.iter().filter(|node| !node.agent_is_ready()).count();
            if waiting == 0 || Instant::now() > deadline {
                return Ok(waiting);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops the agents of these nodes gracefully, as on SIGTERM.
    pub(crate) async fn stop_agents(&self, nodes: &[FleetNode]) -> Result<()> {
        let stopped = nodes.iter().map(|node| async {
            let Some(agent) = lock(&node.agent).take() else { return Ok(()) };
            let counted = read(&agent.metrics);
            agent.running.end().await?;
            lock(&self.gone).push(counted);
            Ok(())
        });
        futures::future::try_join_all(stopped).await.map(drop)
    }

    /// Stops the controllers.
    pub(crate) async fn stop_controllers(&mut self) -> Result<()> {
        for replica in self.replicas.drain(..) {
            replica.end().await?;
        }
        Ok(())
    }

    /// Returns the number of writes that agents counted for this reason.
    pub(crate) fn writes_for(&self, reason: &str) -> f64 {
        let of = |samples: &Samples| samples.with("numacast_publishes_total", "reason", reason);
        let running =
            |node: &FleetNode| lock(&node.agent).as_ref().map_or(0.0, |agent| of(&read(&agent.metrics)));
        lock(&self.gone).iter().map(of).sum::<f64>() + self.nodes.iter().map(running).sum::<f64>()
    }

    /// Uses new connections for all further changes of pods.
    pub(crate) async fn connect_again(&mut self, cluster: &Cluster) -> Result<()> {
        self.admin = cluster.new_client().await?;
        Ok(())
    }

    /// Replaces one pod of a node by another one like it.
    pub(crate) async fn replace_one(&self, node: usize, which: u64) -> Result<()> {
        let node = &self.nodes[node];
        let (number, old) = {
            let pods = &mut *lock(&node.pods);
            ensure!(!pods.is_empty(), "every pod of {} is being replaced", node.name);
            let index = (which % pods.len() as u64) as usize;
            pods.swap_remove(index)
        };
        let node_pods = NodePods::new(&self.admin, &node.name, &node.kubelet);
        let generation = self.generations.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let new = LoadPod::new(&node.name, number, generation);
        node_pods.end(&old).await?;
        node_pods.start(&new).await?;
        lock(&node.pods).push((number, new));
        Ok(())
    }

    /// Stops the kubelets, or starts them again with their state.
    pub(crate) fn kubelets_run(&self, run: bool) -> Result<()> {
        for node in &self.nodes {
            if run {
                node.kubelet.boot()?;
                node.kubelet.set_ready(true, true);
            } else {
                node.kubelet.stop();
            }
        }
        Ok(())
    }

    /// Creates pods that the scheduler plugin has rejected, and returns their names.
    pub(crate) async fn reject(&self, count: usize) -> Result<Vec<String>> {
        let api: Api<Pod> = Api::namespaced(self.admin.clone(), pods::NAMESPACE);
        let mut names = Vec::new();
        for number in 0..count {
            let name = format!("rejected-{number}");
            let (pod, status) = pods::rejected(&name, self.nodes.len())?;
            api.create(&PostParams::default(), &pod).await?;
            api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await?;
            names.push(name);
        }
        Ok(names)
    }

    /// Deletes these pods.
    pub(crate) async fn delete_pods(&self, names: &[String]) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(self.admin.clone(), pods::NAMESPACE);
        for name in names {
            api.delete(name, &kube::api::DeleteParams::default().grace_period(0)).await?;
        }
        Ok(())
    }
}

impl FleetNode {
    async fn set_up(&self, admin: &Client, pods: usize) -> Result<()> {
        let node_pods = NodePods::new(admin, &self.name, &self.kubelet);
        for number in 0..pods {
            let pod = LoadPod::new(&self.name, number, 0);
            node_pods.set_up(&pod).await?;
            lock(&self.pods).push((number, pod));
        }
        Ok(())
    }

    async fn start_agent(&self, method: &str) -> Result<()> {
        let mut config = self.config.clone();
        config.fingerprint.method = serde_json::from_value(json!(method))?;
        let connection = connection(&config).await?;
        let mut metrics = Registry::default();
        let agent = Agent::new(config.agent_settings(), connection, &mut metrics);
        let health = agent.health();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async {
            agent.run(async { drop(stopped.await) }).await.expect("no file is replaced");
        });
        *lock(&self.agent) = Some(RunningAgent { running: Running { stop, task }, metrics, health });
        Ok(())
    }

    fn agent_is_ready(&self) -> bool {
        lock(&self.agent).as_ref().is_some_and(|agent| agent.health.ready().is_empty())
    }
}

async fn connection(config: &Config) -> Result<Connection> {
    Ok(config.cluster().await?)
}

fn read(metrics: &Registry) -> Samples {
    Samples::read(&metrics.encode(), &["numacast_publishes_total"])
}

/// Installs the chart with default values.
async fn install(parts: &Parts, cluster: &Cluster) -> Result<Chart> {
    let admin = cluster.client();
    let chart = Chart::render(parts, &json!({}))?;
    tokens::namespace(&admin, RELEASE).await?;
    for kinds in [&RIGHTS[..], &POLICIES, &REST] {
        chart.install(&admin, kinds).await?;
    }
    Ok(chart)
}

/// Returns the configuration file of one of the chart's components.
fn config_of(chart: &Chart, name: &str) -> Result<String> {
    let text = &chart.object("ConfigMap", name)?.data["data"]["config.yaml"];
    text.as_str().map(str::to_owned).with_context(|| format!("the ConfigMap {name} has no config.yaml"))
}

/// Parses the chart's configuration file, overriding paths that differ from those in a container, and further
/// settings.
fn config(text: &str, places: &[(&str, String)], set: &[String]) -> Result<Config> {
    let origin = || Origin::Flag("--set".to_owned());
    let mut layers = Layers::default().text(text, Path::new("config.yaml"));
    for (key, value) in places {
        layers = layers.typed(key, value, origin());
    }
    for setting in set {
        let (key, value) = setting.split_once('=').context("--set needs KEY=VALUE")?;
        layers = layers.typed(key, value, origin());
    }
    let explain = |errors: Vec<numacast::config::ConfigError>| {
        anyhow!(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    };
    Ok(layers.finish().map_err(explain)?.config)
}

/// Writes a kubeconfig with this token that connects through a TCP proxy.
fn kubeconfig(cluster: &Cluster, name: &str, token: &str, proxy: &CountingProxy) -> Result<PathBuf> {
    let path = cluster.kubeconfig_of(name, token)?;
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, text.replace(cluster.address(), &proxy.address().to_string()))?;
    Ok(path)
}

/// Creates the kubelet's directory as mounted by the chart, with only two of its subdirectories.
fn view(kubelet: &SimKubelet) -> Result<PathBuf> {
    let view = kubelet.root().join("mounted");
    std::fs::create_dir_all(&view)?;
    for directory in ["pod-resources", "device-plugins"] {
        std::os::unix::fs::symlink(kubelet.root().join(directory), view.join(directory))?;
    }
    Ok(view)
}

async fn make_node(admin: &Client, name: &str) -> Result<()> {
    let api: Api<Node> = Api::all(admin.clone());
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
    }))?;
    api.create(&PostParams::default(), &node).await?;
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "nodeInfo": {
            "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "6.1", "osImage": "Linux",
            "containerRuntimeVersion": "containerd://2", "kubeletVersion": "v1.36.3", "kubeProxyVersion": "",
            "operatingSystem": "linux", "architecture": "amd64",
        },
    }});
    api.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?;
    Ok(())
}

/// Creates an agent's pod as the DaemonSet controller would.
async fn agent_pod(admin: &Client, node: &str, template: &Value, owner: &Value) -> Result<Pod> {
    let name = format!("{AGENT}-{node}");
    let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["ownerReferences"] = json!([owner]);
    pod["spec"]["nodeName"] = json!(node);
    let api: Api<Pod> = Api::namespaced(admin.clone(), RELEASE);
    let pod: Pod = serde_json::from_value(pod)?;
    let made = api.create(&PostParams::default(), &pod).await?;
    let running = pods::running();
    api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(running)).await?;
    Ok(made)
}

/// Waits until the API server accepts the agents' tokens and enforces the chart's policies.
pub(crate) async fn policies_are_in_force(cluster: &Cluster, fleet: &Fleet) -> Result<()> {
    let node = fleet.nodes.first().context("a fleet without nodes")?;
    let path = node.config.kubeconfig.as_deref().context("no kubeconfig")?;
    let connection = Connection::new(Some(path), Duration::from_secs(5)).await?;
    until("an agent may read its object", async || {
        connection.topology(&node.name).await?;
        Ok(())
    })
    .await
    .with_context(|| cluster.address().to_owned())
}
