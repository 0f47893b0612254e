//! The Helm chart: what real Helm makes of it, for every values file and every switch.
//!
//! Where Helm cannot be had the tests say so in one line and pass, except under `CI=true`. What a real API server makes
//! of it is in `tests/real/chart.rs`.

mod cases;
mod documents;
mod helm;
#[path = "../real/support/parts.rs"]
#[allow(dead_code, reason = "the tests on a real API server use the rest")]
mod parts;
mod refused;
mod rendered;
mod rules;
