//! A model of the scheduler plugin's cache with all that stands around it, in virtual time and from one seed.
//!
//! Written from what is known of the plugin, the scheduler and the kubelet, and not from ours: of numacast only the pure
//! contract and its nudger take part. No threads, no clock.

pub mod chance;
pub mod cluster;
pub mod exporter;
pub mod figures;
pub mod fingerprint;
pub mod kubelet;
pub mod load;
pub mod ours;
pub mod peers;
pub mod plugin;
pub mod queue;
pub mod walk;
pub mod world;

#[cfg(test)]
mod tests;
