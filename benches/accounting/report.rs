//! Reports the figures with their budgets.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::Times;
use crate::node::{Node, Shape};

/// Budget for conversion and accounting together, as a multiple of the time to decode the List.
const BUDGET: f64 = 2.0;

/// Medians, in microseconds.
struct Medians {
    decode: f64,
    convert: f64,
    account: f64,
    object: f64,
    json: f64,
    /// Median of the per-round ratios.
    ratio: f64,
    /// Median of the per-round sums.
    all: f64,
}

impl Medians {
    fn of(times: &[Times]) -> Self {
        let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
        let of = |what: &dyn Fn(&Times) -> f64| median(times.iter().map(what).collect());
        Self {
            decode: of(&|t| micros(t.decode)),
            convert: of(&|t| micros(t.convert)),
            account: of(&|t| micros(t.account)),
            object: of(&|t| micros(t.object)),
            json: of(&|t| micros(t.json)),
            ratio: of(&|t| micros(t.convert + t.account) / micros(t.decode)),
            all: of(&|t| micros(t.decode + t.convert + t.account + t.object + t.json)),
        }
    }
}

/// Prints the tables; writes the same as JSON to `target/bench-accounting.json`.
#[allow(clippy::print_stdout)] // prints the tables
pub(crate) fn report(nodes: &[(Node, Vec<Times>)]) -> Result<()> {
    println!("medians of {} rounds, CPU time in µs\n", nodes.first().map_or(0, |(_, times)| times.len()));
    println!(
        "| node | decode the List | convert | account | (convert + account) / decode | budget | object | as JSON | all |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (node, times) in nodes {
        let Medians { decode, convert, account, object, json, ratio, all } = Medians::of(times);
        let budget = if node.shape.full { format!("{BUDGET}") } else { "-".into() };
        println!(
            "| {} | {decode:.0} | {convert:.0} | {account:.0} | {ratio:.2} | {budget} | {object:.0} | {json:.0} | {all:.0} |",
            node.shape.name()
        );
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/target/bench-accounting.json");
    let all: Vec<Value> = nodes.iter().map(|(node, times)| as_json(node.shape, times)).collect();
    Ok(std::fs::write(file, serde_json::to_string_pretty(&all)?)?)
}

fn as_json(shape: Shape, times: &[Times]) -> Value {
    let medians = Medians::of(times);
    json!({
        "node": shape.name(),
        "medianMicros": {
            "decode": medians.decode,
            "convert": medians.convert,
            "account": medians.account,
            "object": medians.object,
            "json": medians.json,
            "all": medians.all,
        },
        "accountingToDecode": medians.ratio,
        "budget": BUDGET,
    })
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}
