//! Randomised unit tests: each prints its seed, `NUMACAST_SEED` repeats it, and nothing is written beside the sources.

use std::hash::{BuildHasher as _, RandomState};

use proptest::test_runner::{Config, RngSeed};

/// As many cases as there are usually (256, or `PROPTEST_CASES`).
pub(crate) fn cases() -> Config {
    let given = std::env::var("NUMACAST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    // Shown for tests that fail only.
    println!("NUMACAST_SEED={seed}");
    Config { failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() }
}

/// One in so many of the usual cases, for a test of which each case takes long.
pub(crate) fn fewer_cases(of: u32) -> Config {
    let cases = cases();
    Config { cases: (cases.cases / of).max(1), ..cases }
}
