//! Seeds of random tests.

use std::io::Write;

/// Returns the seed `NUMACAST_SEED`, or a random one, and prints it.
pub(crate) fn seed(what: &str) -> u64 {
    let chosen = std::env::var("NUMACAST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = chosen.unwrap_or_else(|| fastrand::u64(..));
    // To stderr directly, since the test harness captures the output of passing tests.
    let _ = writeln!(std::io::stderr(), "{what}: NUMACAST_SEED={seed}");
    seed
}
