//! The exporter under test, which publishes the node's object.

use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::process::{Process, tethered};
use crate::support::wait::until;
use crate::support::{Cluster, RealNode, nrt};

/// An exporter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exporter {
    /// No exporter: the plugin filters no pod.
    None,
    /// numacast, with additional settings.
    Numacast(Vec<String>),
    /// A named shell command.
    Other(String, String),
}

impl std::fmt::Display for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Numacast(settings) if settings.is_empty() => f.write_str("numacast"),
            Self::Numacast(settings) => write!(f, "numacast {}", settings.join(" ")),
            Self::Other(name, _) => f.write_str(name),
        }
    }
}

impl FromStr for Exporter {
    type Err = String;

    /// Parses `none`, `numacast`, `numacast KEY=VALUE...` or `NAME: COMMAND`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, command)) = text.split_once(": ") {
            return Ok(Self::Other(name.to_owned(), command.to_owned()));
        }
        let mut parts = text.split_whitespace().map(str::to_owned);
        match parts.next().as_deref() {
            Some("none") => Ok(Self::None),
            Some("numacast") => Ok(Self::Numacast(parts.collect())),
            _ => Err(format!("`{text}` is neither none, nor numacast [KEY=VALUE]..., nor NAME: COMMAND")),
        }
    }
}

impl Exporter {
    /// Starts the exporter and waits for its object. numacast gets `settings` before its own.
    pub(crate) async fn start(
        &self,
        binary: &PathBuf,
        cluster: &Cluster,
        node: &RealNode,
        settings: &[&str],
    ) -> Result<Option<Process>> {
        let command = match self {
            Self::None => return Ok(None),
            Self::Numacast(more) => {
                let more = more.iter().map(String::as_str);
                agent(binary, node, settings.iter().copied().chain(more))
            }
            Self::Other(_, shell) => other(shell, cluster, node)?,
        };
        let mut process = Process::start("exporter", node.dir(), command)?;
        until("the exporter has published the node's object", async || {
            process.still_runs()?;
            let zones = nrt::read(&node.client(), node.name()).await?.zones;
            ensure!(!zones.is_empty(), "it has no zones");
            Ok(())
        })
        .await?;
        Ok(Some(process))
    }

    /// Starts numacast's controller beside its agent.
    pub(crate) fn start_controller(
        &self,
        binary: &PathBuf,
        cluster: &Cluster,
        settings: &[&str],
    ) -> Result<Option<Process>> {
        if !matches!(self, Self::Numacast(_)) {
            return Ok(None);
        }
        let mut command = tethered(binary);
        command.args(["controller", "--metrics-address", "none", "--health-address", "none"]);
        command.arg("--kubeconfig").arg(cluster.admin_kubeconfig());
        command.args(["--set", "controller.lease=", "--set", "controller.daemonSets=[]"]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        Ok(Some(Process::start("controller", cluster.dir(), command)?))
    }
}

fn agent<'a>(binary: &PathBuf, node: &RealNode, settings: impl Iterator<Item = &'a str>) -> Command {
    let mut command = tethered(binary);
    command.args(["agent", "--node-name", node.name()]);
    command.arg("--kubeconfig").arg(node.agent_kubeconfig());
    command.args(["--metrics-address", "none", "--health-address", "none"]);
    command.args(Agent::places(node));
    for setting in settings {
        command.args(["--set", setting]);
    }
    command
}

/// Returns a command that runs on the described machine, with the usual environment variables of such
/// programs.
fn other(shell: &str, cluster: &Cluster, node: &RealNode) -> Result<Command> {
    let config = std::fs::read(node.kubelet_dir().join("config.yaml"))?;
    let mut config: Value = serde_json::from_slice(&config).context("the kubelet's configuration")?;
    // NFD panics on a feature gate unknown to its library.
    config["featureGates"] = json!({});
    std::fs::write(node.dir().join("kubelet/without-gates.yaml"), config.to_string())?;
    let mut command = node.inside()?;
    command.args(["sh", "-c", &format!("exec {shell}")]);
    command.env("NODE_NAME", node.name()).env("NODE_ADDRESS", "127.0.0.1");
    command.env("KUBECONFIG", cluster.admin_kubeconfig());
    command.env("KUBELET_CONFIG", "/var/lib/kubelet/without-gates.yaml");
    Ok(command)
}
