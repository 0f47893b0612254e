use std::process::ExitCode;

use tracing::info;

use super::flags::{ConfigArgs, Flag, Flags, KUBECONFIG, NAMESPACE, TELEMETRY, variable};
use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use crate::controller::Controller;
use crate::telemetry::registry::Registry;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
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
    let Args { dry_run, config: ConfigArgs { given, .. } } = args;
    let (mut config, reload) = Reload::new(given)?;
    config.controller.dry_run = dry_run;
    let settings = config.controller_settings(variable("POD_NAME").as_deref())?;
    super::block_on(async move {
        let cluster = config.cluster().await?;
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
