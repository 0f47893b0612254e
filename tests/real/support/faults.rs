//! Injects faults into real components, one after another, with pods created and deleted before, during and
//! after each.
//!
//! After each fault the object must match the oracle, and no version of it may ever have reported more as
//! available than was free before the fault, is free after it, or was released by a pod that ended meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::agent::Agent;
use super::cluster::Cluster;
use super::history::History;
use super::node::{PodOutcome, RealNode, Stop};
use super::nrt;
use super::oracle;
use super::pods::{PodSpec, pod};
use super::wait::{until, until_every};

/// Maximum number of pods at a time.
const MAX_PODS: usize = 7;

const CRD: &str = "noderesourcetopologies.topology.node.k8s.io";
const AGENT: &str = "numacast-agent";

/// The injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    KubeletEnds,
    KubeletKilled,
    DirectoryLost,
    KubeletFrozen,
    KubeletAndApiServerKilled,
    StaticPod,
    PluginDown,
    DevicesUnhealthy,
    ApiServerFrozen,
    ApiServerKilled,
    EtcdFrozen,
    AgentKilled,
    ObjectEdited,
    ObjectDeleted,
    ObjectReplaced,
    RightsRevoked,
    CrdRemoved,
    NodeRecreated,
}

impl Fault {
    pub(crate) const ALL: [Self; 18] = [
        Self::KubeletEnds,
        Self::KubeletKilled,
        Self::DirectoryLost,
        Self::KubeletFrozen,
        Self::KubeletAndApiServerKilled,
        Self::StaticPod,
        Self::PluginDown,
        Self::DevicesUnhealthy,
        Self::ApiServerFrozen,
        Self::ApiServerKilled,
        Self::EtcdFrozen,
        Self::AgentKilled,
        Self::ObjectEdited,
        Self::ObjectDeleted,
        Self::ObjectReplaced,
        Self::RightsRevoked,
        Self::CrdRemoved,
        Self::NodeRecreated,
    ];

    /// Returns whether pods can be created and deleted during the fault.
    fn keeps_the_api_server(self) -> bool {
        !matches!(
            self,
            Self::ApiServerFrozen
                | Self::ApiServerKilled
                | Self::EtcdFrozen
                | Self::KubeletAndApiServerKilled
                | Self::StaticPod
        )
    }

    /// Returns whether the fault restarts the kubelet.
    pub(crate) fn restarts_the_kubelet(self) -> bool {
        matches!(
            self,
            Self::KubeletEnds
                | Self::KubeletKilled
                | Self::DirectoryLost
                | Self::KubeletAndApiServerKilled
                | Self::StaticPod
                | Self::NodeRecreated
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KubeletEnds => "kubelet ended and started",
            Self::KubeletKilled => "kubelet killed and started",
            Self::DirectoryLost => "kubelet killed, its socket's directory lost",
            Self::KubeletFrozen => "kubelet frozen",
            Self::KubeletAndApiServerKilled => "kubelet and API server killed",
            Self::StaticPod => "both killed, a static pod added or removed",
            Self::PluginDown => "device plugin stopped and started",
            Self::DevicesUnhealthy => "devices unhealthy and healthy",
            Self::ApiServerFrozen => "API server frozen",
            Self::ApiServerKilled => "API server killed and started",
            Self::EtcdFrozen => "etcd frozen",
            Self::AgentKilled => "agent killed and started",
            Self::ObjectEdited => "object edited with kubectl",
            Self::ObjectDeleted => "object deleted",
            Self::ObjectReplaced => "object replaced by another manager",
            Self::RightsRevoked => "agent's rights revoked and granted",
            Self::CrdRemoved => "CRD removed and installed",
            Self::NodeRecreated => "Node deleted and registered again",
        })
    }
}

/// The result of one fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Time from when every component was back and every pod had its outcome until the object was correct.
    pub(crate) until_correct: Duration,
    /// Versions of the object written meanwhile.
    pub(crate) versions: usize,
}

