//! The shipped binary at work.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::events::{Events, QUIET};
use crate::support::RealNode;
use crate::support::cluster::free_port;
use crate::support::process::{Process, tethered};

pub(crate) struct Running {
    process: Process,
    metrics: u16,
}

/// Whether the binary's configuration has a key of this name and takes this value.
pub(crate) fn takes(binary: &Path, setting: &str) -> bool {
    let mut command = Command::new(binary);
    // It fails before it has read anything of the node.
    command.args(["snapshot", "--host-root", "/nonexistent", "--set", setting]).stdout(Stdio::null());
    let key = setting.split('=').next().unwrap_or_default();
    let output = command.output();
    output.is_ok_and(|output| !String::from_utf8_lossy(&output.stderr).contains(key))
}

/// What the measured binary gets beside its paths: in the scheduler's view a pod that comes to run is a change
/// of its own.
fn quiet(binary: &Path) -> &'static [&'static str] {
    match takes(binary, "fingerprint.view=kubelet") {
        true => &["--set", "fingerprint.view=kubelet"],
        false => &[],
    }
}

impl Running {
    pub(crate) fn start(node: &RealNode, binary: &Path, more: &[&str]) -> Result<Self> {
        let mut command = tethered(binary);
        command.args(["agent", "--node-name", node.name()]);
        command.arg("--kubeconfig").arg(node.agent_kubeconfig());
        command.arg("--sys-dir").arg(node.dir().join("sys"));
        command.arg("--proc-dir").arg(node.dir().join("proc"));
        command.arg("--kubelet-dir").arg(node.kubelet_dir());
        let metrics = free_port()?;
        command.args(["--metrics-address", &format!("127.0.0.1:{metrics}")]).args(quiet(binary)).args(more);
        Ok(Self { process: Process::start("agent", node.dir(), command)?, metrics })
    }

    pub(crate) fn still_runs(&mut self) -> Result<()> {
        self.process.still_runs()
    }

    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        self.process.signal(name)
    }

    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        self.process.wait()
    }

    /// Waits until the first object is there and nothing moves.
    pub(crate) async fn settle(&mut self, events: &Events) -> Result<()> {
        let start = Instant::now();
        while events.since_last() < QUIET || start.elapsed() < QUIET {
            self.process.still_runs()?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// How often it has read the node so far, by its own count.
    pub(crate) fn scans(&self) -> Result<u64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let counts = text.lines().filter(|line| line.starts_with("numacast_scans_total{"));
        let counts = counts.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<u64>());
        let scans = counts.sum::<Result<u64, _>>().context("a count that is no number")?;
        ensure!(scans > 0, "the agent's metrics tell of no scan");
        Ok(scans)
    }

    /// CPU time used so far, as the scheduler counts it (nanoseconds).
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut total = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            total += text.split_whitespace().next().context("an empty schedstat")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(total))
    }

    /// Resident memory now and at its peak, in KiB.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let field = |name: &str| -> Result<u64> {
            let line = status.lines().find(|line| line.starts_with(name)).context("no such field")?;
            Ok(line.split_whitespace().nth(1).context("no value")?.parse()?)
        };
        Ok((field("VmRSS:")?, field("VmHWM:")?))
    }
}
