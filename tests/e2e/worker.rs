//! A node: a described machine with containerd, a kubelet and kube-proxy.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, ResourceExt};
use numacast_core::machine::IdSet;
use serde_json::{Map, Value, json};

use crate::cluster::{Plan, within};
use crate::support::cgroups::Cgroups;
use crate::support::driven::Driven;
use crate::support::node::eviction_thresholds;
use crate::support::parts;
use crate::support::process::{Process, tethered};
use crate::support::wait::until;
use crate::tools::output_of;
use crate::{images, network, outside};

/// A running node.
pub(crate) struct Worker {
    pub(crate) name: String,
    kubelet: Option<Process>,
    kubelet_command: Vec<OsString>,
    proxy_command: Vec<OsString>,
    router_command: Vec<OsString>,
    // Ended in this order.
    processes: Vec<Process>,
    machine: Driven,
    dir: PathBuf,
    cgroup: PathBuf,
}

impl Worker {
    /// Returns the name of a node.
    pub(crate) fn name_of(number: u8) -> String {
        format!("worker-{number}")
    }

    /// Starts the machine and everything on it but the kubelet and kube-proxy, with the images loaded.
    pub(crate) async fn boot(plan: &Plan<'_>, number: u8, archives: &[PathBuf]) -> Result<Self> {
        let name = Self::name_of(number);
        let dir = plan.dir.join(&name);
        std::fs::create_dir_all(dir.join("kubelet"))?;
        plan.machine.write_tree(&dir)?;
        let (certificate, key) = plan.ca.issue(&[&network::address_of(number), &name])?;
        std::fs::write(dir.join("serving.crt"), certificate)?;
        std::fs::write(dir.join("serving.key"), key)?;
        let cgroup = Path::new(&std::env::var(outside::CGROUP)?).join(&name);
        Cgroups::fill(&cgroup)?;
        let config = kubelet_config(plan, &cgroup);
        std::fs::write(dir.join("kubelet/config.yaml"), serde_json::to_vec_pretty(&config)?)?;
        let machine = start_machine(plan, &dir)?;
        network::connect(number, plan.nodes, machine.id())?;
        let kubelet_command = kubelet_command(plan, &name, number)?;
        let proxy_command = proxy_command(plan, &name)?;
        let router_command = router_command(plan, &name)?;
        let mut worker = Self {
            name,
            kubelet: None,
            kubelet_command,
            proxy_command,
            router_command,
            processes: Vec::new(),
            machine,
            dir,
            cgroup,
        };
        worker.prepare(number)?;
        worker.start_containerd().await?;
        worker.import(archives)?;
        for resource in &plan.machine.devices {
            let request =
                json!({"do": "setDevices", "resource": resource.resource, "devices": resource.devices});
            worker.machine.request(&request)?;
        }
        Ok(worker)
    }

    /// Starts the kubelet, which creates the Node, and kube-proxy.
    pub(crate) fn join(&mut self) -> Result<()> {
        self.start_kubelet(KUBEADM_CONFIG)?;
        let mut proxy = self.command();
        proxy.args(&self.proxy_command);
        self.processes.push(Process::start("kube-proxy", &self.dir, proxy)?);
        Ok(())
    }

    /// Starts what enforces NetworkPolicies.
    pub(crate) fn enforce_network_policies(&mut self) -> Result<()> {
        let mut router = self.command();
        router.args(&self.router_command);
        self.processes.push(Process::start("kube-router", &self.dir, router)?);
        Ok(())
    }

    /// Returns whether a program in a pod's network can connect to this address.
    pub(crate) fn connects(&self, pod: &Pod, container: &str, address: &str, port: u16) -> Result<bool> {
        let net = self.process(pod, container)?.0.join("ns/net");
        let mut command = tethered("nsenter");
        command.arg(format!("--net={}", net.display())).args(["--", "timeout", "2", "bash", "-c"]);
        let status =
            command.arg(format!("exec 3<>/dev/tcp/{address}/{port}")).stderr(Stdio::null()).status()?;
        Ok(status.success())
    }