/// A node, its agent and the cluster, into which faults are injected.
pub(crate) struct Faults {
    // Dropped in this order: the agent before its kubelet, the kubelet before its API server.
    agent: Option<Agent>,
    node: RealNode,
    cluster: Cluster,
    history: History,
    kubectl: PathBuf,
    random: Rng,
    pods: Vec<String>,
    started: usize,
    /// Log of the current fault.
    notes: Vec<String>,
    /// Resource versions written by other managers.
    foreign: BTreeSet<u64>,
    /// The kubelet's checkpoints were removed, so running pods were allocated resources again.
    checkpoints_lost: bool,
    /// Whether the static pod's manifest exists.
    static_pod: bool,
    /// Resource -> whether half of its devices are unhealthy.
    unhealthy: BTreeMap<String, bool>,
    /// How many devices recovered during this fault, by resource.
    recovered: BTreeMap<String, u64>,
}

/// Which pods end and start, and when.
#[derive(Debug, Default)]
struct Plan {
    ending: Vec<(When, String)>,
    starting: Vec<(When, PodSpec)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    During,
    After,
}

impl Faults {
    /// Starts everything, with a few pods.
    pub(crate) async fn start(cluster: Cluster, kubectl: PathBuf, seed: u64) -> Result<Self> {
        grant(&cluster).await?;
        let mut node = RealNode::on("two-by-eight")?.static_pods(&cluster)?.start(&cluster).await?;
        let account = format!("system:serviceaccount:default:{AGENT}");
        node.set_agent_kubeconfig(cluster.kubeconfig_as(&account, &[])?);
        let mut agent = Agent::start(&node, &[])?;
        agent.matches_oracle(&node).await?;
        let history = History::start(cluster.etcd_url(), node.name()).await?;
        let mut faults = Self {
            agent: Some(agent),
            node,
            cluster,
            history,
            kubectl,
            random: Rng::with_seed(seed),
            pods: Vec::new(),
            started: 0,
            notes: Vec::new(),
            foreign: BTreeSet::new(),
            checkpoints_lost: false,
            static_pod: false,
            unhealthy: BTreeMap::new(),
            recovered: BTreeMap::new(),
        };
        for _ in 0..4 {
            let spec = faults.next_pod();
            faults.submit(&spec).await?;
        }
        faults.settle().await?;
        faults.matches_oracle().await?;
        Ok(faults)
    }

    /// Returns a random fault.
    pub(crate) fn choose(&mut self, faults: &[Fault]) -> Fault {
        faults[self.random.usize(..faults.len())]
    }

    /// Returns what was done besides the fault itself.
    pub(crate) fn notes(&self) -> String {
        self.notes.join(", ")
    }

    /// Injects one fault and checks the outcome.
    pub(crate) async fn inject(&mut self, fault: Fault) -> Result<Outcome> {
        self.notes.clear();
        self.recovered.clear();
        let plan = self.plan(fault);
        let mut ending: BTreeSet<String> = plan.ending.iter().map(|(_, name)| name.clone()).collect();
        if fault == Fault::StaticPod && self.static_pod {
            ending.insert(self.static_name());
        }
        let most = oracle::at_most_free(&self.node, &ending).await?;
        let mark = self.history.mark().await?;

        self.change(&plan, When::Before).await?;
        self.apply(fault, &plan).await?;
        self.change(&plan, When::After).await?;
        self.settle().await?;
        let calm = Instant::now();
        self.matches_oracle().await?;
        let until_correct = calm.elapsed();

        if std::mem::take(&mut self.checkpoints_lost) {
            let versions = self.history.since(mark).await?.len();
            return Ok(Outcome { until_correct, versions });
        }
        let mut most = most.max_available(&oracle::expected(&self.node).await?);
        for (resource, devices) in std::mem::take(&mut self.recovered) {
            most = most.add_available(&resource, devices);
        }
        let versions = self.history.since(mark).await?;
        for version in versions.iter().filter(|version| !self.foreign.contains(&version.revision)) {
            let Some(zones) = &version.zones else { continue };
            let beyond = most.overstated(zones);
            ensure!(beyond.is_empty(), "version {}:\n  {}", version.revision, beyond.join("\n  "));
        }
        Ok(Outcome { until_correct, versions: versions.len() })
    }

    // ---- pods

