//! The agent under test: the real binary, with a real node's files and sockets.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::cluster::free_port;
use super::node::RealNode;
use super::process::{Process, tethered};
use super::wait::{Fatal, until};
use super::{metrics, nrt, oracle};

/// A running agent.
pub(crate) struct Agent {
    process: Process,
    /// The address of its metrics.
    metrics: String,
}

impl Agent {
    /// Starts a node's agent, with additional arguments.
    pub(crate) fn start(node: &RealNode, arguments: &[&str]) -> Result<Self> {
        Self::start_with(Self::places(node), node, arguments)
    }

    /// Like [`Agent::start`], with only those kubelet directories that the chart mounts by default, and the
    /// kubelet's configuration file.
    pub(crate) fn start_with_default_mounts(node: &RealNode) -> Result<Self> {
        let mounted = node.dir().join("mounted");
        std::fs::create_dir(&mounted)?;
        for name in ["pod-resources", "device-plugins"] {
            std::os::unix::fs::symlink(node.kubelet_dir().join(name), mounted.join(name))?;
        }
        let config = node.kubelet_dir().join("config.yaml");
        let config = format!("--set=kubelet.configFile={}", config.display());
        let mut places = Self::places(node);
        places[5] = mounted.into_os_string();
        Self::start_with(places, node, &[&config])
    }

    fn start_with(places: [OsString; 6], node: &RealNode, arguments: &[&str]) -> Result<Self> {
        let metrics = format!("127.0.0.1:{}", free_port()?);
        let mut command = tethered(env!("CARGO_BIN_EXE_numacast"));
        command.args(["agent", "--node-name", node.name()]);
        command.arg("--kubeconfig").arg(node.agent_kubeconfig());
        command.args(["--metrics-address", &metrics, "--health-address", "none"]);
        command.args(places).args(arguments);
        Ok(Self { process: Process::start("agent", node.dir(), command)?, metrics })
    }

    /// Waits until `count` more scans have failed, as with a kubelet that is down.
    pub(crate) async fn fails_to_scan(&mut self, count: u32) -> Result<()> {
        let mut before = None;
        until(&format!("{count} more scans have failed"), async || {
            self.still_runs()?;
            let text = metrics::scrape(&self.metrics).await?;
            let failed = metrics::sum(&text, "numacast_scans_total", &[r#"outcome="failed""#])?;
            let failed = failed.context("no such metric")?;
            let before = *before.get_or_insert(failed);
            ensure!(failed >= before + f64::from(count), "{failed} in all, {before} before");
            Ok(())
        })
        .await
    }

    /// Returns how many annotations of pods it has written.
    pub(crate) async fn annotations(&self) -> Result<f64> {
        until("the agent's metrics are served", async || {
            let text = metrics::scrape(&self.metrics).await?;
            let written = metrics::sum(&text, "numacast_publishes_total", &[r#"reason="annotation""#])?;
            Ok(written.unwrap_or_default())
        })
        .await
    }

    /// Returns the flags that point the agent to a node's files.
    pub(crate) fn places(node: &RealNode) -> [OsString; 6] {
        let of = |flag: &str, path: PathBuf| [flag.into(), path.into_os_string()];
        let [sys, at_sys] = of("--sys-dir", node.dir().join("sys"));
        let [proc, at_proc] = of("--proc-dir", node.dir().join("proc"));
        let [kubelet, at_kubelet] = of("--kubelet-dir", node.kubelet_dir());
        [sys, at_sys, proc, at_proc, kubelet, at_kubelet]
    }

    /// Returns an error if the agent has exited: it never should.
    pub(crate) fn still_runs(&mut self) -> Result<()> {
        self.process.still_runs()
    }

    /// Sends it a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        self.process.signal(name)
    }

    /// Kills the agent.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Terminates the agent and waits until it has exited.
    pub(crate) async fn end(&mut self) -> Result<()> {
        self.process.signal("TERM")?;
        until("the agent has ended", async || {
            let status = self.process.try_wait()?.context("it runs")?;
            ensure!(status.success(), Fatal(format!("the agent ends with {status}")));
            Ok(())
        })
        .await
    }

    /// Waits until the published object matches the oracle.
    pub(crate) async fn matches_oracle(&mut self, node: &RealNode) -> Result<()> {
        until("the published object equals the oracle", async || {
            self.still_runs()?;
            node.kubelet_still_runs()?;
            let expected = oracle::expected(node).await?;
            let published = nrt::read(&node.client(), node.name()).await?;
            let differences = expected.differences(&published.zones);
            ensure!(differences.is_empty(), "it does not:\n  {}", differences.join("\n  "));
            Ok(())
        })
        .await
        .with_context(|| format!("the end of the agent's log:\n{}", self.process.log_tail()))
    }
}
