//! Koordinator's objects: a node's Device, and the annotations in which its scheduler allocates devices to a
//! pod.

use anyhow::Result;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::wait::until;

/// The annotation with a pod's allocated devices.
pub(crate) const DEVICE_ALLOCATED: &str = "scheduling.koordinator.sh/device-allocated";

/// The annotation with a pod's CPUs and memory.
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";

const CRD: &str = include_str!("device.crd.yaml");

fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("scheduling.koordinator.sh", "v1alpha1", "Device");
    ApiResource::from_gvk_with_plural(&kind, "devices")
}

/// Installs the Device CRD.
pub(crate) async fn install(client: &Client) -> Result<()> {
    let crd: CustomResourceDefinition = serde_json::from_value(serde_saphyr::from_str::<Value>(CRD)?)?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply("tests");
    crds.patch("devices.scheduling.koordinator.sh", &params, &Patch::Apply(&crd)).await?;
    until("Devices are served", async || {
        devices(client).list(&kube::api::ListParams::default()).await?;
        Ok(())
    })
    .await
}

/// Returns the API of all Devices.
pub(crate) fn devices(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource())
}

/// Writes the Device of a node.
pub(crate) async fn describe(client: &Client, node: &str, has: Value) -> Result<()> {
    describe_labelled(client, node, json!({}), has).await
}

/// Like [`describe`], with labels such as `node.koordinator.sh/gpu-vendor`.
pub(crate) async fn describe_labelled(client: &Client, node: &str, labels: Value, has: Value) -> Result<()> {
    let object = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node, "labels": labels},
        "spec": {"devices": has},
    });
    devices(client).patch(node, &PatchParams::apply("koordlet").force(), &Patch::Apply(object)).await?;
    Ok(())
}
