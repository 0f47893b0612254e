//! `numacast agent`

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use futures::FutureExt;
use tracing::{info, warn};

use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use super::settings::SettingsArgs;
use crate::agent::{self, Agent, Merge, MergeAnswer, Settings};
use crate::cluster::Cluster;
use crate::proxy::{self, Proxy};
use crate::telemetry;
use crate::telemetry::health::Health;
use crate::telemetry::proxy::Beside;
use crate::telemetry::server::{All, Exposition, Probes, Together};

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
    let mut settings = Settings::from_config(&config);
    let serves = config.proxy.enabled && !once;
    let proxy = serves.then(|| proxy::Settings::from_config(&config, &settings.pods.order));
    if let Some(proxy) = &proxy {
        settings.pods.wanted = proxy.wanted();
    }
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
        let mut agent = Agent::new(settings, cluster.clone());
        let proxy = proxy.map(|settings| beside(&mut agent, settings, cluster));
        let reload = Reload::of_agent(args, effective, logs, agent.rules())?;
        let (metrics, health) = watched(&agent, proxy.as_ref());
        let _servers = serve(&config, metrics, health).await;
        drop(tokio::spawn(reload.run()));
        run_all(agent, proxy, shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}

/// A proxy that shares what the agent has: its connection to the kubelet and what it knows of pods.
fn beside(agent: &mut Agent, settings: proxy::Settings, cluster: Cluster) -> Proxy {
    let zones = settings.zones;
    let proxy = Proxy::new(settings, agent.pods(), Some(cluster));
    agent.share(proxy.upstream());
    if zones {
        agent.merge_with(Merge {
            list: proxy.merging_lists().map(|merge| Arc::new(merge) as MergeAnswer),
            allocatable: proxy.merging_allocatable().map(|merge| Arc::new(merge) as MergeAnswer),
        });
    }
    proxy
}

fn watched(agent: &Agent, proxy: Option<&Proxy>) -> (Arc<dyn Exposition>, Arc<dyn Probes>) {
    let metrics = agent.metrics();
    let health: Arc<dyn Probes> = Arc::<Health>::clone(metrics.health());
    let Some(proxy) = proxy else { return (metrics, health) };
    let of_proxy = proxy.metrics();
    let counted: Vec<Arc<dyn Exposition>> = vec![metrics, Arc::new(Beside::new(&of_proxy))];
    let probes = vec![health, Arc::clone(of_proxy.health()) as Arc<dyn Probes>];
    (Arc::new(Together(counted)), Arc::new(All(probes)))
}

/// Both, until `shutdown`.
async fn run_all(agent: Agent, proxy: Option<Proxy>, shutdown: impl Future<Output = ()>) {
    let Some(proxy) = proxy else { return agent.run(shutdown).await };
    let shutdown = shutdown.shared();
    tokio::join!(agent.run(shutdown.clone()), proxy.run(None, shutdown));
}
