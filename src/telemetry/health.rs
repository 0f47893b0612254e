//! Health of the agent: the kubelet's liveness, readiness and startup probes.
//!
//! All times use the monotonic clock, so changes to the wall clock have no effect.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::server::Probes;
use crate::config::Config;

/// Maximum number of calls in one iteration of the loop, each with its own deadline: a scan that is restarted
/// twice.
const CALLS: u32 = 6;
/// Time that an iteration or a poll may take beyond its deadlines, for backoff and the rate limiter.
const SLACK: Duration = Duration::from_secs(30);
/// How long a new topology may be unpublished. Longer than the longest backoff between two attempts.
const WAITING: Duration = Duration::from_secs(30);

/// Maximum ages before a probe fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    scan: Duration,
    publish: Duration,
    turn: Duration,
}

impl Bounds {
    /// Returns the bounds for the poll and refresh intervals and the deadline of a call to the kubelet.
    #[must_use]
    pub fn new(poll: Duration, call: Duration, refresh: Duration) -> Self {
        Self {
            // Two polls may be lost, each late by a tenth.
            scan: poll.saturating_mul(3) + call,
            publish: refresh.saturating_mul(2) + WAITING,
            turn: call.saturating_mul(CALLS) + poll.saturating_mul(2) + SLACK,
        }
    }
}

/// Times of the last occurrences.
#[derive(Debug, Default)]
struct Moments {
    /// Last iteration of the loop.
    beat: Option<Instant>,
    /// Last successful scan.
    scan: Option<Instant>,
    /// When the API server was last known to have a topology from this process.
    publish: Option<Instant>,
    /// Since when something is waiting to be written.
    waiting: Option<Instant>,
    /// When the newest pending write was requested.
    newest: Option<Instant>,
    /// A file that only a new container can read.
    out_of_reach: Option<PathBuf>,
}

/// Updated by the tasks, read by the probes.
#[derive(Debug)]
pub struct Health {
    bounds: Bounds,
    moments: Mutex<Moments>,
}

impl Default for Health {
    /// Uses the bounds of the default configuration.
    fn default() -> Self {
        let Config { scan, kubelet, publish, .. } = Config::default();
        Self::new(Bounds::new(scan.poll.get(), kubelet.timeout.get(), publish.refresh.get()))
    }
}

impl Health {
    /// Returns the state of a process that has just started; the start counts as an iteration.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let moments = Moments { beat: Some(Instant::now()), ..Moments::default() };
        Self { bounds, moments: Mutex::new(moments) }
    }

    fn moments(&self) -> MutexGuard<'_, Moments> {
        self.moments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an iteration of the loop.
    pub fn beat(&self) {
        self.moments().beat = Some(Instant::now());
    }

    /// Records a successful scan.
    pub fn scanned(&self) {
        self.moments().scan = Some(Instant::now());
    }

    /// Records a pending write: a new topology, or one whose write failed or was undone.
    pub fn waiting(&self) {
        let (mut moments, now) = (self.moments(), Instant::now());
        moments.waiting.get_or_insert(now);
        moments.newest = Some(now);
    }

    /// Records that the API server has the topology that was the newest `took` ago, whether or not it had to
    /// be written. Later ones are still pending.
    pub fn published(&self, took: Duration) {
        let (mut moments, now) = (self.moments(), Instant::now());
        moments.publish = Some(now);
        moments.waiting = moments.newest.filter(|newest| *newest + took > now);
    }

    /// Sets the path that this process can never read again but a new container can; `None` if there is none.
    pub fn out_of_reach(&self, path: Option<PathBuf>) {
        self.moments().out_of_reach = path;
    }

    /// Returns the time since the last successful scan.
    #[must_use]
    pub fn scan_age(&self) -> Option<Duration> {
        self.moments().scan.map(|moment| moment.elapsed())
    }

    /// Returns the time since the API server was last known to have the newest topology.
    #[must_use]
    pub fn publish_age(&self) -> Option<Duration> {
        self.moments().publish.map(|moment| moment.elapsed())
    }
}

impl Probes for Health {
    /// Fails if the loop is stuck, or if only a restart can help.
    fn live(&self) -> Result<(), Vec<String>> {
        let (beat, stale) = {
            let moments = self.moments();
            (moments.beat, moments.out_of_reach.clone())
        };
        let quiet = beat.map(|moment| moment.elapsed()).unwrap_or_default();
        let mut reasons: Vec<String> =
            late("the loop has not turned", quiet, self.bounds.turn).into_iter().collect();
        reasons.extend(stale.map(|path| {
            let path = path.display();
            format!("{path} was replaced on the host, and only a new container sees the new one")
        }));
        verdict(reasons)
    }