    /// Mounts and files that a node has.
    fn prepare(&self, number: u8) -> Result<()> {
        let cni = self.dir.join("pods.conflist");
        std::fs::write(&cni, network::cni(number).to_string())?;
        std::fs::write(self.dir.join("containerd.toml"), containerd_config(&self.dir))?;
        let script = format!(
            "mount -t tmpfs -o mode=755 tmpfs /run; mount --make-rshared /; hostname {}; mkdir -p /run/cni/conf; cp {} /run/cni/conf",
            self.name,
            cni.display()
        );
        output_of(self.command().args(["sh", "-euc", &script])).map(drop)
    }

    async fn start_containerd(&mut self) -> Result<()> {
        let mut command = self.command();
        command.arg("containerd").arg("--config").arg(self.dir.join("containerd.toml"));
        let mut containerd = Process::start("containerd", &self.dir, command)?;
        until("containerd answers", async || {
            containerd.still_runs()?;
            output_of(self.command().args(["ctr", "version"])).map(drop)
        })
        .await?;
        self.processes.push(containerd);
        Ok(())
    }

    fn import(&self, archives: &[PathBuf]) -> Result<()> {
        for archive in archives {
            output_of(
                self.command().args(["ctr", "--namespace", "k8s.io", "images", "import"]).arg(archive),
            )?;
        }
        Ok(())
    }

    /// Returns a command that runs what is appended to it on this node.
    pub(crate) fn command(&self) -> Command {
        within(self.machine.id(), Path::new("/"))
    }

    /// Waits until the node is Ready, its devices are registered, and the API server's Service is reachable from it.
    pub(crate) async fn wait_until_ready(&mut self, client: &Client) -> Result<()> {
        let nodes: Api<Node> = Api::all(client.clone());
        until(&format!("{} is ready", self.name), async || {
            self.still_runs()?;
            let status = nodes.get(&self.name).await?.status.unwrap_or_default();
            let mut conditions = status.conditions.iter().flatten();
            ensure!(conditions.any(|one| one.type_ == "Ready" && one.status == "True"), "it is not Ready");
            self.machine.request(&json!({"do": "served"}))?;
            let connect = format!("exec 3<>/dev/tcp/{}/443", network::API_SERVICE);
            output_of(self.command().args(["timeout", "1", "bash", "-c", &connect])).map(drop)
        })
        .await
    }

    /// Returns which container runtime the kubelet uses.
    pub(crate) async fn runtime(&self, client: &Client) -> Result<String> {
        let node = Api::<Node>::all(client.clone()).get(&self.name).await?;
        let info = node.status.and_then(|status| status.node_info).context("the node has no information")?;
        Ok(format!("kubelet {}, {}", info.kubelet_version, info.container_runtime_version))
    }

    fn still_runs(&mut self) -> Result<()> {
        self.kubelet.iter_mut().chain(&mut self.processes).try_for_each(Process::still_runs)
    }

    fn start_kubelet(&mut self, config: &str) -> Result<()> {
        let mut command = self.command();
        command.args(&self.kubelet_command).args(["--config", config]);
        self.kubelet = Some(Process::start("kubelet", &self.dir, command)?);
        Ok(())
    }

    /// Kills the kubelet and starts it again.
    pub(crate) fn restart_kubelet(&mut self) -> Result<()> {
        self.stop_kubelet()?;
        self.start_kubelet(KUBEADM_CONFIG)
    }

