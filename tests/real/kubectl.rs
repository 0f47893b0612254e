//! A real kubectl against the embedded API server, as `numacast demo --addr` suggests.

use std::process::Command;

use anyhow::{Result, ensure};
use numacast::agent::Agent;
use numacast::cluster::Cluster;
use numacast::config::{API_TIMEOUT, Config};
use numacast::telemetry::registry::Registry;
use numacast_sim::api_server::ApiServer;

use crate::sim_node::Node as SimNode;
use crate::support::{Needs, Parts};

#[tokio::test]
async fn kubectl_reads_the_embedded_api_server() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let server = ApiServer::start_on_any_port(0).await?;
    server.add_node("worker")?;
    let node = SimNode::start();
    let mut config = Config { node_name: "worker".into(), ..Config::default() };
    config.host.root = node.root().to_owned();
    let cluster = Cluster::with_client(server.client()?, server.url(), API_TIMEOUT);
    Agent::new(config.agent_settings(), cluster, &mut Registry::default()).run_once().await?;

    for (arguments, expected) in [
        (vec!["get", "noderesourcetopologies"], "worker"),
        (vec!["get", "node-res-topo", "worker", "-o", "jsonpath={.zones[1].name}"], "node-1"),
        (vec!["get", "noderesourcetopologies", "-o", "yaml"], "kind: NodeResourceTopology"),
        (vec!["get", "nodes"], "worker"),
        (vec!["api-resources"], "node-res-topo"),
    ] {
        let mut command = Command::new(parts.program("kubectl"));
        command
            .args(["--server", &server.url(), "--cache-dir"])
            .arg(node.root().join("cache"))
            .args(&arguments);
        command.env("KUBECONFIG", "/nonexistent");
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        ensure!(output.status.success() && out.contains(expected), "{arguments:?}: {out}{err}");
    }
    Ok(())
}
