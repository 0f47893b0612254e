mod node;

use std::process::ExitCode;

use anyhow::bail;
use clap::{Subcommand, ValueEnum};

use super::cluster::ClusterArgs;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::inspect::Check;
use crate::inspect::doctor::{self, Outcome, Report};
use crate::render::page;

/// Check how numacast is set up: what is wrong, and what mends it.
///
/// Each finding says what it leads to, with the command that mends it. Nothing is changed. Exit 0 if nothing is wrong, 1 if there are findings, 2 if Nodes, objects, pods or DaemonSets could
/// not be read. docs/doctor.md lists the checks and the permissions.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<DoctorCommand>,
    /// How the report is printed
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Leave out the findings of this check, such as SchedulerMissing; may be given several times
    #[arg(long, value_name = "CHECK")]
    ignore: Vec<String>,
    /// Also read the configuration of this many kubelets through the API server, which needs `get` of nodes/proxy
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    kubelets: usize,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Subcommand)]
enum DoctorCommand {
    Node(node::Args),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Text,
    Json,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { command, output, ignore, kubelets, cluster } = args;
    if let Some(DoctorCommand::Node(args)) = command {
        return node::run(args);
    }
    check_names(&ignore, &doctor::cluster_checks().collect::<Vec<_>>())?;
    let report = super::block_on(async move {
        let cluster = cluster.cluster().await?;
        Ok(doctor::check_cluster(&cluster, kubelets).await)
    });
    finish(report, &ignore, output)
}

fn check_names(ignore: &[String], checks: &[&Check]) -> anyhow::Result<()> {
    match ignore.iter().find(|name| checks.iter().all(|check| check.name != **name)) {
        Some(name) => bail!("--ignore {name}: there is no such check; docs/doctor.md lists them"),
        None => Ok(()),
    }
}

/// Prints a report without what is to be ignored, and returns its exit status.
fn finish(report: anyhow::Result<Report>, ignore: &[String], output: Output) -> anyhow::Result<ExitCode> {
    let mut report = report?;
    report.ignore(ignore);
    print(&report, output)?;
    Ok(match report.outcome() {
        Outcome::Well => ExitCode::SUCCESS,
        Outcome::Findings => ExitCode::FAILURE,
        Outcome::Incomplete => Exit::Unknown.into(),
    })
}

fn print(report: &Report, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Text => {
            let terminal = Terminal::now();
            super::print(&(page(&report.lines(terminal.width()), usize::MAX, terminal.colour) + "\n"))
        }
        Output::Json => super::print(&(serde_json::to_string_pretty(report)? + "\n")),
    }
}
