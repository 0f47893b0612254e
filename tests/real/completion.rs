//! Completion of names that are in a real cluster, also by kubectl's own completion, for which numacast is a plugin.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::api::PostParams;
use numacast::cluster::Cluster as NumacastCluster;
use serde_json::json;

use crate::support::{Cluster, Needs, Parts};

/// Creates Nodes, namespaces and pods.
async fn fill(cluster: &Cluster) -> Result<()> {
    let (client, params) = (cluster.client(), PostParams::default());
    let nodes: Api<Node> = Api::all(client.clone());
    for name in ["worker-1", "worker-2", "edge-1"] {
        nodes.create(&params, &serde_json::from_value(json!({"metadata": {"name": name}}))?).await?;
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in ["team-a", "team-b"] {
        namespaces.create(&params, &serde_json::from_value(json!({"metadata": {"name": name}}))?).await?;
    }
    let pods: Api<Pod> = Api::namespaced(client, "team-a");
    for name in ["web-0", "web-1"] {
        let pod = json!({"metadata": {"name": name}, "spec": {
            "serviceAccountName": "default", "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "c"}],
        }});
        pods.create(&params, &serde_json::from_value(pod)?).await?;
    }
    Ok(())
}

async fn output_of(mut command: Command) -> Result<String> {
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[tokio::test]
async fn names_in_the_cluster_are_completed() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    fill(&cluster).await?;
    let kubeconfig = cluster.admin_kubeconfig();
    let file = kubeconfig.to_str().context("a path that is no text")?;

    let timeout = numacast::config::API_TIMEOUT;
    let reader = NumacastCluster::new(Some(&kubeconfig), timeout).await?;
    ensure!(reader.node_names().await? == ["edge-1", "worker-1", "worker-2"]);
    ensure!(reader.pod_names("team-a").await? == ["web-0", "web-1"]);
    ensure!(reader.pod_names("team-b").await?.is_empty());

    // The plugin, and what completes it, beside each other as the archive has them.
    let bin = tempfile::tempdir()?;
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_numacast"), bin.path().join("kubectl-numacast"))?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/completion/kubectl_complete-numacast");
    std::os::unix::fs::symlink(script, bin.path().join("kubectl_complete-numacast"))?;
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH")?);
    for (words, expected) in [
        (vec!["wait", "--kubeconfig", file, "-n", "team"], "team-a\nteam-b\n:4\n"),
        (vec!["config", "show", "--kubeconfig", file, "--node-name", "w"], "worker-1\nworker-2\n:4\n"),
        (vec!["config", "show", "--node-name", "w"], ":4\n"),
        (vec!["show", "--kubeconfig", file, ""], "edge-1\nworker-1\nworker-2\n:4\n"),
        (vec!["show", "--kubeconfig", file, "edge-1", "w"], "worker-1\nworker-2\n:4\n"),
        (vec!["fit", "--kubeconfig", file, "--node", "e"], "edge-1\n:4\n"),
        (vec!["fit", "--kubeconfig", file, "pod", "team-"], "team-a/\nteam-b/\n:6\n"),
        (vec!["fit", "--kubeconfig", file, "pod", "team-a/w"], "team-a/web-0\nteam-a/web-1\n:4\n"),
        (vec!["fit", "pod", "--kubeconfig", file, "-n", "team-a", "web"], "web-0\nweb-1\n:4\n"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        command.env("KUBECONFIG", "/nonexistent").arg("__complete").args(&words);
        let said = output_of(command).await?;
        ensure!(said == expected, "{words:?}: {said}");
        let mut kubectl = Command::new(parts.program("kubectl"));
        kubectl.env("KUBECONFIG", "/nonexistent").env("PATH", &path);
        kubectl.args(["__complete", "numacast"]).args(&words);
        let said = output_of(kubectl).await?;
        ensure!(said.ends_with(expected), "kubectl, {words:?}: {said}");
    }
    // The words after the plugin's name are its own.
    let mut kubectl = Command::new(parts.program("kubectl"));
    kubectl.env("PATH", &path).args(["numacast", "wait", "--help"]);
    let help = output_of(kubectl).await?;
    ensure!(help.contains("Usage: kubectl numacast wait"), "{help}");
    Ok(())
}

/// Somebody who may list nothing sees nothing, not an error over the line that is typed.
#[tokio::test]
async fn without_permissions_there_are_no_names() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    fill(&cluster).await?;
    let nobody = cluster.kubeconfig_as("nobody", &[])?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
    command.args(["__complete", "wait", "--kubeconfig"]).arg(nobody).args(["-n", ""]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    ensure!((out.as_str(), err.as_str()) == (":4\n", ""), "{out}{err}");
    Ok(())
}
