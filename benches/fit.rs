//! How long `fit` computes for one pod after it has read 5,000 objects: `cargo bench --locked --bench fit`.
//!
//! Each object has eight zones of 64 CPUs, memory, huge pages and eight devices; each node 20 pods.

#![allow(clippy::print_stdout)] // it prints its figures

use std::time::Instant;

use numacast::admission::NodeAmounts;
use numacast::cluster::{NodeDetails, PublishedObject};
use numacast::core_v1::PlacedPod;
use numacast::fit::{Wish, sum};
use numacast::inspect::fit::{Fleet, FleetNode, Workload, answers};
use numacast::pod::Pod;
use serde_json::{Value, json};

const NODES: u16 = 5000;
const ZONES: u16 = 8;
const GIB: u64 = 1 << 30;
const RUNS: usize = 7;

fn object(node: u16, policy: &str, scope: &str) -> PublishedObject {
    let zone = |id: u16| {
        let free = u64::from((node.wrapping_mul(31) + id * 17) % 64);
        let amounts = [
            ("cpu", 64, free),
            ("memory", 256 * GIB, free * 4 * GIB),
            ("hugepages-1Gi", 16 * GIB, 16 * GIB),
            ("example.com/gpu", 8, free / 8),
        ];
        let resource = |(name, capacity, available): (&str, u64, u64)| {
            let (capacity, available) = (capacity.to_string(), available.to_string());
            json!({"name": name, "capacity": capacity, "allocatable": capacity, "available": available})
        };
        let cost =
            |other| json!({"name": format!("node-{other}"), "value": if other == id { 10 } else { 21 }});
        let costs: Vec<Value> = (0..ZONES).map(cost).collect();
        json!({"name": format!("node-{id}"), "type": "Node", "costs": costs, "resources": amounts.map(resource)})
    };
    let attributes = [
        ("topologyManagerPolicy", policy),
        ("topologyManagerScope", scope),
        ("cpuManagerPolicy", "static"),
        ("memoryManagerPolicy", "Static"),
    ];
    let object = json!({
        "metadata": {"name": format!("node-{node}")},
        "zones": (0..ZONES).map(zone).collect::<Vec<_>>(),
        "attributes": attributes.map(|(name, value)| json!({"name": name, "value": value})),
    });
    serde_json::from_str(&object.to_string()).expect("the object is valid")
}

fn manifest(cpus: u64) -> String {
    let resources = format!("{{cpu: {cpus}, memory: 16Gi, example.com/gpu: 1}}");
    format!(
        "{{kind: Pod, metadata: {{name: p}}, spec: {{containers: [{{name: c, resources: {{limits: {resources}}}}}]}}}}"
    )
}

fn pod(cpus: u64) -> PlacedPod {
    let json = json!({
        "metadata": {"namespace": "ns", "name": "p", "uid": "p"}, "status": {"phase": "Running"},
        "spec": {"containers": [{"name": "c", "resources": {
            "limits": {"cpu": cpus.to_string(), "memory": "16Gi", "example.com/gpu": "1"}}}]},
    });
    let pod = Pod::from_json(json.to_string().as_bytes()).expect("the pod is valid");
    PlacedPod { pod, ..PlacedPod::default() }
}

fn fleet(policy: &str, scope: &str) -> Fleet {
    let allocatable: NodeAmounts = [
        ("cpu", 512_000),
        ("memory", 2048 * GIB),
        ("hugepages-1Gi", 128 * GIB),
        ("example.com/gpu", 64),
        ("pods", 110),
    ]
    .map(|(name, amount)| (name.to_owned(), amount))
    .into();
    let pods: Vec<PlacedPod> = (0..20).map(|_| pod(4)).collect();
    let requests: Vec<NodeAmounts> = pods.iter().map(|pod| Wish::from(pod).of_node).collect();
    let used = sum(&requests);
    let details =
        NodeDetails { allocatable, kubelet_version: "v1.36.3".to_owned(), ..NodeDetails::default() };
    let node = |node| FleetNode {
        details: details.clone(),
        object: Some(object(node, policy, scope).into()),
        pods: pods.clone(),
        used: used.clone(),
    };
    Fleet { nodes: (0..NODES).map(node).collect(), budgets: Vec::new() }
}

fn main() {
    let workloads = Workload::read(&manifest(24), "ns").expect("the manifest is valid");
    for policy in ["single-numa-node", "restricted", "best-effort", "none"] {
        for scope in ["container", "pod"] {
            let fleet = fleet(policy, scope);
            let mut times = Vec::new();
            let mut fitting = 0;
            for _ in 0..RUNS {
                let started = Instant::now();
                let answers = answers(&fleet, &workloads);
                times.push(started.elapsed());
                fitting = answers[0].iter().filter(|answer| answer.fits()).count();
            }
            times.sort_unstable();
            println!(
                "{policy:>16} {scope:>9}: {:>7.1} ms, {fitting} of {NODES} nodes fit",
                times[RUNS / 2].as_secs_f64() * 1e3
            );
        }
    }
}
