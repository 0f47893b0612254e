//! The flags that set configuration keys, and merging them with the other layers.

use std::path::{Path, PathBuf};

use anyhow::anyhow;

use crate::config::{Effective, Layers, Origin};

/// The flags of every verb that runs on and on: what people and monitoring are told.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct ToldArgs {
    /// error, warn, info, debug or trace [key: log.level]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// text or json [key: log.format]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Where to serve /metrics: an IP address with a port, a port such as :9742, or none [key: metrics.address]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_address: Option<String>,
    /// Where to serve /livez, /readyz and /startupz, likewise [key: health.address]
    #[arg(long, value_name = "ADDRESS:PORT")]
    health_address: Option<String>,
}

/// Flags that set keys of the configuration. `numacast config defaults` explains every key.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct SettingsArgs {
    /// A configuration file (YAML); flags and the environment (NODE_NAME, NODE_ADDRESS, POD_NAMESPACE) win over it
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The node's name in the cluster [key: nodeName, environment: NODE_NAME]
    #[arg(long, value_name = "NAME")]
    pub(super) node_name: Option<String>,
    /// Where the host's root is mounted [key: host.root]
    #[arg(long, value_name = "DIR")]
    pub(super) host_root: Option<String>,
    /// Stands for /sys [key: host.sys]
    #[arg(long, value_name = "DIR")]
    pub(super) sys_dir: Option<String>,
    /// Stands for /proc [key: host.proc]
    #[arg(long, value_name = "DIR")]
    pub(super) proc_dir: Option<String>,
    /// The kubelet's root directory [key: kubelet.dir]
    #[arg(long, value_name = "DIR")]
    pub(super) kubelet_dir: Option<String>,
    /// The kubelet's podresources socket [key: kubelet.socket]
    #[arg(long, value_name = "SOCKET")]
    pub(super) kubelet_socket: Option<String>,
    /// The kubelet's own configuration file [key: kubelet.config.file]
    #[arg(long, value_name = "FILE")]
    pub(super) kubelet_config: Option<String>,
    /// Who tells how the kubelet is configured: auto, file, configz or none [key: kubelet.config.source]
    #[arg(long, value_name = "SOURCE")]
    pub(super) kubelet_config_source: Option<String>,
    /// Stands for the kubelet's own policy, with its scope [key: kubelet.config.topologyManagerPolicy]
    #[arg(long, value_name = "POLICY")]
    pub(super) topology_manager_policy: Option<String>,
    /// container or pod, with the policy [key: kubelet.config.topologyManagerScope]
    #[arg(long, value_name = "SCOPE")]
    pub(super) topology_manager_scope: Option<String>,
    /// A kubeconfig file [key: publish.kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<String>,
    /// How often to look when nothing seems to happen [key: scan.poll]
    #[arg(long, value_name = "TIME")]
    pub(super) poll: Option<String>,
    /// A file that somebody touches when it is time to look [key: scan.notifyFile]
    #[arg(long, value_name = "FILE")]
    pub(super) notify_file: Option<String>,
    #[command(flatten)]
    pub(super) told: ToldArgs,
    /// Any key of the configuration, e.g. --set scan.settle=1m; maps and lists in YAML or JSON
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// A flag of `numacast controller` alone.
    #[arg(skip)]
    pub(super) controller_namespace: Option<String>,
    /// Another one.
    #[arg(skip)]
    pub(super) daemon_set: Option<String>,
    /// Another one.
    #[arg(skip)]
    pub(super) dry_run: bool,
    /// A flag of `numacast proxy` alone.
    #[arg(skip)]
    pub(super) proxy_dir: Option<String>,
    /// A flag of `numacast pods-api` alone.
    #[arg(skip)]
    pub(super) pods_api_dir: Option<String>,
    /// Another one.
    #[arg(skip)]
    pub(super) pods_api_source: Option<String>,
}

impl SettingsArgs {
    /// Returns the path of the configuration file.
    pub(super) fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Merges defaults, file, environment and these flags.
    pub(super) fn effective(self) -> anyhow::Result<Effective> {
        finish(self.layers(None)?)
    }

    /// Returns the layers. `text` is the file's contents, if they were already read.
    pub(super) fn layers(self, text: Option<&str>) -> anyhow::Result<Layers> {
        let Self {
            config,
            node_name,
            host_root,
            sys_dir,
            proc_dir,
            kubelet_dir,
            kubelet_socket,
            kubelet_config,
            kubelet_config_source,
            topology_manager_policy,
            topology_manager_scope,
            kubeconfig,
            poll,
            notify_file,
            told: ToldArgs { log_level, log_format, metrics_address, health_address },
            set,
            controller_namespace,
            daemon_set,
            dry_run,
            proxy_dir,
            pods_api_dir,
            pods_api_source,
        } = self;
        let mut layers = Layers::default();
        if let Some(file) = config {
            layers = match text {
                Some(text) => layers.text(text, &file),
                None => layers.file(&file),
            };
        }
        for (variable, key) in [
            ("NODE_NAME", "nodeName"),
            ("NODE_ADDRESS", "kubelet.address"),
            ("POD_NAMESPACE", "controller.namespace"),
        ] {
            let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
            layers = layers.value(key, value, Origin::Environment(variable));
        }
        for (flag, key, value) in [
            ("--node-name", "nodeName", node_name),
            ("--host-root", "host.root", host_root),
            ("--sys-dir", "host.sys", sys_dir),
            ("--proc-dir", "host.proc", proc_dir),
            ("--kubelet-dir", "kubelet.dir", kubelet_dir),
            ("--kubelet-socket", "kubelet.socket", kubelet_socket),
            ("--kubelet-config", "kubelet.config.file", kubelet_config),
            ("--kubelet-config-source", "kubelet.config.source", kubelet_config_source),
            ("--topology-manager-policy", "kubelet.config.topologyManagerPolicy", topology_manager_policy),
            ("--topology-manager-scope", "kubelet.config.topologyManagerScope", topology_manager_scope),
            ("--kubeconfig", "publish.kubeconfig", kubeconfig),
            ("--poll", "scan.poll", poll),
            ("--notify-file", "scan.notifyFile", notify_file),
            ("--log-level", "log.level", log_level),
            ("--log-format", "log.format", log_format),
            ("--metrics-address", "metrics.address", metrics_address),
            ("--health-address", "health.address", health_address),
            ("--namespace", "controller.namespace", controller_namespace),
            ("--daemon-set", "controller.daemonSet", daemon_set),
            ("--dir", "proxy.dir", proxy_dir),
            ("--dir", "podsApi.dir", pods_api_dir),
            ("--source", "podsApi.source", pods_api_source),
        ] {
            layers = layers.value(key, value, Origin::Flag(flag.to_owned()));
        }
        let dry_run = dry_run.then_some(true);
        layers = layers.value("controller.dryRun", dry_run, Origin::Flag("--dry-run".to_owned()));
        for assignment in set {
            let Some((key, value)) = assignment.split_once('=') else {
                return Err(anyhow!("--set {assignment}: write KEY=VALUE, e.g. --set scan.settle=1m"));
            };
            layers = layers.typed(key, value, Origin::Flag("--set".to_owned()));
        }
        Ok(layers)
    }
}

/// Merges the layers; the error has one line for each problem.
pub(super) fn finish(layers: Layers) -> anyhow::Result<Effective> {
    layers.finish().map_err(|errors| {
        let sentences: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow!(sentences.join("\nnumacast: "))
    })
}
