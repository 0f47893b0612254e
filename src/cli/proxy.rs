//! `numacast proxy`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use tracing::info;

use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use super::settings::{SettingsArgs, ToldArgs};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::pod_source::{KubeletPort, PodSource, PodTellers};
use crate::proxy::{Proxy, Settings};
use crate::telemetry;
use crate::telemetry::registry::Registry;

/// The agent serves it too (proxy.enabled), on the connection that it has to the kubelet anyway. This one is for nodes
/// where no agent runs.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    settings: ProxyArgs,
}

/// Flags that set keys of the configuration. `numacast config explain proxy` explains those of the proxy.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Configuration")]
struct ProxyArgs {
    /// A configuration file (YAML); flags and the environment (NODE_NAME, NODE_ADDRESS) win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory of the socket kubelet.sock that is served [key: proxy.dir]
    #[arg(long, value_name = "DIR")]
    dir: Option<String>,
    /// The node's name in the cluster [key: nodeName, environment: NODE_NAME]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Where the host's root is mounted [key: host.root]
    #[arg(long, value_name = "DIR")]
    host_root: Option<String>,
    /// Stands for /sys [key: host.sys]
    #[arg(long, value_name = "DIR")]
    sys_dir: Option<String>,
    /// The kubelet's root directory [key: kubelet.dir]
    #[arg(long, value_name = "DIR")]
    kubelet_dir: Option<String>,
    /// The kubelet's podresources socket [key: kubelet.socket]
    #[arg(long, value_name = "SOCKET")]
    kubelet_socket: Option<String>,
    /// A kubeconfig file [key: publish.kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,
    #[command(flatten)]
    told: ToldArgs,
    /// Any key of the configuration, e.g. --set proxy.failClosed=true; maps and lists in YAML or JSON
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl From<ProxyArgs> for SettingsArgs {
    /// Converts these flags to the settings that all commands share.
    fn from(args: ProxyArgs) -> Self {
        let ProxyArgs {
            config,
            dir,
            node_name,
            host_root,
            sys_dir,
            kubelet_dir,
            kubelet_socket,
            kubeconfig,
            told,
            set,
        } = args;
        Self {
            config,
            proxy_dir: dir,
            node_name,
            host_root,
            sys_dir,
            kubelet_dir,
            kubelet_socket,
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
    let tellers = PodTellers::from_config(&config, KubeletPort::from_config(&config));
    let settings = Settings::from_config(&config, &tellers.order);
    if settings.rules.is_some() && settings.node.is_empty() {
        bail!(
            "the node's name is not known, by which its pods are found: set NODE_NAME (in a pod, from spec.nodeName), \
             `nodeName` or --node-name; or merge nothing: --set proxy.annotations.koordinator=false"
        );
    }
    if let Some((key, reason)) = config.proxy.needs_pods(&config) {
        bail!("{key}: {reason}");
    }
    super::block_on(async move {
        drop(tokio::spawn(Reload::of_logs(args, effective, logs)?.run()));
        serve_alone(config, settings, tellers).await
    })
}

async fn serve_alone(config: Config, settings: Settings, tellers: PodTellers) -> anyhow::Result<ExitCode> {
    info!("numacast {} proxy", env!("CARGO_PKG_VERSION"));
    let mut registry = Registry::of_process();
    let proxy = match settings.rules.is_some() {
        true => {
            let kubeconfig = config.publish.kubeconfig.as_deref();
            let cluster = Cluster::new(kubeconfig, config.publish.timeout.get()).await?;
            Proxy::asking(settings, tellers, cluster, &mut registry)
        }
        // Without merging, only the kubelet is needed.
        false => Proxy::new(settings, PodSource::none(), None, &mut registry),
    };
    let shutdown = shutdown_signal()?;
    let server = proxy.start()?;
    let _servers = serve(&config, registry, proxy.health()).await;
    proxy.run(Some(server), shutdown).await;
    Ok(ExitCode::SUCCESS)
}
