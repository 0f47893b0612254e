//! A described machine with a real kubelet on it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use numacast::kubelet::{HttpsClient, HttpsTarget};
use numacast_sim::machine::{Device, MachineSpec};
use serde_json::{Map, Value, json};

use super::cgroups::Cgroups;
use super::cluster::{Cluster, Programs, free_port};
use super::driven::Driven;
use super::parts;
use super::pods::PodSpec;
use super::process::{Process, tethered};
use super::wait::until;

/// How a kubelet is stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    /// Gracefully: SIGTERM.
    Term,
    /// SIGKILL.
    Kill,
}

/// A pod's outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodOutcome {
    /// The pod is running.
    Running,
    /// The kubelet rejected the pod, or it ended: the phase and the reason.
    Ended(String),
}

/// Feature gates that a test may set, and the minor version of Kubernetes 1 that introduced each: a kubelet
/// exits if given an unknown gate.
const GATES: [(&str, u32); 5] = [
    ("CPUManagerPolicyAlphaOptions", 23),
    ("InPlacePodVerticalScalingExclusiveCPUs", 32),
    ("InPlacePodVerticalScalingExclusiveMemory", 34),
    ("PodLevelResourceManagers", 36),
    ("PodsAPI", 36),
];

/// A machine whose kubelet is not yet started.
#[derive(Clone)]
pub(crate) struct NodeSetup {
    name: String,
    machine: MachineSpec,
    /// For example `1.33`; `None` is the version of all other components.
    version: Option<String>,
    gates: BTreeSet<String>,
    flags: Vec<String>,
    runs_pods: bool,
}

/// A machine with a running kubelet that has joined the cluster.
pub(crate) struct RealNode {
    kubelet: RefCell<Option<Process>>,
    // Borrowed for a whole request and response, so that these do not interleave.
    fakenode: RefCell<Driven>,
    name: String,
    /// The namespace of its pods.
    namespace: String,
    dir: PathBuf,
    machine: MachineSpec,
    /// The kubelet's minor version: 37 for 1.37.
    minor: u32,
    /// Enabled feature gates.
    gates: Map<String, Value>,
    /// Additional kubelet flags.
    flags: Vec<String>,
    /// The cgroups of its pods, where the host lets a kubelet create them. Dropped after the kubelet.
    cgroups: Option<Cgroups>,
    client: Client,
    programs: Programs,
    /// `None` without an API server.
    kubeconfig: Option<PathBuf>,
    agent_kubeconfig: PathBuf,
    /// Every device that a plugin ever listed, including removed ones that are still in use.
    inventory: BTreeMap<String, BTreeMap<String, BTreeSet<u16>>>,
    /// Devices that running plugins report as healthy.
    healthy: BTreeMap<String, BTreeSet<String>>,
    /// Stopped plugins and the healthy devices they will have when started again.
    stopped: BTreeMap<String, BTreeSet<String>>,
    /// Every device that a plugin lists now, healthy or not.
    listed: BTreeMap<String, BTreeSet<String>>,
}

#[allow(dead_code, reason = "not every test program uses everything")]
impl NodeSetup {
    /// Sets a name other than the machine's.
    pub(crate) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Overrides a key of the machine's `KubeletConfiguration`; `null` removes it.
    pub(crate) fn kubelet(mut self, key: &str, value: Value) -> Self {
        match value {
            Value::Null => self.machine.kubelet.remove(key),
            value => self.machine.kubelet.insert(key.to_owned(), value),
        };
        self
    }

    /// Makes the kubelet read static pods from `manifests` in the cluster's directory ([`RealNode::manifest`]),
    /// every second instead of every 20 seconds.
    pub(crate) fn static_pods(self, cluster: &Cluster) -> Result<Self> {
        let manifests = cluster.dir().join("manifests");
        std::fs::create_dir(&manifests)?;
        let setup = self.kubelet("fileCheckFrequency", "1s".into());
        Ok(setup.kubelet("staticPodPath", manifests.to_string_lossy().into()))
    }

