//! A fleet for `numacast demo --ui`: simulated nodes of several kinds in one simulated cluster, each with an agent. Pods
//! come and go, and now and then an agent or a kubelet fails for some seconds.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use fastrand::Rng;
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Args, DemoAgent, RELEASE_LAG, STEP};
use crate::api_server::{ApiServer, DAEMON_SETS, NODES, PODS};
use crate::kubelet::{Call, Fault, Options, PodSpec};
use crate::node::SimNode;
use crate::scenario::{Scenario, Step, machine};

/// Zones of the kinds of nodes, which repeat.
const ZONES: [u16; 4] = [2, 4, 8, 2];
const POOLS: [&str; 4] = ["general", "training", "database", "edge"];
/// Nodes of one rack.
const RACK: usize = 6;
const NAMESPACE: &str = "numacast";
/// Steps of each node before the page is shown.
const FIRST_STEPS: usize = 6;
/// A fault begins after this many steps, and ends after that many.
const FAULT_EVERY: u32 = 25;
const FAULT_STEPS: u32 = 40;

/// A simulated cluster.
pub struct DemoFleet {
    server: Arc<ApiServer>,
    members: Vec<Member>,
    random: Rng,
    step: Duration,
    steps: u32,
    faults: VecDeque<ActiveFault>,
}

struct Member {
    node: SimNode,
    scenario: Scenario,
    agent: Option<DemoAgent>,
    /// The agent's last error.
    error: Option<String>,
    is_node_ready: bool,
    /// The pod that is bound to the node and that its kubelet does not know yet.
    waiting: Option<String>,
}

struct ActiveFault {
    until: u32,
    member: usize,
    kind: FaultKind,
}

#[derive(Clone, Copy)]
enum FaultKind {
    /// The agent does not run.
    Agent,
    /// The kubelet's socket does not answer.
    Kubelet,
    /// The Node is not Ready, and so, as Kubernetes' node controller says then, are its pods.
    Node,
    /// A pod is bound that the kubelet does not start.
    Pod,
}

impl DemoFleet {
    /// Starts the nodes, each with an agent.
    ///
    /// # Errors
    /// When files or sockets cannot be created, or an agent does not start.
    pub async fn start(
        args: &Args,
        start_agent: impl AsyncFn(&SimNode) -> anyhow::Result<DemoAgent>,
    ) -> anyhow::Result<Self> {
        let seed = args.seed.unwrap_or_else(|| fastrand::u64(1..100_000));
        let address = args.addr.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let server = ApiServer::start(address, seed).await;
        let server = server.map_err(|error| {
            anyhow!("cannot listen on {address}: {error}; choose another address with --addr")
        })?;
        let server = Arc::new(server);
        server.put(&DAEMON_SETS, daemon_set())?;
        let mut fleet = Self {
            server,
            members: Vec::new(),
            random: Rng::with_seed(seed),
            step: STEP.div_f64(args.speed * f64::from(args.nodes)),
            steps: 0,
            faults: VecDeque::new(),
        };
        for index in 0..usize::from(args.nodes) {
            let zones = ZONES[index % ZONES.len()];
            let name = format!("node-{}", index + 1);
            let options =
                Options { seed: seed + index as u64, release_lag: RELEASE_LAG, ..Options::default() };
            let node = SimNode::join(&name, &machine(zones), Arc::clone(&fleet.server), options)?;
            fleet.server.put(&NODES, node_object(&node, index, true))?;
            let mut member = Member {
                scenario: Scenario::new(zones, seed + index as u64),
                agent: Some(start_agent(&node).await?),
                error: None,
                is_node_ready: true,
                waiting: None,
                node,
            };
            member.show_agent()?;
            for _ in 0..FIRST_STEPS + fleet.random.usize(0..FIRST_STEPS) {
                member.step().await;
            }
            fleet.members.push(member);
        }
        fleet.server.put(&PODS, waiting_pod())?;
        Ok(fleet)
    }