    /// Fails if the last scan or the last publish is too old.
    fn ready(&self) -> Result<(), Vec<String>> {
        let (scan, publish, waiting) = {
            let moments = self.moments();
            (moments.scan, moments.publish, moments.waiting)
        };
        let mut reasons = Vec::new();
        match scan {
            Some(moment) => reasons.extend(late("the node was not read", moment.elapsed(), self.bounds.scan)),
            None => reasons.push("the node could not be read yet".to_owned()),
        }
        match publish {
            Some(moment) => {
                reasons.extend(late("nothing was published", moment.elapsed(), self.bounds.publish));
            }
            None => reasons.push("nothing is published yet".to_owned()),
        }
        if let (Some(_), Some(moment)) = (publish, waiting) {
            reasons.extend(late("the newest account was not published", moment.elapsed(), WAITING));
        }
        verdict(reasons)
    }

    /// Succeeds once the object has been published.
    fn started(&self) -> Result<(), Vec<String>> {
        match self.moments().publish {
            Some(_) => Ok(()),
            None => Err(vec!["nothing is published yet".to_owned()]),
        }
    }
}

/// Returns the reason for a failing probe if `age` exceeds `bound`.
pub(super) fn late(what: &str, age: Duration, bound: Duration) -> Option<String> {
    let (seconds, limit) = (age.as_secs(), bound.as_secs());
    (age > bound).then(|| format!("{what} for {seconds} s, which is more than {limit} s; the log says why"))
}

pub(super) fn verdict(reasons: Vec<String>) -> Result<(), Vec<String>> {
    if reasons.is_empty() { Ok(()) } else { Err(reasons) }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn health() -> Health {
        Health::new(Bounds::new(seconds(5), seconds(10), seconds(600)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_is_over_when_the_object_is_there() {
        let health = health();
        let unpublished = vec!["nothing is published yet".to_owned()];
        assert_eq!(health.started(), Err(unpublished.clone()));
        assert_eq!(health.ready().unwrap_err()[0], "the node could not be read yet");
        health.scanned();
        health.waiting();
        assert_eq!(health.ready(), Err(unpublished));
        health.published(Duration::ZERO);
        assert_eq!((health.started(), health.ready(), health.live()), (Ok(()), Ok(()), Ok(())));
        advance(seconds(86_400)).await;
        assert_eq!(health.started(), Ok(()), "for ever");
    }

    #[tokio::test(start_paused = true)]
    async fn three_polls_and_a_call_without_a_scan_are_too_many() {
        let health = health();
        health.scanned();
        health.published(Duration::ZERO);
        advance(seconds(25)).await;
        assert_eq!(health.ready(), Ok(()));
        advance(seconds(1)).await;
        let reasons = health.ready().unwrap_err();
        assert_eq!(reasons, ["the node was not read for 26 s, which is more than 25 s; the log says why"]);
        assert_eq!((health.scan_age(), health.publish_age()), (Some(seconds(26)), Some(seconds(26))));
        health.scanned();
        assert_eq!(health.ready(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_may_not_wait_for_long_however_often_it_is_replaced() {
        let health = health();
        health.published(Duration::ZERO);
        for _ in 0..4 {
            health.waiting();
            health.scanned();
            assert_eq!(health.ready(), Ok(()));
            advance(seconds(10)).await;
        }
        let reasons = health.ready().unwrap_err();
        let expected =
            "the newest account was not published for 40 s, which is more than 30 s; the log says why";
        assert_eq!(reasons, [expected]);
        health.published(Duration::ZERO);
        assert_eq!(health.ready(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_during_a_write_still_waits() {
        let health = health();
        health.waiting();
        advance(seconds(5)).await;
        health.waiting();
        advance(seconds(2)).await;
        // The write began between the two.
        health.published(seconds(3));
        health.scanned();
        advance(seconds(25)).await;
        assert_eq!(health.ready(), Ok(()), "for 27 s");
        advance(seconds(4)).await;
        assert_eq!(health.ready().unwrap_err().len(), 2, "for 31 s; and nothing was read for 29 s");
        health.published(seconds(3));
        health.scanned();
        assert_eq!(health.ready(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_may_not_be_forgotten() {
        let health = health();
        health.published(Duration::ZERO);
        advance(seconds(1231)).await;
        health.scanned();
        let reasons = health.ready().unwrap_err();
        assert_eq!(
            reasons,
            ["nothing was published for 1231 s, which is more than 1230 s; the log says why"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_only_a_new_container_can_read_is_worth_one() {
        let health = health();
        health.out_of_reach(Some("/host/config.yaml".into()));
        let replaced =
            "/host/config.yaml was replaced on the host, and only a new container sees the new one";
        assert_eq!(health.live(), Err(vec![replaced.to_owned()]));
        health.out_of_reach(None);
        assert_eq!(health.live(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_turns_is_alive_whatever_else_is_wrong() {
        let health = health();
        for _ in 0..10 {
            advance(seconds(100)).await;
            assert_eq!(health.live(), Ok(()));
            assert!(health.ready().is_err());
            health.beat();
        }
        advance(seconds(101)).await;
        let reasons = health.live().unwrap_err();
        assert_eq!(
            reasons,
            ["the loop has not turned for 101 s, which is more than 100 s; the log says why"]
        );
    }
}
