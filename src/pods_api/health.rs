//! Health of the Pods API server.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::health::{Probes, late, unless};

/// Maximum interval between checks of the socket; see `crate::pods_api`.
const CHECK: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct State {
    checked: Instant,
    is_serving: bool,
    is_synced: bool,
}

/// Updated by the tasks, read by the probes.
#[derive(Debug)]
pub struct Health(Mutex<State>);

impl Default for Health {
    /// Returns the state of a process that has just started; the start counts as a check.
    fn default() -> Self {
        Self(Mutex::new(State { checked: Instant::now(), is_serving: false, is_synced: false }))
    }
}

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a check: whether the socket is served, and whether the pods are synced.
    pub fn checked(&self, is_serving: bool, is_synced: bool) {
        *self.state() = State { checked: Instant::now(), is_serving, is_synced };
    }

    /// Records that the pods are synced.
    pub fn synced(&self) {
        self.state().is_synced = true;
    }
}

impl Probes for Health {
    fn live(&self) -> Vec<String> {
        let age = self.state().checked.elapsed();
        late("the Pods API has not checked its socket", age, CHECK).into_iter().collect()
    }

    /// Fails unless the socket is served and the pods were synced once.
    fn ready(&self) -> Vec<String> {
        let state = self.state();
        let served = unless(state.is_serving, "the socket of the Pods API is not served; see the log");
        let synced = unless(state.is_synced, "the Pods API has no list of pods yet");
        served.into_iter().chain(synced).collect()
    }

    fn started(&self) -> Vec<String> {
        unless(self.state().is_serving, "the socket of the Pods API is not served yet").into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const OK: [String; 0] = [];

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_once_it_serves_and_pods_are_synced() {
        let health = Health::default();
        assert_eq!(health.ready().len(), 2);
        assert_ne!(health.started(), OK);
        assert_eq!(health.live(), OK);
        health.checked(true, false);
        assert_eq!(health.ready(), ["the Pods API has no list of pods yet"]);
        assert_eq!(health.started(), OK);
        health.synced();
        assert_eq!(health.ready(), OK);
        // The source is down now: the last known pods are served, which is no reason to become unready.
        advance(CHECK / 2).await;
        assert_eq!([health.ready(), health.live()], [OK; 2]);
        advance(CHECK).await;
        assert_ne!(health.live(), OK);
    }
}
