//! Helpers that know nothing of Kubernetes.

pub(crate) mod backoff;
pub(crate) mod error_chain;
pub mod file;
pub mod glob;
pub mod json_path;
pub mod log_throttle;
pub(crate) mod sync;
pub mod task;
pub(crate) mod text;
pub(crate) mod token_bucket;
pub mod wire;
