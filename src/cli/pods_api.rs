//! `numacast pods-api`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use tracing::{info, warn};

use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use super::settings::{SettingsArgs, ToldArgs};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::pod_source::{KubeletPort, PodTeller, PodTellers};
use crate::pods_api::{PodsApi, Settings};
use crate::telemetry;
use crate::telemetry::registry::Registry;

/// The agent serves it too (podsApi.enabled), and asks nobody twice. This one is for nodes where no agent runs. `numacast
/// pods` reads from it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    settings: PodsApiArgs,
}

/// Flags that set keys of the configuration. `numacast config explain podsApi` explains those of the Pods API.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Configuration")]
struct PodsApiArgs {
    /// A configuration file (YAML); flags and the environment (NODE_NAME, NODE_ADDRESS) win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory of the socket pods-api.sock that is served [key: podsApi.dir]
    #[arg(long, value_name = "DIR")]
    dir: Option<String>,
    /// Who tells of the pods: auto, podsApi, apiServer or kubelet [key: podsApi.source]
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    /// The node's name in the cluster [key: nodeName, environment: NODE_NAME]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Where the host's root is mounted [key: host.root]
    #[arg(long, value_name = "DIR")]
    host_root: Option<String>,
    /// The kubelet's root directory, with the socket of its own Pods API [key: kubelet.dir]
    #[arg(long, value_name = "DIR")]
    kubelet_dir: Option<String>,
    /// A kubeconfig file [key: publish.kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,
    #[command(flatten)]
    told: ToldArgs,
    /// Any key of the configuration, e.g. --set podsApi.group=1234; maps and lists in YAML or JSON
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl From<PodsApiArgs> for SettingsArgs {
    /// Converts these flags to the settings that all commands share.
    fn from(args: PodsApiArgs) -> Self {
        let PodsApiArgs { config, dir, source, node_name, host_root, kubelet_dir, kubeconfig, told, set } =
            args;
        Self {
            config,
            pods_api_dir: dir,
            pods_api_source: source,
            node_name,
            host_root,
            kubelet_dir,
            kubeconfig,
            told,
            set,
            ..Self::default()
        }
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { settings: args } = args;
    let args = SettingsArgs::from(args);
    let effective = args.clone().effective()?;
    let config = effective.config.clone().resolved();
    let logs = telemetry::start_logs(config.log.level, config.log.format);
    let settings = Settings::from_config(&config);
    if config.node_name.is_empty() && settings.order != [PodTeller::PodsApi] {
        bail!(
            "the node's name is not known, by which its pods are found: set NODE_NAME (in a pod, from spec.nodeName), \
             `nodeName` or --node-name; or ask only the kubelet's own Pods API: --source podsApi"
        );
    }
    super::block_on(async move {
        drop(tokio::spawn(Reload::of_logs(args, effective, logs)?.run()));
        serve_alone(config, settings).await
    })
}

async fn serve_alone(config: Config, mut settings: Settings) -> anyhow::Result<ExitCode> {
    info!("numacast {} pods-api", env!("CARGO_PKG_VERSION"));
    let cluster = reach(&config, &mut settings).await?;
    let tellers = PodTellers::from_config(&config, KubeletPort::from_config(&config));
    let shutdown = shutdown_signal()?;
    let mut registry = Registry::of_process();
    let server = PodsApi::new(settings, tellers, config.node_name.clone(), cluster, &mut registry);
    let started = server.start()?;
    let _servers = serve(&config, registry, server.health()).await;
    server.run(Some(started), shutdown).await;
    Ok(ExitCode::SUCCESS)
}

/// Returns a client for the API server, if it is a source. If it cannot be created and the kubelet's own Pods
/// API is a source too, only that is used.
async fn reach(config: &Config, settings: &mut Settings) -> anyhow::Result<Option<Cluster>> {
    if settings.order == [PodTeller::PodsApi] {
        return Ok(None);
    }
    match Cluster::new(config.publish.kubeconfig.as_deref(), config.publish.timeout.get()).await {
        Ok(cluster) => Ok(Some(cluster)),
        Err(error) if settings.order.contains(&PodTeller::PodsApi) => {
            warn!("{error}; only the kubelet's own Pods API is asked for pods, until a restart");
            settings.order = vec![PodTeller::PodsApi];
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
