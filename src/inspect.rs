//! Reads the cluster and nodes for people, and answers what they ask: `show`, `fit` and `doctor`. Read only.

mod finding;

pub use finding::{Finding, Severity};
