//! A sentence about what does not work is said once, and once that it works again.

use tracing::{info, warn};

/// Of objects or Nodes that are named in one sentence.
const NAMED: usize = 5;

/// The first of them by name, and how many more there are.
pub(super) fn first_of<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let mut names = names.into_iter();
    let named: Vec<T> = names.by_ref().take(NAMED).collect();
    let first = named.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    match names.count() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

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