    /// Sets a key of the kubelet's configuration, as tools do it: in a new file that replaces the old one.
    pub(crate) fn set_config(&self, key: &str, value: Value) -> Result<()> {
        let path = self.dir.join("kubelet/config.yaml");
        let mut config: Map<String, Value> = serde_json::from_slice(&std::fs::read(&path)?)?;
        config.insert(key.to_owned(), value);
        let new = path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(&config)?)?;
        Ok(std::fs::rename(new, path)?)
    }

    /// Copies the kubelet's configuration to another place on the node, below `/etc`.
    pub(crate) fn copy_config(&self, to: &str) -> Result<()> {
        // /etc is this machine's: the node gets a layer of its own on it.
        let script = format!(
            "mkdir /run/etc /run/etc.work; mount -t overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/etc.work overlay /etc; \
             install -D -m 0600 {KUBEADM_CONFIG} {to}"
        );
        output_of(self.command().args(["sh", "-euc", &script])).map(drop)
    }

    /// Makes the node as k3s sets it up: the kubelet's certificate is signed by the cluster's CA, and its configuration is not
    /// where kubeadm has it.
    pub(crate) fn become_k3s(&mut self) -> Result<()> {
        self.stop_kubelet()?;
        for (key, file) in [("tlsCertFile", "serving.crt"), ("tlsPrivateKeyFile", "serving.key")] {
            self.set_config(key, self.dir.join(file).to_string_lossy().into())?;
        }
        std::fs::rename(self.dir.join("kubelet/config.yaml"), self.dir.join("k3s.yaml"))?;
        let config = self.dir.join("k3s.yaml").display().to_string();
        self.start_kubelet(&config)
    }

    /// Stops the kubelet, as when the machine is taken away. Its containers go on until the cluster ends.
    pub(crate) fn stop_kubelet(&mut self) -> Result<()> {
        self.kubelet.take().context("the kubelet does not run")?.kill()
    }

    /// Returns the CPUs and NUMA nodes that the kubelet assigned to a container, as runc got them.
    pub(crate) fn cpuset(&self, pod: &Pod, container: &str) -> Result<(IdSet, IdSet)> {
        let id = container_id(pod, container)?;
        let path = format!("/run/cpusets/{id}");
        let set: Value = serde_json::from_str(&output_of(self.command().args(["cat", &path]))?)?;
        let ids = |key: &str| -> Result<IdSet> {
            let text = set[key].as_str().unwrap_or_default();
            text.parse().map_err(|error| anyhow::anyhow!("{path}, {key}: {error}"))
        };
        Ok((ids("cpus")?, ids("mems")?))
    }

    /// Returns a container's memory in bytes, as its cgroup counts it: used now, and of that not backed by files.
    pub(crate) fn memory(&self, pod: &Pod, container: &str) -> Result<(u64, u64)> {
        let dir = self.memory_cgroup(pod, container)?;
        let usage = std::fs::read_to_string(dir.join("memory.usage_in_bytes"))?.trim().parse()?;
        let stat = std::fs::read_to_string(dir.join("memory.stat"))?;
        let rss = stat.lines().find_map(|line| line.strip_prefix("total_rss ")).context("no total_rss")?;
        Ok((usage, rss.parse()?))
    }

    /// Returns the memory limit that the kernel enforces, in bytes.
    pub(crate) fn memory_limit(&self, pod: &Pod, container: &str) -> Result<u64> {
        let file = self.memory_cgroup(pod, container)?.join("memory.limit_in_bytes");
        Ok(std::fs::read_to_string(file)?.trim().parse()?)
    }

    fn memory_cgroup(&self, pod: &Pod, container: &str) -> Result<PathBuf> {
        let id = container_id(pod, container)?;
        let root = Path::new("/sys/fs/cgroup/memory").join(self.cgroup.strip_prefix("/")?);
        let found = output_of(Command::new("find").arg(&root).args(["-type", "d", "-name", id]))?;
        ensure!(!found.trim().is_empty(), "there is no cgroup {id} below {}", root.display());
        Ok(found.trim().into())
    }

    /// Returns the process of a container.
    pub(crate) fn process(&self, pod: &Pod, container: &str) -> Result<ContainerProcess> {
        let tasks = self.memory_cgroup(pod, container)?.join("cgroup.procs");
        let text = std::fs::read_to_string(tasks)?;
        let id = text.lines().next().context("the container has no process")?;
        Ok(ContainerProcess(Path::new("/proc").join(id)))
    }
}

/// A container's process, by its directory in `/proc`.
pub(crate) struct ContainerProcess(PathBuf);

