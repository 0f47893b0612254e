//! Health of the controller. All times use the monotonic clock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::health::{Probes, late, unless};

/// Maximum interval between iterations of the loop, which normally iterates each second.
const ITERATION: Duration = Duration::from_secs(60);
/// Maximum age of the last successful access to the Lease, which is checked every two seconds, each call with
/// a deadline.
const LEASE: Duration = Duration::from_secs(60);
/// Time that a pass may take beyond its interval.
const SLACK: Duration = Duration::from_secs(120);

const NO_LEASE: &str = "the Lease could not be read yet";

/// Intervals of the passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether leader election is on.
    pub lease: bool,
    /// Interval between garbage collection passes.
    pub garbage: Duration,
    /// Interval between passes that sum up all objects.
    pub fleet: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    iteration: Instant,
    /// When the Lease was last read or written.
    lease: Option<Instant>,
    /// Since when this replica leads.
    leading_since: Option<Instant>,
    garbage: Option<Instant>,
    /// When all objects were last summed up, and the interval until the next time.
    fleet: Option<(Instant, Duration)>,
}

/// Updated by the tasks, read by the probes.
#[derive(Debug)]
pub struct Health {
    limits: Limits,
    times: Mutex<Times>,
}

impl Health {
    /// Returns the state of a process that has just started; the start counts as an iteration.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let iteration = Instant::now();
        let times = Times { iteration, lease: None, leading_since: None, garbage: None, fleet: None };
        Self { limits, times: Mutex::new(times) }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an iteration of the loop.
    pub fn loop_ran(&self) {
        self.times().iteration = Instant::now();
    }

    /// Records that the Lease was read or written.
    pub fn lease_seen(&self) {
        self.times().lease = Some(Instant::now());
    }

    /// Sets whether this replica leads.
    pub fn leads(&self, leads: bool) {
        let mut times = self.times();
        (times.leading_since, times.garbage, times.fleet) = (leads.then(Instant::now), None, None);
    }

    /// Records a garbage collection pass, whatever its result.
    pub fn garbage_pass(&self) {
        self.times().garbage = Some(Instant::now());
    }

    /// Records that all objects were summed up; the next pass is due after `next`.
    pub fn fleet_pass(&self, next: Duration) {
        self.times().fleet = Some((Instant::now(), next));
    }
}

impl Probes for Health {
    fn live(&self) -> Vec<String> {
        let age = self.times().iteration.elapsed();
        late("the main loop has not run", age, ITERATION).into_iter().collect()
    }

    /// A replica that does not lead is ready if it sees the Lease; a leader must also complete its passes.
    fn ready(&self) -> Vec<String> {
        let Times { lease, leading_since, garbage, fleet, .. } = *self.times();
        let mut reasons = Vec::new();
        if self.limits.lease {
            match lease {
                Some(at) => reasons.extend(late("the Lease was not seen", at.elapsed(), LEASE)),
                None => reasons.push(NO_LEASE.to_owned()),
            }
        }
        if let Some(since) = leading_since {
            let (at, next) = fleet.unwrap_or((since, self.limits.fleet));
            reasons.extend(late("the objects were not summed up", at.elapsed(), next * 2 + SLACK));
            let (at, limit) = (garbage.unwrap_or(since), self.limits.garbage * 2 + SLACK);
            // The first pass is due immediately.
            let limit = if garbage.is_some() { limit } else { SLACK };
            reasons.extend(late("no garbage collection pass has ended", at.elapsed(), limit));
        }
        reasons
    }

    fn started(&self) -> Vec<String> {
        let Times { lease, leading_since, .. } = *self.times();
        unless(lease.is_some() || leading_since.is_some(), NO_LEASE).into_iter().collect()
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
        Health::new(Limits { lease, garbage: seconds(600), fleet: seconds(60) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_sees_the_lease_is_ready() {
        let health = health(true);
        assert_eq!([health.started(), health.ready()], [[NO_LEASE]; 2]);
        health.lease_seen();
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
        assert!(reasons[0].starts_with("the objects were not summed up for 241 s"), "{reasons:?}");
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
        health.loop_ran();
        assert_eq!(health.live(), OK);
    }
}
