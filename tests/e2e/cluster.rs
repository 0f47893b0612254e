//! The control plane and the nodes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use numacast_sim::machine::MachineSpec;
use rcgen::KeyPair;
use serde_json::json;

use crate::support::ca::Ca;
use crate::support::cluster::{client_of, start_api_server, start_etcd, wait_until_ready};
use crate::support::process::{Process, tethered};
use crate::support::{Needs, Parts};
use crate::table;
use crate::tools::Tools;
use crate::worker::Worker;
use crate::{Options, images, network, outside, support};

/// The API server inside.
const SERVER: &str = "10.77.0.1:6443";

/// A running cluster. Everything ends with it.
pub(crate) struct Cluster {
    pub(crate) tools: Tools,
    pub(crate) client: Client,
    pub(crate) workers: Vec<Worker>,
    /// A node that has not joined yet.
    pub(crate) spare: Option<Worker>,
    pub(crate) machine: MachineSpec,
    dir: PathBuf,
    /// Starts the API server again.
    api_server_command: Vec<OsString>,
    // Ended in this order.
    api_server: Process,
    plane: Vec<Process>,
}

/// A running control plane.
struct Plane {
    api_server: Process,
    api_server_command: Vec<OsString>,
    others: Vec<Process>,
    client: Client,
}

/// What every component needs.
pub(crate) struct Plan<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) machine: &'a MachineSpec,
    pub(crate) nodes: u8,
    pub(crate) ca: Ca,
    parts: &'a Parts,
}

impl Cluster {
    /// Starts the control plane, then the nodes with the images.
    pub(crate) async fn start(options: &Options, dir: &Path) -> Result<Self> {
        let parts = Parts::for_test(Needs::Kubelet)?.context("the real parts cannot run here")?;
        let programs = support::parts::fetched(&["helm"])?.context("there is no Helm")?;
        let machine = machine(options.machine.first().context("no machine is chosen")?)?;
        let nodes = options.nodes;
        let plan = Plan { dir, machine: &machine, nodes, parts: &parts, ca: Ca::new()? };
        prepare(dir, nodes)?;
        let (Plane { api_server, api_server_command, others, client }, _) =
            table::step("control plane", plan.start_plane()).await?;
        let tools = Tools::new(&programs, &dir.join("inside.kubeconfig"), dir);
        let archives = images::archives(options, dir, &programs).await?;
        // Unless only the cluster is wanted, a node joins later.
        let late = u8::from(!options.up && nodes > 1);
        let joined = nodes - late;
        let (mut workers, _) =
            table::step("nodes and images", plan.start_workers(&client, &archives, joined)).await?;
        let spare = workers.pop_if(|_| late > 0);
        outside::relay_to(dir, SERVER).await?;
        plan.write_kubeconfig_for_outside()?;
        Ok(Self {
            tools,
            client,
            workers,
            spare,
            machine,
            dir: dir.into(),
            api_server_command,
            api_server,
            plane: others,
        })
    }

