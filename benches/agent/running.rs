//! A running agent: the shipped binary.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::container::Container;
use crate::support::cluster::free_port;
use crate::support::process::{Process, tethered};
use crate::support::{Cluster, RealNode, usage};

pub(crate) struct Running {
    process: Process,
    metrics: u16,
}

/// Resources used so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) at: Instant,
    pub(crate) cpu: Duration,
    /// List calls to the kubelet, from the agent's metrics.
    pub(crate) lists: u64,
    /// Writes of objects, from the API server's metrics, including those that change nothing.
    pub(crate) writes: u64,
    /// Reads of ResourceSlices and ResourceClaims, from the API server's metrics, without watches.
    pub(crate) claims: u64,
}

impl Running {
    pub(crate) fn start(node: &RealNode, binary: &Path, container: &Container) -> Result<Self> {
        let (metrics, health) = (free_port()?, free_port()?);
        let mut command = tethered(binary);
        command.args(["agent", "--node-name", node.name()]);
        command.arg("--config").arg(&container.config);
        command.arg("--kubeconfig").arg(&container.kubeconfig);
        // Not the pod's ports: a pod has its own IP address, this process does not.
        command.args(["--metrics-address", &format!("127.0.0.1:{metrics}")]);
        command.args(["--health-address", &format!("127.0.0.1:{health}")]);
        Ok(Self { process: Process::start("agent", node.dir(), command)?, metrics })
    }

    pub(crate) fn still_runs(&mut self) -> Result<()> {
        self.process.still_runs()
    }

    pub(crate) fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        self.process.signal(name)
    }

    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        self.process.wait()
    }

    pub(crate) async fn counts(&self, cluster: &Cluster) -> Result<Counts> {
        let writes = cluster.writes_of("noderesourcetopologies").await?;
        let mut claims = 0;
        for resource in ["resourceslices", "resourceclaims"] {
            claims += cluster.requests_of(resource, &["GET", "LIST"]).await?;
        }
        Ok(Counts { at: Instant::now(), cpu: self.cpu()?, lists: self.lists()?, writes, claims })
    }

    /// Returns how often it has called the kubelet's List.
    fn lists(&self) -> Result<u64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let series = "numacast_kubelet_request_duration_seconds_count{component=\"agent\",method=\"List\"} ";
        let count = text.lines().find_map(|line| line.strip_prefix(series));
        Ok(count.context("the agent's metrics have no List")?.trim().parse()?)
    }

    /// Returns the CPU time used so far.
    fn cpu(&self) -> Result<Duration> {
        usage::cpu(self.process.id())
    }

    /// Returns the current and the peak resident memory, in MiB.
    pub(crate) fn memory(&self) -> Result<(f64, f64)> {
        let mib =
            |name: &str| Ok::<_, anyhow::Error>(usage::status(self.process.id(), name)? as f64 / 1024.0);
        Ok((mib("VmRSS")?, mib("VmHWM")?))
    }
}
