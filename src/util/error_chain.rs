//! Formats an error with its causes on one line.

use std::error::Error;

/// Returns the messages of an error and its sources, outermost first, without repetition.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let message = inner.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = inner.source();
    }
    text
}
