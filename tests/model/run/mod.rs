//! A model of the scheduler plugin's cache with all that stands around it, in virtual time and from one seed.

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
pub mod world;
