//! Health of the controller. All times use the monotonic clock.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::health::{Probes, Recent, late};
use crate::util::sync::lock;

/// Maximum interval between iterations of the loop, which normally iterates each second.
const ITERATION: Duration = Duration::from_secs(60);
/// Maximum age of the last successful access to the Lease, which is checked every two seconds, each call with
/// a deadline.
const LEASE: Duration = Duration::from_secs(60);
/// Time that a pass may take beyond its interval.
const SLACK: Duration = Duration::from_secs(120);

/// When the last pass ended, or this replica began to lead, and the interval until the next one.
#[derive(Clone, Copy, Debug)]
struct Passes {
    garbage: (Instant, Duration),
    fleet: (Instant, Duration),
}

/// Updated by the tasks, read by the probes.
#[derive(Debug)]
pub(crate) struct Health {
    pub(super) iteration: Recent,
    has_lease: bool,
    /// The Lease was read or written.
    pub(super) lease: Recent,
    garbage_interval: Duration,
    fleet_interval: Duration,
    /// While this replica leads.
    passes: Mutex<Option<Passes>>,
}

impl Health {
    /// Returns the state of a process that has just started; the start counts as an iteration. The intervals
    /// are those of the passes.
    pub(crate) fn new(has_lease: bool, garbage_interval: Duration, fleet_interval: Duration) -> Self {
        let iteration = Recent::new("the main loop has not run", ITERATION).confirmed();
        let lease = Recent::new("the Lease was not seen", LEASE);
        Self { iteration, has_lease, lease, garbage_interval, fleet_interval, passes: Mutex::default() }
    }

    pub(crate) fn leads(&self, leads: bool) {
        let now = Instant::now();
        // The first garbage collection pass is due immediately.
        let leading = Passes { garbage: (now, Duration::ZERO), fleet: (now, self.fleet_interval) };
        *lock(&self.passes) = leads.then_some(leading);
    }

    /// Records a completed garbage collection pass over all objects.
    pub(crate) fn garbage_pass(&self) {
        if let Some(passes) = &mut *lock(&self.passes) {
            passes.garbage = (Instant::now(), self.garbage_interval);
        }
    }

    /// Records that all objects were aggregated; the next pass is due after `next`.
    pub(crate) fn fleet_pass(&self, next: Duration) {
        if let Some(passes) = &mut *lock(&self.passes) {
            passes.fleet = (Instant::now(), next);
        }
    }
}

impl Probes for Health {
    fn live(&self) -> Vec<String> {
        self.iteration.reason().into_iter().collect()
    }

    /// A replica that does not lead is ready if it sees the Lease; a leader must also complete its passes.
    fn ready(&self) -> Vec<String> {
        let lease = self.lease.reason().filter(|_| self.has_lease);
        let passes = *lock(&self.passes);
        let late = |failure, (at, next): (Instant, Duration)| late(failure, at.elapsed(), next * 2 + SLACK);
        let fleet = passes.and_then(|passes| late("the fleet metrics were not updated", passes.fleet));
        let garbage = passes.and_then(|passes| late("no garbage collection pass has ended", passes.garbage));
        [lease, fleet, garbage].into_iter().flatten().collect()
    }

    fn started(&self) -> Vec<String> {
        let started = self.lease.age().is_some() || lock(&self.passes).is_some();
        self.lease.reason().filter(|_| !started).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const OK: [String; 0] = [];

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn health(lease: bool) -> Health {
        Health::new(lease, seconds(600), seconds(60))
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_sees_the_lease_is_ready() {
        let health = health(true);
        assert_eq!([health.started(), health.ready()], [["the Lease was not seen yet"]; 2]);
        health.lease.confirm();
        assert_eq!([health.started(), health.ready(), health.live()], [OK; 3]);
        advance(seconds(61)).await;
        assert_eq!(health.ready(), ["the Lease was not seen for 61 s, more than 60 s; see the log"]);
        assert_eq!(health.started(), OK, "it stays started");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_must_complete_its_passes() {
        let health = health(false);
        assert_ne!(health.started(), OK);
        health.leads(true);
        assert_eq!([health.started(), health.ready()], [OK; 2]);
        advance(seconds(121)).await;
        let expected = "no garbage collection pass has ended for 121 s, more than 120 s; see the log";
        assert_eq!(health.ready(), [expected]);
        health.garbage_pass();
        advance(seconds(120)).await;
        let reasons = health.ready();
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(reasons[0].starts_with("the fleet metrics were not updated for 241 s"), "{reasons:?}");
        health.fleet_pass(seconds(300));
        advance(seconds(720)).await;
        assert_eq!(health.ready(), OK, "a pass that takes long comes less often");
        advance(seconds(1)).await;
        assert_ne!(health.ready(), OK);
        health.leads(false);
        assert_eq!(health.ready(), OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_run_is_not_live() {
        let health = health(true);
        advance(seconds(60)).await;
        assert_eq!(health.live(), OK);
        advance(seconds(1)).await;
        assert_eq!(health.live(), ["the main loop has not run for 61 s, more than 60 s; see the log"]);
        health.iteration.confirm();
        assert_eq!(health.live(), OK);
    }
}
