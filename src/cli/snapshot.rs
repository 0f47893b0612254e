//! `numacast snapshot`

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use tracing::{info, warn};

use super::flags::{AgentFlags, ConfigArgs};
use crate::agent::{self, Recording, Scan};
use crate::config::Config;
use crate::nrt::Version;
use crate::scheduler;
use crate::telemetry;
use crate::topology::Topology;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How the object is printed
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Also store all inputs in one file, for a bug report or a replay. It names the node's pods and devices;
    /// of the kubelet's configuration it holds only policies and reservations
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Compute from a recording instead of this node
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs<AgentFlags>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Output {
    #[default]
    Yaml,
    Json,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { output, record, replay, config: ConfigArgs { given, .. } } = args;
    let mut config = given.effective()?.config;
    telemetry::start_logs(config.log.level, config.log.format);
    if config.node_name.is_empty() {
        config.node_name = host_name(&config);
    }
    let replays = replay.is_some();
    let recording = match replay {
        Some(file) => Recording::read(&file)?,
        None => super::block_on(async { Ok(take(&config).await) })?,
    };
    // Written first: a bug report needs the recording of a failure.
    if let Some(file) = record {
        recording.write(&file)?;
    }
    let scan = recording.scan()?;
    let rules = recording.rules();
    let account = agent::account(&scan, &BTreeSet::new(), &rules);
    let topology = match replays {
        true => account,
        false => super::block_on(async { Ok(reserve(&config, &scan, account).await) })?,
    };
    let problems = rules.exclude.warnings().into_iter().chain(scan.problems().cloned());
    for problem in problems.chain(topology.findings.iter().map(ToString::to_string)) {
        warn!("{problem}");
    }
    let (object, form) = (agent::object(&recording.node, None, &topology), config.form());
    super::print(&match form.version {
        Version::V1alpha1 => render(&form.json(&object).context("cannot write JSON")?, output)?,
        Version::V1alpha2 => render(&form.of(object), output)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn take(config: &Config) -> Recording {
    let settings = config.agent_settings();
    let cluster = match settings.kubelet_config.ask_the_kubelet() {
        true => config.cluster().await.ok(),
        false => None,
    };
    Recording::take(&settings, cluster.as_ref()).await
}

/// Subtracts from the zones what the agent would reserve now. Recordings do not contain reservations.
async fn reserve(config: &Config, scan: &Scan, mut topology: Topology) -> Topology {
    let settings = config.agent_settings();
    if !settings.gate.reserve {
        return topology;
    }
    let reserved = match config.cluster().await {
        Ok(cluster) => agent::reserved(&settings, &cluster, scan, &topology).await,
        Err(error) => {
            warn!("{error}; what the agent reserves for pods that are bound is not known");
            return topology;
        }
    };
    for reservation in &reserved {
        info!("reserved for the pod {reservation}");
    }
    scheduler::reserve(&mut topology.zones, &reserved);
    topology
}

/// Returns the host name, the kubelet's default for the node's name.
fn host_name(config: &Config) -> String {
    let file = config.paths().proc.join("sys/kernel/hostname");
    std::fs::read_to_string(file).map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_lowercase())
}

fn render(object: &impl Serialize, output: Output) -> anyhow::Result<String> {
    Ok(match output {
        Output::Yaml => serde_saphyr::to_string(object).context("cannot write YAML")?,
        Output::Json => serde_json::to_string_pretty(object).context("cannot write JSON")? + "\n",
    })
}
