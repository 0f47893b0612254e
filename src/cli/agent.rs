//! `numacast agent`

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::settings::SettingsArgs;
use crate::agent::{self, Agent, Settings};
use crate::cluster::Cluster;
use crate::config::Endpoint;
use crate::telemetry;
use crate::telemetry::server::{Endpoints, Server};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Scan, publish, and exit 0; exit 1 with the reason if that cannot be done
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { once, settings } = args;
    let effective = settings.effective()?;
    let config = effective.config;
    telemetry::start_logs(&config.log);
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
        let _server = serve(config.metrics.address, Endpoints { metrics: agent.metrics() }).await;
        agent.run(shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}

/// The agent's own work does not depend on being watched: without an endpoint it goes on.
async fn serve(address: Endpoint, endpoints: Endpoints) -> Option<Server> {
    let Endpoint::At(address) = address else { return None };
    match Server::start(address, endpoints).await {
        Ok(server) => {
            info!("metrics at http://{}/metrics", server.address());
            Some(server)
        }
        Err(error) => {
            warn!("{error}");
            None
        }
    }
}

/// Completes at SIGTERM or SIGINT. A second signal ends the process at once.
fn shutdown_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let explain = |error| anyhow!("cannot listen for signals: {error}");
    let mut term = signal(SignalKind::terminate()).map_err(explain)?;
    let mut int = signal(SignalKind::interrupt()).map_err(explain)?;
    Ok(async move {
        let name = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        };
        info!("{name} received");
        tokio::spawn(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            std::process::exit(1);
        });
    })
}
