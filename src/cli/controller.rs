use std::process::ExitCode;

use tracing::info;

use super::flags::{ConfigArgs, Flag, Flags, KUBECONFIG, NAMESPACE, TELEMETRY, variable};
use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use crate::config::Period;
use crate::controller::{self, Controller};
use crate::telemetry::registry::Registry;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Delete the agents' DaemonSets, wait until their pods are gone, delete every object that numacast wrote, and exit
    #[arg(long)]
    purge: bool,
    /// Wait until every Ready Node that the DaemonSet covers has an object, at most for this long, such as 2m; print the
    /// Nodes that have none, and exit 0. For an init container of a scheduler that ignores objects created later
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["purge", "dry_run"])]
    wait_for_objects: Option<Period>,
    /// Delete and nudge nothing, and say what would be deleted
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    config: ConfigArgs<ControllerFlags>,
}

#[derive(Clone, Debug)]
struct ControllerFlags;

impl Flags for ControllerFlags {
    const FLAGS: &'static [&'static [Flag]] = &[&[NAMESPACE, KUBECONFIG], TELEMETRY];
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { purge, wait_for_objects, dry_run, config: ConfigArgs { given, .. } } = args;
    let (mut config, reload) = Reload::new(given)?;
    config.controller.dry_run = dry_run;
    if purge || wait_for_objects.is_some() {
        // One-off commands do not take part in leader election.
        config.controller.lease.clear();
    }
    let settings = config.controller_settings(variable("POD_NAME").as_deref())?;
    super::block_on(async move {
        let cluster = config.cluster().await?;
        if let Some(limit) = wait_for_objects {
            let state = controller::wait_for_objects(&settings, &cluster, limit.get()).await;
            super::print(&format!("{state}\n"))?;
            return Ok(ExitCode::SUCCESS);
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
        reload.start(None)?;
        let _servers = serve(&config, registry, controller.health()).await;
        controller.run(shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}
