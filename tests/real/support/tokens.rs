//! Service account tokens as issued by the API server.

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Creates a namespace if it does not exist.
pub(crate) async fn namespace(client: &Client, name: &str) -> Result<()> {
    let namespace: Namespace =
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))?;
    let params = PatchParams::apply("tests");
    Api::<Namespace>::all(client.clone()).patch(name, &params, &Patch::Apply(&namespace)).await?;
    Ok(())
}

/// Creates a pod of a service account, bound to a node if any; no kubelet runs it.
pub(crate) async fn pod_of(
    client: &Client,
    namespace: &str,
    account: &str,
    name: &str,
    node: Option<&str>,
) -> Result<Pod> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "containers": [{"name": "main", "image": "pause:latest"}],
        },
    }))?;
    Ok(Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &pod).await?)
}

/// Requests a token of a service account, optionally bound to an object, as the kubelet requests it for a
/// pod.
pub(crate) async fn request(
    client: &Client,
    namespace: &str,
    account: &str,
    to: Option<Value>,
) -> Result<String> {
    let bound_object_ref = to.map(serde_json::from_value).transpose()?;
    let spec = TokenRequestSpec { bound_object_ref, ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let response = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    Ok(response.status.context("there is no token")?.token)
}

/// Returns the reference that binds a token to a pod.
pub(crate) fn to_pod(pod: &Pod) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "name": pod.metadata.name, "uid": pod.metadata.uid})
}

/// Returns the token of a service account's pod on a node. The pod is marked as ended, so that nothing waits
/// for it; the token is valid as long as the object exists.
pub(crate) async fn on_node(client: &Client, namespace: &str, account: &str, node: &str) -> Result<String> {
    let name = format!("{account}-on-{node}");
    let pod = pod_of(client, namespace, account, &name, Some(node)).await?;
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    pods.patch_status(&name, &PatchParams::default(), &ended).await?;
    request(client, namespace, account, Some(to_pod(&pod))).await
}
