//! Random walks on every described machine.

use crate::walk::{Cell, Outcome, machines, variants, walk};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Prints its text if the test panics: a walk that panics does not return its seed.
struct PrintOnPanic(String);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// Walks on every machine with every second variant, starting at `part`. Each walk has its own seed, since
/// equal seeds would draw the same actions.
async fn walk_on_every_machine(part: usize) {
    let fixed_seed = number("NUMACAST_SEED");
    let steps = number("NUMACAST_STEPS").map_or(24, |steps| usize::try_from(steps).unwrap());
    let (mut total, mut failures) = (Outcome::default(), Vec::new());
    for (name, machine) in machines().unwrap() {
        for (version, policies) in variants().into_iter().skip(part).step_by(2) {
            let seed = fixed_seed.unwrap_or_else(|| fastrand::u64(..));
            let cell = Cell::new(&name, &machine, version, &policies);
            let _seed = PrintOnPanic(format!("{}: NUMACAST_SEED={seed}", cell.label));
            let outcome = match walk(&cell, steps, seed).await {
                Ok(outcome) => outcome,
                Err(failure) => {
                    failures.push(failure);
                    continue;
                }
            };
            total.compared += outcome.compared;
            total.admitted += outcome.admitted;
            total.rejected += outcome.rejected;
            total.resized += outcome.resized;
            total.hardware += outcome.hardware;
            total.restarts += outcome.restarts;
            total.claims += outcome.claims;
            total.slices += outcome.slices;
        }
    }
    eprintln!("{total:?}");
    assert!(failures.is_empty(), "{} walks failed:\n{}", failures.len(), failures.join("\n\n"));
    // This many steps cover every kind of action.
    let pods = [total.admitted, total.rejected, total.resized, total.claims];
    for count in pods.into_iter().chain([total.hardware, total.restarts, total.slices]) {
        assert!(count > 0 || fixed_seed.is_some(), "{total:?}");
    }
}

#[tokio::test]
async fn the_object_is_right_after_every_step_of_a_random_walk() {
    walk_on_every_machine(0).await;
}

#[tokio::test]
async fn the_object_is_right_with_the_other_versions_and_policies() {
    walk_on_every_machine(1).await;
}
