//! Reads the cluster and nodes for people, and answers what they ask: `show`, `fit` and `doctor`. Read only.

pub mod doctor;
mod finding;
pub mod fit;
pub mod node_checks;
mod picture;
pub mod show;

use crate::render::{Line, Style};

pub use finding::{Check, Finding, Mend, Severity, printable, shell_word};
pub use picture::{NodeState, Picture};

/// Truncates lines to `height`, with the number of `things` that are hidden.
pub(crate) fn truncate(lines: &mut Vec<Line>, height: usize, things: &str) {
    if lines.len() > height {
        let hidden = lines.len() - height + 1;
        lines.truncate(height.saturating_sub(1));
        lines.push(Line::new(format!("and {hidden} more {things}: the window is too low"), Style::Dim));
    }
}
