//! Measures the accounting's CPU time compared with decoding the kubelet's List.
//!
//! `cargo bench --bench accounting`, or `make bench ONLY=accounting`. Everything runs in one process: each
//! round takes every node once through all steps, so that other load on the machine affects all of them alike.
//! Times are CPU time of the single thread.

mod node;
mod report;

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Result, ensure};
use numacast::agent::object;
use numacast::kubelet::Usage;
use numacast::kubelet::proto::v1::ListPodResourcesResponse;
use numacast::scheduler::Publishable;
use numacast::topology::{Topology, account};
use prost::Message;
use rustix::time::{ClockId, clock_gettime};

use node::{Node, SHAPES};
use report::report;

/// Measured rounds; the warm-up rounds before them are not counted.
const ROUNDS: usize = 201;
const WARM_UP: usize = 20;

fn main() -> Result<()> {
    let mut nodes: Vec<(Node, Vec<Times>)> =
        SHAPES.iter().map(|shape| (Node::new(*shape), Vec::new())).collect();
    for round in 0..WARM_UP + ROUNDS {
        for (node, times) in &mut nodes {
            let taken = once(node)?;
            if round >= WARM_UP {
                times.push(taken);
            }
        }
    }
    report(&nodes)
}

/// How long each step of one scan took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) decode: Duration,
    pub(crate) convert: Duration,
    pub(crate) account: Duration,
    pub(crate) object: Duration,
    pub(crate) json: Duration,
}

fn once(node: &Node) -> Result<Times> {
    let start = cpu_time();
    let message = ListPodResourcesResponse::decode(black_box(node.list.as_slice()))?;
    let decoded = cpu_time();
    let usage = Usage::from(black_box(message));
    let converted = cpu_time();
    let topology = black_box(account(&node.inputs(black_box(&usage))));
    let accounted = cpu_time();
    let published = Publishable::new(&topology, None, &[], None);
    let object = black_box(object("node", None, &published));
    let built = cpu_time();
    black_box(serde_json::to_vec(&object)?);
    let written = cpu_time();
    check(node, &topology)?;
    Ok(Times {
        decode: decoded - start,
        convert: converted - decoded,
        account: accounted - converted,
        object: built - accounted,
        json: written - built,
    })
}

/// Returns the CPU time of this thread so far.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Checks the accounting, since figures of a wrong one are worthless: everything is allocated, or no device
/// is.
fn check(node: &Node, topology: &Topology) -> Result<()> {
    ensure!(topology.findings.is_empty(), "{:?}", topology.findings);
    ensure!(topology.zones.len() == usize::from(node.shape.zones), "{} zones", topology.zones.len());
    let total = |resource: &str, what: fn(&numacast::topology::Amounts) -> u64| -> u64 {
        topology.zones.iter().filter_map(|zone| zone.resources.get(resource)).map(what).sum()
    };
    let allocatable = total("cpu", |cpu| cpu.allocatable);
    ensure!(allocatable == u64::from(node.shape.cpus), "{allocatable} CPUs");
    ensure!(total("cpu", |cpu| cpu.available) == 0, "free CPUs");
    // Every eighth device is on two nodes.
    let devices = u64::from(node.shape.devices);
    let counted: u64 = node.remembered.iter().map(|name| total(name, |devices| devices.allocatable)).sum();
    ensure!(counted == devices + devices.div_ceil(8), "{counted} devices");
    let free: u64 = node.remembered.iter().map(|name| total(name, |devices| devices.available)).sum();
    ensure!(free == if node.shape.full { 0 } else { counted }, "{free} free devices");
    Ok(())
}
