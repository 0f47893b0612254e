//! Health of the proxy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::telemetry::health::{Probes, Recent, unless};

/// Maximum age of the kubelet's last response. It is called at least this often; see `crate::proxy`.
const RESPONSE: Duration = Duration::from_secs(30);
/// Maximum interval between checks of the socket.
const CHECK: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Health {
    check: Recent,
    response: Recent,
    is_serving: AtomicBool,
    /// Whether the pods are synced or not needed.
    has_pods: AtomicBool,
    needs_pods: bool,
}

impl Health {
    /// Returns the state of a process that has just started; the start counts as a check.
    pub(crate) fn new(needs_pods: bool) -> Self {
        Self {
            check: Recent::new("the proxy has not checked its socket", CHECK).confirmed(),
            response: Recent::new("the kubelet has not responded to the proxy", RESPONSE),
            is_serving: AtomicBool::new(false),
            has_pods: AtomicBool::new(!needs_pods),
            needs_pods,
        }
    }

    pub(crate) fn checked(&self, is_serving: bool, is_synced: bool) {
        self.check.confirm();
        self.is_serving.store(is_serving, Ordering::Relaxed);
        self.has_pods.store(is_synced || !self.needs_pods, Ordering::Relaxed);
    }

    pub(crate) fn kubelet_responded(&self) {
        self.response.confirm();
    }

    pub(crate) fn kubelet_age(&self) -> Option<Duration> {
        self.response.age()
    }
}

impl Probes for Health {
    fn live(&self) -> Vec<String> {
        self.check.reason().into_iter().collect()
    }

    fn ready(&self) -> Vec<String> {
        let serving = self.is_serving.load(Ordering::Relaxed);
        let served = unless(serving, "the proxy's socket is not served; see the log");
        let synced = unless(self.has_pods.load(Ordering::Relaxed), "the proxy has no list of pods yet");
        [served, self.response.reason(), synced].into_iter().flatten().collect()
    }

    fn started(&self) -> Vec<String> {
        let serving = self.is_serving.load(Ordering::Relaxed);
        unless(serving, "the proxy's socket is not served yet").into_iter().collect()
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
