//! The documents' tables, generated only from the record of a run.

use super::record::{Figures, Node, Peer, PeerFigures, Quantiles, Record};

/// One line of a node's table.
struct Row {
    what: &'static str,
    /// The default's budget on the small and on the large node.
    budget: [Option<f64>; 2],
    value: fn(&Node, &Figures) -> Option<f64>,
}

/// The rows, with the design's budgets.
const ROWS: [Row; 15] = [
    Row { what: "first object after start, p50, ms", budget: both(150.0), value: |_, f| p50(f.first_object) },
    Row { what: "allocation, p50, ms", budget: NONE, value: |_, f| p50(f.allocation) },
    Row { what: "the same, p99", budget: NONE, value: |_, f| p99(f.allocation) },
    Row {
        what: "allocation less the floor, p50, ms",
        budget: [Some(2.0), Some(3.0)],
        value: |node, f| Some(f.allocation.p50 - node.floor?.p50),
    },
    Row {
        what: "release, from the last List with the pod, p50, ms",
        budget: NONE,
        value: |_, f| p50(f.release_since_listed),
    },
    Row { what: "the same, p99", budget: both(100.0), value: |_, f| p99(f.release_since_listed) },
    Row { what: "writes per change", budget: both(1.5), value: |_, f| Some(f.writes_per_change) },
    Row { what: "Lists per change", budget: NONE, value: |_, f| Some(f.lists_per_change) },
    Row {
        what: "CPU per change, ms",
        budget: [Some(1.0), Some(2.0)],
        value: |_, f| Some(f.cpu_ms_per_change),
    },
    Row { what: "writes when nothing changes", budget: both(0.0), value: |_, f| Some(f.idle.writes as f64) },
    Row {
        what: "reads of slices and claims when nothing changes",
        budget: both(0.0),
        value: |_, f| Some(f.idle.claims as f64),
    },
    Row {
        what: "CPU when nothing changes, % of a core",
        budget: both(0.1),
        value: |_, f| Some(f.idle.cpu_percent),
    },
    Row { what: "resident memory, MiB", budget: both(10.0), value: |_, f| Some(f.resident_mib) },
    Row {
        what: "SIGTERM during a frozen write to exit code 0, s",
        budget: both(30.0),
        value: |_, f| f.sigterm_seconds,
    },
    Row {
        what: "changes that were measured",
        budget: NONE,
        value: |_, f| Some((f.allocation.count + f.release.count) as f64),
    },
];

const NONE: [Option<f64>; 2] = [None, None];

const fn both(budget: f64) -> [Option<f64>; 2] {
    [Some(budget), Some(budget)]
}

fn p50(of: Quantiles) -> Option<f64> {
    (of.count > 0).then_some(of.p50)
}

fn p99(of: Quantiles) -> Option<f64> {
    (of.count > 0).then_some(of.p99)
}

/// Returns the text for `docs/internals/benchmarks.md`: the run, a table per node, and what exceeds its budget.
pub(crate) fn figures(record: &Record) -> String {
    let mut text = about(record);
    for (index, node) in record.nodes.iter().enumerate() {
        text += &format!("\n### {}\n\n{}{}", node.title, node_table(index, node), floor(node));
    }
    text + "\n" + &verdict(record)
}

