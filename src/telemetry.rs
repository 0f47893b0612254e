//! Logs, and the kit for metrics and health with their HTTP server. It knows no other part of numacast: each
//! registers its own metrics and has its own health.

pub mod endpoint;
pub mod health;
mod logs;
mod process;
pub mod registry;
pub mod server;
pub mod tls;

pub use logs::{LogFormat, LogLevel, LogSwitch, start_logs};
