//! `numacast demo`: the real agent, on the node of the simulation's demo.

use std::process::ExitCode;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use numacast_sim::demo::{self, Args, DemoAgent};
use numacast_sim::node::SimNode;
use tokio::sync::oneshot;
use tracing::warn;

use crate::agent::Agent;
use crate::config::Config;
use crate::telemetry::registry::Registry;

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    super::block_on(demo::run(args, start_agent))
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