    /// Uses the kubelet of a minor version, such as `1.33`. The other components are unchanged.
    pub(crate) fn version(mut self, minor: &str) -> Self {
        self.version = Some(minor.to_owned());
        self
    }

    /// Adds a kubelet flag.
    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// Runs pods whose image is not one of the fakes for real, in containers of `tests/parts/in-pod`: the
    /// binary under test is their image.
    pub(crate) fn running_pods(mut self) -> Self {
        self.runs_pods = true;
        self
    }

    /// Enables a feature gate, if the kubelet's version has it.
    pub(crate) fn gate(mut self, name: &str) -> Self {
        self.gates.insert(name.to_owned());
        self
    }

    /// Starts everything and waits until the node is Ready and reports its devices.
    pub(crate) async fn start(self, cluster: &Cluster) -> Result<RealNode> {
        let Self { name, machine, version, gates, flags, runs_pods } = self;
        let name = cluster.node_name(&name);
        let dir = cluster.dir().join(&name);
        std::fs::create_dir_all(dir.join("kubelet"))?;
        machine.write_tree(&dir)?;
        let mut programs = cluster.programs().clone();
        if let Some(version) = version {
            programs.kubelet = parts::program_of(&version, "kubelet")?;
        }
        let minor = minor_of(&programs.kubelet)?;
        let gates = known_gates(&gates, minor)?;
        // With CPU Manager policy "none" the kubelet writes the described CPUs into the cpuset of its pods,
        // and the real machine may have fewer.
        let pins = machine.kubelet.get("cpuManagerPolicy").is_some_and(|policy| policy == "static");
        let cgroups = pins.then(|| Cgroups::make(&unique(&name))).flatten();
        let config = kubelet_config(&machine, &dir, &gates, cgroups.as_ref())?;
        std::fs::write(dir.join("kubelet/config.yaml"), serde_json::to_vec_pretty(&config)?)?;
        let mut node = RealNode {
            kubelet: RefCell::new(None),
            fakenode: RefCell::new(start_fakenode(&dir, &programs, runs_pods)?),
            namespace: cluster.namespace(),
            client: cluster.client(),
            kubeconfig: Some(cluster.kubeconfig_as(&format!("system:node:{name}"), &["system:nodes"])?),
            agent_kubeconfig: cluster.admin_kubeconfig(),
            inventory: BTreeMap::new(),
            healthy: BTreeMap::new(),
            stopped: BTreeMap::new(),
            listed: BTreeMap::new(),
            minor,
            cgroups,
            gates,
            flags,
            programs,
            name,
            dir,
            machine,
        };
        for resource in node.machine.devices.clone() {
            node.set_devices(&resource.resource, &resource.devices)?;
        }
        node.start_kubelet().await?;
        Ok(node)
    }
}

#[allow(dead_code, reason = "not every test program uses everything")]
impl RealNode {
    /// Returns the setup for the machine of `tests/machines/<machine>.yaml`.
    pub(crate) fn on(machine: &str) -> Result<NodeSetup> {
        Ok(Self::of(machine, self::machine(machine)?))
    }

    /// Returns the setup for a machine described elsewhere.
    pub(crate) fn of(name: &str, machine: MachineSpec) -> NodeSetup {
        let gates = BTreeSet::from(["PodsAPI".to_owned()]);
        NodeSetup {
            name: name.to_owned(),
            machine,
            version: None,
            gates,
            flags: Vec::new(),
            runs_pods: false,
        }
    }

    /// Returns the node's name: the machine's, unless tests share the control plane.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the namespace of its pods.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name of a static pod's mirror pod.
    pub(crate) fn mirror(&self, pod: &str) -> String {
        format!("{pod}-{}", self.name)
    }

    /// Returns a static pod's manifest.
    pub(crate) fn manifest(&self, spec: &PodSpec) -> Result<Vec<u8>> {
        let mut object = spec.bound_to("")?;
        object.metadata.namespace = Some(self.namespace.clone());
        Ok(serde_json::to_vec(&object)?)
    }

