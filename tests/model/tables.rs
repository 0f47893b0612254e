//! The tables, and the excerpts of them in `docs/internals/proofs.md`.

mod load;
mod loads;
mod walks;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::run::controller::Nudges;
use crate::run::exporter::ExporterKind;

/// The parameters of all tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    pub(crate) length: f64,
    pub(crate) jobs: usize,
}

/// The lines of a table, and its failures.
type Output = (String, Vec<String>);

/// An exporter, and when the controller nudges.
type Setup = (ExporterKind, Nudges);

pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) make: fn(&Parameters) -> Output,
    pub(crate) excerpt: Option<Excerpt>,
}

/// The part of a table that is in the document.
pub(crate) struct Excerpt {
    pub(crate) title: &'static str,
    pub(crate) columns: &'static [&'static str],
    /// Returns true if the row with these cells is in the document.
    pub(crate) rows: fn(&[&str]) -> bool,
}

pub(crate) const ALL: &[Table] = &[
    Table {
        name: "measured",
        title: "CPUs busy in percent, measured on real parts (several runs; one with the model's load) and \
                in the model (mean of 60 runs, lowest and highest). The resync of 1 s has a backoff of 1 \
                to 2 s:",
        make: loads::measured,
        excerpt: None,
    },
    Table {
        name: "load",
        title: "The closed loop: pods of 1 to 4 CPUs that together request 110 % of 14 CPUs in two zones; \
                half complete, half are deleted. CPUs busy and seconds from create to Running (p50, p90) \
                at a resync of 1 / 5 / 10 s; writes at 5 s:",
        make: |parameters| loads::by_run_time(parameters, &[6], false),
        excerpt: Some(Excerpt {
            title: "Pods of 1 to 4 CPUs that run for 6 s on average and together request 110 % of 14 \
                    CPUs in two zones. CPUs busy at a resync period of 1 / 5 / 10 s:",
            columns: &["exporter", "rejected", "busy, %"],
            rows: |row| !row[1].contains("kubelet"),
        }),
    },
    Table {
        name: "odd",
        title: "The same with one completed, one unpullable and one rejected Guaranteed pod on the node:",
        make: |parameters| loads::by_run_time(parameters, &[6], true),
        excerpt: Some(Excerpt {
            title: "The same with one completed, one unpullable and one rejected Guaranteed pod on the node:",
            columns: &["exporter", "busy, %"],
            rows: |row| !row[1].contains("Shared") && !row[1].contains("no nudge"),
        }),
    },
    Table {
        name: "run-times",
        title: "A longer run time:",
        make: |parameters| loads::by_run_time(parameters, &[60], false),
        excerpt: None,
    },
    Table {
        name: "queue",
        title: "The scheduler's queue, CPUs busy in percent. Since 1.33 a requeued pod is tried at once if \
                no other pod waits:",
        make: loads::queues,
        excerpt: None,
    },
    Table {
        name: "nodes",
        title: "One node and fifty, with a load of 110 % of all; *odd*: with these three pods on each. \
                *Nudges* are those of the cluster:",
        make: loads::nodes,
        excerpt: None,
    },
    Table {
        name: "nudges",
        title: "When to nudge: CPUs busy, and in parentheses nudges per second at 5 s. The oracle requeues \
                right after each refresh of the cache:",
        make: loads::nudges,
        excerpt: Some(Excerpt {
            title: "When to nudge: CPUs busy at 1 / 5 / 10 s, and in parentheses nudges per second \
                    at 5 s. The oracle retries pods right after each resync:",
            columns: &["nudges", "one node, run time 6 s", "50 nodes, 300 s"],
            rows: |row| ["none", "numacast's plan", "oracle"].contains(&row[0]),
        }),
    },
    Table {
        name: "write-delay",
        title: "How long a change of the fingerprint alone waits for the next change: CPUs busy, and \
                writes per pod at 5 s:",
        make: loads::write_delay,
        excerpt: None,
    },
    Table {
        name: "direct",
        title: "Caches that read the object for every pod. *Reservations*: what a pod requests is \
                subtracted from every zone until the List shows it. *Client*: `clientConnection.qps` of \
                the scheduler:",
        make: loads::direct,
        excerpt: Some(Excerpt {
            title: "The caches. *Reservations*: the agent subtracts what a pod requests from every \
                    zone until the List shows it. *Client*: `clientConnection.qps` of the scheduler:",
            columns: &["nodes", "run time", "client", "cache", "", "rejected", "busy, %", "GETs per pod"],
            rows: |row| {
                let [nodes, run_time, client, cache, reservations, ..] = *row else { return false };
                let is_kind =
                    nodes == "1" || run_time == "300 s" && (client == "any" || !reservations.is_empty());
                is_kind && !cache.contains("Passthrough")
            },
        }),
    },
    Table {
        name: "late",
        title: "Pods whose binding waits 1 to 5 s, for a gang or a volume, resync 1 s (`OverReserve`). \
                Percent rejected, in parentheses because of that, and CPUs busy:",
        make: loads::late,
        excerpt: None,
    },
    Table {
        name: "withhold-after",
        title: "How long a bound pod may be unaccounted (`fingerprint.withholdAfter`), resync 1 s, run \
                time 6 s:",
        make: loads::withhold_after,
        excerpt: None,
    },
    Table {
        name: "walk",
        title: "The random walk. *Overcommits*: placed pods that the kubelet had to reject; *in the \
                window*: another binding was too recent to act on; the others were avoidable. *Frozen*: a \
                pod that fits does not run within 15 minutes:",
        make: walks::walks,
        excerpt: Some(Excerpt {
            title: "The random walk. *Overcommits*: placed pods that the kubelet had to reject; *in \
                    the window*: another binding was too recent to act on; the others were \
                    avoidable. *Frozen*: a pod that fits does not run within 15 minutes:",
            columns: &[
                "exporter",
                "cache",
                "nodes",
                "informer",
                "pods placed",
                "overcommits in the window",
                "others",
                "walks that end frozen",
            ],
            rows: |row| row[0].starts_with("numacast") && !row[0].contains("kubelet"),
        }),
    },
];

/// Computes all cells, `jobs` at a time.
fn all<C: Sync, R: Send>(jobs: usize, cells: &[C], work: impl Fn(&C) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(index) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < cells.len())
                {
                    let result = work(&cells[index]);
                    results.lock().expect("a run panicked").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("a run panicked");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

const WITHOUT_NUDGES: Setup = (ExporterKind::DEFAULT, Nudges::None);

/// numacast with its defaults.
fn default_numacast() -> Setup {
    (ExporterKind::DEFAULT, Nudges::default_plan())
}

/// The exporter's name, with the nudges if it is numacast.
fn name((exporter, nudges): Setup) -> String {
    match exporter {
        ExporterKind::Numacast { .. } | ExporterKind::KubeletView => {
            format!("{}, {}", exporter.name(), nudges.name())
        }
        _ => exporter.name(),
    }
}
