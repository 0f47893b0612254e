use std::path::PathBuf;
use std::process::ExitCode;

use super::{Output, finish};
use crate::agent::Recording;
use crate::cli::flags::{AgentFlags, ConfigArgs};
use crate::cli::{block_on, snapshot};
use crate::inspect::node_checks;

/// Checks this node: the kubelet's socket, configuration and checkpoints, the hardware and the kernel; needs no API server.
///
/// Run it on the node as root, or in the agent's pod. Exit 0 if nothing is wrong, 1 if there are findings, 2 if the
/// recording could not be read.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How the report is printed
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Leave out the findings of this check, such as CpusOffline; may be given several times
    #[arg(long, value_name = "CHECK")]
    ignore: Vec<String>,
    /// Check a recording of `numacast snapshot --record` instead of this node, as far as it tells
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs<AgentFlags>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { output, ignore, replay, config: ConfigArgs { given, .. } } = args;
    super::check_names(&ignore, &node_checks::checks())?;
    let mut config = given.effective()?.config;
    if config.node_name.is_empty() {
        config.node_name = snapshot::host_name(&config);
    }
    let report = match replay {
        Some(file) => Recording::read(&file)
            .map(|recording| node_checks::check_recording(&recording))
            .map_err(Into::into),
        None => block_on(async {
            let settings = config.agent_settings();
            let cluster = snapshot::cluster(&config, &settings).await;
            Ok(node_checks::check_node(&settings, cluster).await)
        }),
    };
    finish(report, &ignore, output)
}
