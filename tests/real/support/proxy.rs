//! The podresources proxy under test: the real binary, standalone or as part of the agent, in front of a real
//! kubelet.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::cluster::free_port;
use super::metrics;
use super::node::RealNode;
use super::process::{Process, tethered};
use super::wait::until;

/// A running proxy.
pub(crate) struct Proxy {
    process: Process,
    dir: PathBuf,
    metrics: String,
}

/// Where a proxy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `numacast agent` with `proxy.enabled`.
    Agent,
    /// `numacast proxy`.
    Standalone,
}

#[allow(dead_code, reason = "not every test program uses everything")]
impl Proxy {
    /// Starts a proxy on a node, with additional settings, and waits until it serves.
    pub(crate) async fn start(node: &RealNode, place: Place, settings: &[&str]) -> Result<Self> {
        Self::start_of(Path::new(env!("CARGO_BIN_EXE_numacast")), node, place, settings).await
    }

    /// Like [`Proxy::start`], with another binary.
    pub(crate) async fn start_of(
        binary: &Path,
        node: &RealNode,
        place: Place,
        settings: &[&str],
    ) -> Result<Self> {
        let metrics = format!("127.0.0.1:{}", free_port()?);
        let command = Self::command(binary, node, place, &metrics, settings);
        let process = Process::start("proxy", node.dir(), command)?;
        let mut proxy = Self { process, dir: node.dir().join("proxy"), metrics };
        proxy.wait_until_serving().await?;
        Ok(proxy)
    }

    /// Runs an agent with these settings once (`--once`).
    pub(crate) async fn agent_once(node: &RealNode, settings: &[&str]) -> Result<()> {
        let binary = Path::new(env!("CARGO_BIN_EXE_numacast"));
        let mut command = Self::command(binary, node, Place::Agent, "none", settings);
        command.arg("--once");
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn command(binary: &Path, node: &RealNode, place: Place, metrics: &str, settings: &[&str]) -> Command {
        let mut command = tethered(binary);
        command.arg(if place == Place::Agent { "agent" } else { "proxy" }).args(["--node-name", node.name()]);
        command.arg("--kubeconfig").arg(node.agent_kubeconfig());
        command.args(["--metrics-address", metrics, "--health-address", "none"]);
        let at = |key: &str, path: PathBuf| format!("{key}={}", path.display());
        let own = [
            at("host.sys", node.dir().join("sys")),
            at("host.proc", node.dir().join("proc")),
            at("kubelet.dir", node.kubelet_dir()),
            at("proxy.dir", node.dir().join("proxy")),
            "proxy.enabled=true".to_owned(),
        ];
        for setting in own.iter().map(String::as_str).chain(settings.iter().copied()) {
            command.args([OsString::from("--set"), setting.into()]);
        }
        command
    }

    /// Waits until the socket accepts connections.
    pub(crate) async fn wait_until_serving(&mut self) -> Result<()> {
        until("the proxy serves", async || {
            self.process.still_runs()?;
            ensure!(std::os::unix::net::UnixStream::connect(self.socket()).is_ok());
            Ok(())
        })
        .await
    }

    /// Returns the socket it serves.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("kubelet.sock")
    }

    /// Returns an error if the proxy has exited.
    pub(crate) fn still_runs(&mut self) -> Result<()> {
        self.process.still_runs()
    }

    /// Kills the proxy.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Stops the proxy gracefully.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.process.signal("TERM")?;
        let status = self.process.wait()?;
        ensure!(status.success(), "the proxy ends with {status}");
        Ok(())
    }

    /// Returns the end of its log.
    pub(crate) fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns its metrics in the Prometheus text format.
    pub(crate) async fn metrics(&self) -> Result<String> {
        metrics::scrape(&self.metrics).await
    }

    /// Returns the sum of a metric over the series whose labels contain all of `labels`.
    pub(crate) async fn sum(&self, metric: &str, labels: &[&str]) -> Result<f64> {
        Ok(metrics::sum(&self.metrics().await?, metric, labels)?.unwrap_or_default())
    }
}
