use std::process::ExitCode;

use anyhow::bail;
use tracing::info;

use super::flags::{
    ConfigArgs, Flag, Flags, HOST_ROOT, KUBECONFIG, KUBELET_DIR, KUBELET_SOCKET, NODE_NAME, SYS_DIR,
    TELEMETRY,
};
use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use crate::pod_source::PodCache;
use crate::proxy::Proxy;
use crate::telemetry::registry::Registry;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs<ProxyFlags>,
}

#[derive(Clone, Debug)]
struct ProxyFlags;

impl Flags for ProxyFlags {
    const FLAGS: &'static [&'static [Flag]] = &[
        &[
            Flag::key("dir", "DIR", "proxy.dir"),
            NODE_NAME,
            HOST_ROOT,
            SYS_DIR,
            KUBELET_DIR,
            KUBELET_SOCKET,
            KUBECONFIG,
        ],
        TELEMETRY,
    ];
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { config: ConfigArgs { given, .. } } = args;
    let (config, reload) = Reload::new(given)?;
    let settings = config.proxy_settings();
    if settings.rules.is_some() && settings.node.is_empty() {
        bail!(
            "the node's name is unknown, and its pods are found by it: set NODE_NAME (in a pod, from spec.nodeName) or \
             --node-name; or merge nothing: --set proxy.annotations.koordinator=[]"
        );
    }
    if let Some((key, reason)) = config.proxy_without_pods() {
        bail!("{key}: {reason}");
    }
    super::block_on(async move {
        reload.start(None)?;
        info!("numacast {} proxy", env!("CARGO_PKG_VERSION"));
        let mut registry = Registry::of_process();
        let proxy = match settings.rules.is_some() {
            true => {
                let cluster = config.cluster().await?;
                Proxy::with_pod_sources(settings, config.pod_sources(), cluster, &mut registry)
            }
            // Without merging, only the kubelet is needed.
            false => Proxy::new(settings, PodCache::none(), None, &mut registry),
        };
        let shutdown = shutdown_signal()?;
        let server = proxy.start()?;
        let _servers = serve(&config, registry, proxy.health()).await;
        proxy.run(Some(server), shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}
