//! The agent's metrics, scraped over HTTP.

use std::sync::Arc;
use std::time::Duration;

use numacast::agent::Agent;
use numacast::cluster::Cluster;
use numacast::config::{API_TIMEOUT, Config, Endpoint};
use numacast::telemetry::registry::Registry;
use numacast::telemetry::server::{Endpoints, Server};
use numacast_sim::api_server::ApiServer;
use numacast_sim::kubelet::{Call, Fault};

use crate::support::{ANY_PORT, Node, eventually, get, sample};

/// Returns the value of one series.
fn value(response: &str, series: &str) -> Option<u64> {
    sample(response, series).map(|value| value.parse().unwrap())
}

#[tokio::test]
async fn metrics_show_scans_requests_zones_and_findings() {
    let node = Node::start();
    let broken = "sys/devices/system/node/node0/cpulist";
    std::fs::write(node.root().join(broken), "0-7,x\n").unwrap();
    let server = ApiServer::start_on_any_port(0).await.unwrap();
    server.add_node("worker").unwrap();
    let mut config = Config { node_name: "worker".into(), ..Config::default() };
    config.host.root = node.root().to_owned();
    let cluster = Cluster::with_client(server.client().unwrap(), server.url(), API_TIMEOUT);
    node.kubelet.fail_next(Call::List, 2, &Fault::rate_limited());
    let mut registry = Registry::of_process();
    let agent = Agent::new(config.agent_settings(), cluster, &mut registry);
    let endpoints = Endpoints { metrics: Some(Arc::new(registry)), health: None };
    let scraped = Server::start(Endpoint::At(ANY_PORT), endpoints, None).await.unwrap().unwrap();
    let agent = tokio::spawn(agent.run(std::future::pending()));
    let first = r#"numacast_publishes_total{reason="first"}"#;
    let response = eventually("the object is written", async || {
        assert!(!agent.is_finished(), "the agent exited");
        // Within the rate of an address.
        tokio::time::sleep(Duration::from_millis(25)).await;
        let response = get(scraped.address(), "/metrics").await;
        (value(&response, first).unwrap() > 0).then_some(response)
    })
    .await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    let content_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(response.contains(content_type), "{response}");
    assert!(response.ends_with("# EOF\n"), "{response}");
    assert_eq!(value(&response, r#"numacast_scans_total{outcome="failed"}"#), Some(2));
    let labels = r#"component="agent",method="List",outcome="rate_limited""#;
    assert_eq!(value(&response, &format!("numacast_kubelet_requests_total{{{labels}}}")), Some(2));
    let requests = |method: &str| {
        let labels = format!(r#"component="agent",method="{method}""#);
        value(&response, &format!("numacast_kubelet_request_duration_seconds_count{{{labels}}}")).unwrap()
    };
    assert!(requests("List") >= 3 && requests("GetAllocatableResources") >= 1);
    assert!(value(&response, "numacast_scan_duration_seconds_count").unwrap() >= 3);
    assert!(value(&response, "numacast_publish_duration_seconds_count").unwrap() >= 1);
    let zone = r#"numacast_zone_resources{zone="node-1",resource="cpu""#;
    assert_eq!(value(&response, &format!(r#"{zone},type="capacity"}}"#)), Some(8));
    assert_eq!(value(&response, &format!(r#"{zone},type="available"}}"#)), Some(7), "one is reserved");
    assert_eq!(value(&response, r#"numacast_findings{kind="unreadable"}"#), Some(1));
    // The kubelet still reports the CPUs that the broken file hides.
    assert_eq!(value(&response, r#"numacast_findings{kind="unknown_cpus"}"#), Some(1));
    assert_eq!(value(&response, r#"numacast_findings{kind="unpublished_node"}"#), Some(0));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(value(&response, &format!("numacast_build_info{{version=\"{version}\"}}")), Some(1));
    agent.abort();
}