    /// Keeps the cluster until the program is interrupted, or a part of it ends.
    pub(crate) async fn keep(mut self) -> Result<()> {
        let kubeconfig = self.dir.join("kubeconfig");
        table::note(&format!(
            "\nThe cluster is up until Ctrl-C:\n\n    export KUBECONFIG={}\n",
            kubeconfig.display()
        ));
        loop {
            tokio::select! {
                interrupted = tokio::signal::ctrl_c() => return Ok(interrupted?),
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            self.plane.iter_mut().chain([&mut self.api_server]).try_for_each(Process::still_runs)?;
        }
    }

    /// Kills the API server, and starts it again after this time.
    pub(crate) async fn interrupt_api_server(&mut self, time: Duration) -> Result<()> {
        self.api_server.kill()?;
        tokio::time::sleep(time).await;
        self.api_server = start_api_server(&self.dir, &self.api_server_command)?;
        wait_until_ready(&mut self.api_server, &self.client).await
    }

    /// Returns the cluster's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Reads the machine. Its Topology Manager aligns, as the scheduler's plugin expects.
fn machine(name: &str) -> Result<MachineSpec> {
    let mut machine = support::node::machine(name)?;
    machine.kubelet.insert("topologyManagerPolicy".into(), "single-numa-node".into());
    Ok(machine)
}

/// Prepares the namespaces.
fn prepare(dir: &Path, nodes: u8) -> Result<()> {
    // Nothing that is mounted here is seen outside.
    crate::tools::shell(
        "mount --make-rprivate /; mount -t tmpfs -o mode=755 tmpfs /run; hostname control-plane",
    )?;
    std::fs::create_dir_all(dir.join("nowhere"))?;
    network::create(nodes)
}

impl Plan<'_> {
    /// Starts etcd, the API server, the controller manager and the default scheduler.
    async fn start_plane(&self) -> Result<(Plane, String)> {
        self.write_files()?;
        let (etcd, etcd_url) = start_etcd(self.parts, self.dir).await?;
        let api_server_command = self.api_server_command(&etcd_url);
        let mut api_server = start_api_server(self.dir, &api_server_command)?;
        let client = self.client().await?;
        let mut others = vec![etcd];
        wait_until_ready(&mut api_server, &client).await?;
        let path = |file: &str| self.dir.join(file).display().to_string();
        others.push(self.start(
            "kube-controller-manager",
            &[
                format!("--kubeconfig={}", self.kubeconfig("controller-manager")?.display()),
                format!("--root-ca-file={}", path("ca.crt")),
                format!("--service-account-private-key-file={}", path("service-accounts.key")),
                "--use-service-account-credentials".to_owned(),
                "--leader-elect=false".to_owned(),
                format!("--cert-dir={}", path("controller-manager")),
            ],
        )?);
        // The program with the plugin, which the default profile does not use.
        others.push(self.start(
            "scheduler",
            &[
                format!("--kubeconfig={}", self.kubeconfig("scheduler")?.display()),
                "--leader-elect=false".to_owned(),
                format!("--cert-dir={}", path("default-scheduler")),
            ],
        )?);
        let version = client.apiserver_version().await?.git_version;
        Ok((Plane { api_server, api_server_command, others, client }, version))
    }

    /// Starts all machines, and lets the first `joined` of them join.
    async fn start_workers(
        &self,
        client: &Client,
        archives: &[PathBuf],
        joined: u8,
    ) -> Result<(Vec<Worker>, String)> {
        let mut workers = Vec::new();
        for number in 1..=self.nodes {
            let mut worker = Worker::boot(self, number, archives).await?;
            if number <= joined {
                worker.join()?;
            }
            workers.push(worker);
        }
        for worker in &mut workers[..usize::from(joined)] {
            worker.wait_until_ready(client).await?;
        }
        let runtime = workers[0].runtime(client).await?;
        Ok((workers, runtime))
    }

    /// Starts a program of the parts.
    fn start(&self, name: &str, arguments: &[String]) -> Result<Process> {
        let mut command = tethered(self.parts.program(name));
        command.args(arguments).current_dir(self.dir.join("nowhere"));
        Process::start(name, self.dir, command)
    }

    fn api_server_command(&self, etcd: &str) -> Vec<OsString> {
        let program = self.parts.program("kube-apiserver").into_os_string();
        std::iter::once(program)
            .chain(self.api_server_arguments(etcd).into_iter().map(OsString::from))
            .collect()
    }

    fn api_server_arguments(&self, etcd: &str) -> Vec<String> {
        let path = |flag: &str, file: &str| format!("--{flag}={}", self.dir.join(file).display());
        let mut arguments = vec![
            path("tls-cert-file", "apiserver.crt"),
            path("tls-private-key-file", "apiserver.key"),
            path("client-ca-file", "ca.crt"),
            path("kubelet-client-certificate", "kubelet-client.crt"),
            path("kubelet-client-key", "kubelet-client.key"),
            path("service-account-key-file", "service-accounts.pub"),
            path("service-account-signing-key-file", "service-accounts.key"),
            path("token-auth-file", "tokens.csv"),
        ];
        let fixed = [
            &format!("--etcd-servers={etcd}"),
            &format!("--advertise-address={}", network::PLANE),
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            "--service-account-issuer=https://kubernetes.default.svc",
            &format!("--service-cluster-ip-range={}", network::SERVICES),
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
        ];
        arguments.extend(fixed.map(str::to_owned));
        arguments
    }

    /// Writes certificates, keys and tokens.
    fn write_files(&self) -> Result<()> {
        let write = |file: &str, text: &str| {
            let path = self.dir.join(file);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let service = "kubernetes.default.svc";
        let (certificate, key) =
            self.ca.issue(&[network::PLANE, network::API_SERVICE, "127.0.0.1", service])?;
        write("ca.crt", &self.ca.pem())?;
        write("apiserver.crt", &certificate)?;
        write("apiserver.key", &key)?;
        let (certificate, key) = self.ca.issue_to("kube-apiserver-kubelet-client", "system:masters")?;
        write("kubelet-client.crt", &certificate)?;
        write("kubelet-client.key", &key)?;
        let pair = KeyPair::generate()?;
        write("service-accounts.key", &pair.serialize_pem())?;
        write("service-accounts.pub", &pair.public_key_pem())?;
        let mut tokens = String::new();
        for (name, user, groups) in self.users() {
            tokens += &format!("{},{user},{name},\"{groups}\"\n", token_of(&name));
        }
        write("tokens.csv", &tokens)
    }

    /// Name, user and groups of every client with a token.
    fn users(&self) -> Vec<(String, String, String)> {
        let nodes = (1..=self.nodes)
            .map(Worker::name_of)
            .map(|node| (node.clone(), format!("system:node:{node}"), "system:nodes".to_owned()));
        let components = [
            ("admin", "kubernetes-admin", "system:masters"),
            ("controller-manager", "system:kube-controller-manager", ""),
            ("scheduler", "system:kube-scheduler", ""),
            ("proxy", "system:kube-proxy", ""),
        ];
        let components =
            components.map(|(name, user, groups)| (name.to_owned(), user.to_owned(), groups.to_owned()));
        components.into_iter().chain(nodes).collect()
    }

    /// Writes the kubeconfig of a client and returns its path.
    pub(crate) fn kubeconfig(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(format!("{name}.kubeconfig"));
        self.write_kubeconfig(&path, name, SERVER)?;
        Ok(path)
    }

    fn write_kubeconfig(&self, path: &Path, name: &str, server: &str) -> Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "e2e",
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
            "clusters": [{"name": "e2e", "cluster": {
                "server": format!("https://{server}"),
                "certificate-authority": self.dir.join("ca.crt"),
            }}],
            "users": [{"name": name, "user": {"token": token_of(name)}}],
        });
        Ok(std::fs::write(path, config.to_string())?)
    }

    async fn client(&self) -> Result<Client> {
        let path = self.dir.join("inside.kubeconfig");
        self.write_kubeconfig(&path, "admin", SERVER)?;
        client_of(&path).await
    }

    /// Writes the administrator's kubeconfig for this machine's own network.
    fn write_kubeconfig_for_outside(&self) -> Result<()> {
        let port = std::fs::read_to_string(self.dir.join("port"))?;
        self.write_kubeconfig(&self.dir.join("kubeconfig"), "admin", &format!("127.0.0.1:{port}"))
    }

    /// Returns a program's path.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.parts.program(name)
    }
}

/// The clusters live for minutes, and only on this machine.
fn token_of(name: &str) -> String {
    format!("token-of-{name}")
}

/// Returns a command in the namespaces of a process.
pub(crate) fn within(process: u32, dir: &Path) -> Command {
    let mut command = tethered("nsenter");
    command.args(["--mount", "--net", "--uts", "--target", &process.to_string()]);
    command.arg(format!("--wdns={}", dir.display())).arg("--");
    command
}
