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
use super::snapshot::host_name;
use crate::agent::{Agent, FileReplaced, Merge, MergeResponse, Settings};
use crate::cluster::Cluster;
use crate::config::{Config, PublishTo};
use crate::grpc::{self, ServerMetrics, Socket};
use crate::pod_source::SharedInformer;
use crate::pods_api::PodsApi;
use crate::proxy::{self, Proxy};
use crate::telemetry::health::{All, Probes};
use crate::telemetry::registry::Registry;
use crate::util::task::Task;

/// The keys that switch services on.
const SERVED: [&str; 2] = ["proxy.enabled", "podsApi.enabled"];

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
    let (mut config, reload) = Reload::new(given)?;
    if config.node_name.is_empty() && matches!(config.publish.to, PublishTo::File(_)) {
        config.node_name = host_name(&config);
    }
    if config.node_name.is_empty() {
        bail!("the node's name is not known: set NODE_NAME (in a pod, from spec.nodeName) or --node-name");
    }
    if config.publish.to == PublishTo::Nowhere {
        if once {
            bail!("--once cannot be used with `publish.to: none`, which publishes nothing");
        }
        return super::block_on(serve_only(config, reload));
    }
    let mut settings = config.agent_settings();
    // A single pass does not serve the proxy, but the zones may have to count what it merges.
    let proxy = config.proxy.enabled && (!once || config.proxy.zones);
    let proxy = proxy.then(|| config.proxy_settings());
    if let Some(proxy) = &proxy {
        settings.pods.wanted = settings.pods.wanted.and(&proxy.wanted());
    }
    for warning in settings.rules.exclude.warnings() {
        warn!("{warning}");
    }
    let pods_api = (config.pods_api.enabled && !once).then(|| config.pods_api_settings());
    super::block_on(async move {
        let cluster = connect(&config).await?;
        if cluster.is_none() {
            settings = settings.without_cluster();
        }
        if once {
            run_once(settings, proxy, cluster).await?;
            return Ok(ExitCode::SUCCESS);
        }
        info!("numacast {} on node {}", env!("CARGO_PKG_VERSION"), settings.node);
        let is_off = reload.set_to_false(&SERVED);
        let shutdown = shutdown_signal()?;
        let mut registry = Registry::of_process();
        let pods_api = pods_api.map(|pods_api| {
            // A source that both use is watched only once.
            settings.pods.informer = Some(SharedInformer::caching(settings.pods.wanted.clone()));
            let (sources, node) = (settings.pods.clone(), settings.node.clone());
            PodsApi::new(pods_api, sources, node, cluster.clone(), &mut registry)
        });
        let mut agent = Agent::new(settings, cluster.clone(), &mut registry);
        let proxy = proxy.map(|settings| new_proxy(&mut agent, settings, cluster, &mut registry));
        let _off = answer_off(&config, &is_off, &mut registry);
        reload.start(Some(agent.rules()))?;
        let mut probes: Vec<Arc<dyn Probes>> = vec![agent.health()];
        probes.extend(proxy.as_ref().map(Proxy::health));
        probes.extend(pods_api.as_ref().map(PodsApi::health));
        let _servers = serve(&config, registry, Arc::new(All(probes))).await;
        run_all(agent, proxy, pods_api, shutdown).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns a client for the API server. An agent that writes a file works without.
async fn connect(config: &Config) -> anyhow::Result<Option<Cluster>> {
    match (config.cluster().await, &config.publish.to) {
        (Ok(cluster), _) => Ok(Some(cluster)),
        (Err(error), PublishTo::File(_)) => {
            info!("{error}; pods are read from the kubelet's own Pods API only, and no claims");
            Ok(None)
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// Answers on the sockets that are left from services which are explicitly switched off, until the tasks are dropped.
fn answer_off(config: &Config, off: &[&str], registry: &mut Registry) -> Vec<Task> {
    let proxy = "numacast: the podresources proxy is off on this node (proxy.enabled)";
    let pods_api = "numacast: the Pods API is off on this node (podsApi.enabled)";
    let sockets = [
        (SERVED[0], Some(config.proxy_socket()), "proxy", proxy),
        (SERVED[1], Some(config.pods_api_socket()), "pods_api", pods_api),
        (SERVED[1], config.pod_info_socket(), "pod_info", pods_api),
    ];
    let off = sockets.into_iter().filter(|(key, ..)| off.contains(key));
    let answer = |(_, socket, component, why): (_, Option<Socket>, _, _)| {
        let metrics = ServerMetrics::register(registry, component);
        Some(Task::spawn(grpc::answer_off(socket?, why, metrics)))
    };
    off.filter_map(answer).collect()
}

/// Serves the proxy and the Pods API, and publishes nothing.
async fn serve_only(config: Config, reload: Reload) -> anyhow::Result<ExitCode> {
    info!("numacast {} on node {}: publishes nothing", env!("CARGO_PKG_VERSION"), config.node_name);
    let cluster = config.cluster().await?;
    let shutdown = shutdown_signal()?.shared();
    let mut registry = Registry::of_process();
    let mut sources = config.pod_sources();
    let (proxy, pods_api) = (config.proxy_settings(), config.pods_api_settings());
    if config.proxy.enabled && config.pods_api.enabled {
        // A source that both use is watched only once.
        sources.informer = Some(SharedInformer::caching(proxy.wanted()));
    }
    let pods_api = config.pods_api.enabled.then(|| {
        let (sources, node) = (sources.clone(), config.node_name.clone());
        PodsApi::new(pods_api, sources, node, Some(cluster.clone()), &mut registry)
    });
    let proxy = config.proxy.enabled.then(|| Proxy::with_pod_sources(proxy, sources, cluster, &mut registry));
    let _off = answer_off(&config, &reload.set_to_false(&SERVED), &mut registry);
    reload.start(None)?;
    let mut probes: Vec<Arc<dyn Probes>> = Vec::new();
    probes.extend(proxy.as_ref().map(Proxy::health));
    probes.extend(pods_api.as_ref().map(PodsApi::health));
    let _servers = serve(&config, registry, Arc::new(All(probes))).await;
    let proxy = OptionFuture::from(proxy.map(|proxy| proxy.run(None, shutdown.clone())));
    let pods_api = OptionFuture::from(pods_api.map(|pods_api| pods_api.run(None, shutdown.clone())));
    tokio::join!(proxy, pods_api);
    Ok(ExitCode::SUCCESS)
}

/// Publishes the object once, with as few calls as possible.
async fn run_once(
    settings: Settings,
    proxy: Option<proxy::Settings>,
    cluster: Option<Cluster>,
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
    cluster: Option<Cluster>,
    registry: &mut Registry,
) -> Proxy {
    let zones = settings.zones;
    let proxy = Proxy::new(settings, agent.pods(), cluster, registry);
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
