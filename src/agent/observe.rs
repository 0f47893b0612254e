//! Observes the node: reads it, and finds out when it may have changed.

mod claim_files;
mod claims;
pub(super) mod config_sources;
mod hotplug;
mod kubelet;
mod kubelet_config;
mod node_reader;
mod pods;
mod poll_interval;
mod scan;
mod triggers;

pub use config_sources::{ConfigSource, ConfigSources};
pub use kubelet::{Merge, MergeResponse};
pub use node_reader::NodeReader;
pub use pods::list_pods;
pub use scan::{ConfigConfidence, ConfigStatus, Depth, Inventory, Scan, ScanError};

pub(super) use claims::ClaimReader;
pub(super) use kubelet_config::with_consequence;
pub(super) use poll_interval::{PollInterval, cpu_time};
pub(super) use triggers::{Directories, Trigger, Triggers};