    /// Returns the machine's directory: `sys/`, `proc/`, `kubelet/`.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the host path of the kubelet's `/var/lib/kubelet`.
    pub(crate) fn kubelet_dir(&self) -> PathBuf {
        self.dir.join("kubelet")
    }

    /// Returns the machine, with this node's kubelet configuration.
    pub(crate) fn machine(&self) -> &MachineSpec {
        &self.machine
    }

    /// Returns the kubelet's minor version: 37 for 1.37.
    pub(crate) fn minor(&self) -> u32 {
        self.minor
    }

    /// Returns whether a feature gate is enabled.
    pub(crate) fn has_gate(&self, name: &str) -> bool {
        self.gates.contains_key(name)
    }

    /// Returns whether the kubelet survives a resize: without cgroups it panics when applying one.
    pub(crate) fn can_resize(&self) -> bool {
        self.cgroups.is_some()
    }

    /// Returns the kubelet's log since its first start.
    pub(crate) fn kubelet_log(&self) -> Result<String> {
        let path = self.dir.join("kubelet.log");
        Ok(String::from_utf8_lossy(&std::fs::read(&path).with_context(|| path.display().to_string())?)
            .into_owned())
    }

    /// Returns a client with every right.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Gives the agent under test a kubeconfig other than the administrator's.
    pub(crate) fn set_agent_kubeconfig(&mut self, kubeconfig: PathBuf) {
        self.agent_kubeconfig = kubeconfig;
    }

    /// Returns the kubeconfig of the agent under test.
    pub(crate) fn agent_kubeconfig(&self) -> &Path {
        &self.agent_kubeconfig
    }

    /// Returns every device that a plugin ever listed: resource -> id -> NUMA nodes.
    pub(crate) fn inventory(&self) -> &BTreeMap<String, BTreeMap<String, BTreeSet<u16>>> {
        &self.inventory
    }

    /// Returns the devices of a resource that a running plugin reports as healthy.
    pub(crate) fn healthy_devices(&self, resource: &str) -> BTreeSet<String> {
        self.healthy.get(resource).cloned().unwrap_or_default()
    }

    // ---- pods

    /// Creates a pod and waits until it is running.
    pub(crate) async fn run(&self, spec: PodSpec) -> Result<()> {
        self.submit(&spec).await?;
        self.wait_until_running(spec.name()).await
    }

    /// Waits until a pod is running; fails if it ends.
    pub(crate) async fn wait_until_running(&self, name: &str) -> Result<()> {
        match self.wait_for_outcome(name).await? {
            PodOutcome::Running => Ok(()),
            PodOutcome::Ended(why) => bail!("pod {name} does not run: {why}"),
        }
    }

    /// Creates a pod and waits for its outcome: the kubelet may reject it.
    pub(crate) async fn try_to_run(&self, spec: PodSpec) -> Result<PodOutcome> {
        self.submit(&spec).await?;
        self.wait_for_outcome(spec.name()).await
    }

    /// Creates a pod without waiting.
    pub(crate) async fn submit(&self, spec: &PodSpec) -> Result<()> {
        let mut object = spec.bound_to(&self.name)?;
        object.metadata.namespace = Some(self.namespace.clone());
        self.pods_api().create(&PostParams::default(), &object).await?;
        Ok(())
    }

    /// Waits until a pod is running or has ended.
    pub(crate) async fn wait_for_outcome(&self, name: &str) -> Result<PodOutcome> {
        until(&format!("pod {name} runs or has ended"), async || {
            self.kubelet_still_runs()?;
            let status = self.pods_api().get(name).await?.status.unwrap_or_default();
            let reason = status.reason.or(status.message).unwrap_or_default();
            match status.phase.as_deref() {
                Some("Running") => Ok(PodOutcome::Running),
                Some(phase @ ("Failed" | "Succeeded")) => Ok(PodOutcome::Ended(format!("{phase} {reason}"))),
                other => bail!("its phase is {other:?}"),
            }
        })
        .await
    }

