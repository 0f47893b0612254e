//! ResourceSlices without a driver.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::support::Cluster;

/// Most devices of a slice, according to the API.
const PER_SLICE: usize = 128;

/// Creates the ResourceSlices of a node with this number of devices, half of them on each of two NUMA nodes.
pub(crate) async fn create(cluster: &Cluster, node: &str, devices: usize) -> Result<()> {
    let all: Vec<Value> = (0..devices).map(device).collect();
    let slices = all.chunks(PER_SLICE);
    let count = slices.len();
    for (index, devices) in slices.enumerate() {
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": format!("{node}-{index}")},
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": count},
                "devices": devices,
            },
        });
        let request = tonic::codegen::http::Request::post("/apis/resource.k8s.io/v1/resourceslices")
            .header("Content-Type", "application/json")
            .body(slice.to_string().into_bytes())?;
        let created = cluster.client().request::<Value>(request).await;
        created.with_context(|| format!("cannot create slice {index}"))?;
    }
    Ok(())
}

/// About as much as GPU drivers publish.
fn device(index: usize) -> Value {
    let text = |text: String| json!({ "string": text });
    json!({
        "name": format!("gpu-{index}"),
        "attributes": {
            "resource.kubernetes.io/numaNode": {"int": index % 2},
            "resource.kubernetes.io/pciBusID": text(format!("0000:{:02x}:{:02x}.0", index / 32, index % 32)),
            "resource.kubernetes.io/pcieRoot": text(format!("pci0000:{:02x}", index / 32)),
            "productName": text("Example GPU 80GB".to_owned()),
            "architecture": text("Example".to_owned()),
            "uuid": text(format!("GPU-00000000-0000-0000-0000-{index:012}")),
        },
        "capacity": {"memory": {"value": "80Gi"}},
    })
}
