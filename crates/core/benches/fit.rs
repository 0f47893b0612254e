//! How long `fit` takes for one pod over 5,000 objects that were read: `cargo bench --package numacast-core --bench fit`.
//!
//! Each object has eight zones of 64 CPUs, memory, huge pages and eight devices; each node 20 pods.

#![allow(clippy::print_stdout)] // it prints its figures

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use numacast_core::admission::{NodeAmounts, ZoneReader};
use numacast_core::core_v1::PlacedPod;
use numacast_core::fit::{NodeView, ObjectView, Verdict, Wish, sum};
use numacast_core::pod::Pod;
use numacast_core::topology::{Amounts, Zone};

const NODES: u16 = 5000;
const ZONES: u16 = 8;
const GIB: u64 = 1 << 30;
const RUNS: usize = 7;

fn object(node: u16, policy: &str, scope: &str) -> ObjectView {
    let zone = |id: u16| {
        let free = u64::from((node.wrapping_mul(31) + id * 17) % 64);
        let amounts = |capacity, available| Amounts { capacity, allocatable: capacity, available };
        let resources = [
            ("cpu", amounts(64, free)),
            ("memory", amounts(256 * GIB, free * 4 * GIB)),
            ("hugepages-1Gi", amounts(16 * GIB, 16 * GIB)),
            ("example.com/gpu", amounts(8, free / 8)),
        ];
        let costs = (0..ZONES).map(|other| (other, if other == id { 10 } else { 21 })).collect();
        Zone { id, costs, resources: resources.map(|(name, amounts)| (name.to_owned(), amounts)).into() }
    };
    let attributes = [
        ("topologyManagerPolicy", policy),
        ("topologyManagerScope", scope),
        ("cpuManagerPolicy", "static"),
        ("memoryManagerPolicy", "Static"),
    ];
    let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    ObjectView { zones: (0..ZONES).map(zone).collect(), attributes, zone_attributes: BTreeMap::new() }
}

fn pod(name: &str, cpus: u64) -> PlacedPod {
    let json = serde_json::json!({
        "metadata": {"namespace": "ns", "name": name, "uid": name}, "status": {"phase": "Running"},
        "spec": {"containers": [{"name": "c", "resources": {
            "limits": {"cpu": cpus.to_string(), "memory": "16Gi", "example.com/gpu": "1"}}}]},
    });
    let pod = Pod::from_json(json.to_string().as_bytes()).expect("the pod is valid");
    PlacedPod { pod, ..PlacedPod::default() }
}

fn main() {
    let allocatable: NodeAmounts = [
        ("cpu", 512_000),
        ("memory", 2048 * GIB),
        ("hugepages-1Gi", 128 * GIB),
        ("example.com/gpu", 64),
        ("pods", 110),
    ]
    .map(|(name, amount)| (name.to_owned(), amount))
    .into();
    let pods: Vec<PlacedPod> = (0..20).map(|at| pod(&format!("pod-{at}"), 4)).collect();
    let requests: Vec<NodeAmounts> = pods.iter().map(|pod| Wish::from(pod).of_node).collect();
    let used = sum(&requests);
    let wish = Wish::from(&pod("wished", 24));
    for policy in ["single-numa-node", "restricted", "best-effort", "none"] {
        for scope in ["container", "pod"] {
            let objects: Vec<ObjectView> = (0..NODES).map(|node| object(node, policy, scope)).collect();
            let mut times = Vec::new();
            let mut fitting = 0;
            for _ in 0..RUNS {
                let objects = objects.clone();
                let started = Instant::now();
                let mut reader = ZoneReader::default();
                let verdicts = objects.into_iter().map(|object| {
                    let amounts = (allocatable.clone(), used.clone());
                    NodeView::of_object(&mut reader, String::new(), object, amounts, 36).fit(&wish)
                });
                fitting = verdicts.filter(Verdict::fits).count();
                times.push(started.elapsed());
            }
            times.sort_unstable();
            let median: Duration = times[RUNS / 2];
            println!(
                "{policy:>16} {scope:>9}: {:>7.1} ms, {fitting} of {NODES} nodes fit",
                median.as_secs_f64() * 1e3
            );
        }
    }
}
