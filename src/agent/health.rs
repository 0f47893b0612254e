//! Health of the agent. All times use the monotonic clock, so changes to the wall clock have no effect.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::health::{Probes, Recent, late};
use crate::util::sync::lock;

/// Maximum number of calls in one iteration of the loop, each with its own deadline: a scan that is restarted
/// twice.
const CALLS: u32 = 6;
/// Time that an iteration or a poll may take beyond its deadlines, for backoff and the rate limiter.
const SLACK: Duration = Duration::from_secs(30);
/// How long a new topology may be unpublished. Longer than the longest backoff between two attempts.
const PENDING: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Pending {
    since: Option<Instant>,
    newest: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Health {
    /// Confirmed by each iteration of the loop.
    pub(crate) iteration: Recent,
    /// Confirmed by each accepted scan.
    pub(crate) scan: Recent,
    publish: Recent,
    pending: Mutex<Pending>,
    /// Why the object has no policies although its consumer needs them.
    no_policies: Mutex<Option<String>>,
}

impl Health {
    /// Returns the state of a process that has just started, which counts as an iteration, for these poll and
    /// refresh intervals and this deadline of a `call` to the kubelet.
    pub(crate) fn new(poll: Duration, call: Duration, refresh: Duration) -> Self {
        let iteration = call.saturating_mul(CALLS) + poll.saturating_mul(2) + SLACK;
        // Two polls may be lost. The jitter of the third is within the deadline of a call, for polls up to 33 s.
        let scan = poll.saturating_mul(3) + call;
        let publish = refresh.saturating_mul(2) + PENDING;
        Self {
            iteration: Recent::new("the main loop has not run", iteration).confirmed(),
            scan: Recent::new("no scan of the node has succeeded", scan),
            publish: Recent::new("nothing was published", publish),
            pending: Mutex::default(),
            no_policies: Mutex::default(),
        }
    }

    /// Records a pending write: a new topology, or one whose write failed or was undone.
    pub(crate) fn write_pending(&self) {
        let (mut pending, now) = (lock(&self.pending), Instant::now());
        pending.since.get_or_insert(now);
        pending.newest = Some(now);
    }

    /// Records that the API server has the topology that was the newest `took` ago, whether or not it had to
    /// be written. Later ones are still pending.
    pub(crate) fn published(&self, took: Duration) {
        self.publish.confirm();
        let (mut pending, now) = (lock(&self.pending), Instant::now());
        pending.since = pending.newest.filter(|newest| *newest + took > now);
    }

    /// Sets why the object has no policies although its consumer needs them; `None` if it has some or needs none.
    pub(crate) fn set_no_policies(&self, why: Option<String>) {
        *lock(&self.no_policies) = why;
    }
}

impl Probes for Health {
    /// Fails if the loop is stuck.
    fn live(&self) -> Vec<String> {
        self.iteration.reason().into_iter().collect()
    }

    /// Fails if the last scan or the last publish is too old, or a write is pending for too long, or the object
    /// lacks policies that its consumer needs.
    fn ready(&self) -> Vec<String> {
        let pending = self.publish.age().and(lock(&self.pending).since);
        let pending =
            pending.and_then(|since| late("the newest state was not published", since.elapsed(), PENDING));
        let no_policies = lock(&self.no_policies).clone();
        [self.scan.reason(), self.publish.reason(), pending, no_policies].into_iter().flatten().collect()
    }

    fn started(&self) -> Vec<String> {
        self.publish.reason().filter(|_| self.publish.age().is_none()).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const OK: [String; 0] = [];
    const UNPUBLISHED: &str = "nothing was published yet";

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn health() -> Health {
        Health::new(seconds(5), seconds(10), seconds(600))
    }

    #[tokio::test(start_paused = true)]
    async fn the_agent_has_started_once_the_object_is_published() {
        let health = health();
        assert_eq!(health.started(), [UNPUBLISHED]);
        assert_eq!(health.ready()[0], "no scan of the node has succeeded yet");
        health.scan.confirm();
        health.write_pending();
        assert_eq!(health.ready(), [UNPUBLISHED]);
        health.published(Duration::ZERO);
        assert_eq!([health.started(), health.ready(), health.live()], [OK; 3]);
        advance(seconds(86_400)).await;
        assert_eq!(health.started(), OK, "it stays started");
    }

    #[tokio::test(start_paused = true)]
    async fn a_scan_may_be_three_polls_and_a_call_old() {
        let health = health();
        health.scan.confirm();
        health.published(Duration::ZERO);
        advance(seconds(25)).await;
        assert_eq!(health.ready(), OK);
        advance(seconds(1)).await;
        let expected = "no scan of the node has succeeded for 26 s, more than 25 s; see the log";
        assert_eq!(health.ready(), [expected]);
        health.scan.confirm();
        assert_eq!(health.ready(), OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_may_not_be_pending_for_long_however_often_it_is_replaced() {
        let health = health();
        health.published(Duration::ZERO);
        for _ in 0..4 {
            health.write_pending();
            health.scan.confirm();
            assert_eq!(health.ready(), OK);
            advance(seconds(10)).await;
        }
        let expected = "the newest state was not published for 40 s, more than 30 s; see the log";
        assert_eq!(health.ready(), [expected]);
        health.published(Duration::ZERO);
        assert_eq!(health.ready(), OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_during_a_write_is_still_pending() {
        let health = health();
        health.write_pending();
        advance(seconds(5)).await;
        health.write_pending();
        advance(seconds(2)).await;
        // The write began between the two.
        health.published(seconds(3));
        health.scan.confirm();
        advance(seconds(25)).await;
        assert_eq!(health.ready(), OK, "for 27 s");
        advance(seconds(4)).await;
        assert_eq!(health.ready().len(), 2, "for 31 s; and no scan for 29 s");
        health.published(seconds(3));
        health.scan.confirm();
        assert_eq!(health.ready(), OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_refresh_is_noticed() {
        let health = health();
        health.published(Duration::ZERO);
        advance(seconds(1231)).await;
        health.scan.confirm();
        let expected = "nothing was published for 1231 s, more than 1230 s; see the log";
        assert_eq!(health.ready(), [expected]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_without_the_policies_that_its_consumer_needs_is_not_ready() {
        let health = health();
        health.scan.confirm();
        health.published(Duration::ZERO);
        health.set_no_policies(Some("the policies are unknown".into()));
        assert_eq!(health.ready(), ["the policies are unknown"]);
        assert_eq!([health.live(), health.started()], [OK; 2]);
        health.set_no_policies(None);
        assert_eq!(health.ready(), OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_runs_is_live_whatever_else_fails() {
        let health = health();
        for _ in 0..10 {
            advance(seconds(100)).await;
            assert_eq!(health.live(), OK);
            assert_ne!(health.ready(), OK);
            health.iteration.confirm();
        }
        advance(seconds(101)).await;
        assert_eq!(health.live(), ["the main loop has not run for 101 s, more than 100 s; see the log"]);
    }
}
