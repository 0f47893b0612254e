//! numacast's logic without I/O, compiled from its own sources, with their unit tests. Anything that needs
//! connections, file watches, the API server or the simulation is excluded; tests that need it must be
//! elsewhere.

#![cfg_attr(test, allow(clippy::unwrap_used))] // a failing test shows where
#![allow(dead_code, unused_imports)] // their users are not included
#![forbid(unsafe_code)]

// An inline module, so that its submodules resolve to numacast's source files.
#[path = "../../src"]
mod src {
    pub mod core_v1;
    pub mod machine;
    pub(crate) mod names;
    pub mod nrt;
    pub mod pod;
    pub mod quantity;
    #[cfg(test)]
    pub(crate) mod randomised;
    pub mod scheduler;
    pub mod topology;
    pub mod watch_event;

    // Only the parts of these directories that do no I/O.

    pub mod cluster {
        mod device;

        pub use device::{Device, Devices};
    }

    pub mod grpc {
        mod message;

        pub use message::{Message, MessageStream};
    }

    pub mod kubelet {
        mod checkpoints;
        mod config;
        pub mod proto;
        mod responses;
        mod types;

        pub use checkpoints::{
            CheckpointPaths, CheckpointReader, Checkpoints, parse_cpu_checkpoint, parse_device_checkpoint,
            parse_memory_checkpoint, read_checkpoints,
        };
        pub use config::{ConfigFiles, KubeletConfig, Mounts, Overrides, parse_config, parse_configz};
        pub use types::{
            Allocatable, ClaimedDevice, Connection, ContainerUsage, DeviceGroup, INVALID_CPU, MemoryBlock, PodUsage,
            Usage,
        };
    }

    pub mod pods_api {
        mod entries;
        mod pod_info;
        pub mod proto;
        mod store;
        mod watch_cache;
        mod watchers;

        #[cfg(test)]
        mod tests;
    }

    pub mod proxy {
        mod allocations;
        pub mod annotations;
        pub mod merge;
        #[cfg(test)]
        mod tests;

        pub use allocations::Allocations;
    }

    pub mod util {
        pub mod file;
        pub mod glob;
        pub mod json_path;
        pub(crate) mod text;
        pub mod wire;
    }
}

// Compares pods with the JSON written by Kubernetes' own types.
#[cfg(test)]
#[path = "../../tests/corpus"]
mod corpus {
    use crate::core_v1::decode_pod;
    use crate::pod::Pod;

    const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");

    mod core_v1;
}

use src::names;
#[cfg(test)]
use src::randomised;
pub use src::{
    cluster, core_v1, grpc, kubelet, machine, nrt, pod, pods_api, proxy, quantity, scheduler, topology, util,
    watch_event,
};