    /// Requests other CPUs and memory for a container of a running pod, waits until the kubelet has processed
    /// the resize, and returns the kubelet's decision in its own words.
    pub(crate) async fn resize(&self, pod: &str, container: &str, to: &PodSpec) -> Result<String> {
        let change = json!({ "name": container, "resources": to.resources() });
        let patch = Patch::Strategic(json!({ "spec": { "containers": [change] } }));
        match self.pods_api().patch_subresource("resize", pod, &PatchParams::default(), &patch).await {
            Ok(_) => {}
            Err(kube::Error::Api(rejected)) if [403, 422].contains(&rejected.code) => {
                return Ok(format!("the API server rejects it: {}", rejected.message));
            }
            Err(error) => return Err(error.into()),
        }
        until(&format!("the kubelet has processed the resize of {pod}"), async || {
            self.kubelet_still_runs()?;
            let object = self.pods_api().get(pod).await?;
            let status = object.status.unwrap_or_default();
            let pending = status.conditions.iter().flatten().find(|c| c.type_ == "PodResizePending");
            if let Some(pending) = pending {
                let reason = pending.reason.clone().unwrap_or_default();
                return Ok(format!("{reason}: {}", pending.message.clone().unwrap_or_default()));
            }
            let mut containers = object.spec.unwrap_or_default().containers.into_iter();
            let requested = containers.find(|c| c.name == container).and_then(|c| c.resources?.requests);
            let allocated = status.container_statuses.into_iter().flatten().find(|c| c.name == container);
            let allocated = allocated.and_then(|c| c.allocated_resources);
            ensure!(allocated == requested, "{allocated:?} is allocated, not {requested:?}");
            Ok("allocated".to_owned())
        })
        .await
    }

    /// Makes a pod's containers exit with a code and waits until the pod is Succeeded or Failed.
    pub(crate) async fn finish(&self, pod: &str, code: i32) -> Result<()> {
        self.exit(pod, code)?;
        until(&format!("pod {pod} has ended"), async || {
            self.kubelet_still_runs()?;
            let outcome = self.wait_for_outcome(pod).await?;
            ensure!(outcome != PodOutcome::Running, "it runs");
            Ok(())
        })
        .await
    }

    /// Makes a pod's containers exit with a code, without waiting for the kubelet.
    pub(crate) fn exit(&self, pod: &str, code: i32) -> Result<()> {
        self.command(&json!({
            "do": "exitContainers", "namespace": self.namespace, "pod": pod, "code": code,
        }))
    }

