//! The command line: one file per subcommand.

mod agent;
mod cluster;
mod completion;
mod config;
mod controller;
mod crd;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod exit;
mod fit;
mod flags;
mod input;
mod pods;
mod pods_api;
mod program;
mod proxy;
mod purge;
mod reload;
mod serve;
mod show;
mod snapshot;
mod terminal;
#[cfg(test)]
mod tests;
mod ui;
mod wait;

use std::future::Future;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use self::exit::Exit;

/// Publishes the NUMA zones of Kubernetes nodes as NodeResourceTopology objects: what each zone has, what is allocatable,
/// what is free.
#[derive(Debug, Parser)]
#[command(name = "numacast", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The order is that of the help: first what people run, then [`OF_CHART`].
#[derive(Debug, Subcommand)]
enum Command {
    /// Show nodes in a table, or as pictures of their zones.
    Show(show::Args),
    /// Tell on which nodes a pod fits, and why not on the others.
    ///
    /// The answer is that of the kubelet's own rules of admission, from the objects in the cluster, or with --local from this
    /// node's sockets and files. Exit 0 if there is room for every pod, 1 if not, 2 if that is not known.
    Fit(Box<fit::Args>),
    Doctor(doctor::Args),
    /// Show the fleet in a browser, as it changes.
    ///
    /// Serves a page at a loopback address until Ctrl-C. It reads the cluster with your kubeconfig and changes nothing.
    Ui(ui::Args),
    /// Print this node's zones once; needs no API server.
    Snapshot(snapshot::Args),
    /// List, get or watch this node's pods; needs no API server.
    ///
    /// They come from numacast's Pods API where it is served, else from the kubelet's.
    Pods(pods::Args),
    /// Print, check and explain the configuration.
    Config(config::Args),
    /// Print the CustomResourceDefinition of NodeResourceTopology.
    Crd(crd::Args),
    /// Watch the real agent work on a simulated node; needs no cluster.
    #[cfg(feature = "demo")]
    Demo(numacast_sim::demo::Args),
    /// Print a script that completes commands, nodes and pods in a shell.
    ///
    /// For Bash: `source <(numacast completion bash)`. Names come from the cluster, within two seconds, with the kubeconfig
    /// and the context of the command line. kubectl's own completion needs `kubectl` in place of a shell.
    Completion(completion::Args),
    /// Publish this node's zones and keep them up to date.
    ///
    /// It runs on every node and writes the node's NodeResourceTopology.
    Agent(agent::Args),
    /// Delete objects of deleted Nodes, report Nodes without an agent.
    ///
    /// It also makes the scheduler retry rejected pods. One or two run per cluster.
    Controller(controller::Args),
    /// Serve the kubelet's podresources API with annotated devices.
    ///
    /// The devices are those that are allocated by annotation. This is for nodes without an agent. With `proxy.enabled` the
    /// agent serves it, on its own connection to the kubelet.
    Proxy(proxy::Args),
    /// Serve the kubelet's Pods API, with PodInfo, to many clients.
    ///
    /// Kubelets may lack it. This is for nodes without an agent. With `podsApi.enabled` the agent serves it, from its own
    /// watch of pods.
    PodsApi(pods_api::Args),
    /// Delete the agents and all objects that they wrote.
    ///
    /// Deletes the agents' DaemonSets, waits until their pods are gone, and deletes every object that numacast wrote. The
    /// chart runs it before an uninstall. It asks nothing. It ends within four minutes: exit 0 if nothing is left, 1 with the
    /// reason if something is, and then it can be run again.
    Purge(purge::Args),
    /// Wait until every Node that should have an object has one.
    ///
    /// These are the Ready Nodes that the agents' DaemonSets cover. Prints the Nodes that have none. The chart runs it before a
    /// scheduler that ignores objects created later. Exit 0 if all have one, 1 if some have none at the end, 2 if it is not
    /// known which should have one.
    Wait(wait::Args),
    #[command(name = completion::COMPLETE, hide = true)]
    Complete(completion::CompleteArgs),
}

/// What the chart runs; everything else is for people.
const OF_CHART: [&str; 6] = ["agent", "controller", "proxy", "pods-api", "purge", "wait"];

impl Command {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Show(args) => show::run(args),
            Self::Fit(args) => fit::run(*args),
            Self::Doctor(args) => doctor::run(args),
            Self::Ui(args) => ui::run(args),
            Self::Snapshot(args) => snapshot::run(args),
            Self::Pods(args) => pods::run(args),
            Self::Config(args) => config::run(args),
            Self::Crd(args) => crd::run(args),
            #[cfg(feature = "demo")]
            Self::Demo(args) => demo::run(args),
            Self::Completion(args) => completion::run(args),
            Self::Agent(args) => agent::run(args),
            Self::Controller(args) => controller::run(args),
            Self::Proxy(args) => proxy::run(args),
            Self::PodsApi(args) => pods_api::run(args),
            Self::Purge(args) => purge::run(args),
            Self::Wait(args) => wait::run(args),
            Self::Complete(args) => completion::complete(args),
        }
    }

    /// Returns the exit code of an error: for a command that answers a question, an error is no answer.
    const fn exit_of_error(&self) -> Exit {
        match self {
            Self::Fit(_) | Self::Doctor(_) | Self::Wait(_) => Exit::Unknown,
            Self::Config(args) => args.exit_of_error(),
            _ => Exit::Failure,
        }
    }
}

/// Returns the command line, for the man pages.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let help = help(&command);
    command.bin_name(program::name()).help_template(help)
}

/// Returns the template of the help. clap cannot group commands itself.
fn help(command: &clap::Command) -> String {
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    let line = |command: &clap::Command| {
        format!("  {:<12}{}\n", command.get_name(), command.get_about().cloned().unwrap_or_default())
    };
    let (of_chart, for_people): (Vec<_>, Vec<_>) =
        commands.partition(|command| OF_CHART.contains(&command.get_name()));
    let list = |commands: Vec<_>| commands.into_iter().map(line).collect::<String>();
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\nCommands:\n{}\nCommands that the chart runs:\n{}\n\
         Options:\n{{options}}\n\n`{} COMMAND --help` explains a command.\n",
        list(for_people),
        list(of_chart),
        program::name()
    )
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let mut line = command();
    let matches = line.get_matches_mut();
    let parsed = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut line));
    let Cli { command } = parsed.unwrap_or_else(|error| error.exit());
    // Several crates use rustls; exactly one provider must be installed, before the first connection.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exit_of_error = command.exit_of_error();
    match command.run() {
        Ok(code) => code,
        // A closed pipe (`numacast crd | head`) is not an error.
        Err(error)
            if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) =>
        {
            Exit::Success.into()
        }
        Err(error) => {
            print_error(format!("{error:#}"));
            exit_of_error.into()
        }
    }
}

/// Runs a future to completion on this thread, which is enough for one node's agent.
fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?;
    runtime.block_on(future)
}

fn print_error(message: impl std::fmt::Display) {
    // It may quote what anybody wrote into an object.
    let shown = message.to_string().replace(|c: char| c.is_control() && c != '\n', "?");
    // A closed standard error is ignored.
    let _ = writeln!(std::io::stderr(), "{}: {shown}", program::name());
}

fn print(text: &str) -> anyhow::Result<()> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
