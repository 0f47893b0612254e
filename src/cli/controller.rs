//! `numacast controller`

use std::path::PathBuf;
use std::process::ExitCode;

use tracing::info;

use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use super::settings::{SettingsArgs, ToldArgs};
use crate::cluster::Cluster;
use crate::controller::{self, Controller, Settings};
use crate::telemetry;
use crate::telemetry::registry::Registry;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Look at the whole fleet once, print what is wrong, a line each, and exit 1 if anything is
    #[arg(long, conflicts_with_all = ["purge", "dry_run"])]
    check: bool,
    /// Delete the agents' DaemonSet, wait until its pods are gone, delete every object that numacast wrote, and exit
    #[arg(long)]
    purge: bool,
    /// Delete nothing, and say what would be deleted [key: controller.dryRun]
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    settings: ControllerArgs,
}

/// Flags that set keys of the configuration. `numacast config explain controller` explains those of the controller.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Configuration")]
struct ControllerArgs {
    /// A configuration file (YAML); flags and the environment (POD_NAMESPACE) win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the DaemonSet and the Lease are [key: controller.namespace, environment: POD_NAMESPACE]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The agents' DaemonSet [key: controller.daemonSet]
    #[arg(long, value_name = "NAME")]
    daemon_set: Option<String>,
    /// A kubeconfig file [key: publish.kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,
    #[command(flatten)]
    told: ToldArgs,
    /// Any key of the configuration, e.g. --set controller.garbage.most=50
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl ControllerArgs {
    /// Converts these flags to the settings that all commands share.
    fn settings(self, dry_run: bool) -> SettingsArgs {
        let Self { config, namespace, daemon_set, kubeconfig, told, set } = self;
        SettingsArgs {
            config,
            controller_namespace: namespace,
            daemon_set,
            dry_run,
            kubeconfig,
            told,
            set,
            ..SettingsArgs::default()
        }
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { check, purge, dry_run, settings: args } = args;
    let args = args.settings(dry_run);
    let effective = args.clone().effective()?;
    let mut config = effective.config.clone();
    if check || purge {
        // One-off commands do not take part in leader election.
        config.controller.lease.clear();
    }
    let logs = telemetry::start_logs(config.log.level, config.log.format);
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    let settings = Settings::from_config(&config, pod.as_deref())?;
    super::block_on(async move {
        let cluster =
            Cluster::new(config.publish.kubeconfig.as_deref(), config.publish.timeout.get()).await?;
        if check {
            let report = controller::check(&settings, &cluster).await?;
            super::print(&report.to_string())?;
            return Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if purge {
            let purged = controller::purge(&settings, &cluster).await?;
            super::print(&format!("{purged}\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        info!("numacast {} controller {}", env!("CARGO_PKG_VERSION"), settings.identity);
        let shutdown = shutdown_signal()?;
        let mut registry = Registry::of_process();
        let controller = Controller::new(settings, cluster, &mut registry);
        let reload = Reload::of_logs(args, effective, logs)?;
        let _servers = serve(&config, registry, controller.health()).await;
        drop(tokio::spawn(reload.run()));
        controller.run(shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}
