//! What every long-running command does besides its work: serving metrics and health, and shutting down.

use std::future::Future;
use std::sync::Arc;

use anyhow::anyhow;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::config::{Config, Endpoint};
use crate::telemetry::health::Probes;
use crate::telemetry::registry::Registry;
use crate::telemetry::server::{Endpoints, Server};
use crate::telemetry::tls::Tls;

/// Serves metrics and health. An endpoint that cannot be served is not fatal: the work does not depend on it.
pub(super) async fn serve(config: &Config, metrics: Registry, health: Arc<dyn Probes>) -> Vec<Server> {
    let (metrics, health) = (Some(Arc::new(metrics)), Some(health));
    if config.metrics.address == config.health.address {
        let both = Endpoints { metrics, health };
        return start(config.metrics.address, both, None).await.into_iter().collect();
    }
    let tls = config.metrics.tls.clone().map(Tls::new);
    let metrics = start(config.metrics.address, Endpoints { metrics, health: None }, tls).await;
    let health = start(config.health.address, Endpoints { metrics: None, health }, None).await;
    metrics.into_iter().chain(health).collect()
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
pub(super) fn shutdown_signal() -> anyhow::Result<impl Future<Output = ()>> {
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
