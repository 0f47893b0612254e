//! The simulated node and cluster that the tests use, and numacast's demo on them. Not in the shipped image.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::print_stdout))] // a failing test reports its location

pub mod api_server;
pub mod demo;
#[cfg(test)]
mod described;
pub mod dra;
pub mod kubelet;
pub mod machine;
pub mod node;
pub mod pods_api;
mod proto;
pub mod scenario;
mod serve;
mod sync;

/// Returns the seed in `NUMACAST_SEED`, or a random one.
///
/// # Panics
/// If `NUMACAST_SEED` is not a number.
#[must_use]
pub fn seed() -> u64 {
    let given = std::env::var("NUMACAST_SEED");
    given.map_or_else(|_| fastrand::u64(..), |text| text.parse().expect("NUMACAST_SEED is a number"))
}