    /// Deletes a pod and waits until it is gone.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.request_deletion(name).await?;
        self.wait_until_gone(name).await
    }

    /// Lists every pod bound to the node.
    pub(crate) async fn pods(&self) -> Result<Vec<Pod>> {
        let bound = ListParams::default().fields(&format!("spec.nodeName={}", self.name));
        Ok(Api::all(self.client()).list(&bound).await?.items)
    }

    /// Deletes a pod without waiting until it is gone.
    pub(crate) async fn request_deletion(&self, name: &str) -> Result<()> {
        self.pods_api().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Deletes a pod object at once (grace period 0), even if the kubelet still has the pod.
    pub(crate) async fn force_delete(&self, name: &str) -> Result<()> {
        self.pods_api().delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// Removes every finalizer from a pod.
    pub(crate) async fn remove_finalizers(&self, name: &str) -> Result<()> {
        let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        self.pods_api().patch(name, &PatchParams::default(), &none).await?;
        Ok(())
    }

    /// Waits until a pod's status contains `text` anywhere.
    pub(crate) async fn wait_for_status(&self, name: &str, text: &str) -> Result<()> {
        until(&format!("the status of pod {name} contains {text}"), async || {
            self.kubelet_still_runs()?;
            let status = serde_json::to_string(&self.pods_api().get(name).await?.status)?;
            ensure!(status.contains(text), "it is {status}");
            Ok(())
        })
        .await
    }

    /// Waits until a pod is gone.
    pub(crate) async fn wait_until_gone(&self, name: &str) -> Result<()> {
        until(&format!("pod {name} is gone"), async || {
            self.kubelet_still_runs()?;
            ensure!(self.pods_api().get_opt(name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await
    }

    fn pods_api(&self) -> Api<Pod> {
        Api::namespaced(self.client(), &self.namespace)
    }

    // ---- devices

    /// Sets a plugin's devices; the first call starts the plugin.
    pub(crate) fn set_devices(&mut self, resource: &str, devices: &[Device]) -> Result<()> {
        let known = self.inventory.entry(resource.to_owned()).or_default();
        known.extend(devices.iter().map(|d| (d.id.clone(), d.numa.iter().copied().collect())));
        self.listed.insert(resource.to_owned(), devices.iter().map(|d| d.id.clone()).collect());
        let healthy = devices.iter().filter(|d| !d.unhealthy).map(|d| d.id.clone()).collect();
        let whose = if self.stopped.contains_key(resource) { &mut self.stopped } else { &mut self.healthy };
        whose.insert(resource.to_owned(), healthy);
        self.command(&json!({ "do": "setDevices", "resource": resource, "devices": devices }))
    }

    /// Stops a plugin; its devices become unhealthy, and the kubelet forgets them after five minutes.
    pub(crate) fn stop_plugin(&mut self, resource: &str) -> Result<()> {
        if let Some((resource, devices)) = self.healthy.remove_entry(resource) {
            self.stopped.insert(resource, devices);
        }
        self.command(&json!({ "do": "stopPlugin", "resource": resource }))
    }

    /// Starts a plugin that was stopped.
    pub(crate) fn start_plugin(&mut self, resource: &str) -> Result<()> {
        if let Some((resource, devices)) = self.stopped.remove_entry(resource) {
            self.healthy.insert(resource, devices);
        }
        self.command(&json!({ "do": "startPlugin", "resource": resource }))
    }

    /// Returns whether a running plugin lists a device, healthy or not.
    pub(crate) fn lists_device(&self, resource: &str, id: &str) -> bool {
        let listed = self.listed.get(resource).is_some_and(|ids| ids.contains(id));
        listed && !self.stopped.contains_key(resource)
    }

    fn command(&self, request: &Value) -> Result<()> {
        self.fakenode.borrow_mut().request(request)
    }

    // ---- the kubelet

    /// Starts the kubelet and waits until the node is Ready and reports every device.
    pub(crate) async fn start_kubelet(&mut self) -> Result<()> {
        self.launch_kubelet()?;
        self.wait_until_ready().await
    }

    /// Waits until the node is Ready and reports every device.
    pub(crate) async fn wait_until_ready(&self) -> Result<()> {
        let ready = until("the node is ready", async || {
            self.kubelet_still_runs()?;
            self.is_ready().await
        });
        ready.await.with_context(|| self.kubelet_log_tail())
    }

    /// Starts the kubelet without waiting.
    pub(crate) fn launch_kubelet(&mut self) -> Result<()> {
        let mut command = self.inside()?;
        command.arg(&self.programs.kubelet);
        command.args(["--config", "/var/lib/kubelet/config.yaml", "--hostname-override", &self.name]);
        if let Some(kubeconfig) = &self.kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        command.arg("--cert-dir").arg(self.dir.join("kubelet-certificates")).args(&self.flags);
        self.kubelet.replace(Some(Process::start("kubelet", &self.dir, command)?));
        Ok(())
    }

    /// Starts the kubelet without an API server from now on.
    pub(crate) fn leave_cluster(&mut self) {
        self.kubeconfig = None;
    }

    /// Returns a command that runs what is appended to it on the described machine.
    pub(crate) fn inside(&self) -> Result<Command> {
        // The fake runtime gives containers no log path, so the kubelet's garbage collection removes `*` in
        // its working directory. nsenter's default is `/`, which would delete the machine's `/bin`.
        let nowhere = self.dir.join("nowhere");
        std::fs::create_dir_all(&nowhere)?;
        let mut command = tethered("nsenter");
        command.args(["-m", "-t", &self.fakenode.borrow().id().to_string()]);
        command.arg(format!("--wdns={}", nowhere.display())).arg("--");
        Ok(command)
    }

    fn kubelet_log_tail(&self) -> String {
        self.kubelet.borrow().as_ref().map(Process::log_tail).unwrap_or_default()
    }

    /// Sends the kubelet a signal: `STOP` freezes it, `CONT` resumes it.
    pub(crate) fn signal_kubelet(&self, name: &str) -> Result<()> {
        self.kubelet.borrow().as_ref().context("the kubelet does not run")?.signal(name)
    }

    /// Returns the kubelet's process id.
    pub(crate) fn kubelet_pid(&self) -> Result<u32> {
        Ok(self.kubelet.borrow().as_ref().context("the kubelet does not run")?.id())
    }

    /// Maps the addresses that really running pods connect to, to the real ones.
    pub(crate) fn map_addresses(&self, reach: &BTreeMap<String, String>) -> Result<()> {
        Ok(std::fs::write(self.dir.join("reach.json"), serde_json::to_vec(reach)?)?)
    }

    /// Returns the address of the kubelet's HTTPS port and the path of its serving certificate.
    pub(crate) fn https_port(&self) -> Result<(String, PathBuf)> {
        let config: Value = serde_json::from_slice(&std::fs::read(self.kubelet_dir().join("config.yaml"))?)?;
        let certificate = self.dir.join("kubelet-certificates/kubelet.crt");
        Ok((format!("127.0.0.1:{}", config["port"]), certificate))
    }

    /// Returns the kubelet's metrics in the Prometheus text format.
    pub(crate) async fn kubelet_metrics(&self) -> Result<String> {
        let (address, certificate) = self.https_port()?;
        let (host, port) = address.rsplit_once(':').context("no port")?;
        let target = HttpsTarget {
            host: host.to_owned(),
            port: port.parse()?,
            ca_file: Some(certificate),
            server_name: Some(self.name.clone()),
            fingerprints: Vec::new(),
            timeout: Duration::from_secs(60),
        };
        let kubeconfig = Kubeconfig::read_from(&self.agent_kubeconfig)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = HttpsClient::new(&config, &target).map_err(anyhow::Error::msg)?;
        let text = client.get("/metrics", 16 << 20).await.map_err(anyhow::Error::msg)?;
        Ok(String::from_utf8(text)?)
    }

    /// Returns the path of the podresources socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.kubelet_dir().join("pod-resources/kubelet.sock")
    }

    /// Stops the kubelet and waits until it is gone. Its pods keep running.
    pub(crate) fn stop_kubelet(&mut self, how: Stop) -> Result<()> {
        let mut kubelet = self.kubelet.get_mut().take().context("the kubelet does not run")?;
        match how {
            Stop::Kill => kubelet.kill()?,
            Stop::Term => {
                kubelet.signal("TERM")?;
                kubelet.wait()?;
            }
        }
        Ok(())
    }

    /// Stops the kubelet and starts it again.
    pub(crate) async fn restart_kubelet(&mut self, how: Stop) -> Result<()> {
        self.stop_kubelet(how)?;
        self.start_kubelet().await
    }

    /// Returns an error if the kubelet has exited unexpectedly: it panics on some inputs.
    pub(crate) fn kubelet_still_runs(&self) -> Result<()> {
        self.kubelet.borrow_mut().as_mut().map_or(Ok(()), Process::still_runs)
    }

    /// Removes the checkpoints of the CPU Manager and the Memory Manager, as a kubelet requires that cannot
    /// start with them.
    pub(crate) fn remove_checkpoints(&self) -> Result<()> {
        for file in ["cpu_manager_state", "memory_manager_state"] {
            std::fs::remove_file(self.kubelet_dir().join(file))?;
        }
        Ok(())
    }

    /// Deletes the directory of the podresources socket and recreates it, empty.
    pub(crate) fn recreate_pod_resources_dir(&self) -> Result<()> {
        let dir = self.kubelet_dir().join("pod-resources");
        std::fs::remove_dir_all(&dir)?;
        Ok(std::fs::create_dir(&dir)?)
    }

    /// Checks that the Node is Ready, the kubelet listens, and it has registered every device.
    async fn is_ready(&self) -> Result<()> {
        let node = Api::<Node>::all(self.client()).get(&self.name).await?;
        let status = node.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.iter().flatten();
        ensure!(
            conditions.any(|c| c.type_ == "Ready" && c.status == "True"),
            "{} is not Ready",
            node.name_any()
        );
        let socket = self.socket();
        ensure!(
            std::os::unix::net::UnixStream::connect(&socket).is_ok(),
            "no process serves {}",
            socket.display()
        );
        self.command(&json!({ "do": "served" }))
    }
}

fn start_fakenode(dir: &Path, programs: &Programs, runs_pods: bool) -> Result<Driven> {
    let mut command = tethered(parts::script("in-machine"));
    command.arg(dir).arg(&programs.fakenode).arg("--runtime-socket").arg(dir.join("runtime.sock"));
    if runs_pods {
        command.arg("--run-containers").arg(parts::script("in-pod"));
        command
            .env("NUMACAST_IMAGE", env!("CARGO_BIN_EXE_numacast"))
            .env("NUMACAST_REACH", dir.join("reach.json"));
    }
    Driven::start("fakenode", dir, command)
}

/// Returns a name that no other node of any test program has.
fn unique(name: &str) -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    format!("numacast-{}-{}-{name}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Returns a kubelet's minor version, taken from the directory that `tests/parts/build` put it into.
fn minor_of(kubelet: &Path) -> Result<u32> {
    let version = kubelet.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let minor = version.and_then(|version| version.split('.').nth(1)?.parse().ok());
    minor.with_context(|| format!("the directory of {} is not named by its version", kubelet.display()))
}

/// Returns the gates that a kubelet of this version has.
fn known_gates(wanted: &BTreeSet<String>, minor: u32) -> Result<Map<String, Value>> {
    let mut known = Map::new();
    for name in wanted {
        let found = GATES.iter().find(|(gate, _)| gate == name);
        let (_, since) = found.with_context(|| format!("no version is known to have the gate {name}"))?;
        if *since <= minor {
            known.insert(name.clone(), Value::Bool(true));
        }
    }
    Ok(known)
}

/// Returns a kubelet's `evictionHard`. The disks are the host's, and may be full.
pub(crate) fn eviction_thresholds() -> Value {
    json!({
        "memory.available": "100Mi",
        "nodefs.available": "0%",
        "nodefs.inodesFree": "0%",
        "imagefs.available": "0%",
        "imagefs.inodesFree": "0%",
    })
}

/// Returns a machine of `tests/machines`.
pub(crate) fn machine(name: &str) -> Result<MachineSpec> {
    let path = parts::repository().join(format!("tests/machines/{name}.yaml"));
    MachineSpec::read(&path).map_err(anyhow::Error::msg)
}

/// Returns a configuration that works without systemd, with or without cgroups, merged with the machine's own
/// keys.
fn kubelet_config(
    machine: &MachineSpec,
    dir: &Path,
    gates: &Map<String, Value>,
    cgroups: Option<&Cgroups>,
) -> Result<Map<String, Value>> {
    let runtime = format!("unix://{}", dir.join("runtime.sock").display());
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": runtime,
        "imageServiceEndpoint": runtime,
        "address": "127.0.0.1",
        "port": free_port()?,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": cgroups.is_some(),
        "cgroupRoot": cgroups.map(Cgroups::root).unwrap_or_default(),
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "localStorageCapacityIsolation": false,
        "resolvConf": "",
        "podLogsDir": dir.join("pod-logs"),
        "featureGates": gates,
        "evictionHard": eviction_thresholds(),
    });
    let Value::Object(mut config) = config else { bail!("a configuration is a mapping") };
    config.extend(machine.kubelet.clone());
    Ok(config)
}
