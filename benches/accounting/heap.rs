//! Measures how much memory the accounting takes compared with decoding the kubelet's List, and that it does
//! not grow with the number of CPUs.
//!
//! `cargo bench --bench accounting-heap`. A separate program, because counting the heap would slow down what
//! `accounting` measures.

#[allow(dead_code)] // `accounting` uses the rest
mod node;

use anyhow::Result;
use numacast::agent::object;
use numacast::kubelet::Usage;
use numacast::kubelet::proto::v1::ListPodResourcesResponse;
use numacast::scheduler::Publishable;
use numacast::topology::account;
use peak_alloc::PeakAlloc;
use prost::Message;
use serde_json::{Value, json};

use node::{Node, SHAPES};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Heap growth in each step beyond what was allocated at its start, in bytes.
struct Growth {
    decode: usize,
    convert: usize,
    account: usize,
    object: usize,
}

/// Prints a table; writes the same as JSON to `target/bench-accounting-heap.json`.
#[allow(clippy::print_stdout)] // prints the table
fn main() -> Result<()> {
    println!("peak heap growth of each step, in KiB\n");
    println!("| node | encoded List | decode | convert | account | object |");
    println!("|---|---|---|---|---|---|");
    let mut all: Vec<Value> = Vec::new();
    for shape in SHAPES {
        let node = Node::new(shape);
        let Growth { decode, convert, account, object } = measure(&node)?;
        let list = node.list.len();
        let row = [list, decode, convert, account, object].map(|bytes| bytes.div_ceil(1 << 10).to_string());
        println!("| {} | {} |", shape.name(), row.join(" | "));
        all.push(json!({
            "node": shape.name(),
            "listBytes": list,
            "growthBytes": {"decode": decode, "convert": convert, "account": account, "object": object},
        }));
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/target/bench-accounting-heap.json");
    Ok(std::fs::write(file, serde_json::to_string_pretty(&all)?)?)
}

fn measure(node: &Node) -> Result<Growth> {
    let (message, decode) = grown(|| ListPodResourcesResponse::decode(node.list.as_slice()));
    let message = message?;
    let (usage, convert) = grown(|| Usage::from(message));
    let (topology, account) = grown(|| account(&node.inputs(&usage)));
    let (_object, object) = grown(|| object("node", None, &Publishable::new(&topology, None, &[], None)));
    Ok(Growth { decode, convert, account, object })
}

/// Runs `step` and returns its result, and the peak of bytes in use beyond those before it.
fn grown<T>(step: impl FnOnce() -> T) -> (T, usize) {
    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    let outcome = step();
    (outcome, HEAP.peak_usage().saturating_sub(before))
}
