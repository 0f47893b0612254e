use std::process::ExitCode;

use tracing::info;

use super::flags::{ConfigArgs, Flag, Flags, KUBECONFIG, NAMESPACE, TELEMETRY, variable};
use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use crate::controller::{self, Controller};
use crate::telemetry::registry::Registry;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Check all Nodes and objects once, print one line per problem, and exit with 1 if there is any
    #[arg(long, conflicts_with = "dry_run")]
    check: bool,
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
    let Args { check, dry_run, config: ConfigArgs { given, .. } } = args;
    let (mut config, reload) = Reload::new(given)?;
    config.controller.dry_run = dry_run;
    if check {
        // A check does not take part in leader election.
        config.controller.lease.clear();
    }
    let settings = config.controller_settings(variable("POD_NAME").as_deref())?;
    super::block_on(async move {
        let cluster = config.cluster().await?;
        if check {
            let report = controller::check(&settings, &cluster).await?;
            super::print(&report.to_string())?;
            return Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
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
