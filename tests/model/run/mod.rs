//! A model of the scheduler plugin's cache and everything around it, in virtual time and from one seed.
//!
//! It is based on what is known of the plugin, the scheduler and the kubelet, not on numacast's code. Of
//! numacast it uses only the pure contract, its reservations and the controller's nudger. No threads, no
//! clock.

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
#[allow(dead_code, unused_imports)] // the long form has no test harness
mod tests;
