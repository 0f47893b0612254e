//! The accounting and what it stands on, compiled from numacast's own sources, with their unit tests. What needs gRPC,
//! the API server or the simulation is not here; tests that need it must stand elsewhere.

#![cfg_attr(test, allow(clippy::unwrap_used))] // a test that fails says where
#![forbid(unsafe_code)]

// An inline module, so that the modules in it find their own files where numacast's do.
#[path = "../../src"]
mod src {
    pub mod machine;
    pub mod pattern;
    pub mod pod;
    pub mod quantity;
    #[cfg(test)]
    pub(crate) mod randomised;
    pub mod scheduler;
    pub mod seen;
    pub mod topology;

    /// `src/kubelet.rs` without the client and the wire types.
    pub mod kubelet {
        mod config;
        mod state;
        mod types;

        pub use config::{ByHand, ConfigFiles, KubeletConfig, Mounts, parse_config, parse_configz};
        pub use state::{
            ManagerState, StatePaths, StateReader, parse_cpus, parse_devices, parse_memory, read_state,
        };
        pub use types::{
            Allocatable, ClaimedDevice, ContainerUsage, DeviceGroup, MemoryBlock, NO_CPU, PodUsage, Usage,
        };
    }
}

#[cfg(test)]
use src::randomised;
pub use src::{kubelet, machine, pattern, pod, quantity, scheduler, seen, topology};
