use std::path::PathBuf;
use std::process::ExitCode;

use tracing::info;

use super::flags::{ConfigArgs, Flag, Flags, KUBECONFIG, NAMESPACE, TELEMETRY, variable};
use super::reload::Reload;
use super::serve::{serve, shutdown_signal};
use crate::controller::Controller;
use crate::telemetry::endpoint::Endpoint;
use crate::telemetry::registry::Registry;
use crate::telemetry::tls::TlsFiles;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Delete and nudge nothing, and say what would be deleted
    #[arg(long)]
    dry_run: bool,
    /// Also serve the page of `numacast ui` at this address, with TLS, to those whose token may list objects, Nodes and pods
    #[arg(long, value_name = "ADDRESS:PORT", requires = "ui_tls_dir")]
    ui_addr: Option<Endpoint>,
    /// The directory of the page's certificate and key, tls.crt and tls.key
    #[arg(long, value_name = "DIRECTORY", requires = "ui_addr")]
    ui_tls_dir: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs<ControllerFlags>,
}

#[derive(Clone, Debug)]
struct ControllerFlags;

impl Flags for ControllerFlags {
    const FLAGS: &'static [&'static [Flag]] = &[&[NAMESPACE, KUBECONFIG], TELEMETRY];
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { dry_run, ui_addr, ui_tls_dir, config: ConfigArgs { given, .. } } = args;
    let ui = ui_addr.zip(ui_tls_dir.as_deref().map(TlsFiles::in_directory));
    let (mut config, reload) = Reload::new(given)?;
    config.controller.dry_run = dry_run;
    let settings = config.controller_settings(variable("POD_NAME").as_deref())?;
    super::block_on(async move {
        let cluster = config.cluster().await?;
        info!("numacast {} controller {}", env!("CARGO_PKG_VERSION"), settings.identity);
        let shutdown = shutdown_signal()?;
        let _ui = match ui {
            Some((address, tls)) => Ui::start_in_cluster(cluster.clone(), address, tls)?,
            None => None,
        };
        let mut registry = Registry::of_process();
        let controller = Controller::new(settings, cluster, &mut registry);
        reload.start(None)?;
        let _servers = serve(&config, registry, controller.health()).await;
        controller.run(shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}