    fn plan(&mut self, fault: Fault) -> Plan {
        let mut plan = Plan::default();
        let times = match fault.keeps_the_api_server() {
            true => vec![When::Before, When::During, When::After],
            false => vec![When::Before, When::After],
        };
        for when in times {
            let full = self.pods.len() + plan.starting.len() >= MAX_PODS;
            if !full && self.random.u8(..100) < 60 {
                plan.starting.push((when, self.next_pod()));
            }
            if self.pods.len() > 1 && self.random.u8(..100) < if full { 70 } else { 30 } {
                let name = self.pods.swap_remove(self.random.usize(..self.pods.len()));
                plan.ending.push((when, name));
            }
        }
        plan
    }

    fn next_pod(&mut self) -> PodSpec {
        self.started += 1;
        let one = pod(&format!("pod-{}", self.started));
        let cpus = self.random.u32(1..=3);
        match self.random.u8(..6) {
            0 => one,
            1 => one.burstable().millicpus(200).memory("64Mi").device("example.com/bridge", 1),
            2 => one.cpus(cpus).memory("256Mi").device("example.com/nic", 1),
            3 => one.cpus(1).memory("128Mi").hugepages("2Mi", "16Mi"),
            _ => one.cpus(cpus).memory("128Mi"),
        }
    }

    /// Executes the plan's changes for this moment, without waiting for the pods.
    async fn change(&mut self, plan: &Plan, now: When) -> Result<()> {
        for (_, name) in plan.ending.iter().filter(|(when, _)| *when == now) {
            self.notes.push(format!("{name} deleted {now:?}"));
            until("the API server accepts the deletion", async || {
                match self.node.request_deletion(name).await {
                    Err(error) if code_of(&error) != Some(404) => Err(error),
                    _ => Ok(()),
                }
            })
            .await?;
        }
        for (_, spec) in plan.starting.iter().filter(|(when, _)| *when == now) {
            self.notes.push(format!("{spec} started {now:?}"));
            self.submit(spec).await?;
        }
        Ok(())
    }

    async fn submit(&mut self, spec: &PodSpec) -> Result<()> {
        until("the API server accepts the pod", async || match self.node.submit(spec).await {
            Err(error) if code_of(&error) != Some(409) => Err(error),
            _ => Ok(()),
        })
        .await?;
        self.pods.push(spec.name().to_owned());
        Ok(())
    }

    /// Waits until every component is back, every pod has its outcome, and all deleted pods are gone.
    async fn settle(&mut self) -> Result<()> {
        self.node.wait_until_ready().await?;
        let mut here = Vec::new();
        for name in std::mem::take(&mut self.pods) {
            match self.node.wait_for_outcome(&name).await? {
                PodOutcome::Running => here.push(name),
                PodOutcome::Ended(why) => {
                    self.notes.push(format!("{name} rejected: {why}"));
                    self.node.delete(&name).await?;
                }
            }
        }
        until("only the pods that stay are there", async || {
            let there = self.node.pods().await?.into_iter().map(|pod| pod.name_any());
            let there: Vec<String> = there.filter(|name| *name != self.static_name()).collect();
            ensure!(there.len() == here.len(), "there are {there:?}, not {here:?}");
            Ok(())
        })
        .await?;
        self.pods = here;
        match self.static_pod {
            true => self.settle_static_pod().await,
            false => self.node.wait_until_gone(&self.static_name()).await,
        }
    }

    /// Waits until the static pod is running or rejected because the node is full. A rejected one is removed:
    /// a restarted kubelet would admit it again.
    async fn settle_static_pod(&mut self) -> Result<()> {
        let rejected = |why: &str| {
            ["UnexpectedAdmissionError", "TopologyAffinityError"].iter().any(|end| why.ends_with(end))
        };
        // The previous mirror pod may remain for a while.
        let outcome = until("the static pod runs or is rejected", async || {
            let outcome = self.node.wait_for_outcome(&self.static_name()).await?;
            let settled = match &outcome {
                PodOutcome::Running => true,
                PodOutcome::Ended(why) => rejected(why),
            };
            ensure!(settled, "it does neither: {outcome:?}");
            Ok(outcome)
        })
        .await?;
        if let PodOutcome::Ended(why) = outcome {
            self.notes.push(format!("the static pod rejected: {why}"));
            self.toggle_static_pod()?;
            self.node.wait_until_gone(&self.static_name()).await?;
        }
        Ok(())
    }

