//! A model of the scheduler plugin's cache and everything around it, in virtual time and from one seed.
//!
//! It is based on what is known of the plugin, the scheduler and the kubelet, not on numacast's code. Of
//! numacast it uses only the pure fingerprint gate, its reservations and the controller's nudger. No threads,
//! no clock.

pub(crate) mod agent;
pub(crate) mod bug;
pub(crate) mod cluster;
pub(crate) mod controller;
pub(crate) mod exporter;
pub(crate) mod fingerprint;
pub(crate) mod kubelet;
pub(crate) mod load;
pub(crate) mod measurements;
pub(crate) mod peers;
pub(crate) mod plugin;
pub(crate) mod queue;
pub(crate) mod random;
pub(crate) mod settings;
pub(crate) mod simulation;
pub(crate) mod time;
pub(crate) mod walk;

#[cfg(test)]
#[allow(dead_code, unused_imports)] // the long form has no test harness
mod tests;
