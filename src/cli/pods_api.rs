use std::process::ExitCode;

use anyhow::bail;
use tracing::{info, warn};

use super::flags::{ConfigArgs, Flag, Flags, HOST_ROOT, KUBECONFIG, KUBELET_DIR, NODE_NAME, TELEMETRY};
use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::pod_source::PodSourceKind;
use crate::pods_api::{PodsApi, Settings};
use crate::telemetry::registry::Registry;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs<PodsApiFlags>,
}

#[derive(Clone, Debug)]
struct PodsApiFlags;

impl Flags for PodsApiFlags {
    const FLAGS: &'static [&'static [Flag]] = &[
        &[
            Flag::key("dir", "DIR", "podsApi.dir"),
            Flag::key("source", "SOURCE", "podsApi.source"),
            NODE_NAME,
            HOST_ROOT,
            KUBELET_DIR,
            KUBECONFIG,
        ],
        TELEMETRY,
    ];
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { config: ConfigArgs { given, .. } } = args;
    let (config, reload) = Reload::new(given)?;
    let mut settings = config.pods_api_settings();
    if config.node_name.is_empty() && settings.order != [PodSourceKind::PodsApi] {
        bail!(
            "the node's name is unknown, and its pods are found by it: set NODE_NAME (in a pod, from spec.nodeName) or \
             --node-name; or use only the kubelet's own Pods API: --source podsApi"
        );
    }
    super::block_on(async move {
        reload.start(None)?;
        info!("numacast {} pods-api", env!("CARGO_PKG_VERSION"));
        let cluster = connect(&config, &mut settings).await?;
        let sources = config.pod_sources();
        let shutdown = shutdown_signal()?;
        let mut registry = Registry::of_process();
        let server = PodsApi::new(settings, sources, config.node_name.clone(), cluster, &mut registry);
        let started = server.start()?;
        let _servers = serve(&config, registry, server.health()).await;
        server.run(Some(started), shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns a client for the API server, if it is a source. If it cannot be created and the kubelet's own Pods
/// API is a source too, only that is used.
async fn connect(config: &Config, settings: &mut Settings) -> anyhow::Result<Option<Cluster>> {
    if settings.order == [PodSourceKind::PodsApi] {
        return Ok(None);
    }
    match config.cluster().await {
        Ok(cluster) => Ok(Some(cluster)),
        Err(error) if settings.order.contains(&PodSourceKind::PodsApi) => {
            warn!("{error}; pods are read only from the kubelet's own Pods API, until a restart");
            settings.order = vec![PodSourceKind::PodsApi];
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
