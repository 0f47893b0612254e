//! The kubelet's resources, their allocation to pods, and its configuration.
//!
//! The messages of the podresources API are converted to [`Allocatable`] and [`Usage`]; outside this module
//! only servers (the proxy, the Pods API) use [`proto`].

mod address;
mod certificates;
mod client_error;
mod connector;
mod https;
mod instance;
mod list_filter;
mod metrics;
mod pods_api;
mod pods_endpoint;
pub mod proto;
mod refresh;
mod request;
mod shared;

pub use address::Address;
pub use certificates::CertificateFingerprint;
pub use client_error::ClientError;
pub use connector::{Connector, OpenConnection};
pub use https::{HTTPS_PORT, HttpsClient, HttpsTarget};
pub use instance::KubeletInstance;
pub(crate) use metrics::RequestMetrics;
pub use numacast_core::kubelet::{
    Allocatable, CheckpointPaths, CheckpointPolicies, CheckpointReader, Checkpoints, ClaimedDevice,
    ConfigFiles, ContainerUsage, DeviceGroup, INVALID_CPU, KubeletConfig, MemoryBlock, MemoryTotal, Mounts,
    Overrides, PodUsage, Usage, parse_config, parse_configz, parse_cpu_checkpoint, parse_device_checkpoint,
    parse_memory_checkpoint, read_checkpoints,
};
pub use pods_api::{PodsClient, PodsError, PodsErrorKind, PodsWatch, watch_pods};
pub use pods_endpoint::{parse_pods, poll_pods};
pub use refresh::Refresh;
pub use request::{Request, RequestError, decode_allocatable, decode_list};
pub use shared::{Caller, Observer, SharedClient, SharedResponse};