impl ContainerProcess {
    /// Returns a field of `status`.
    pub(crate) fn status(&self, field: &str) -> Result<String> {
        let text = std::fs::read_to_string(self.0.join("status"))?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.with_context(|| format!("the status has no {field}"))?.trim().to_owned())
    }

    /// Returns whether the root is mounted read-only.
    pub(crate) fn root_is_read_only(&self) -> Result<bool> {
        let text = std::fs::read_to_string(self.0.join("mountinfo"))?;
        let mut roots = text.lines().filter(|line| line.split(' ').nth(4) == Some("/"));
        let options =
            roots.next_back().and_then(|line| line.split(' ').nth(5)).context("there is no root")?;
        Ok(options.split(',').any(|option| option == "ro"))
    }
}

/// Where kubeadm has the kubelet's configuration.
const KUBEADM_CONFIG: &str = "/var/lib/kubelet/config.yaml";

/// Returns the kubelet's command without its configuration.
fn kubelet_command(plan: &Plan<'_>, name: &str, number: u8) -> Result<Vec<OsString>> {
    let mut command = vec![plan.program("kubelet").into_os_string()];
    command
        .extend(["--hostname-override", name, "--node-ip", &network::address_of(number)].map(OsString::from));
    command.push("--kubeconfig".into());
    command.push(plan.kubeconfig(name)?.into_os_string());
    Ok(command)
}

fn proxy_command(plan: &Plan<'_>, name: &str) -> Result<Vec<OsString>> {
    let mut command = vec![plan.program("kube-proxy").into_os_string(), "--kubeconfig".into()];
    command.push(plan.kubeconfig("proxy")?.into_os_string());
    command.extend(["--hostname-override", name, "--proxy-mode=iptables"].map(OsString::from));
    // The kernel's limits are the host's.
    command.extend(["--conntrack-max-per-core=0", "--conntrack-min=0"].map(OsString::from));
    Ok(command)
}

fn router_command(plan: &Plan<'_>, name: &str) -> Result<Vec<OsString>> {
    let mut command = vec![plan.program("kube-router").into_os_string(), "--kubeconfig".into()];
    command.push(plan.kubeconfig("admin")?.into_os_string());
    command.extend(
        ["--hostname-override", name, "--service-cluster-ip-range", network::SERVICES].map(OsString::from),
    );
    // Only NetworkPolicies.
    let parts = ["--run-firewall=true", "--run-router=false", "--run-service-proxy=false", "--health-port=0"];
    command.extend(parts.map(OsString::from));
    Ok(command)
}

/// Returns a container's id without the runtime's name.
fn container_id<'a>(pod: &'a Pod, container: &str) -> Result<&'a str> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let id = statuses.filter(|one| one.name == container).find_map(|one| one.container_id.as_deref());
    let id = id.with_context(|| format!("{} has no container {container}", pod.name_any()))?;
    id.strip_prefix("containerd://").with_context(|| format!("{id} is not containerd's"))
}

/// Starts what keeps the machine's namespaces and acts as its device plugins.
fn start_machine(plan: &Plan<'_>, dir: &Path) -> Result<Driven> {
    let mut command = tethered("unshare");
    command.args(["--net", "--uts", "--"]).arg(parts::script("in-machine")).arg(dir);
    command.arg(plan.program("fakenode")).arg("--runtime-socket").arg(dir.join("runtime.sock"));
    Driven::start("fakenode", dir, command)
}

/// A configuration as kubeadm writes it: webhooks, and a serving certificate that the kubelet signs itself. What
/// follows is due to the machine: its cgroups, and disks that may be full.
fn kubelet_config(plan: &Plan<'_>, cgroup: &Path) -> Map<String, Value> {
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": plan.dir.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": false,
        "failSwapOn": false,
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "podLogsDir": "/run/pod-logs",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": eviction_thresholds(),
    });
    let Value::Object(mut config) = config else { unreachable!("a configuration is a mapping") };
    config.extend(plan.machine.kubelet.clone());
    config
}

fn containerd_config(dir: &Path) -> String {
    format!(
        r#"version = 2
root = "{root}"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Not every machine for tests may lower a process's score.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "/run/cni/conf"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "{runc}"
"#,
        root = dir.join("containerd").display(),
        pause = images::PAUSE,
        runc = parts::repository().join("tests/e2e/runc").display(),
    )
}
