//! The status of the writes.

use std::time::Duration;

/// What the publisher has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The number of successful writes.
    pub writes: u64,
    /// The object's resource version after the last one.
    pub resource_version: String,
    /// How long the last one took.
    pub took: Duration,
    /// The last error, until a write succeeds.
    pub error: Option<String>,
    /// The field managers that keep rewriting the object.
    pub competitor: Option<String>,
}
