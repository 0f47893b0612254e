//! What `doctor` finds.

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Zones are wrong or missing, or pods are rejected.
    Error,
    /// Something that leads to wrong zones or rejected pods under certain conditions, or that costs more than it
    /// should.
    Warning,
}

/// One thing that is wrong, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The check, in the form `ObjectMissing`.
    pub check: &'static str,
    /// What has it: `Node worker-3`, `DaemonSet numacast/numacast-agent`.
    pub place: String,
    /// What is wrong, in one sentence.
    pub what: String,
    /// What it leads to, in one sentence.
    pub why: &'static str,
    /// The command that mends it or, if there is none, what to do.
    pub mend: String,
}
