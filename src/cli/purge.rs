use std::process::ExitCode;

use super::cluster::ClusterArgs;
use super::exit::Exit;
use super::flags::{ConfigArgs, OneOffFlags};
use crate::controller;
use crate::telemetry::start_logs;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Delete nothing, and print what would be deleted
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    config: ConfigArgs<OneOffFlags>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { dry_run, cluster, config: ConfigArgs { given, .. } } = args;
    let mut config = given.effective()?.config;
    start_logs(config.log.level, config.log.format);
    config.controller.dry_run = dry_run;
    // One-off commands do not take part in leader election.
    config.controller.lease.clear();
    let settings = config.controller_settings(None)?;
    super::block_on(async move {
        let purged = controller::purge(&settings, &cluster.cluster().await?).await?;
        super::print(&format!("{purged}\n"))?;
        Ok(Exit::Success.into())
    })
}
