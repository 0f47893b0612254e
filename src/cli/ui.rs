//! `numacast ui`: the fleet in a browser.

use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};

use super::cluster::ClusterArgs;
use super::serve::shutdown_signal;
use crate::ui::Ui;

/// Programs that open an address in the browser: Linux, macOS.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The loopback address of the page; port 0 is any free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6862")]
    addr: SocketAddr,
    /// Only print the address, do not open a browser
    #[arg(long)]
    no_open: bool,
    /// Keys of labels by which nodes can be grouped, besides those of zones, racks and pools
    #[arg(long, value_name = "LABEL")]
    group_by: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    super::block_on(async {
        let Args { addr, no_open, group_by, cluster } = args;
        let cluster = cluster.cluster().await?;
        let shutdown = shutdown_signal()?;
        let ui = Ui::start(cluster, addr, group_by).await?;
        super::print(&format!("{}\n", ui.url()))?;
        if !no_open {
            open(ui.url());
        }
        shutdown.await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Opens an address in the browser, if a program for that is found. The address is printed anyway.
pub(super) fn open(url: &str) {
    for program in OPENERS {
        let mut command = Command::new(program);
        command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if command.spawn().is_ok() {
            return;
        }
    }
}
