//! The simulated node and cluster that the tests use, and the demo on them. Not in the shipped image.

pub mod api_server;
pub mod demo;
#[cfg(test)]
mod described;
pub mod kubelet;
pub mod machine;
pub mod node;
pub mod pods_api;
pub mod scenario;
mod serve;
