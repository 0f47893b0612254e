//! A model of the scheduler plugin's cache with all that stands around it, in virtual time and from one seed.
//!
//! Written from what is known of the plugin, the scheduler and the kubelet, and not from ours: of numacast only the pure
//! contract, its reservations and the controller's nudger take part. No threads, no clock.

pub(crate) mod chance;
pub(crate) mod cluster;
pub(crate) mod controller;
pub(crate) mod exporter;
pub(crate) mod figures;
pub(crate) mod fingerprint;
pub(crate) mod kubelet;
pub(crate) mod load;
pub(crate) mod ours;
pub(crate) mod peers;
pub(crate) mod plugin;
pub(crate) mod queue;
pub(crate) mod walk;
pub(crate) mod world;

#[cfg(test)]
#[allow(dead_code, unused_imports)] // the long form has no harness and so no tests
mod tests;
