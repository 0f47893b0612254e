//! Health of the controller: the kubelet's three probes. All times use the monotonic clock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::health::{late, verdict};
use crate::telemetry::server::Probes;

/// Maximum interval between iterations of the loop, which normally iterates each second.
const TURN: Duration = Duration::from_secs(60);
/// Maximum age of the last successful access to the Lease, which is checked every two seconds, each call with
/// a deadline.
const LEASE: Duration = Duration::from_secs(60);
/// Time that a pass may take beyond its interval.
const SLACK: Duration = Duration::from_secs(120);

/// Intervals of the passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Whether leader election is on.
    pub lease: bool,
    /// Interval between garbage collection passes.
    pub garbage: Duration,
    /// Interval between computations of the fleet's figures.
    pub fleet: Duration,
}

#[derive(Debug)]
struct Moments {
    beat: Instant,
    /// When the Lease was last read or written.
    lease: Option<Instant>,
    /// Since when this replica leads.
    leading: Option<Instant>,
    garbage: Option<Instant>,
    /// When the fleet's figures were last computed, and the interval until the next time.
    fleet: Option<(Instant, Duration)>,
}

/// Updated by the tasks, read by the probes.
#[derive(Debug)]
pub struct Health {
    bounds: Bounds,
    moments: Mutex<Moments>,
}

impl Health {
    /// Returns the state of a process that has just started; the start counts as an iteration.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let beat = Instant::now();
        let moments = Moments { beat, lease: None, leading: None, garbage: None, fleet: None };
        Self { bounds, moments: Mutex::new(moments) }
    }

    fn moments(&self) -> MutexGuard<'_, Moments> {
        self.moments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an iteration of the loop.
    pub fn beat(&self) {
        self.moments().beat = Instant::now();
    }

    /// Records that the Lease was read or written.
    pub fn lease_seen(&self) {
        self.moments().lease = Some(Instant::now());
    }

    /// Sets whether this replica leads.
    pub fn leads(&self, leads: bool) {
        let mut moments = self.moments();
        (moments.leading, moments.garbage, moments.fleet) = (leads.then(Instant::now), None, None);
    }

    /// Records a garbage collection pass, whatever its result.
    pub fn looked_for_garbage(&self) {
        self.moments().garbage = Some(Instant::now());
    }

    /// Records that the fleet's figures were computed; the next pass is due after `next`.
    pub fn summed_up(&self, next: Duration) {
        self.moments().fleet = Some((Instant::now(), next));
    }
}

impl Probes for Health {
    fn live(&self) -> Result<(), Vec<String>> {
        let quiet = self.moments().beat.elapsed();
        verdict(late("the loop has not turned", quiet, TURN).into_iter().collect())
    }

    /// A replica that does not lead is ready if it sees the Lease; a leader must also complete its passes.
    fn ready(&self) -> Result<(), Vec<String>> {
        let Moments { lease, leading, garbage, fleet, .. } = *self.moments();
        let mut reasons = Vec::new();
        if self.bounds.lease {
            match lease {
                Some(at) => reasons.extend(late("the Lease was not seen", at.elapsed(), LEASE)),
                None => reasons.push("the Lease could not be read yet".to_owned()),
            }
        }
        if let Some(since) = leading {
            let (at, next) = fleet.unwrap_or((since, self.bounds.fleet));
            reasons.extend(late("the objects were not added up", at.elapsed(), next * 2 + SLACK));
            let (at, bound) = (garbage.unwrap_or(since), self.bounds.garbage * 2 + SLACK);
            // The first pass is due immediately.
            let bound = if garbage.is_some() { bound } else { SLACK };
            reasons.extend(late("nobody looked for objects without a Node", at.elapsed(), bound));
        }
        verdict(reasons)
    }

    fn started(&self) -> Result<(), Vec<String>> {
        let Moments { lease, leading, .. } = *self.moments();
        match lease.is_some() || leading.is_some() {
            true => Ok(()),
            false => Err(vec!["the Lease could not be read yet".to_owned()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn health(lease: bool) -> Health {
        Health::new(Bounds { lease, garbage: seconds(600), fleet: seconds(60) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_sees_the_lease_is_ready_to_lead() {
        let health = health(true);
        let unseen = vec!["the Lease could not be read yet".to_owned()];
        assert_eq!((health.started(), health.ready()), (Err(unseen.clone()), Err(unseen)));
        health.lease_seen();
        assert_eq!((health.started(), health.ready(), health.live()), (Ok(()), Ok(()), Ok(())));
        advance(seconds(61)).await;
        let reasons = health.ready().unwrap_err();
        assert_eq!(reasons, ["the Lease was not seen for 61 s, which is more than 60 s; the log says why"]);
        assert_eq!(health.started(), Ok(()), "for ever");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leads_must_do_its_work() {
        let health = health(false);
        assert!(health.started().is_err());
        health.leads(true);
        assert_eq!((health.started(), health.ready()), (Ok(()), Ok(())));
        advance(seconds(121)).await;
        let reasons = health.ready().unwrap_err();
        let sentence =
            "nobody looked for objects without a Node for 121 s, which is more than 120 s; the log says why";
        assert_eq!(reasons, [sentence]);
        health.looked_for_garbage();
        advance(seconds(120)).await;
        let reasons = health.ready().unwrap_err();
        assert!(
            reasons.len() == 1 && reasons[0].starts_with("the objects were not added up for 241 s"),
            "{reasons:?}"
        );
        health.summed_up(seconds(300));
        advance(seconds(720)).await;
        assert_eq!(health.ready(), Ok(()), "a pass that takes long comes less often");
        advance(seconds(1)).await;
        assert!(health.ready().is_err());
        health.leads(false);
        assert_eq!(health.ready(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_turn_is_dead() {
        let health = health(true);
        advance(seconds(60)).await;
        assert_eq!(health.live(), Ok(()));
        advance(seconds(1)).await;
        assert!(health.live().unwrap_err()[0].starts_with("the loop has not turned for 61 s"));
        health.beat();
        assert_eq!(health.live(), Ok(()));
    }
}
