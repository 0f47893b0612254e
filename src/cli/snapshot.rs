use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use tracing::{info, warn};

use super::flags::{AgentFlags, ConfigArgs};
use super::terminal::Terminal;
use crate::agent::{self, Account, Recording};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::inspect::{NodeState, Picture};
use crate::machine::read_cpus;
use crate::render::page;
use crate::scheduler::{Publishable, Reservation};
use crate::telemetry;
use crate::topology::active_pods;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How the node is printed
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Also store all inputs in one file, for a bug report or a replay. It names the node's pods and devices;
    /// of the kubelet's configuration it contains only policies and reservations
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Compute from a recording instead of this node
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs<AgentFlags>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Its object
    #[default]
    Yaml,
    /// Its object
    Json,
    /// Each zone with bars, and who has which CPUs, memory and devices in it
    Picture,
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
    let rules = recording.rules();
    let account = Account::new(recording.scan()?, None, &BTreeSet::new(), &rules);
    // Recordings do not contain the pods.
    let reservations = match replays {
        true => Vec::new(),
        false => super::block_on(async { Ok(reservations(&config, &account).await) })?,
    };
    let warnings = rules.exclude.warnings().into_iter().chain(account.scan.errors().cloned());
    let unplaced = account.topology.unplaced_devices.iter().filter(|(_, devices)| **devices > 0);
    let unplaced = unplaced.map(|(driver, devices)| {
        let (plural, them) = if *devices == 1 { ("", "it") } else { ("s", "them") };
        format!("the NUMA node of {devices} device{plural} of the driver {driver} is not known; no zone has {them}")
    });
    let findings = account.topology.findings.iter().map(ToString::to_string);
    for warning in warnings.chain(findings).chain(unplaced) {
        warn!("{warning}");
    }
    let state = account.with_reservations(&reservations);
    if output == Output::Picture {
        return picture(&recording, &account, &state);
    }
    let is_json = output == Output::Json;
    let (object, form) = (agent::object(&recording.node, None, &state), config.form());
    let printed = form.printed(object).context("cannot write JSON")?;
    super::print(&render(&printed, is_json)?)?;
    Ok(ExitCode::SUCCESS)
}

fn picture(recording: &Recording, account: &Account, state: &Publishable) -> anyhow::Result<ExitCode> {
    let scan = &account.scan;
    let machine = &scan.inventory.machine;
    // Recordings of earlier versions lack these files: then the picture has no sockets and caches.
    let (cpus, _) = read_cpus(&recording.files, machine);
    let picture = Picture::of_node(&NodeState {
        name: &recording.node,
        zones: &state.zones,
        attributes: &state.attributes,
        machine,
        cpus: &cpus,
        pods: active_pods(&scan.usage, &scan.terminated).collect(),
        claims: scan.claims.as_deref(),
    });
    let terminal = Terminal::now();
    let lines = picture.lines(terminal.width());
    super::print(&(page(&lines, usize::MAX, terminal.colour) + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

async fn take(config: &Config) -> Recording {
    let settings = config.agent_settings();
    let cluster = cluster(config, &settings).await;
    Recording::take(&settings, cluster).await
}

/// Returns a client for the cluster, if claims are read, or the kubelet's configuration has to be requested with its
/// credentials.
pub(super) async fn cluster(config: &Config, settings: &agent::Settings) -> Option<Cluster> {
    match settings.reads_claims || settings.kubelet_config.needs_kubelet() {
        true => config.cluster().await.ok(),
        false => None,
    }
}

/// Returns what the agent would reserve for bound pods now.
async fn reservations(config: &Config, account: &Account) -> Vec<Reservation> {
    let settings = config.agent_settings();
    if !settings.gate.reserve {
        return Vec::new();
    }
    let pods = match config.cluster().await {
        Ok(cluster) => agent::list_pods(&cluster, &settings.node, settings.kubelet_timeout).await,
        Err(error) => {
            warn!("{error}; what the agent reserves for bound pods is not known");
            return Vec::new();
        }
    };
    let reservations = account.reservations(&settings.gate, pods.as_deref(), &settings.rules.exclude);
    for reservation in &reservations {
        info!("reserved for the pod {reservation}");
    }
    reservations
}

/// Returns the host name, the kubelet's default for the node's name.
pub(super) fn host_name(config: &Config) -> String {
    let file = config.paths().proc.join("sys/kernel/hostname");
    std::fs::read_to_string(file).map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_lowercase())
}

fn render(object: &impl Serialize, is_json: bool) -> anyhow::Result<String> {
    Ok(match is_json {
        true => serde_json::to_string_pretty(object).context("cannot write JSON")? + "\n",
        false => serde_saphyr::to_string(object).context("cannot write YAML")?,
    })
}
