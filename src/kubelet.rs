//! The kubelet's resources, their allocation to pods, and its configuration.
//!
//! The client converts the wire types of the podresources API to [`Allocatable`] and [`Usage`]; outside this
//! module only servers (the proxy, the Pods API, the simulation) use [`proto`].

mod address;
mod answers;
mod ask;
mod belief;
mod client;
mod config;
mod https;
mod metrics;
mod pods_api;
mod pods_page;
pub mod proto;
mod state;
mod types;
mod upstream;

pub use address::Address;
pub use ask::{Ask, Refusal, allocatable_of, usage_of};
pub use client::{Api, Client, ClientError};
pub use config::{ConfigFiles, KubeletConfig, Mounts, Overrides, parse_config, parse_configz};
pub use https::{Https, HttpsError, PORT, Target};
pub(crate) use metrics::RequestMetrics;
pub use pods_api::{PodsClient, PodsError, PodsFollow, follow_pods};
pub use pods_page::{poll_pods, split_pods};
pub use state::{ManagerState, StatePaths, StateReader, parse_cpus, parse_devices, parse_memory, read_state};
pub use types::{
    Allocatable, ClaimedDevice, Connection, ContainerUsage, DeviceGroup, MemoryBlock, NO_CPU, PodUsage, Usage,
};
pub use upstream::{Asker, Ended, Flight, Observer, Upstream};
