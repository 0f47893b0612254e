//! `numacast agent`

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use tracing::{info, warn};

use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use super::settings::SettingsArgs;
use crate::agent::{self, Agent, Settings};
use crate::cluster::Cluster;
use crate::telemetry;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Scan, publish, and exit 0; exit 1 with the reason if that cannot be done
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { once, settings: args } = args;
    let effective = args.clone().effective()?;
    let config = effective.config.clone();
    let logs = telemetry::start_logs(&config.log);
    if config.node_name.is_empty() {
        bail!(
            "the node's name is not known: set NODE_NAME (in a pod, from spec.nodeName), `nodeName` or --node-name"
        );
    }
    let settings = Settings::from_config(&config);
    for warning in settings.rules.exclude.warnings() {
        warn!("{warning}");
    }
    super::block_on(async move {
        let cluster =
            Cluster::new(config.publish.kubeconfig.as_deref(), config.publish.timeout.get()).await?;
        if once {
            let object = agent::once(&settings, &cluster).await?;
            info!("published {} with {} zones", settings.node, object.spec.zones.len());
            return Ok(ExitCode::SUCCESS);
        }
        info!("numacast {} on node {}", env!("CARGO_PKG_VERSION"), settings.node);
        let shutdown = shutdown_signal()?;
        let agent = Agent::new(settings, cluster);
        let reload = Reload::of_agent(args, effective, logs, agent.rules())?;
        let metrics = agent.metrics();
        let health = Arc::clone(metrics.health());
        let _servers = serve(&config, metrics, health).await;
        drop(tokio::spawn(reload.run()));
        agent.run(shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}
