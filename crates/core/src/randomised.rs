//! Configuration of randomised unit tests: each prints its seed, `NUMACAST_SEED` repeats it, and no
//! regression files are written beside the sources.

use std::hash::{BuildHasher as _, RandomState};

use proptest::test_runner::{Config, RngSeed};

/// Returns a configuration with the default number of cases (256, or `PROPTEST_CASES`).
pub(crate) fn cases() -> Config {
    let given = std::env::var("NUMACAST_SEED");
    let seed = given.map_or_else(
        |_| RandomState::new().hash_one(0),
        |text| text.parse().expect("NUMACAST_SEED is a number"),
    );
    // The test harness shows this for failing tests only.
    println!("NUMACAST_SEED={seed}");
    Config { failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() }
}

/// Like [`cases`], with the number of cases divided by `of`, for tests whose cases are slow.
pub(crate) fn fewer_cases(of: u32) -> Config {
    let cases = cases();
    Config { cases: (cases.cases / of).max(1), ..cases }
}
