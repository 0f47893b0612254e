//! Kubernetes Events about the fleet, limited to what an operator must act on.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::debug;

use super::metrics::Metrics;
use crate::cluster::{Cluster, EventPoster, Regarding};
use crate::util::token_bucket::TokenBucket;

const NODE_BURST: f64 = 20.0;
const GARBAGE_BURST: f64 = 4.0;
/// Events per second after the burst: one a minute.
const RATE: f64 = 1.0 / 60.0;

/// The reason of an Event, by the variant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    AgentNotReady,
    ObjectMissing,
    GarbageHeldBack,
}

/// Posts Events, rate-limited.
#[derive(Debug)]
pub(super) struct EventRecorder {
    poster: EventPoster,
    metrics: Arc<Metrics>,
    is_enabled: bool,
    nodes: Mutex<TokenBucket>,
    /// Limits Events about garbage collection, separately, so that many Events about Nodes do not suppress
    /// them.
    garbage: Mutex<TokenBucket>,
}

impl EventRecorder {
    pub(super) fn new(cluster: Cluster, instance: String, is_enabled: bool, metrics: Arc<Metrics>) -> Self {
        let bucket = |burst| Mutex::new(TokenBucket::new(RATE, burst, Instant::now()));
        let (nodes, garbage) = (bucket(NODE_BURST), bucket(GARBAGE_BURST));
        let poster = EventPoster { cluster, reporter: "numacast/controller", instance, action: "Control" };
        Self { poster, metrics, is_enabled, nodes, garbage }
    }

    /// Posts an Event. Returns false if it must be retried later, because of the rate limit or because the
    /// request failed. A failed request counts for the rate limit.
    pub(super) async fn post(&self, reason: Reason, regarding: Regarding<'_>, note: &str) -> bool {
        if !self.is_enabled {
            return true;
        }
        let bucket = match reason {
            Reason::AgentNotReady | Reason::ObjectMissing => &self.nodes,
            Reason::GarbageHeldBack => &self.garbage,
        };
        if !bucket.lock().await.take_now(Instant::now()) {
            return false;
        }
        let name = format!("{reason:?}");
        match self.poster.post(regarding, &name, true, note).await {
            Ok(()) => {
                self.metrics.events.with([&name]).inc();
                true
            }
            Err(error) => {
                self.metrics.request_failed(&error);
                debug!("cannot post the Event {name}: {error}");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use serde_json::json;
    use tokio::time::advance;

    use super::super::fake;
    use super::*;
    use crate::generated;

    impl Reason {
        /// All reasons.
        const ALL: [Self; 3] = [Self::AgentNotReady, Self::ObjectMissing, Self::GarbageHeldBack];

        /// Returns when it is posted, and what to do then.
        const fn documentation(self) -> (&'static str, &'static str) {
            match self {
                Self::AgentNotReady => (
                    "A Ready Node has had no Ready agent for five minutes",
                    "See [NumacastAgentsNotReady](#numacastagentsnotready)",
                ),
                Self::ObjectMissing => (
                    "A Ready Node with a Ready agent has had no object for five minutes",
                    "See [NumacastMissingObjects](#numacastmissingobjects)",
                ),
                Self::GarbageHeldBack => (
                    "Nothing is deleted: too many objects have no Node, or the list of Nodes is unreliable",
                    "See [NumacastGarbageHeldBack](#numacastgarbageheldback)",
                ),
            }
        }
    }

    #[test]
    fn the_document_lists_every_reason() {
        let mut table = "| Event | when | what to do |\n|---|---|---|\n".to_owned();
        for reason in Reason::ALL {
            let (when, remedy) = reason.documentation();
            writeln!(table, "| `{reason:?}` | {when} | {remedy} |").unwrap();
        }
        generated::section("docs/troubleshooting.md", "events of the controller", &table);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rejected_event_is_retried_within_the_rate_limit() {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let cluster = fake::cluster(move |_| {
            let response = match counted.fetch_add(1, Ordering::Relaxed) {
                0..4 => {
                    (403, json!({"status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}))
                }
                _ => (201, json!({"metadata": {"name": "e"}})),
            };
            async move { response }
        });
        let events = EventRecorder::new(cluster, "test".to_owned(), true, fake::metrics());
        for _ in 0..10 {
            assert!(!events.post(Reason::GarbageHeldBack, Regarding::Objects, "").await);
        }
        assert_eq!(requests.load(Ordering::Relaxed), 4, "the burst");
        advance(Duration::from_secs(60)).await;
        assert!(events.post(Reason::GarbageHeldBack, Regarding::Objects, "").await);
        assert_eq!(requests.load(Ordering::Relaxed), 5);
    }
}
