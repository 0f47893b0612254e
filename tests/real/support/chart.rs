//! The Helm chart as rendered by real Helm.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

use super::cluster::Cluster;
use super::parts::{Parts, repository};
use super::wait::{record, until};
use super::{nrt, tokens};

/// The name of the release and of its namespace.
pub(crate) const RELEASE: &str = "numacast";

/// All objects of a release, including hooks.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    objects: Vec<DynamicObject>,
}

#[allow(dead_code, reason = "not every test program uses everything")]
impl Chart {
    /// Renders the chart with these values over the defaults.
    pub(crate) fn render(parts: &Parts, values: &Value) -> Result<Self> {
        let file = tempfile::Builder::new().suffix(".json").tempfile()?;
        std::fs::write(file.path(), values.to_string())?;
        let mut command = Command::new(parts.program("helm"));
        command.args(["template", RELEASE]).arg(repository().join("charts/numacast")).args([
            "--namespace",
            RELEASE,
            "--values",
        ]);
        let started = Instant::now();
        let output = command.arg(file.path()).output().context("cannot run helm")?;
        record("helm", started.elapsed());
        ensure!(output.status.success(), "helm: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        let mut objects = Vec::new();
        for document in format!("\n{text}").split("\n---\n") {
            if document.lines().any(|line| !line.is_empty() && !line.starts_with('#')) {
                objects.push(serde_saphyr::from_str(document).with_context(|| document.to_owned())?);
            }
        }
        Ok(Self { objects })
    }

    /// Returns the objects of these kinds.
    pub(crate) fn of_kinds<'a>(&'a self, kinds: &'a [&str]) -> impl Iterator<Item = &'a DynamicObject> {
        self.objects.iter().filter(|object| kinds.contains(&kind(object)))
    }

    /// Returns one object.
    pub(crate) fn object(&self, of_kind: &str, name: &str) -> Result<&DynamicObject> {
        let named = |object: &&DynamicObject| object.metadata.name.as_deref() == Some(name);
        let mut found = self.objects.iter().filter(|object| kind(object) == of_kind).filter(named);
        found.next().with_context(|| format!("the chart has no {of_kind} {name}"))
    }

    /// Applies the objects of these kinds.
    pub(crate) async fn install(&self, client: &Client, kinds: &[&str]) -> Result<()> {
        for object in self.of_kinds(kinds) {
            let params = PatchParams::apply("tests").force().validation_strict();
            let name = object.metadata.name.clone().context("an object without a name")?;
            let applied = api(client, object)?.patch(&name, &params, &Patch::Apply(object)).await;
            applied.with_context(|| format!("{} {name}", kind(object)))?;
        }
        Ok(())
    }
}

/// Installs RBAC and policies, and returns the kubeconfig of a node's agent once all of it is in force. The
/// Node must exist, and no kubelet may run its pods.
pub(crate) async fn agent_of(cluster: &Cluster, chart: &Chart, node: &str) -> Result<PathBuf> {
    let admin = cluster.client();
    tokens::namespace(&admin, RELEASE).await?;
    chart.install(&admin, &RIGHTS).await?;
    chart.install(&admin, &POLICIES).await?;
    let token = tokens::on_node(&admin, RELEASE, AGENT, node).await?;
    let agent = cluster.client_of(AGENT, &token).await?;
    let own = nrt::api(&agent);
    until("rights and policies are in force", async || {
        own.get_opt(node).await?;
        let foreign = serde_json::from_value(serde_json::json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": "nobodys"},
            "zones": [],
        }))?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let error = own.create(&dry, &foreign).await.err().context("the policy is not in force")?;
        ensure!(error.to_string().contains("ValidatingAdmissionPolicy"), "{error}");
        Ok(())
    })
    .await?;
    cluster.kubeconfig_of(AGENT, &token)
}

/// Like [`agent_of`], for a node whose kubelet would run the agent's pod: the token has no node claim, which
/// the policies are configured to allow, while their other rules apply.
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) async fn agent_without_a_pod(cluster: &Cluster, parts: &Parts) -> Result<PathBuf> {
    agent_without_a_pod_of(cluster, parts, serde_json::json!({})).await
}

/// Like [`agent_without_a_pod`], with these values of the chart.
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) async fn agent_without_a_pod_of(
    cluster: &Cluster,
    parts: &Parts,
    mut values: Value,
) -> Result<PathBuf> {
    let admin = cluster.client();
    values["admissionPolicy"]["onMissingClaim"] = "Allow".into();
    let chart = Chart::render(parts, &values)?;
    tokens::namespace(&admin, RELEASE).await?;
    chart.install(&admin, &RIGHTS).await?;
    chart.install(&admin, &POLICIES).await?;
    let token = tokens::request(&admin, RELEASE, AGENT, None).await?;
    let agent = nrt::api(&cluster.client_of(AGENT, &token).await?);
    until("rights and policies are in force", async || {
        let wrong = serde_json::from_value(serde_json::json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": "nobodys"},
            "zones": [{"name": "numa-node-0", "type": "Node"}],
        }))?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let error = agent.create(&dry, &wrong).await.err().context("the policy is not in force")?;
        ensure!(error.to_string().contains("zones are node-0"), "{error}");
        Ok(())
    })
    .await?;
    cluster.kubeconfig_of(AGENT, &token)
}

/// The agent's service account.
pub(crate) const AGENT: &str = "numacast-agent";
/// The kinds of RBAC objects.
pub(crate) const RIGHTS: [&str; 5] =
    ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
/// The kinds of admission policy objects.
pub(crate) const POLICIES: [&str; 2] = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| &types.kind)
}

/// Returns an API for an object's kind and namespace.
pub(crate) fn api(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types = object.types.clone().context("an object without a kind")?;
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    if resource.kind.ends_with("Policy") {
        resource.plural = format!("{}ies", resource.kind.to_lowercase().trim_end_matches('y'));
    }
    Ok(match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}