    /// The kubeconfig file of the cluster.
    #[must_use]
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        self.members.first().map(|member| member.node.kubeconfig())
    }

    /// Lets pods come and go, and things fail, until it is dropped.
    ///
    /// # Errors
    /// When an agent does not start again.
    pub async fn play(
        &mut self,
        start_agent: impl AsyncFn(&SimNode) -> anyhow::Result<DemoAgent>,
    ) -> anyhow::Result<()> {
        loop {
            sleep(self.step).await;
            self.steps += 1;
            if self.faults.front().is_some_and(|fault| fault.until <= self.steps)
                && let Some(fault) = self.faults.pop_front()
            {
                self.mend(&fault, &start_agent).await?;
            }
            if self.steps.is_multiple_of(FAULT_EVERY) {
                self.fail().await?;
            }
            let index = self.random.usize(0..self.members.len());
            self.members[index].step().await;
            self.members.iter_mut().try_for_each(Member::observe_agent)?;
        }
    }

    async fn fail(&mut self) -> anyhow::Result<()> {
        let member = self.random.usize(0..self.members.len());
        if self.faults.iter().any(|fault| fault.member == member) {
            return Ok(());
        }
        let kinds = [FaultKind::Agent, FaultKind::Kubelet, FaultKind::Node, FaultKind::Pod];
        let kind = kinds[self.random.usize(0..kinds.len())];
        let of = &mut self.members[member];
        match kind {
            FaultKind::Agent => {
                // It stops as by SIGTERM.
                drop(of.agent.take());
                of.error = None;
                of.show_agent()?;
            }
            FaultKind::Kubelet => of.node.kubelet.fail_next(Call::List, 1000, &Fault::Hang),
            FaultKind::Node => of.set_node_ready(member, false)?,
            FaultKind::Pod => {
                let name = format!("starting-{}", self.steps);
                let pod = PodSpec::guaranteed(&name, 1, 1 << 30).object(of.node.name(), "Pending");
                self.server.put(&PODS, pod)?;
                of.waiting = Some(name);
            }
        }
        self.faults.push_back(ActiveFault { until: self.steps + FAULT_STEPS, member, kind });
        Ok(())
    }

    async fn mend(
        &mut self,
        fault: &ActiveFault,
        start_agent: &impl AsyncFn(&SimNode) -> anyhow::Result<DemoAgent>,
    ) -> anyhow::Result<()> {
        let member = &mut self.members[fault.member];
        match fault.kind {
            FaultKind::Agent => {
                member.agent = Some(start_agent(&member.node).await?);
                member.show_agent()?;
            }
            FaultKind::Kubelet => member.node.kubelet.clear_faults(),
            FaultKind::Node => member.set_node_ready(fault.member, true)?,
            FaultKind::Pod => {
                if let Some(name) = member.waiting.take() {
                    self.server.delete(&PODS, "default", &name);
                }
            }
        }
        Ok(())
    }
}

impl Member {
    async fn step(&mut self) {
        match self.scenario.step() {
            Step::Start(pod) => {
                let name = pod.name.clone();
                if self.node.start_pod(pod).await.is_err() {
                    self.scenario.rejected(&name);
                    self.node.stop_pod("default", &name);
                }
            }
            Step::Stop(name) => drop(self.node.stop_pod("default", &name)),
        }
    }

    /// An agent with an error is not Ready.
    fn observe_agent(&mut self) -> anyhow::Result<()> {
        let Some(agent) = &mut self.agent else { return Ok(()) };
        let mut newest = self.error.clone();
        while let Some(Some(error)) = agent.errors.next().now_or_never() {
            newest = error;
        }
        if newest.is_some() == self.error.is_some() {
            return Ok(());
        }
        self.error = newest;
        self.show_agent()
    }

    fn set_node_ready(&mut self, index: usize, is_ready: bool) -> anyhow::Result<()> {
        self.is_node_ready = is_ready;
        self.node.server.put(&NODES, node_object(&self.node, index, is_ready))?;
        self.show_agent()
    }

    /// Creates or changes the agent's pod, as the kubelet or the node controller would.
    fn show_agent(&self) -> anyhow::Result<()> {
        let is_ready = self.agent.is_some() && self.error.is_none() && self.is_node_ready;
        let status = if is_ready { "True" } else { "False" };
        let node = self.node.name();
        self.node.server.put(
            &PODS,
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": format!("numacast-{node}"), "namespace": NAMESPACE, "labels": labels(),
                    "ownerReferences": [{"kind": "DaemonSet", "name": "numacast"}],
                },
                "spec": {"nodeName": node, "containers": [{"name": "agent"}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]},
            }),
        )?;
        Ok(())
    }
}

fn labels() -> Value {
    json!({"app.kubernetes.io/name": "numacast", "app.kubernetes.io/component": "agent"})
}

fn daemon_set() -> Value {
    let container = json!({"name": "agent", "command": ["/numacast"], "args": ["agent"]});
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "numacast", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels()},
            "template": {"metadata": {"labels": labels()}, "spec": {"containers": [container]}},
        },
    })
}

fn node_object(node: &SimNode, index: usize, is_ready: bool) -> Value {
    let mut allocatable = serde_json::Map::new();
    for zone in node.kubelet.expected().zones.values() {
        for (resource, amounts) in zone {
            let sum = allocatable.get(resource).and_then(Value::as_u64).unwrap_or(0) + amounts.allocatable;
            allocatable.insert(resource.clone(), json!(sum));
        }
    }
    allocatable.insert("pods".to_owned(), json!(110));
    let status = if is_ready { "True" } else { "False" };
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name(),
            "labels": {
                "kubernetes.io/hostname": node.name(),
                "topology.kubernetes.io/zone": (["a", "b"][index / RACK % 2]),
                "example.com/rack": format!("rack-{}", index / RACK + 1),
                "example.com/pool": POOLS[index % POOLS.len()],
            },
        },
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": status}],
            "allocatable": allocatable,
            "capacity": allocatable,
            "nodeInfo": {"kubeletVersion": "v1.37.0", "architecture": "amd64"},
        },
    })
}

/// A pod that no node has room for.
fn waiting_pod() -> Value {
    let limits = json!({"cpu": "12", "memory": "8Gi"});
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "simulation-0", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]},
        "status": {
            "phase": "Pending",
            "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "no node can align the pod",
            }],
        },
    })
}
