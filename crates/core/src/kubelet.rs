//! The kubelet's resources, their allocation to pods, and its configuration: parsed from its responses and
//! files.

mod checkpoints;
mod config;
pub mod proto;
mod responses;
mod types;

pub use checkpoints::{
    CheckpointPaths, CheckpointPolicies, CheckpointReader, Checkpoints, MemoryGroup, MemoryState,
    MemoryTotal, parse_cpu_checkpoint, parse_device_checkpoint, parse_memory_checkpoint, read_checkpoints,
};
pub use config::{ConfigFiles, KubeletConfig, Mounts, Overrides, is_true, parse_config, parse_configz};
pub use types::{
    Allocatable, ClaimedDevice, ContainerUsage, DeviceGroup, INVALID_CPU, MemoryBlock, PodUsage, Usage,
};
