//! Seeds of random tests.

use std::io::Write;

/// Returns the seed `NUMACAST_SEED`, or a random one, and prints it.
pub(crate) fn seed(what: &str) -> u64 {
    let seed = numacast_sim::seed();
    // To stderr directly, since the test harness captures the output of passing tests.
    let _ = writeln!(std::io::stderr(), "{what}: NUMACAST_SEED={seed}");
    seed
}
