//! The agent as a process on a simulated node, and its use of resources from `/proc`.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use numacast_sim::kubelet::{Options, Split};
use numacast_sim::machine::MachineSpec;
use numacast_sim::node::SimNode;
use tokio::process::{Child, Command};

use crate::usage;

/// The node's name.
pub(crate) const NODE: &str = "worker";
/// Upper bound for any wait.
const TIMEOUT: Duration = Duration::from_secs(120);

/// An agent and its node; both stop when dropped.
pub(crate) struct Agent {
    pub(crate) node: SimNode,
    child: Child,
    pid: u32,
}

/// The process's use of resources at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Resident memory, KiB.
    pub(crate) rss: u64,
    /// Peak resident memory, KiB.
    pub(crate) peak: u64,
    /// Anonymous part of it (heap and stacks), KiB.
    pub(crate) anonymous: u64,
    /// Open descriptors.
    pub(crate) descriptors: u64,
    /// Threads.
    pub(crate) threads: u64,
}

impl Agent {
    /// Starts a node and the binary on it, and waits for the first correct object.
    pub(crate) async fn start(binary: &Path, options: Options, flags: &[&str]) -> Result<Self> {
        Self::start_on("two-by-eight", binary, options, flags).await
    }

    /// As [`Agent::start`], on another machine.
    pub(crate) async fn start_on(
        machine: &str,
        binary: &Path,
        options: Options,
        flags: &[&str],
    ) -> Result<Self> {
        let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/machines/{machine}.yaml"));
        let machine = MachineSpec::read(&machine).map_err(anyhow::Error::msg)?;
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let node = SimNode::start(NODE, &machine, any_port, options).await?;
        let mut command = Command::new(binary);
        command
            .arg("agent")
            .args(["--node-name", NODE, "--metrics-address", "none", "--log-level", "error"])
            .args(node.flags())
            .args(flags)
            .stdin(Stdio::null())
            .stderr(File::create(node.directory().join("agent.log"))?)
            .kill_on_drop(true);
        let child = command.spawn().with_context(|| binary.display().to_string())?;
        let pid = child.id().context("the agent exited at once")?;
        let mut agent = Self { node, child, pid };
        agent.wait_until_correct().await?;
        Ok(agent)
    }

    /// Waits until the object matches the simulated kubelet's own state, and returns how long that took.
    pub(crate) async fn wait_until_correct(&mut self) -> Result<Duration> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the agent exited: {status}\n{}", self.last_log_lines());
            }
            let differences = self.differences();
            if differences.is_empty() {
                return Ok(start.elapsed());
            }
            if start.elapsed() > TIMEOUT {
                let log = self.last_log_lines();
                bail!("the object is not correct after {TIMEOUT:?}:\n{}\n{log}", differences.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn last_log_lines(&self) -> String {
        let log = std::fs::read_to_string(self.node.directory().join("agent.log")).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(10).collect();
        last.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn differences(&self) -> Vec<String> {
        match self.node.server.topology(NODE) {
            Some(object) => self.node.kubelet.expected().differences(&object, Split::PerNode),
            None => vec!["there is no object".to_owned()],
        }
    }

    /// Returns the process ID, for signals.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    fn proc(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    /// Returns the CPU time used so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        usage::cpu(self.pid)
    }

    /// Returns the current memory, descriptors and threads.
    pub(crate) fn sample(&self) -> Result<Sample> {
        let field = |name: &str| usage::status(self.pid, name);
        let descriptors = std::fs::read_dir(self.proc("fd"))?.count() as u64;
        Ok(Sample {
            rss: field("VmRSS")?,
            peak: field("VmHWM")?,
            anonymous: field("RssAnon")?,
            descriptors,
            threads: field("Threads")?,
        })
    }
}