    async fn matches_oracle(&mut self) -> Result<()> {
        let agent = self.agent.as_mut().context("no agent runs")?;
        agent.matches_oracle(&self.node).await
    }

    // ---- faults

    async fn apply(&mut self, fault: Fault, plan: &Plan) -> Result<()> {
        if fault.restarts_the_kubelet() && self.would_panic().await? {
            self.notes.push("no restart: a device in use is on no plugin's list".to_owned());
            return self.change(plan, When::During).await;
        }
        match fault {
            Fault::KubeletEnds => self.restart_kubelet(Stop::Term, false, plan).await,
            Fault::KubeletKilled => self.restart_kubelet(Stop::Kill, false, plan).await,
            Fault::DirectoryLost => self.restart_kubelet(Stop::Kill, true, plan).await,
            Fault::KubeletAndApiServerKilled => self.restart_both(false).await,
            Fault::StaticPod => self.restart_both(true).await,
            Fault::NodeRecreated => self.recreate_the_node(plan).await,
            Fault::KubeletFrozen => {
                self.node.signal_kubelet("STOP")?;
                self.change(plan, When::During).await?;
                self.pause(200..3000).await;
                self.node.signal_kubelet("CONT")
            }
            Fault::PluginDown => self.restart_a_plugin(plan).await,
            Fault::DevicesUnhealthy => {
                let resource = self.change_health()?;
                self.change(plan, When::During).await?;
                self.pause(0..800).await;
                // Only from unhealthy to healthy: devices healthy for a moment are free neither before nor after.
                if self.unhealthy[&resource] && self.random.bool() {
                    self.toggle_health(&resource)?;
                }
                Ok(())
            }
            Fault::ApiServerFrozen => {
                self.cluster.signal_api_server("STOP")?;
                self.change_health()?;
                self.pause(200..4000).await;
                self.cluster.signal_api_server("CONT")
            }
            Fault::EtcdFrozen => {
                self.cluster.signal_etcd("STOP")?;
                self.change_health()?;
                self.pause(200..3000).await;
                self.cluster.signal_etcd("CONT")
            }
            Fault::ApiServerKilled => {
                self.cluster.kill_api_server()?;
                self.change_health()?;
                self.pause(0..1500).await;
                self.cluster.restart_api_server().await
            }
            Fault::AgentKilled => {
                self.agent = None;
                self.change(plan, When::During).await?;
                self.pause(0..2000).await;
                self.agent = Some(Agent::start(&self.node, &[])?);
                Ok(())
            }
            Fault::ObjectEdited => self.edit(plan).await,
            Fault::ObjectDeleted => {
                self.kubectl(&["delete", "noderesourcetopology", self.node.name()]).await?;
                self.change(plan, When::During).await?;
                self.wait_for_object().await
            }
            Fault::ObjectReplaced => {
                self.replace(plan).await?;
                // The agent does not overwrite another manager at once: its next change corrects the object.
                self.change_health().map(drop)
            }
            Fault::RightsRevoked => {
                let bindings = Api::<ClusterRoleBinding>::all(self.cluster.client());
                bindings.delete(AGENT, &DeleteParams::default()).await?;
                self.change(plan, When::During).await?;
                self.change_health()?;
                self.pause(200..2500).await;
                bindings.create(&PostParams::default(), &binding()?).await.map(drop)?;
                Ok(())
            }
            Fault::CrdRemoved => self.remove_the_crd(plan).await,
        }
    }

    /// Returns true if a restarted kubelet would panic: it does when it readmits a pod whose device no plugin
    /// lists.
    async fn would_panic(&self) -> Result<bool> {
        let in_use = oracle::devices_in_use(&self.node).await?;
        Ok(in_use.iter().any(|(resource, id)| !self.node.lists_device(resource, id)))
    }

    async fn restart_kubelet(&mut self, how: Stop, lose_directory: bool, plan: &Plan) -> Result<()> {
        self.end_kubelet(how).await?;
        if lose_directory {
            self.node.recreate_pod_resources_dir()?;
        }
        self.change(plan, When::During).await?;
        self.pause(0..1500).await;
        self.node.launch_kubelet()?;
        self.node.wait_until_ready().await
    }

