//! The simulated node and cluster that `demo` and the tests share. Not in the shipped image.

pub mod api_server;
pub mod kubelet;
pub mod machine;
pub mod node;
pub mod pods_api;
pub mod scenario;
mod serve;
