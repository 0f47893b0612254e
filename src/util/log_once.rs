//! Logs a lasting problem once, and its end once.

use tracing::{info, warn};

/// The problem that was logged last and has not ended.
#[derive(Debug, Default)]
pub(crate) struct LogOnce(Option<String>);

impl LogOnce {
    /// Logs a warning, unless it equals the last one.
    pub(crate) fn warn(&mut self, message: &str) {
        if self.0.as_deref() != Some(message) {
            warn!("{message}");
            self.0 = Some(message.to_owned());
        }
    }

    /// Logs that the problem is over, if there was one.
    pub(crate) fn recovered(&mut self, message: &str) {
        if self.0.take().is_some() {
            info!("{message}");
        }
    }
}
