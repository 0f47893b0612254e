//! Health of the Pods API server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::telemetry::health::{Probes, Recent, unless};

/// Maximum interval between checks of the socket; see `crate::pods_api`.
const CHECK: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Health {
    check: Recent,
    is_serving: AtomicBool,
    is_synced: AtomicBool,
}

impl Default for Health {
    fn default() -> Self {
        let check = Recent::new("the Pods API has not checked its socket", CHECK).confirmed();
        Self { check, is_serving: AtomicBool::default(), is_synced: AtomicBool::default() }
    }
}

impl Health {
    pub(crate) fn checked(&self, is_serving: bool, is_synced: bool) {
        self.check.confirm();
        self.is_serving.store(is_serving, Ordering::Relaxed);
        self.is_synced.store(is_synced, Ordering::Relaxed);
    }

    pub(crate) fn synced(&self) {
        self.is_synced.store(true, Ordering::Relaxed);
    }
}

impl Probes for Health {
    fn live(&self) -> Vec<String> {
        self.check.reason().into_iter().collect()
    }

    fn ready(&self) -> Vec<String> {
        let serving = self.is_serving.load(Ordering::Relaxed);
        let served = unless(serving, "the socket of the Pods API is not served; see the log");
        let synced = self.is_synced.load(Ordering::Relaxed);
        served.into_iter().chain(unless(synced, "the Pods API has no list of pods yet")).collect()
    }

    fn started(&self) -> Vec<String> {
        let serving = self.is_serving.load(Ordering::Relaxed);
        unless(serving, "the socket of the Pods API is not served yet").into_iter().collect()
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
