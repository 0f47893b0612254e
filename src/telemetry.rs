//! Logs, metrics and health, with their HTTP server. This module depends on no other part of numacast: each
//! part registers its own metrics and implements its own probes.

pub mod endpoint;
pub mod health;
mod logs;
mod process;
pub mod registry;
pub mod server;
pub mod tls;

pub use logs::{LogFormat, LogLevel, LogSwitch, start_logs};
