//! The tables of `docs/proofs.md`.

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
}

pub(crate) const ALL: &[Table] = &[
    Table {
        name: "measured",
        title: "CPUs busy in percent, on real parts (the real plugin, scheduler and kubelet; ranges of \
                several runs of some minutes, then one run of two minutes with the load of the model) and \
                in the model (mean of 60 runs of two minutes, and the lowest and highest of them). The \
                resync of 1 s has a backoff of 1 to 2 s:",
        make: loads::measured,
    },
    Table {
        name: "load",
        title: "The closed loop: pods that together request 110 % of 14 CPUs in two zones, 1 to 4 each; \
                they run for 6 s on average, then half of them complete and half are deleted. *Rejected*: \
                at any resync; CPUs busy, and seconds from create to Running (p50, p90), at a resync of 1 / \
                5 / 10 s; writes of the object at 5 s:",
        make: |parameters| loads::by_run_time(parameters, &[6], false),
    },
    Table {
        name: "odd",
        title: "The same with one completed, one unpullable and one rejected pod on the node, all \
                Guaranteed:",
        make: |parameters| loads::by_run_time(parameters, &[6], true),
    },
    Table {
        name: "run-times",
        title: "Other run times:",
        make: |parameters| loads::by_run_time(parameters, &[3, 30, 60, 300], false),
    },
    Table {
        name: "queue",
        title: "The scheduler's queue: CPUs busy at a resync of 1 / 5 / 10 s, in percent. Since 1.33 a pod \
                that an event requeued is tried at once if no other pod waits, however long its backoff is:",
        make: loads::queues,
    },
    Table {
        name: "nodes",
        title: "One node and fifty, with a load of 110 % of all of them; *odd*: with these three pods on \
                each node. Percent, seconds and writes at a resync of 1 / 5 / 10 s; *nudges* are those of \
                the whole cluster:",
        make: loads::nodes,
    },
    Table {
        name: "nudges",
        title: "When to nudge: CPUs busy at a resync of 1 / 5 / 10 s, and nudges per second in the whole \
                cluster at 5 s. The oracle requeues pods right after each refresh of the plugin's cache, \
                which no program can see:",
        make: loads::nudges,
    },
    Table {
        name: "write-delay",
        title: "How long a change of the fingerprint alone waits for the next change: CPUs busy at a resync \
                of 1 / 5 / 10 s, and writes per pod at 5 s:",
        make: loads::write_delay,
    },
    Table {
        name: "direct",
        title: "The caches that read the object for every pod, and have no resync. *Reservations*: the \
                agent subtracts what a pod requests from every zone, from its binding until the List shows \
                what it was allocated. *Client*: requests per second that the plugin's client may send \
                (`clientConnection.qps` of the scheduler, 50 by default, burst 100); it sends one per node \
                and try, and one more for the score of each node that fits where several do:",
        make: loads::direct,
    },
    Table {
        name: "late",
        title: "Pods whose binding waits, 1 to 5 s, for their gang or a volume, resync 1 s (`OverReserve`). \
                The plugin forgets what it reserved for them when it refreshes the node, and no other \
                component knows of them. Percent rejected, in parentheses those rejected because of that, \
                and CPUs busy:",
        make: loads::late,
    },
    Table {
        name: "withhold-after",
        title: "How long a bound pod may be unaccounted before the fingerprint is withheld \
                (`fingerprint.withholdAfter`), resync 1 s, run time 6 s:",
        make: loads::withhold_after,
    },
    Table {
        name: "walk",
        title: "The random walk. Overcommits: pods that the plugin placed and the kubelet had to reject; \
                *in the window*: the agent had received the other pod's binding too recently to act, or had \
                started while the kubelet did not list its pods yet. The others were avoidable. Conflicts \
                with pods that another scheduler placed at the same time are not counted. Frozen: at the \
                end a pod that fits does not run within 15 minutes:",
        make: walks::walks,
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
