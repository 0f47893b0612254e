//! Helpers that know nothing of Kubernetes.

pub mod glob;
pub mod json_path;
pub mod wire;
