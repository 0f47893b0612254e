use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use futures::FutureExt;
use futures::future::OptionFuture;
use tokio::sync::oneshot;
use tokio::task::JoinError;
use tracing::{info, warn};

use super::flags::{AgentFlags, ConfigArgs};
use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use crate::agent::{Agent, FileReplaced, Merge, MergeResponse, Settings};
use crate::cluster::Cluster;
use crate::pod_source::SharedInformer;
use crate::pods_api::PodsApi;
use crate::proxy::{self, Proxy};
use crate::telemetry::health::{All, Probes};
use crate::telemetry::registry::Registry;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Scan, publish, and exit 0; exit 1 with the reason if that cannot be done
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    config: ConfigArgs<AgentFlags>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { once, config: ConfigArgs { given, .. } } = args;
    let (config, reload) = Reload::new(given)?;
    if config.node_name.is_empty() {
        bail!("the node's name is not known: set NODE_NAME (in a pod, from spec.nodeName) or --node-name");
    }
    let mut settings = config.agent_settings();
    // A single pass does not serve the proxy, but the zones may have to count what it merges.
    let proxy = config.proxy.enabled && (!once || config.proxy.zones);
    let proxy = proxy.then(|| config.proxy_settings());
    if let Some(proxy) = &proxy {
        settings.pods.wanted = proxy.wanted();
    }
    for warning in settings.rules.exclude.warnings() {
        warn!("{warning}");
    }
    let pods_api = (config.pods_api.enabled && !once).then(|| config.pods_api_settings());
    super::block_on(async move {
        let cluster = config.cluster().await?;
        if once {
            run_once(settings, proxy, cluster).await?;
            return Ok(ExitCode::SUCCESS);
        }
        info!("numacast {} on node {}", env!("CARGO_PKG_VERSION"), settings.node);
        let shutdown = shutdown_signal()?;
        let mut registry = Registry::of_process();
        let pods_api = pods_api.map(|pods_api| {
            // A source that both use is watched only once.
            settings.pods.informer = Some(SharedInformer::caching(settings.pods.wanted.clone()));
            let (sources, node) = (settings.pods.clone(), settings.node.clone());
            PodsApi::new(pods_api, sources, node, Some(cluster.clone()), &mut registry)
        });
        let mut agent = Agent::new(settings, cluster.clone(), &mut registry);
        let proxy = proxy.map(|settings| new_proxy(&mut agent, settings, cluster, &mut registry));
        reload.start(Some(agent.rules()))?;
        let mut probes: Vec<Arc<dyn Probes>> = vec![agent.health()];
        probes.extend(proxy.as_ref().map(Proxy::health));
        probes.extend(pods_api.as_ref().map(PodsApi::health));
        let _servers = serve(&config, registry, Arc::new(All(probes))).await;
        run_all(agent, proxy, pods_api, shutdown).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Publishes the object once, with as few calls as possible.
async fn run_once(
    settings: Settings,
    proxy: Option<proxy::Settings>,
    cluster: Cluster,
) -> anyhow::Result<()> {
    let node = settings.node.clone();
    let mut registry = Registry::default();
    let mut agent = Agent::new(settings, cluster.clone(), &mut registry);
    let proxy = proxy.map(|settings| new_proxy(&mut agent, settings, cluster, &mut registry));
    if let Some(proxy) = &proxy {
        proxy.wait_until_synced().await;
    }
    agent.run_once().await?;
    info!("published the NodeResourceTopology of {node}");
    Ok(())
}

/// Returns a proxy that shares the agent's kubelet connection and pod cache.
fn new_proxy(
    agent: &mut Agent,
    settings: proxy::Settings,
    cluster: Cluster,
    registry: &mut Registry,
) -> Proxy {
    let zones = settings.zones;
    let proxy = Proxy::new(settings, agent.pods(), Some(cluster), registry);
    agent.read_through(proxy.client());
    if zones {
        agent.merge_with(Merge {
            list: proxy.list_merger().map(|merge| Arc::new(merge) as MergeResponse),
            allocatable: proxy.allocatable_merger().map(|merge| Arc::new(merge) as MergeResponse),
        });
    }
    proxy
}

async fn run_all(
    agent: Agent,
    proxy: Option<Proxy>,
    pods_api: Option<PodsApi>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), FileReplaced> {
    // The servers stop with the agent.
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move {
        tokio::select! {
            () = shutdown => {}
            _ = stopped => {}
        }
    };
    let shutdown = shutdown.shared();
    let proxy = OptionFuture::from(proxy.map(|proxy| proxy.run(None, shutdown.clone())));
    let pods_api = OptionFuture::from(pods_api.map(|pods_api| pods_api.run(None, shutdown.clone())));
    // Runs in a separate task: each wakeup of the runtime's root future costs two more system calls.
    let agent = tokio::spawn(agent.run(shutdown.clone()));
    let agent = async {
        let ended = agent.await.map_err(JoinError::try_into_panic);
        drop(stop);
        match ended {
            Ok(result) => result,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // Nobody aborts it.
            Err(Err(_)) => Ok(()),
        }
    };
    tokio::join!(agent, proxy, pods_api).0
}
