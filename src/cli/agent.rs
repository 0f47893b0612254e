//! `numacast agent`

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::reload::Reload;
use super::settings::SettingsArgs;
use crate::agent::{self, Agent, Settings};
use crate::cluster::Cluster;
use crate::config::{self, Config, Endpoint};
use crate::telemetry;
use crate::telemetry::server::{Endpoints, Server};
use crate::telemetry::tls::{Files, Tls};

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
        let reload = Reload::new(args, effective, logs, agent.rules())?;
        let _servers = serve(&config, &agent).await;
        drop(tokio::spawn(reload.run()));
        agent.run(shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}

/// The agent's own work does not depend on being watched: without an endpoint it goes on.
async fn serve(config: &Config, agent: &Agent) -> Vec<Server> {
    let metrics = agent.metrics();
    let health = Some(Arc::clone(metrics.health()));
    let (metrics, both) = (Some(metrics), config.metrics.address == config.health.address);
    if both {
        return start(config.metrics.address, Endpoints { metrics, health }, None)
            .await
            .into_iter()
            .collect();
    }
    let tls = tls(&config.metrics.tls);
    let metrics = start(config.metrics.address, Endpoints { metrics, health: None }, tls).await;
    let health = start(config.health.address, Endpoints { metrics: None, health }, None).await;
    metrics.into_iter().chain(health).collect()
}

fn tls(config: &config::Tls) -> Option<Tls> {
    let (cert, key) = (config.cert_file.clone()?, config.key_file.clone()?);
    Some(Tls::new(Files { cert, key, client_ca: config.client_ca_file.clone() }))
}

async fn start(address: Endpoint, endpoints: Endpoints, tls: Option<Tls>) -> Option<Server> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let paths = endpoints.paths();
    match Server::start(address, endpoints, tls).await {
        Ok(server) => {
            if let Some(server) = &server {
                info!("{paths} at {scheme}://{}", server.address());
            }
            server
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