fn about(record: &Record) -> String {
    let run = &record.run;
    let list = |of: &std::collections::BTreeMap<String, String>| {
        of.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    format!(
        "Measured on {} at commit {} (`NUMACAST_SEED={}`).\nVersions: {}.\nMachine: {}.\nSize of the binary: {} MiB.\n",
        run.date,
        run.commit,
        run.seed,
        list(&run.versions),
        list(&run.machine),
        short(run.binary_mib),
    )
}

/// Returns a node's table; `index` 0 is the small node.
fn node_table(index: usize, node: &Node) -> String {
    let mut head = vec![String::new(), "budget".to_owned()];
    head.extend(node.variants.iter().map(|figures| figures.title.clone()));
    let rows = ROWS.iter().map(|row| {
        let mut cells = vec![row.what.to_owned(), number(budget(row, index))];
        cells.extend(node.variants.iter().map(|figures| number((row.value)(node, figures))));
        cells
    });
    table(&head, rows)
}

fn floor(node: &Node) -> String {
    let Some((floor, idle)) = node.floor.zip(node.floor_when_idle) else { return String::new() };
    format!(
        "\nFloor: p50 {} ms, p99 {} ms of {} pods; a write when nothing else happens: p50 {} ms, p99 {} ms of {}.\n",
        short(floor.p50),
        short(floor.p99),
        floor.count,
        short(idle.p50),
        short(idle.p99),
        idle.count,
    )
}

fn budget(row: &Row, index: usize) -> Option<f64> {
    row.budget[index.min(1)]
}

/// Returns the default's figures; `None` if only other variants were measured.
fn default_of(node: &Node) -> Option<&Figures> {
    node.variants.iter().find(|figures| figures.variant == "default")
}

/// Lists what exceeds its budget in the default; empty if the default was not measured.
fn verdict(record: &Record) -> String {
    let mut over = String::new();
    if record.nodes.iter().any(|node| default_of(node).is_none()) {
        return over;
    }
    for (index, node) in record.nodes.iter().enumerate() {
        let Some(default) = default_of(node) else { continue };
        for row in &ROWS {
            let Some((value, budget)) = (row.value)(node, default).zip(budget(row, index)) else { continue };
            if value > budget {
                let what = about_row(row);
                over += &format!("- {}: {what}: {} of {}\n", node.title, short(value), short(budget));
            }
        }
    }
    match over.as_str() {
        "" => "The default is within every budget.\n".to_owned(),
        over => format!("Over budget in the default:\n\n{over}"),
    }
}

/// Returns a row's name, completed with the previous row's if it starts with `the same`.
fn about_row(row: &Row) -> String {
    let index = ROWS.iter().position(|other| std::ptr::eq(other, row)).unwrap_or_default();
    match row.what.strip_prefix("the same, ") {
        Some(rest) => {
            let before = ROWS.get(index.saturating_sub(1)).map_or("", |row| row.what);
            before.replace("p50", rest)
        }
        None => row.what.to_owned(),
    }
}

/// A publisher's column in the comparison.
struct Column {
    name: String,
    version: String,
    settings: String,
    nodes: [PeerFigures; 2],
}

/// Returns the table for README: the small node, the peers and numacast in one run, and the default of the last
/// run.
pub(crate) fn comparison(record: &Record) -> Option<String> {
    let peers = record.peers.as_ref()?;
    let in_one_run = peers.publishers.iter().chain([&peers.ours]);
    let mut columns: Vec<_> = in_one_run.map(|peer| (peer.name.clone(), peer.small.clone())).collect();
    let newest = as_peer(default_of(record.nodes.first()?)?);
    columns.push((format!("numacast, commit {}", record.run.commit), newest));
    let mut head = vec![String::new()];
    head.extend(columns.iter().map(|(name, _)| name.clone()));
    let row = |what: &str, of: &dyn Fn(&PeerFigures) -> String| {
        let cells = columns.iter().map(|(_, figures)| of(figures));
        [what.to_owned()].into_iter().chain(cells).collect::<Vec<_>>()
    };
    let rows = [
        row("allocation to object, p50 / p99, ms", &|of| {
            format!("{} / {}", number(of.allocation_p50_ms), number(of.allocation_p99_ms))
        }),
        row("writes per start or end of a pod", &|of| number(of.writes_per_change)),
        row("CPU per start or end of a pod, ms", &|of| number(of.cpu_ms_per_change)),
        row("resident memory, MiB", &|of| number(of.resident_mib)),
    ];
    Some(table(&head, rows))
}

/// Returns the text for `docs/performance.md`: the peers, and numacast in the same run.
pub(crate) fn peers(record: &Record) -> Option<String> {
    let peers = record.peers.as_ref()?;
    let all = peers.publishers.iter().chain([&peers.ours]);
    let columns: Vec<Column> = all.map(column).collect();
    Some(format!("One run of {}, with {}:\n\n{}", peers.date, peers.parts, compare(&columns)))
}

fn column(peer: &Peer) -> Column {
    Column {
        name: peer.name.clone(),
        version: peer.version.clone(),
        settings: peer.settings.clone(),
        nodes: [peer.small.clone(), peer.large.clone()],
    }
}

fn as_peer(figures: &Figures) -> PeerFigures {
    PeerFigures {
        first_object: p50(figures.first_object).map(|ms| format!("{} s", short(ms / 1e3))),
        allocation_p50_ms: p50(figures.allocation),
        allocation_p99_ms: p99(figures.allocation),
        release_p50_ms: p50(figures.release),
        writes_per_change: Some(figures.writes_per_change),
        idle_writes: Some(figures.idle.writes),
        idle_seconds: Some(figures.idle.seconds),
        cpu_ms_per_change: Some(figures.cpu_ms_per_change),
        resident_mib: Some(figures.resident_mib),
    }
}

fn compare(columns: &[Column]) -> String {
    let mut head = vec![String::new()];
    head.extend(columns.iter().map(|column| column.name.clone()));
    let row = |what: &str, cell: &dyn Fn(&Column) -> String| {
        let mut cells = vec![what.to_owned()];
        cells.extend(columns.iter().map(cell));
        cells
    };
    let nodes = |what: &str, of: &dyn Fn(&PeerFigures) -> String| {
        row(what, &|column| column.nodes.iter().map(of).collect::<Vec<_>>().join(" / "))
    };
    let latency = |what: &str, node: usize| {
        row(what, &|column| {
            let of = &column.nodes[node];
            format!("{} / {}", number(of.allocation_p50_ms), number(of.allocation_p99_ms))
        })
    };
    let idle = |of: &PeerFigures| {
        of.idle_writes.zip(of.idle_seconds).map_or("-".to_owned(), |(writes, s)| format!("{writes} in {s} s"))
    };
    let rows = [
        row("version", &|column| column.version.clone()),
        row("settings", &|column| column.settings.clone()),
        latency("allocation to object, p50 / p99, ms, small node", 0),
        latency("the same, large node", 1),
        nodes("request to delete to object, p50, ms", &|of| number(of.release_p50_ms)),
        nodes("writes per change", &|of| number(of.writes_per_change)),
        nodes("writes when nothing changes", &idle),
        nodes("CPU per change, ms", &|of| number(of.cpu_ms_per_change)),
        nodes("resident memory, MiB", &|of| number(of.resident_mib)),
    ];
    table(&head, rows)
}

/// Returns the text for `docs/performance.md`: the most important figures of the default on each node.
pub(crate) fn defaults(record: &Record) -> Option<String> {
    let mut head = vec![String::new()];
    head.extend(record.nodes.iter().map(|node| node.title.clone()));
    let columns: Vec<&Figures> = record.nodes.iter().map(default_of).collect::<Option<_>>()?;
    let row = |what: &str, cell: &dyn Fn(&Figures) -> String| {
        let cells = columns.iter().map(|figures| cell(figures));
        [what.to_owned()].into_iter().chain(cells).collect::<Vec<_>>()
    };
    let latency = |of: Quantiles| format!("{} / {}", number(p50(of)), number(p99(of)));
    let rows = [
        row("first object after start, p50, ms", &|of| number(p50(of.first_object))),
        row("allocation, p50 / p99, ms", &|of| latency(of.allocation)),
        row("release, p50 / p99, ms", &|of| latency(of.release)),
        row("writes per change", &|of| short(of.writes_per_change)),
        row("CPU per change, ms", &|of| short(of.cpu_ms_per_change)),
        row("writes when nothing changes", &|of| format!("{} in {} s", of.idle.writes, of.idle.seconds)),
        row("CPU when nothing changes, % of a core", &|of| short(of.idle.cpu_percent)),
        row("resident memory, MiB", &|of| short(of.resident_mib)),
    ];
    let run = &record.run;
    Some(format!("Measured on {} at commit {}:\n\n{}", run.date, run.commit, table(&head, rows)))
}

fn table(head: &[String], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(head) + &"|---".repeat(head.len()) + "|\n";
    text.extend(rows.into_iter().map(|row| line(&row)));
    text
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), short)
}

/// Formats with three significant digits, without trailing zeros.
pub(crate) fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    // Adding zero turns a rounded -0 into 0.
    let text = format!("{:.digits$}", (value * 1e3).round() / 1e3 + 0.0);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}