    /// Stops the kubelet at any moment except between two steps of writing its checkpoints, after which it
    /// would never start again.
    async fn end_kubelet(&mut self, how: Stop) -> Result<()> {
        self.pause(0..60).await;
        until_every("the kubelet's checkpoints are complete", Duration::from_millis(25), async || {
            self.node.signal_kubelet("STOP")?;
            let complete = oracle::checkpoints_are_complete(&self.node);
            if complete.is_err() || matches!(how, Stop::Term) {
                self.node.signal_kubelet("CONT")?;
            }
            complete
        })
        .await?;
        self.node.stop_kubelet(how)?;
        if oracle::checkpoints_are_complete(&self.node).is_err() {
            // SIGTERM may still end it there. The checkpoints are removed, and every pod is allocated
            // resources again.
            self.notes.push("the kubelet ended between two steps of writing its checkpoints".to_owned());
            self.node.remove_checkpoints()?;
            self.checkpoints_lost = true;
        }
        Ok(())
    }

    /// Restarts the kubelet first: it reports everything but its pods while it waits for the API server.
    async fn restart_both(&mut self, with_static_pod: bool) -> Result<()> {
        self.end_kubelet(Stop::Kill).await?;
        self.cluster.kill_api_server()?;
        if with_static_pod {
            self.toggle_static_pod()?;
        }
        self.node.launch_kubelet()?;
        self.pause(500..2500).await;
        self.cluster.restart_api_server().await?;
        self.node.wait_until_ready().await
    }

    fn static_name(&self) -> String {
        self.node.mirror("static")
    }

    /// Adds or removes a static pod, for which the kubelet needs no API server.
    fn toggle_static_pod(&mut self) -> Result<()> {
        let manifest = self.cluster.dir().join("manifests/static.yaml");
        self.static_pod = !self.static_pod;
        self.notes.push(format!("there is a static pod: {}", self.static_pod));
        if !self.static_pod {
            return Ok(std::fs::remove_file(manifest)?);
        }
        // A different manifest each time: the kubelet identifies static pods by their content.
        let number = self.random.u64(..).to_string();
        let one = pod("static").cpus(1).memory("64Mi").annotation("number", &number);
        Ok(std::fs::write(manifest, self.node.manifest(&one)?)?)
    }

    /// Recreates the Node. No garbage collector runs here: the object remains, with a stale owner reference.
    async fn recreate_the_node(&mut self, plan: &Plan) -> Result<()> {
        let nodes = Api::<Node>::all(self.cluster.client());
        self.end_kubelet(Stop::Term).await?;
        nodes.delete(self.node.name(), &DeleteParams::default()).await.map(drop)?;
        self.change(plan, When::During).await?;
        self.pause(0..1000).await;
        self.node.launch_kubelet()?;
        self.node.wait_until_ready().await
    }

    async fn restart_a_plugin(&mut self, plan: &Plan) -> Result<()> {
        let resource = self.any_resource();
        self.node.stop_plugin(&resource)?;
        self.change(plan, When::During).await?;
        self.pause(0..1500).await;
        self.node.start_plugin(&resource)
    }

    fn any_resource(&mut self) -> String {
        let resources: Vec<String> = self.node.machine().devices.iter().map(|d| d.resource.clone()).collect();
        resources[self.random.usize(..resources.len())].clone()
    }

    /// Makes half of a random plugin's devices unhealthy, or all of them healthy again.
    fn change_health(&mut self) -> Result<String> {
        let resource = self.any_resource();
        self.toggle_health(&resource)?;
        Ok(resource)
    }

    fn toggle_health(&mut self, resource: &str) -> Result<()> {
        let spec =
            self.node.machine().devices.iter().find(|d| d.resource == resource).context("no plugin")?;
        let mut devices = spec.devices.clone();
        let unhealthy = self.unhealthy.entry(resource.to_owned()).or_default();
        *unhealthy = !*unhealthy;
        for device in devices.iter_mut().step_by(2) {
            device.unhealthy = *unhealthy;
        }
        if !*unhealthy {
            *self.recovered.entry(resource.to_owned()).or_default() += devices.len().div_ceil(2) as u64;
        }
        self.notes.push(format!("{resource}: every second device is unhealthy: {unhealthy}"));
        self.node.set_devices(resource, &devices)
    }

