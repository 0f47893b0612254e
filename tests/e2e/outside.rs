//! The part outside the namespaces: it creates them, and lets a client of this machine reach the API server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::support::cgroups::Cgroups;
use crate::support::{Needs, Parts};
use crate::table;
use crate::{Options, images, support};

/// The variable that names the cluster's cgroup to the program inside.
pub(crate) const CGROUP: &str = "NUMACAST_E2E_CGROUP";

/// The machines of the steps unless others are chosen: two zones and eight.
const MACHINES: [&str; 2] = ["two-by-eight", "eight-by-sixty-four"];

/// Runs this program in namespaces of its own, once for each machine.
pub(crate) async fn run(options: &Options) -> Result<ExitCode> {
    let Some(_) = Parts::for_test(Needs::Kubelet)? else { bail!("the real parts cannot run here") };
    support::parts::fetched(&[
        "kubectl",
        "helm",
        "kube-controller-manager",
        "kube-proxy",
        "kube-router",
        "scheduler",
        "pause",
        "pods",
        "podresources",
    ])?;
    let image = options.image.clone().unwrap_or_else(images::default_archive);
    ensure!(image.is_file(), "there is no {}; `make image` makes it", image.display());
    let chosen = options.machine.iter().map(String::as_str);
    let machines: Vec<&str> = if options.machine.is_empty() { MACHINES.to_vec() } else { chosen.collect() };
    let only_first = options.up || options.quick_start;
    for machine in machines.iter().take(if only_first { 1 } else { usize::MAX }) {
        if !run_on(options, machine, &image).await? {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether every step was taken.
async fn run_on(options: &Options, machine: &str, image: &Path) -> Result<bool> {
    let dir = directory(machine)?;
    let nodes = if options.quick_start { 1 } else { options.nodes };
    table::note(&format!("{machine}: {nodes} nodes, logs in {}", dir.display()));
    let cgroups = Cgroups::make(&format!("numacast-e2e-{}", std::process::id()));
    let cgroups = cgroups.context("cgroups cannot be created here (v1 hierarchies are needed)")?;
    let mut command = tokio::process::Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc", "--"]);
    // The first process of a PID namespace inherits the orphans: a shell waits for all of them.
    command.args(["bash", "-c", "\"$@\"; exit $?", "cluster"]).arg(std::env::current_exe()?);
    command.arg("--inside").arg(&dir).args(["--machine", machine, "--nodes", &nodes.to_string()]);
    command.arg("--image").arg(image).args(options.up.then_some("--up"));
    command.args(options.quick_start.then_some("--quick-start"));
    command.args(["--pods", &options.pods.to_string()]);
    command.args(options.set.iter().map(|value| format!("--set={value}")));
    command.args(options.seed.map(|seed| format!("--seed={seed}")));
    command.env(CGROUP, cgroups.root());
    let relay = tokio::spawn(relay_from_here(dir.clone()));
    let status = command.status().await.context("cannot run unshare")?;
    relay.abort();
    Ok(status.success())
}

/// Creates an empty directory for the cluster.
fn directory(machine: &str) -> Result<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("e2e").join(machine);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Forwards a loopback port to the socket that [`relay_to`] serves, once that exists, and writes a kubeconfig for
/// the port.
async fn relay_from_here(dir: PathBuf) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    std::fs::write(dir.join("port"), listener.local_addr()?.port().to_string())?;
    loop {
        let (mut client, _) = listener.accept().await?;
        let socket = socket(&dir);
        tokio::spawn(async move {
            let mut server = UnixStream::connect(socket).await?;
            copy_bidirectional(&mut client, &mut server).await
        });
    }
}

/// Forwards the socket in the cluster's directory, which is the same file outside, to an address inside.
pub(crate) async fn relay_to(dir: &Path, address: &'static str) -> Result<()> {
    let listener = UnixListener::bind(socket(dir))?;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut server = TcpStream::connect(address).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    Ok(())
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("api.sock")
}
