//! The Helm chart, rendered by real Helm for every values file and every switch.
//!
//! If Helm is not available, the tests log one line and pass, except with `CI=true`. `tests/real/chart.rs`
//! installs the chart on a real API server.

mod alerts;
mod api_server;
mod cases;
mod documents;
mod exported;
mod helm;
mod monitoring;
#[path = "../real/support/parts.rs"]
#[allow(dead_code, reason = "the tests on a real API server use the rest")]
mod parts;
mod platforms;
mod promql;
mod rejected;
mod rendered;
mod rules;
