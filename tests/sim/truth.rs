//! Walks over every described machine.

use crate::walk::{Cell, Outcome, machines, variants, walk};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// Every machine under the variants whose number leaves `part` when divided by two.
async fn walk_over_all(part: usize) {
    let seed = number("NUMACAST_SEED", fastrand::u64(..));
    let steps = usize::try_from(number("NUMACAST_STEPS", 24)).unwrap();
    eprintln!("NUMACAST_SEED={seed}");
    let (mut met, mut failures) = (Outcome::default(), Vec::new());
    for (name, machine) in machines().unwrap() {
        for (age, policies) in variants().into_iter().skip(part).step_by(2) {
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
    // So many steps leave nothing out.
    for count in [met.admitted, met.refused, met.resized, met.hardware, met.restarts] {
        assert!(count > 0, "{met:?}");
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
