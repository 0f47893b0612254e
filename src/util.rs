//! Helpers that know nothing of Kubernetes.

pub(crate) mod age;
pub(crate) mod backoff;
pub(crate) mod error_chain;
pub mod log_throttle;
pub(crate) mod sync;
pub mod task;
pub(crate) mod token_bucket;

pub(crate) use numacast_core::serialize_as_text;
pub use numacast_core::util::{file, glob, json_path, text, wire};
