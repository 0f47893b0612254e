//! Random walks on every described machine.

use crate::walk::{Cell, Outcome, machines, variants, walk};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Walks on every machine with every second variant, starting at `part`. Each walk has its own seed, since
/// equal seeds would draw the same actions.
async fn walk_over_all(part: usize) {
    let given = number("NUMACAST_SEED");
    let steps = number("NUMACAST_STEPS").map_or(24, |steps| usize::try_from(steps).unwrap());
    let (mut met, mut failures) = (Outcome::default(), Vec::new());
    for (name, machine) in machines().unwrap() {
        for (age, policies) in variants().into_iter().skip(part).step_by(2) {
            let seed = given.unwrap_or_else(|| fastrand::u64(..));
            let outcome = walk(&Cell::new(&name, &machine, age, &policies), steps, seed).await;
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(failure) => {
                    failures.push(failure);
                    continue;
                }
            };
            met.compared += outcome.compared;
            met.admitted += outcome.admitted;
            met.refused += outcome.refused;
            met.resized += outcome.resized;
            met.hardware += outcome.hardware;
            met.restarts += outcome.restarts;
        }
    }
    eprintln!("{met:?}");
    assert!(failures.is_empty(), "{} walks failed:\n{}", failures.len(), failures.join("\n\n"));
    // This many steps cover every kind of action.
    for count in [met.admitted, met.refused, met.resized, met.hardware, met.restarts] {
        assert!(count > 0 || given.is_some(), "{met:?}");
    }
}

#[tokio::test]
async fn the_object_is_true_after_every_step_of_a_random_walk() {
    walk_over_all(0).await;
}

#[tokio::test]
async fn and_with_the_other_half_of_ages_and_policies() {
    walk_over_all(1).await;
}
