//! The Helm chart: what real Helm makes of it, for every values file and every switch.
//!
//! Where Helm cannot be had the tests say so in one line and pass, except under `CI=true`. What a real API server makes
//! of it is in `tests/real/chart.rs`.

mod alerts;
mod cases;
mod documents;
mod exported;
mod helm;
mod monitoring;
#[path = "../real/support/parts.rs"]
#[allow(dead_code, reason = "the tests on a real API server use the rest")]
mod parts;
mod promql;
mod refused;
mod rendered;
mod rules;
