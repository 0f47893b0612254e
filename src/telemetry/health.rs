//! The kubelet's probes, and what the health of every part of a process is made of. All times use the
//! monotonic clock.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// The kubelet's three probes. Each returns the reasons why it fails, one sentence each; it succeeds if there
/// are none.
pub trait Probes: Debug + Send + Sync {
    /// Liveness: fails if a restart may help.
    fn live(&self) -> Vec<String>;

    /// Readiness: fails if the work is not being done.
    fn ready(&self) -> Vec<String>;

    /// Startup: succeeds once the start is complete.
    fn started(&self) -> Vec<String>;
}

/// Combines several probes: all of them must succeed.
#[derive(Debug)]
pub struct All(pub Vec<Arc<dyn Probes>>);

impl Probes for All {
    fn live(&self) -> Vec<String> {
        self.0.iter().flat_map(|probes| probes.live()).collect()
    }

    fn ready(&self) -> Vec<String> {
        self.0.iter().flat_map(|probes| probes.ready()).collect()
    }

    fn started(&self) -> Vec<String> {
        self.0.iter().flat_map(|probes| probes.started()).collect()
    }
}

/// Returns the reason for a failing probe if `age` exceeds `limit`.
#[must_use]
pub fn late(what: &str, age: Duration, limit: Duration) -> Option<String> {
    let (seconds, most) = (age.as_secs(), limit.as_secs());
    (age > limit).then(|| format!("{what} for {seconds} s, more than {most} s; see the log"))
}

/// Returns the reason for a failing probe unless `holds`.
#[must_use]
pub fn unless(holds: bool, why: &str) -> Option<String> {
    (!holds).then(|| why.to_owned())
}
