//! Does the Pods API that we serve work?

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::health::{late, verdict};
use crate::telemetry::server::Probes;

/// The task that looks after the server turns this often at least; see `crate::pods_api`.
const TURNS: Duration = Duration::from_secs(120);

/// When what happened last.
#[derive(Debug)]
struct Moments {
    beat: Instant,
    served: bool,
    told: bool,
}

/// Stamped by whoever works, read by whoever asks.
#[derive(Debug)]
pub struct Health(Mutex<Moments>);

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Nothing has happened yet; the task has just turned.
    #[must_use]
    pub fn new() -> Self {
        Self(Mutex::new(Moments { beat: Instant::now(), served: false, told: false }))
    }

    fn moments(&self) -> MutexGuard<'_, Moments> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task that looks after the server turned: the socket is served or is not, and pods were all told once or were not.
    pub fn beat(&self, served: bool, told: bool) {
        *self.moments() = Moments { beat: Instant::now(), served, told };
    }

    /// All pods were told.
    pub fn told(&self) {
        self.moments().told = true;
    }
}

impl Probes for Health {
    fn live(&self) -> Result<(), Vec<String>> {
        let quiet = self.moments().beat.elapsed();
        verdict(late("the Pods API has not looked after its socket", quiet, TURNS).into_iter().collect())
    }

    /// Is the socket served, and were all pods told once?
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
        // Nobody tells any more: the last known state is served, which is no reason to take the clients away.
        advance(TURNS / 2).await;
        assert_eq!((health.ready(), health.live()), (Ok(()), Ok(())));
        advance(TURNS).await;
        assert!(health.live().is_err());
    }
}
