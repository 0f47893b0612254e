//! numacast publishes the NUMA zones of Kubernetes nodes as NodeResourceTopology objects.
//!
//! Data flows one way. `nrt`, `machine` and `kubelet` depend on no module above them; `topology` depends only
//! on their types and does no I/O; `agent` and `controller` combine them; `cli` sets everything up.
//!
//! What needs neither async nor clients is in the crate `numacast-core`. Its modules are re-exported here.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::print_stdout))] // a failing test reports its location

pub mod agent;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod controller;
#[cfg(test)]
mod generated;
pub mod grpc;
pub mod inspect;
mod json_list;
pub mod kubelet;
pub mod pod_source;
pub mod pods_api;
pub mod proxy;
#[cfg(test)]
#[path = "../crates/core/src/randomised.rs"]
mod randomised;
pub mod scheduler_config;
pub mod telemetry;
pub mod ui;
pub mod util;

pub(crate) use numacast_core::names;
pub use numacast_core::{
    admission, claims, core_v1, fit, fragmentation, holders, kai, machine, nrt, pod, publishers, quantity,
    render, scheduler, topology, watch_event,
};
