//! Health of the Pods API server.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::health::{late, verdict};
use crate::telemetry::server::Probes;

/// Maximum interval between iterations of the server's supervising task; see `crate::pods_api`.
const TURNS: Duration = Duration::from_secs(120);

/// Times and results of the last reports.
#[derive(Debug)]
struct Moments {
    beat: Instant,
    served: bool,
    told: bool,
}

/// Updated by the tasks, read by the probes.
#[derive(Debug)]
pub struct Health(Mutex<Moments>);

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Returns the state of a process that has just started; the start counts as an iteration.
    #[must_use]
    pub fn new() -> Self {
        Self(Mutex::new(Moments { beat: Instant::now(), served: false, told: false }))
    }

    fn moments(&self) -> MutexGuard<'_, Moments> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an iteration of the supervising task. `served`: the socket is served. `told`: the pods are
    /// synced.
    pub fn beat(&self, served: bool, told: bool) {
        *self.moments() = Moments { beat: Instant::now(), served, told };
    }

    /// Records that the pods are synced.
    pub fn told(&self) {
        self.moments().told = true;
    }
}

impl Probes for Health {
    fn live(&self) -> Result<(), Vec<String>> {
        let quiet = self.moments().beat.elapsed();
        verdict(late("the Pods API has not looked after its socket", quiet, TURNS).into_iter().collect())
    }

    /// Fails unless the socket is served and the pods were synced once.
    fn ready(&self) -> Result<(), Vec<String>> {
        let moments = self.moments();
        let mut reasons = Vec::new();
        if !moments.served {
            reasons.push("the socket of the Pods API is not served; the log says why".to_owned());
        }
        if !moments.told {
            reasons.push("nobody has told the Pods API about pods yet".to_owned());
        }
        verdict(reasons)
    }

    fn started(&self) -> Result<(), Vec<String>> {
        match self.moments().served {
            true => Ok(()),
            false => Err(vec!["the socket of the Pods API is not served yet".to_owned()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_when_it_serves_and_pods_are_known() {
        let health = Health::new();
        assert_eq!(health.ready().unwrap_err().len(), 2);
        assert!(health.started().is_err() && health.live().is_ok());
        health.beat(true, false);
        assert_eq!(health.ready().unwrap_err(), ["nobody has told the Pods API about pods yet"]);
        assert_eq!(health.started(), Ok(()));
        health.told();
        assert_eq!(health.ready(), Ok(()));
        // The source is down now: the last known state is served, which is no reason to become unready.
        advance(TURNS / 2).await;
        assert_eq!((health.ready(), health.live()), (Ok(()), Ok(())));
        advance(TURNS).await;
        assert!(health.live().is_err());
    }
}
