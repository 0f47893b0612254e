//! Logs a problem once, and its end once.

use tracing::{info, warn};

/// Maximum number of objects or Nodes named in one message.
const NAMED: usize = 5;

/// Returns the first names, and how many more there are.
pub(super) fn first_of<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let mut names = names.into_iter();
    let named: Vec<T> = names.by_ref().take(NAMED).collect();
    let first = named.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    match names.count() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// The last problem logged.
#[derive(Debug, Default)]
pub(super) struct Said(Option<String>);

impl Said {
    /// Logs a warning, unless it is the same as the last one.
    pub(super) fn trouble(&mut self, sentence: &str) {
        if self.0.as_deref() != Some(sentence) {
            warn!("{sentence}");
            self.0 = Some(sentence.to_owned());
        }
    }

    /// Logs that a problem is over, if there was one.
    pub(super) fn well(&mut self, sentence: &str) {
        if self.0.take().is_some() {
            info!("{sentence}");
        }
    }
}
