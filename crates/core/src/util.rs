//! Helpers that know nothing of Kubernetes.

pub mod file;
pub mod glob;
pub mod json_path;
mod text;
pub mod wire;
