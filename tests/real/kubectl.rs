//! A real kubectl against the embedded API server, as `numacast demo --addr` suggests, and the columns that it prints of
//! objects in a real one.

use std::process::Command;

use anyhow::{Result, ensure};
use numacast::agent::Agent;
use numacast::cluster::Cluster;
use numacast::config::{API_TIMEOUT, Config};
use numacast::telemetry::registry::Registry;
use numacast_sim::api_server::ApiServer;
use serde_json::{Value, json};

use crate::sim_node::Node as SimNode;
use crate::support::operator::Operator;
use crate::support::{Cluster as RealCluster, Needs, Parts};

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

#[tokio::test]
async fn kubectl_get_prints_policy_and_scope() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = RealCluster::start(&parts).await?;
    let (operator, file) = (Operator::of(&parts, &cluster), cluster.dir().join("objects.yaml"));
    let attribute = |name: &str, value: &str| json!({"name": name, "value": value});
    let object = |name: &str, attributes: Value| {
        json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": name}, "attributes": attributes, "zones": [],
        })
    };
    let policies = json!([
        attribute("nodeTopologyPodsFingerprint", "pfp0v001ef46db3751d8e999"),
        attribute("topologyManagerScope", "pod"),
        attribute("topologyManagerPolicy", "single-numa-node"),
    ]);
    let list = json!({
        "apiVersion": "v1", "kind": "List",
        "items": [object("aligned", policies), object("unknown", json!([]))],
    });
    std::fs::write(&file, list.to_string())?;
    operator.run("kubectl", &format!("apply --filename {}", file.display()))?;
    let printed = operator.run("kubectl", "get noderesourcetopologies")?;
    let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split_whitespace().collect()).collect();
    ensure!(rows[0] == ["NAME", "POLICY", "SCOPE", "AGE"], "{printed}");
    ensure!(rows[1][..3] == ["aligned", "single-numa-node", "pod"] && rows[1].len() == 4, "{printed}");
    ensure!(rows[2][0] == "unknown" && rows[2].len() == 2, "only its age: {printed}");
    // The old version has the policy elsewhere, and no scope.
    let old = operator.run("kubectl", "get noderesourcetopologies.v1alpha1.topology.node.k8s.io")?;
    ensure!(
        old.lines().next().is_some_and(|line| line.split_whitespace().eq(["NAME", "POLICY", "AGE"])),
        "{old}"
    );
    Ok(())
}
