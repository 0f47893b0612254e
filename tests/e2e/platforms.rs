//! Installations on nodes that differ from kubeadm's, and on nodes whose configuration cannot be read.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::cluster::Cluster;
use crate::steps::{self, RELEASE, agents, attributes_of, chart, log_of, objects};
use crate::support::nrt;
use crate::support::wait::until;

/// Without kubeadm's ConfigMap the chart cannot know that the kubelets' certificates are self-signed: the notes, an Event,
/// the agents' readiness and `helm test` say what to set.
pub(crate) async fn unreadable(cluster: &Cluster) -> Result<String> {
    steps::set_kubeadm(cluster, false).await?;
    let notes = install(cluster, &[]).await?;
    ensure!(notes.contains("set platform"), "the notes do not say what to set:\n{notes}");
    let events: Api<Event> = Api::default_namespaced(cluster.client.clone());
    let note = until("an Event says what to set", async || {
        let events = events.list(&ListParams::default().fields("reason=PoliciesUnknown")).await?.items;
        events.iter().find_map(|event| event.message.clone()).context("there is no Event PoliciesUnknown")
    })
    .await?;
    for word in ["self-signed", "kubelet.configFile", "kubelet.certificateFingerprints"] {
        ensure!(note.contains(word), "the Event does not contain {word}: {note}");
    }
    until("objects without policies are published", async || {
        let object = nrt::api(&cluster.client).get(&cluster.workers[0].name).await?;
        ensure!(!attributes_of(&object.data).contains_key("topologyManagerPolicy"), "it has a policy");
        Ok(())
    })
    .await?;
    for pod in agents(cluster).await? {
        ensure!(!steps::is_ready(&pod), "{} is Ready", pod.name_any());
    }
    let test = cluster.tools.helm(&["test", RELEASE, "--namespace", RELEASE, "--logs"]).await;
    let failure = test.err().context("helm test finds nothing wrong")?.to_string();
    ensure!(failure.contains("polic"), "helm test: {failure}");
    Ok(note)
}

/// The certificates' fingerprints, as the administrator reads them on the nodes, are enough.
pub(crate) async fn fingerprints(cluster: &Cluster) -> Result<String> {
    let mut prints = Vec::new();
    for worker in &cluster.workers {
        let command = [
            "openssl",
            "x509",
            "-in",
            "/var/lib/kubelet/pki/kubelet.crt",
            "-noout",
            "-fingerprint",
            "-sha256",
        ];
        let text = crate::tools::output_of(worker.command().args(command))?;
        let (_, print) = text.trim().split_once('=').context("openssl prints no fingerprint")?;
        prints.push(print.to_owned());
    }
    let value = format!("kubelet.certificateFingerprints={{{}}}", prints.join(","));
    upgrade(cluster, &["--set", &value]).await?;
    objects(cluster).await
}

/// A mixed cluster: the last node is k3s's, with a certificate of the cluster's CA and no file where kubeadm has it; the first
/// has its file where OpenShift has it.
pub(crate) async fn pools(cluster: &mut Cluster) -> Result<String> {
    let client = cluster.client.clone();
    let (first, last) =
        (cluster.workers[0].name.clone(), cluster.workers[cluster.workers.len() - 1].name.clone());
    cluster.workers[0].copy_config("/etc/kubernetes/kubelet.conf")?;
    let worker = cluster.workers.last_mut().context("there is no node")?;
    worker.become_k3s()?;
    worker.wait_until_ready(&client).await?;
    for (node, label) in [(&first, "os=openshift"), (&last, "os=k3s")] {
        cluster.tools.kubectl(&["label", "node", node, label]).await?;
    }
    let values = serde_json::json!({"agent": {"pools": [
        {"name": "k3s", "nodeSelector": {"os": "k3s"}, "platform": "k3s"},
        {"name": "openshift", "nodeSelector": {"os": "openshift"}, "kubelet": {"configFile": "/etc/kubernetes/kubelet.conf"}},
    ]}});
    let file = cluster.dir().join("pools.json");
    std::fs::write(&file, values.to_string())?;
    steps::set_kubeadm(cluster, true).await?;
    let file = file.display().to_string();
    install(cluster, &["--wait", "--values", &file]).await?;
    let found = objects(cluster).await?;
    let pods = agents(cluster).await?;
    let of = |node: &str| {
        pods.iter()
            .filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node))
            .count()
    };
    for worker in &cluster.workers {
        ensure!(of(&worker.name) == 1, "{} has {} agents", worker.name, of(&worker.name));
    }
    Ok(found)
}

/// A kubelet that was started with another configuration: how long its object has the old scope is the step's time.
pub(crate) async fn new_configuration(cluster: &mut Cluster) -> Result<String> {
    let client = cluster.client.clone();
    let worker = cluster.workers.first_mut().context("there is no node")?;
    worker.set_config("topologyManagerScope", "pod".into())?;
    worker.restart_kubelet()?;
    until("the object has the new scope", async || {
        let object = nrt::api(&client).get(&worker.name).await?;
        let scope = attributes_of(&object.data).get("topologyManagerScope").cloned();
        ensure!(scope.as_deref() == Some("pod"), "its scope is {scope:?}");
        Ok(())
    })
    .await?;
    worker.wait_until_ready(&client).await?;
    for pod in agents(cluster).await? {
        let log = log_of(cluster, &pod).await?;
        std::fs::write(cluster.dir().join(format!("{}.log", pod.name_any())), log)?;
    }
    Ok("scope pod".to_owned())
}

/// An image that cannot be pulled: the notes say how to uninstall nevertheless.
pub(crate) async fn missing_image(cluster: &Cluster) -> Result<String> {
    let notes = upgrade(cluster, &["--set", "image.tag=missing"]).await?;
    ensure!(notes.contains("--no-hooks"), "the notes do not name --no-hooks:\n{notes}");
    cluster.tools.helm(&["uninstall", RELEASE, "--namespace", RELEASE, "--no-hooks", "--wait"]).await?;
    cluster.tools.kubectl(&["delete", "noderesourcetopologies", "--all"]).await?;
    Ok("uninstalled with --no-hooks".to_owned())
}

/// Installs the release and returns the notes.
async fn install(cluster: &Cluster, extra: &[&str]) -> Result<String> {
    let chart = chart();
    let arguments = ["install", RELEASE, &chart, "--namespace", RELEASE, "--create-namespace"];
    cluster.tools.helm(&[&arguments[..], extra].concat()).await
}

/// Upgrades the release with other values and returns the notes.
async fn upgrade(cluster: &Cluster, extra: &[&str]) -> Result<String> {
    let chart = chart();
    let arguments = ["upgrade", RELEASE, &chart, "--namespace", RELEASE, "--reset-then-reuse-values"];
    cluster.tools.helm(&[&arguments[..], extra].concat()).await
}