    async fn edit(&mut self, plan: &Plan) -> Result<()> {
        let patch = match self.random.u8(..4) {
            0 => json!([{ "op": "replace", "path": "/zones/0/resources/0/available", "value": "999" }]),
            1 => json!([{ "op": "remove", "path": "/zones/1" }]),
            2 => json!([{ "op": "add", "path": "/metadata/labels", "value": { "edited": "yes" } }]),
            _ => json!([{ "op": "replace", "path": "/attributes/0/value", "value": "edited" }]),
        };
        self.notes.push(format!("patched with {patch}"));
        let patch = patch.to_string();
        let version = "jsonpath={.metadata.resourceVersion}";
        let node = self.node.name();
        let arguments = ["patch", "noderesourcetopology", node, "--type=json", "-p", &patch, "-o", version];
        let output = self.kubectl(&arguments).await?;
        self.foreign.insert(output.trim().parse().with_context(|| output.clone())?);
        self.change(plan, When::During).await
    }

    /// Replaces the object as another field manager, with everything available.
    async fn replace(&mut self, plan: &Plan) -> Result<()> {
        let api = nrt::api(&self.cluster.client());
        let params =
            PostParams { field_manager: Some("nfd-topology-updater".to_owned()), ..PostParams::default() };
        let replaced = loop {
            let mut object = api.get(self.node.name()).await?;
            for zone in object.data["zones"].as_array_mut().into_iter().flatten() {
                for resource in zone["resources"].as_array_mut().into_iter().flatten() {
                    resource["available"] = resource["capacity"].clone();
                }
            }
            match api.replace(self.node.name(), &params, &object).await {
                // The agent has written since the object was read.
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                replaced => break replaced?,
            }
        };
        let version = replaced.resource_version().context("no version")?;
        self.foreign.insert(version.parse()?);
        self.change(plan, When::During).await
    }

    async fn remove_the_crd(&mut self, plan: &Plan) -> Result<()> {
        let crds = Api::<CustomResourceDefinition>::all(self.cluster.client());
        crds.delete(CRD, &DeleteParams::default()).await.map(drop)?;
        until("the CRD is gone", async || {
            ensure!(crds.get_opt(CRD).await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
        self.change(plan, When::During).await?;
        self.pause(0..2000).await;
        self.cluster.apply_crds().await?;
        self.wait_for_object().await
    }

    async fn wait_for_object(&self) -> Result<()> {
        until("the object is there again", async || {
            super::nrt::read(&self.cluster.client(), self.node.name()).await.map(drop)
        })
        .await
    }

    async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = std::process::Command::new(&self.kubectl);
        command.arg("--cache-dir").arg(self.cluster.dir().join("kubectl")).args(arguments);
        command.env("KUBECONFIG", self.cluster.admin_kubeconfig());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        if !output.status.success() {
            bail!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Sleeps for a random number of milliseconds.
    async fn pause(&mut self, range: std::ops::Range<u64>) {
        tokio::time::sleep(Duration::from_millis(self.random.u64(range))).await;
    }
}

fn code_of(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

fn binding() -> Result<ClusterRoleBinding> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": AGENT },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": AGENT },
        "subjects": [{ "kind": "ServiceAccount", "name": AGENT, "namespace": "default" }],
    }))?)
}

/// Grants the rights that the agent needs with every feature enabled.
async fn grant(cluster: &Cluster) -> Result<()> {
    let nrt = json!({ "apiGroups": ["topology.node.k8s.io"], "resources": ["noderesourcetopologies"],
        "verbs": ["get", "list", "watch", "create", "patch"] });
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": { "name": AGENT },
        "rules": [
            nrt,
            { "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] },
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"] },
            { "apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list", "watch"] },
            { "apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"] },
            { "apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
        ],
    }))?;
    Api::<ClusterRole>::all(cluster.client()).create(&PostParams::default(), &role).await?;
    Api::<ClusterRoleBinding>::all(cluster.client()).create(&PostParams::default(), &binding()?).await?;
    Ok(())
}
