//! The simulated node and cluster shared by `demo` and the tests. Not in the shipped image.

pub mod api_server;
#[cfg(test)]
mod described;
pub mod kubelet;
pub mod machine;
pub mod node;
pub mod pods_api;
pub mod scenario;
mod serve;
