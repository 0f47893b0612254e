//! The short form of `make faults`: a few dozen faults from a printed seed.

#[path = "../faults/run/mod.rs"]
mod run;

use run::{FaultKind, Outcome, run_shard};

/// Number of nodes, each with an agent and a seed of its own.
const SHARDS: usize = 6;
/// Number of steps per node.
const STEPS: usize = 8;
/// Factor for the bounds of the long form, since this test does not measure: they only fail a test that
/// hangs.
const FACTOR: u32 = 10;

#[test]
fn after_every_fault_the_object_is_correct_and_it_never_reports_too_much() {
    let seed = numacast_sim::seed();
    eprintln!("NUMACAST_SEED={seed}");
    let shard = |shard| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run_shard(shard, STEPS, FaultKind::ALL, seed, FACTOR))
    };
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SHARDS).map(|number| scope.spawn(move || shard(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let failures: Vec<&str> = outcomes.iter().filter_map(|outcome| outcome.failure.as_deref()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    for outcome in &outcomes {
        for step in &outcome.steps {
            eprintln!("{:?}: correct after {:?}", step.faults, step.took);
        }
        assert_eq!(outcome.steps.len(), STEPS);
        assert!(outcome.versions > 0, "no version of the object was checked");
    }
}
