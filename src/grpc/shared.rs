//! What the connections and calls of a server share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tracing::warn;

use super::clients::Clients;
use super::fair_queue::FairQueue;
use super::limits::{LONG_MESSAGES, SHARED_BUFFERS};
use super::responses::Responses;
use super::{Limits, Peer, ServerMetrics, Service, Violation};
use crate::util::log_throttle::LogThrottle;

/// Period in which each kind of violation is logged once.
const LOG_PERIOD: Duration = Duration::from_secs(60);

pub(super) struct Shared {
    pub(super) limits: Limits,
    pub(super) service: Arc<dyn Service>,
    pub(super) metrics: ServerMetrics,
    pub(super) clients: Arc<Clients>,
    pub(super) queue: Arc<FairQueue>,
    pub(super) responses: Arc<Responses>,
    /// Budget for long messages, in bytes.
    pub(super) long_messages: Semaphore,
    /// Budget for buffers that connections keep beyond those that each may always keep.
    pub(super) buffers: Arc<Semaphore>,
    path: PathBuf,
    throttles: [LogThrottle; Violation::Failures as usize + 1],
    pub(super) accept_errors: LogThrottle,
}

impl Shared {
    pub(super) fn new(
        path: PathBuf,
        limits: Limits,
        service: Arc<dyn Service>,
        metrics: ServerMetrics,
    ) -> Self {
        Self {
            limits,
            service,
            metrics,
            clients: Clients::new(limits.connections, limits.connections_per_client),
            queue: FairQueue::new(limits),
            responses: Responses::new(limits.response_bytes, limits.read_timeout),
            long_messages: Semaphore::new(LONG_MESSAGES),
            buffers: Arc::new(Semaphore::new(SHARED_BUFFERS)),
            path,
            throttles: std::array::from_fn(|_| LogThrottle::new(LOG_PERIOD)),
            accept_errors: LogThrottle::new(LOG_PERIOD),
        }
    }

    /// Counts a client's violation, and logs it, at most once a minute for each kind. `text` continues a
    /// sentence whose subject is the client.
    pub(super) fn report(&self, violation: Violation, peer: &Peer, text: impl FnOnce() -> String) {
        self.metrics.limit_exceeded(violation.as_str());
        let suppressed = match self.throttles[violation as usize].admit() {
            None => return,
            Some(0) => String::new(),
            Some(suppressed) => format!(" ({suppressed} more since the last such message)"),
        };
        warn!("{}: {peer} {}{suppressed}", self.path.display(), text());
    }
}
