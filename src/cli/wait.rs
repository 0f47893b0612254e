use std::process::ExitCode;

use super::cluster::ClusterArgs;
use super::exit::Exit;
use super::flags::{ConfigArgs, OneOffFlags};
use crate::config::Period;
use crate::controller::{self, ObjectWait};
use crate::telemetry::start_logs;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How long to wait at most
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: Period,
    /// Exit 0 also at the end of the time, for an init container that must not keep its pod from starting
    #[arg(long)]
    exit_zero: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    config: ConfigArgs<OneOffFlags>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { timeout, exit_zero, cluster, config: ConfigArgs { given, .. } } = args;
    let mut config = given.effective()?.config;
    start_logs(config.log.level, config.log.format);
    // One-off commands do not take part in leader election.
    config.controller.lease.clear();
    let settings = config.controller_settings(None)?;
    super::block_on(async move {
        let cluster = cluster.cluster().await?;
        let state = controller::wait_for_objects(&settings, &cluster, timeout.get()).await;
        super::print(&format!("{state}\n"))?;
        Ok(match state {
            _ if exit_zero => Exit::Success,
            ObjectWait::Complete(_) => Exit::Success,
            ObjectWait::Missing(_) => Exit::Failure,
            ObjectWait::Unknown(_) => Exit::Unknown,
        }
        .into())
    })
}
