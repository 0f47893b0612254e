//! numacast: NUMA truth for Kubernetes.
//!
//! Data flows one way. `nrt`, `machine` and `kubelet` depend on no module above them; `topology` depends only
//! on their types and does no I/O; `agent` and `controller` combine them; `cli` sets everything up.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::print_stdout))] // a failing test reports its location

pub mod agent;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod core_v1;
#[cfg(test)]
mod generated;
pub mod grpc;
mod json_list;
pub mod kubelet;
pub mod machine;
pub(crate) mod names;
pub mod nrt;
pub mod pod;
pub mod pod_source;
pub mod pods_api;
pub mod proxy;
pub mod quantity;
#[cfg(test)]
mod randomised;
pub mod scheduler;
#[cfg(feature = "sim")]
pub mod sim;
pub mod telemetry;
pub mod topology;
pub mod util;
pub mod watch_event;
