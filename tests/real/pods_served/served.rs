//! The Pods API under test: the real binary with a real node's kubelet and API server as its sources.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::differences::Source;
use crate::support::cluster::free_port;
use crate::support::process::{Process, tethered};
use crate::support::wait::until;
use crate::support::{RealNode, Stop, metrics};

/// A running `numacast pods-api`.
pub(super) struct Served {
    process: Process,
    dir: PathBuf,
    metrics: String,
    arguments: Vec<OsString>,
    logs: PathBuf,
    name: String,
}

impl Served {
    /// Starts it with one source, and waits until it serves.
    pub(super) async fn start(node: &RealNode, source: Source, settings: &[&str]) -> Result<Self> {
        let dir = node.dir().join(format!("served-{}", source.name()));
        let metrics = format!("127.0.0.1:{}", free_port()?);
        let (address, certificate) = node.https_port()?;
        let own = [
            format!("host.sys={}", node.dir().join("sys").display()),
            format!("host.proc={}", node.dir().join("proc").display()),
            format!("kubelet.dir={}", node.kubelet_dir().display()),
            format!("kubelet.address={address}"),
            format!("kubelet.caFile={}", certificate.display()),
            format!("kubelet.serverName={}", node.name()),
            format!("podsApi.dir={}", dir.display()),
        ];
        let mut arguments: Vec<OsString> = vec!["pods-api".into(), "--node-name".into(), node.name().into()];
        arguments.extend(["--kubeconfig".into(), node.agent_kubeconfig().as_os_str().to_owned()]);
        arguments.extend(["--metrics-address", &metrics, "--health-address", "none"].map(OsString::from));
        for setting in own.iter().map(String::as_str).chain(settings.iter().copied()) {
            arguments.extend([OsString::from("--set"), setting.into()]);
        }
        let (name, logs) = (format!("served-{}", source.name()), node.dir().to_owned());
        let process = Self::launch(&name, &logs, &arguments)?;
        let mut served = Self { process, dir, metrics, arguments, logs, name };
        served.wait_until_serving().await?;
        Ok(served)
    }

    fn launch(name: &str, logs: &std::path::Path, arguments: &[OsString]) -> Result<Process> {
        let mut command = tethered(env!("CARGO_BIN_EXE_numacast"));
        command.args(arguments);
        Process::start(name, logs, command)
    }

    async fn wait_until_serving(&mut self) -> Result<()> {
        until(&format!("{} serves", self.name), async || {
            self.process.still_runs()?;
            ensure!(std::os::unix::net::UnixStream::connect(self.socket()).is_ok());
            Ok(())
        })
        .await
    }

    /// Returns the socket it serves.
    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("pods-api.sock")
    }

    /// Returns an error if it has exited.
    pub(super) fn still_runs(&mut self) -> Result<()> {
        self.process.still_runs()
    }

    /// Returns the end of its log.
    pub(super) fn log_tail(&self) -> String {
        format!("{}:\n{}", self.name, self.process.log_tail())
    }

    /// Stops it, gracefully or not.
    pub(super) fn stop(&mut self, how: Stop) -> Result<()> {
        if let Stop::Kill = how {
            return self.process.kill();
        }
        self.process.signal("TERM")?;
        let status = self.process.wait()?;
        ensure!(status.success(), "{} ends with {status}", self.name);
        Ok(())
    }

    /// Restarts it with the same arguments after it has ended, and waits until it serves.
    pub(super) async fn restart(&mut self) -> Result<()> {
        self.process = Self::launch(&self.name, &self.logs, &self.arguments)?;
        self.wait_until_serving().await
    }

    /// Returns the sum of a metric over the series whose labels contain all of `labels`; `None` if there is
    /// none.
    pub(super) async fn sum(&self, metric: &str, labels: &[&str]) -> Result<Option<f64>> {
        metrics::sum(&metrics::scrape(&self.metrics).await?, metric, labels)
    }
}
