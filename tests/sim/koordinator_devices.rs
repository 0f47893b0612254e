//! Koordinator's Device object of the node, read from the simulated API server.

use std::time::Duration;

use numacast::cluster::{Cluster, ClusterError};
use numacast_sim::api_server::{ApiServer, DEVICES, Fault};
use serde_json::{Value, json};

fn device(ids: &[&str]) -> Value {
    let devices: Vec<Value> =
        ids.iter().map(|id| json!({"type": "gpu", "id": id, "minor": 0, "health": true})).collect();
    json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "w", "labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}},
        "spec": {"devices": devices},
    })
}

async fn cluster() -> (ApiServer, Cluster) {
    let server = ApiServer::start_on_any_port(0).await.unwrap();
    let cluster = client(&server, Duration::from_secs(20));
    (server, cluster)
}

fn client(server: &ApiServer, timeout: Duration) -> Cluster {
    Cluster::with_client(server.client().unwrap(), server.url(), timeout)
}

#[tokio::test]
async fn the_nodes_device_object_is_read() {
    let (server, cluster) = cluster().await;
    assert_eq!(cluster.devices_of("w").await, Ok(None), "Koordinator is not installed");
    server.set_koordinator(true);
    assert_eq!(cluster.devices_of("w").await, Ok(None), "there is no object of the node");
    server.put(&DEVICES, device(&["GPU-a"])).unwrap();
    let devices = cluster.devices_of("w").await.unwrap().unwrap();
    assert_eq!((&*devices.vendor, &*devices.devices[0].id), ("nvidia", "GPU-a"));
    assert_eq!(cluster.devices_of("v").await, Ok(None));
}

#[tokio::test]
async fn every_failure_is_its_own_error() {
    let (server, cluster) = cluster().await;
    server.set_koordinator(true);
    server.put(&DEVICES, device(&["GPU-a"])).unwrap();
    server.set_denied("get", "devices", true);
    let denied = cluster.devices_of("w").await.unwrap_err();
    assert!(denied.is_forbidden(), "{denied:?}");
    assert!(denied.to_string().contains("cannot get resource \"devices\""), "{denied}");
    server.set_denied("get", "devices", false);
    server.fail_next("get", "devices", 1, Fault::Status(503));
    assert!(matches!(cluster.devices_of("w").await, Err(ClusterError::Rejected { code: 503, .. })));
    server.fail_next("get", "devices", 1, Fault::TooManyRequests { retry_after: 1 });
    assert_eq!(cluster.devices_of("w").await.unwrap_err().kind(), "too_many_requests", "without a status");
    server.fail_next("get", "devices", 1, Fault::Cut);
    assert!(matches!(cluster.devices_of("w").await, Err(ClusterError::Unreachable { .. })));
    let short = client(&server, Duration::from_millis(50));
    server.fail_next("get", "devices", 1, Fault::Hang);
    assert!(matches!(short.devices_of("w").await, Err(ClusterError::Deadline { .. })));
    // The request may have ended before it arrived.
    server.clear_faults();
    let mut large = device(&["GPU-a"]);
    large["metadata"]["annotations"] = json!({"x": "y".repeat(5 << 20)});
    server.put(&DEVICES, large).unwrap();
    let error = cluster.devices_of("w").await.unwrap_err();
    assert!(error.to_string().contains("it has more than 4194304 bytes"), "{error}");
    server.put(&DEVICES, json!({"metadata": {"name": "w"}, "spec": {"devices": "none"}})).unwrap();
    assert!(matches!(cluster.devices_of("w").await, Err(ClusterError::NotUnderstood { .. })));
}
