//! The command line: one file per subcommand.

mod agent;
mod cluster;
mod config;
mod controller;
mod crd;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod fit;
mod flags;
mod pods;
mod pods_api;
mod proxy;
mod reload;
mod serve;
mod show;
mod snapshot;
mod terminal;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

/// Publishes the NUMA zones of Kubernetes nodes as NodeResourceTopology objects: what each zone has, what is allocatable,
/// what is free.
#[derive(Debug, Parser)]
#[command(name = "numacast", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Publish this node's NodeResourceTopology and keep it up to date (runs on every node).
    Agent(agent::Args),
    /// Delete objects of deleted Nodes, report Nodes without a Ready agent, make the scheduler retry rejected pods (one or two per cluster).
    Controller(controller::Args),
    Doctor(doctor::Args),
    /// Serve the kubelet's podresources API on another socket, with devices that are allocated by annotation.
    ///
    /// This is for nodes without an agent. With `proxy.enabled` the agent serves it, on its own connection to the kubelet.
    Proxy(proxy::Args),
    /// Serve the kubelet's Pods API, with PodInfo, for kubelets that lack it and for many clients.
    ///
    /// This is for nodes without an agent. With `podsApi.enabled` the agent serves it, from its own watch of pods.
    PodsApi(pods_api::Args),
    /// Show the cluster's nodes in a table, or nodes as pictures of their zones.
    Show(show::Args),
    /// Tell on which nodes a pod fits, in which zones, and why it does not fit elsewhere.
    ///
    /// The answer is that of the kubelet's own rules of admission, from the objects in the cluster, or with --local from this
    /// node's sockets and files. Exit code 0 if every pod fits on some node, 1 if not.
    Fit(Box<fit::Args>),
    /// Print this node's zones once; needs no API server.
    Snapshot(snapshot::Args),
    /// List, get or watch the pods of this node; needs no API server.
    ///
    /// They come from numacast's Pods API where it is served, else from the kubelet's.
    Pods(pods::Args),
    /// Print the CustomResourceDefinition of NodeResourceTopology.
    Crd(crd::Args),
    /// Print, check and explain the configuration.
    Config(config::Args),
    /// Watch the real agent work on a simulated node, with no cluster at all.
    #[cfg(feature = "demo")]
    Demo(numacast_sim::demo::Args),
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    // Several crates use rustls; exactly one provider must be installed, before the first connection.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let outcome = match command {
        Command::Agent(args) => agent::run(args),
        Command::Controller(args) => controller::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Proxy(args) => proxy::run(args),
        Command::PodsApi(args) => pods_api::run(args),
        Command::Show(args) => show::run(args),
        Command::Fit(args) => fit::run(*args),
        Command::Snapshot(args) => snapshot::run(args),
        Command::Pods(args) => pods::run(args),
        Command::Crd(args) => crd::run(args),
        Command::Config(args) => config::run(args),
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(args),
    };
    match outcome {
        Ok(code) => code,
        // A closed pipe (`numacast crd | head`) is not an error.
        Err(error)
            if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_error(format!("{error:#}"));
            ExitCode::FAILURE
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
    // A closed standard error is ignored.
    let _ = writeln!(std::io::stderr(), "numacast: {message}");
}

fn print(text: &str) -> anyhow::Result<()> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
