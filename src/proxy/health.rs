//! Health of the proxy.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::health::{Probes, late, unless};

/// Maximum age of the kubelet's last response. It is called at least this often; see `crate::proxy`.
const RESPONSE: Duration = Duration::from_secs(30);
/// Maximum interval between checks of the socket.
const CHECK: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct State {
    checked: Instant,
    response: Option<Instant>,
    is_serving: bool,
    is_synced: bool,
}

/// Updated by the tasks, read by the probes.
#[derive(Debug)]
pub struct Health {
    /// Whether the proxy needs a pod source.
    needs_pods: bool,
    state: Mutex<State>,
}

impl Health {
    /// Returns the state of a process that has just started; the start counts as a check.
    #[must_use]
    pub fn new(needs_pods: bool) -> Self {
        let state = State { checked: Instant::now(), response: None, is_serving: false, is_synced: false };
        Self { needs_pods, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a check: whether the socket is served, and whether the pods are synced.
    pub fn checked(&self, is_serving: bool, is_synced: bool) {
        let mut state = self.state();
        (state.checked, state.is_serving, state.is_synced) = (Instant::now(), is_serving, is_synced);
    }

    /// Records a response of the kubelet.
    pub fn kubelet_responded(&self) {
        self.state().response = Some(Instant::now());
    }

    /// Returns the time since the kubelet's last response.
    #[must_use]
    pub fn kubelet_age(&self) -> Option<Duration> {
        self.state().response.map(|at| at.elapsed())
    }
}

impl Probes for Health {
    fn live(&self) -> Vec<String> {
        let age = self.state().checked.elapsed();
        late("the proxy has not checked its socket", age, CHECK).into_iter().collect()
    }

    /// Fails unless the socket is served, the kubelet responds, and the pods were synced (if needed).
    fn ready(&self) -> Vec<String> {
        let state = self.state();
        let kubelet = match state.response {
            Some(at) => late("the kubelet has not responded to the proxy", at.elapsed(), RESPONSE),
            None => Some("the kubelet has not responded to the proxy yet".to_owned()),
        };
        let served = unless(state.is_serving, "the proxy's socket is not served; see the log");
        let synced = unless(state.is_synced || !self.needs_pods, "the proxy has no list of pods yet");
        [served, kubelet, synced].into_iter().flatten().collect()
    }

    fn started(&self) -> Vec<String> {
        unless(self.state().is_serving, "the proxy's socket is not served yet").into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const OK: [String; 0] = [];

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_once_it_serves_the_kubelet_responds_and_pods_are_synced() {
        let health = Health::new(true);
        assert_eq!(health.ready().len(), 3, "{:?}", health.ready());
        assert_ne!(health.started(), OK);
        assert_eq!(health.live(), OK);
        health.checked(true, false);
        health.kubelet_responded();
        assert_eq!(health.ready(), ["the proxy has no list of pods yet"]);
        health.checked(true, true);
        assert_eq!([health.ready(), health.started()], [OK; 2]);
        advance(RESPONSE + Duration::from_secs(1)).await;
        assert!(health.ready()[0].contains("has not responded to the proxy for 31 s"), "{:?}", health.ready());
        advance(CHECK).await;
        assert_ne!(health.live(), OK);
    }

    #[tokio::test(start_paused = true)]
    async fn without_annotations_it_needs_no_pods() {
        let health = Health::new(false);
        health.checked(true, false);
        health.kubelet_responded();
        assert_eq!(health.ready(), OK);
    }
}
