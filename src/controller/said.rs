//! A sentence about what does not work is said once, and once that it works again.

use tracing::{info, warn};

/// What was said last.
#[derive(Debug, Default)]
pub(super) struct Said(Option<String>);

impl Said {
    /// Warns, unless that was just said.
    pub(super) fn trouble(&mut self, sentence: &str) {
        if self.0.as_deref() != Some(sentence) {
            warn!("{sentence}");
            self.0 = Some(sentence.to_owned());
        }
    }

    /// It works.
    pub(super) fn well(&mut self, sentence: &str) {
        if self.0.take().is_some() {
            info!("{sentence}");
        }
    }
}
