//! A real API server that does not let the agent work: one clear message each, and no exit where waiting
//! helps. The kubelet is simulated, since it is not under test.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::sim_node::Node as SimNode;
use crate::support::process::{Process, tethered};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, nrt};

const CRD: &str = "noderesourcetopologies.topology.node.k8s.io";

/// Agents of concurrent tests would use the same ports.
pub(crate) const NO_PORTS: [&str; 4] = ["--metrics-address", "none", "--health-address", "none"];

/// Creates a Node in a cluster; returns its name.
pub(crate) async fn add_node(cluster: &Cluster) -> Result<String> {
    let name = cluster.node_name("worker");
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::<Node>::all(cluster.client()).create(&PostParams::default(), &node).await?;
    Ok(name)
}

pub(crate) fn agent(node: &SimNode, kubeconfig: &Path, name: &str, more: &[&str]) -> Command {
    let mut command = tethered(env!("CARGO_BIN_EXE_numacast"));
    command.args(["agent", "--node-name", name, "--host-root"]).arg(node.root());
    command.arg("--kubeconfig").arg(kubeconfig).args(more);
    command
}

/// Runs one pass on another thread, since this one runs the simulated kubelet.
async fn once(node: &SimNode, kubeconfig: &Path, name: &str) -> Result<(Option<i32>, String)> {
    let mut command = agent(node, kubeconfig, name, &["--once", "--log-level", "error"]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    Ok((output.status.code(), String::from_utf8(output.stderr)?))
}

#[tokio::test]
async fn one_pass_publishes_an_object_that_the_server_accepts_strictly() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let name = add_node(&cluster).await?;
    let node = SimNode::start();
    let (code, stderr) = once(&node, &cluster.admin_kubeconfig(), &name).await?;
    ensure!(code == Some(0), "{stderr}");
    let first = nrt::read(&cluster.client(), &name).await?;
    ensure!(first.zones.len() == 2, "{:?}", first.zones);
    // Again: the same content does not create a new version.
    let (code, stderr) = once(&node, &cluster.admin_kubeconfig(), &name).await?;
    ensure!(code == Some(0), "{stderr}");
    ensure!(nrt::read(&cluster.client(), &name).await?.version == first.version);
    Ok(())
}

#[tokio::test]
async fn a_node_that_the_cluster_does_not_have() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let (code, stderr) = once(&SimNode::start(), &cluster.admin_kubeconfig(), "ghost").await?;
    ensure!(
        (code, stderr.as_str())
            == (
                Some(1),
                "numacast: the cluster has no node `ghost`: is NODE_NAME right, and has the \
                 kubelet registered?\n"
            ),
        "{code:?} {stderr}"
    );
    Ok(())
}

#[tokio::test]
async fn rbac_that_denies_requests() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let name = add_node(&cluster).await?;
    let node = SimNode::start();
    let kubeconfig = cluster.kubeconfig_as("system:serviceaccount:numacast:agent", &[])?;
    let (code, stderr) = once(&node, &kubeconfig, &name).await?;
    let denied = "numacast: cannot read the node's ResourceClaims (`dra.source: auto`): RBAC denied the request: \
                  resourceslices.resource.k8s.io is forbidden: User \"system:serviceaccount:numacast:agent\" cannot \
                  list resource \"resourceslices\" in API group \"resource.k8s.io\" at the cluster scope\n";
    ensure!((code, stderr.as_str()) == (Some(1), denied), "{code:?} {stderr}");
    allow(&cluster, "resource.k8s.io", "resourceslices", &["list", "watch"]).await?;
    let denied = format!(
        "numacast: RBAC denied the request: nodes \"{name}\" is forbidden: User \
         \"system:serviceaccount:numacast:agent\" cannot get resource \"nodes\" in API group \"\" at the \
         cluster scope\n"
    );
    until("the API server has the first role", async || {
        let (code, stderr) = once(&node, &kubeconfig, &name).await?;
        ensure!((code, stderr.as_str()) == (Some(1), denied.as_str()), "{code:?} {stderr}");
        Ok(())
    })
    .await?;
    allow(&cluster, "", "nodes", &["get"]).await?;
    let denied = format!(
        "numacast: RBAC denied the request: noderesourcetopologies.topology.node.k8s.io \"{name}\" is forbidden: \
         User \"system:serviceaccount:numacast:agent\" cannot patch resource \
         \"noderesourcetopologies\" in API group \"topology.node.k8s.io\" at the cluster scope\n"
    );
    until("the API server has the role", async || {
        let (code, stderr) = once(&node, &kubeconfig, &name).await?;
        ensure!((code, stderr.as_str()) == (Some(1), denied.as_str()), "{stderr}");
        Ok(())
    })
    .await?;
    // The agent's minimum rights: apply is a patch, and creating by apply requires `create`.
    allow(&cluster, "topology.node.k8s.io", "noderesourcetopologies", &["patch", "create"]).await?;
    until("the agent is allowed to", async || {
        let (code, stderr) = once(&node, &kubeconfig, &name).await?;
        ensure!(code == Some(0), "{stderr}");
        Ok(())
    })
    .await
}

async fn allow(cluster: &Cluster, group: &str, resource: &str, verbs: &[&str]) -> Result<()> {
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": resource},
        "rules": [{"apiGroups": [group], "resources": [resource], "verbs": verbs}],
    }))?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": resource},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": resource},
        "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": "numacast"}],
    }))?;
    Api::<ClusterRole>::all(cluster.client()).create(&PostParams::default(), &role).await?;
    Api::<ClusterRoleBinding>::all(cluster.client()).create(&PostParams::default(), &binding).await?;
    Ok(())
}

#[tokio::test]
async fn a_crd_that_is_not_installed_is_waited_for() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let name = add_node(&cluster).await?;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client());
    crds.delete(CRD, &DeleteParams::default()).await?;
    until("the CRD is gone", async || {
        ensure!(crds.get_opt(CRD).await?.is_none());
        Ok(())
    })
    .await?;
    let node = SimNode::start();
    let kubeconfig = cluster.admin_kubeconfig();
    let message = "the API server does not know noderesourcetopologies.topology.node.k8s.io/v1alpha2: install \
                    the CRD (`numacast crd | kubectl apply -f -`)";
    let (code, stderr) = once(&node, &kubeconfig, &name).await?;
    ensure!((code, stderr.as_str()) == (Some(1), format!("numacast: {message}\n").as_str()), "{stderr}");

    let mut agent = Process::start("agent", cluster.dir(), agent(&node, &kubeconfig, &name, &NO_PORTS))?;
    until("the agent logs it", async || {
        agent.still_runs()?;
        let log = agent.log_tail();
        ensure!(log.matches(message).count() == 1, "{log}");
        Ok(())
    })
    .await?;
    cluster.apply_crds().await?;
    until("the object is there", async || {
        agent.still_runs()?;
        nrt::read(&cluster.client(), &name).await.map(drop)
    })
    .await?;
    let log = agent.log_tail();
    ensure!(log.matches(message).count() == 1, "once: {log}");
    Ok(())
}

#[tokio::test]
async fn sigterm_ends_the_agent_with_exit_code_0() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let name = add_node(&cluster).await?;
    let node = SimNode::start();
    let command = agent(&node, &cluster.admin_kubeconfig(), &name, &NO_PORTS);
    let mut agent = Process::start("agent", cluster.dir(), command)?;
    until("the object is there", async || {
        agent.still_runs()?;
        nrt::read(&cluster.client(), &name).await.map(drop)
    })
    .await?;
    agent.signal("TERM")?;
    let status = tokio::task::spawn_blocking(move || agent.wait()).await??;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}
