//! The kubelet's probes, and what the health of every part of a process is made of. All times use the
//! monotonic clock.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::util::sync::lock;

/// Maximum interval between checks of a server's socket; see `grpc::keep_serving`.
pub(crate) const CHECK: Duration = Duration::from_secs(120);

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

/// A condition that holds as long as it was confirmed recently.
#[derive(Debug)]
pub struct Recent {
    /// What has not happened if it fails, as the start of a sentence.
    failure: &'static str,
    limit: Duration,
    confirmed: Mutex<Option<Instant>>,
}

impl Recent {
    /// Returns a condition that has not been confirmed yet.
    #[must_use]
    pub fn new(failure: &'static str, limit: Duration) -> Self {
        Self { failure, limit, confirmed: Mutex::default() }
    }

    /// Confirms the condition.
    pub fn confirm(&self) {
        *lock(&self.confirmed) = Some(Instant::now());
    }

    /// Returns a condition that the start confirms.
    #[must_use]
    pub fn confirmed(self) -> Self {
        self.confirm();
        self
    }

    /// Returns the time since it was last confirmed.
    pub fn age(&self) -> Option<Duration> {
        lock(&self.confirmed).map(|at| at.elapsed())
    }

    /// Returns why the condition fails, if it does.
    pub fn reason(&self) -> Option<String> {
        match self.age() {
            Some(age) => late(self.failure, age, self.limit),
            None => Some(format!("{} yet", self.failure)),
        }
    }
}

/// The health of a server on a unix socket. The start counts as a check of the socket.
#[derive(Debug)]
pub(crate) struct ServerHealth {
    /// The socket, and what is missing before the first list of pods, for messages.
    socket: &'static str,
    unsynced: &'static str,
    check: Recent,
    /// The last response of the kubelet, if the server depends on it.
    pub(crate) response: Option<Recent>,
    is_serving: AtomicBool,
    /// Whether the pods are synced or not needed.
    is_synced: AtomicBool,
}

impl ServerHealth {
    /// Returns the health of a server that has just started; `unchecked` is the failure of its checks.
    pub(crate) fn new(
        socket: &'static str,
        unsynced: &'static str,
        unchecked: &'static str,
        response: Option<Recent>,
        is_synced: bool,
    ) -> Arc<Self> {
        let check = Recent::new(unchecked, CHECK).confirmed();
        let (is_serving, is_synced) = (AtomicBool::new(false), AtomicBool::new(is_synced));
        Arc::new(Self { socket, unsynced, check, response, is_serving, is_synced })
    }

    /// Records a check: whether the socket is served, and whether the pods are synced.
    pub(crate) fn checked(&self, is_serving: bool, is_synced: bool) {
        self.check.confirm();
        self.is_serving.store(is_serving, Ordering::Relaxed);
        self.is_synced.store(is_synced, Ordering::Relaxed);
    }

    pub(crate) fn synced(&self) {
        self.is_synced.store(true, Ordering::Relaxed);
    }
}

impl Probes for ServerHealth {
    fn live(&self) -> Vec<String> {
        self.check.reason().into_iter().collect()
    }

    fn ready(&self) -> Vec<String> {
        let (is_serving, is_synced) =
            (self.is_serving.load(Ordering::Relaxed), self.is_synced.load(Ordering::Relaxed));
        let unserved = (!is_serving).then(|| format!("{} is not served; see the log", self.socket));
        let response = self.response.as_ref().and_then(Recent::reason);
        let unsynced = (!is_synced).then(|| self.unsynced.to_owned());
        [unserved, response, unsynced].into_iter().flatten().collect()
    }

    fn started(&self) -> Vec<String> {
        let is_serving = self.is_serving.load(Ordering::Relaxed);
        (!is_serving).then(|| format!("{} is not served yet", self.socket)).into_iter().collect()
    }
}

/// Returns the reason for a failing probe if `age` exceeds `limit`.
#[must_use]
pub fn late(what: &str, age: Duration, limit: Duration) -> Option<String> {
    let (age_seconds, limit_seconds) = (age.as_secs(), limit.as_secs());
    (age > limit).then(|| format!("{what} for {age_seconds} s, more than {limit_seconds} s; see the log"))
}
