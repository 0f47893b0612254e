//! Reads the cluster and nodes for people, and answers what they ask: `show`, `fit` and `doctor`. Read only.

pub mod doctor;
mod finding;

pub use finding::{Check, Finding, Mend, Severity, printable, shell_word};
