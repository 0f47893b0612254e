//! `numacast demo`: the real agent, on the node of the simulation's demo.

use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use numacast_sim::demo::{self, Args, DemoAgent, DemoFleet};
use numacast_sim::node::SimNode;
use tokio::sync::oneshot;
use tracing::warn;

use super::serve::shutdown_signal;
use crate::agent::Agent;
use crate::config::Config;
use crate::telemetry::registry::Registry;
use crate::ui::{Ui, UiError};

/// The address of the page of the fleet; any free port if it is in use.
const PAGE: &str = "127.0.0.1:6862";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.ui {
        true => super::block_on(fleet(&args)),
        false => super::block_on(demo::run(args, start_agent)),
    }
}

/// Shows a simulated fleet in the browser.
async fn fleet(args: &Args) -> anyhow::Result<ExitCode> {
    super::print("Starting the simulated nodes, each with an agent ...\n")?;
    let mut shutdown = pin!(shutdown_signal()?);
    let mut fleet = tokio::select! {
        fleet = DemoFleet::start(args, start_agent) => fleet?,
        () = &mut shutdown => return Ok(ExitCode::SUCCESS),
    };
    let config = Config { kubeconfig: fleet.kubeconfig(), ..Config::default() };
    let cluster = config.cluster().await?;
    let address: SocketAddr = PAGE.parse()?;
    let ui = match Ui::start(cluster.clone(), address, Vec::new()).await {
        Err(UiError::Listen(..)) => Ui::start(cluster, (address.ip(), 0).into(), Vec::new()).await?,
        ui => ui?,
    };
    super::print(&format!("{}\nCtrl-C ends the page and the simulation.\n", ui.url()))?;
    if !args.no_open {
        super::ui::open(ui.url());
    }
    tokio::select! {
        played = fleet.play(start_agent) => played?,
        () = shutdown => {}
    }
    Ok(ExitCode::SUCCESS)
}

async fn start_agent(node: &SimNode) -> anyhow::Result<DemoAgent> {
    let mut config = Config { node_name: node.name().to_owned(), ..Config::default() };
    config.host.root = node.directory().to_owned();
    config.kubelet.dir = Some(node.kubelet.root().to_owned());
    config.kubeconfig = Some(node.kubeconfig());
    let cluster = config.cluster().await?;
    let agent = Agent::new(config.agent_settings(), cluster, &mut Registry::default());
    let errors = errors(&agent);
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        // The demo sends nothing, it drops the sender.
        if let Err(error) = agent.run(async { drop(stopped.await) }).await {
            warn!("{error}");
        }
    });
    Ok(DemoAgent { task, stop, errors })
}

/// Returns the last error of the agent's scans or writes, after each of them.
fn errors(agent: &Agent) -> BoxStream<'static, Option<String>> {
    let receivers = (agent.scan_error(), agent.published());
    let errors = stream::unfold(receivers, |(mut scan_error, mut published)| async move {
        let changed = tokio::select! {
            changed = scan_error.changed() => changed,
            changed = published.changed() => changed,
        };
        changed.ok()?;
        let error = scan_error.borrow_and_update().clone();
        let error = error.or_else(|| published.borrow_and_update().error.clone());
        Some((error, (scan_error, published)))
    });
    errors.boxed()
}
