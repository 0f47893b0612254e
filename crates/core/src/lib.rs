//! The part of numacast that decides and computes: hardware, pods, the kubelet's state, the accounting of
//! zones, and the scheduler's rules.
//!
//! It has no async, clients, clock or logs, and none of its dependencies has them. Its only I/O is reading
//! files (`machine`, `kubelet`). numacast re-exports the modules.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::print_stdout))] // a failing test reports its location

pub mod admission;
pub mod claims;
pub mod core_v1;
pub mod fit;
pub mod fragmentation;
pub mod holders;
pub mod kai;
pub mod kubelet;
pub mod machine;
pub mod names;
pub mod nrt;
pub mod pod;
pub mod publishers;
pub mod quantity;
#[cfg(test)]
mod randomised;
pub mod render;
pub mod scheduler;
pub mod topology;
pub mod util;
pub mod watch_event;
