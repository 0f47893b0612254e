//! Health of the proxy.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::health::{late, verdict};
use crate::telemetry::server::Probes;

/// Maximum age of the kubelet's last response. It is called at least this often; see `crate::proxy`.
const ASKED: Duration = Duration::from_secs(30);
/// Maximum interval between iterations of the proxy's supervising task.
const TURNS: Duration = Duration::from_secs(120);

/// Times and results of the last reports.
#[derive(Debug)]
struct Moments {
    beat: Instant,
    kubelet: Option<Instant>,
    served: bool,
    told: bool,
}

/// Updated by the tasks, read by the probes.
#[derive(Debug)]
pub struct Health {
    /// Whether the proxy needs a pod source.
    needs_pods: bool,
    moments: Mutex<Moments>,
}

impl Health {
    /// Returns the state of a process that has just started; the start counts as an iteration.
    #[must_use]
    pub fn new(needs_pods: bool) -> Self {
        let moments = Moments { beat: Instant::now(), kubelet: None, served: false, told: false };
        Self { needs_pods, moments: Mutex::new(moments) }
    }

    fn moments(&self) -> MutexGuard<'_, Moments> {
        self.moments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an iteration of the supervising task. `served`: the socket is served. `told`: the pods are
    /// synced.
    pub fn beat(&self, served: bool, told: bool) {
        let mut moments = self.moments();
        (moments.beat, moments.served, moments.told) = (Instant::now(), served, told);
    }

    /// Records a response of the kubelet.
    pub fn kubelet_answered(&self) {
        self.moments().kubelet = Some(Instant::now());
    }

    /// Returns the time since the kubelet's last response.
    #[must_use]
    pub fn kubelet_age(&self) -> Option<Duration> {
        self.moments().kubelet.map(|moment| moment.elapsed())
    }
}

impl Probes for Health {
    fn live(&self) -> Result<(), Vec<String>> {
        let quiet = self.moments().beat.elapsed();
        verdict(late("the proxy has not looked after its socket", quiet, TURNS).into_iter().collect())
    }

    /// Fails unless the socket is served, the kubelet responds, and the pods were synced (if needed).
    fn ready(&self) -> Result<(), Vec<String>> {
        let moments = self.moments();
        let mut reasons = Vec::new();
        if !moments.served {
            reasons.push("the proxy's socket is not served; the log says why".to_owned());
        }
        match moments.kubelet {
            Some(moment) => {
                reasons.extend(late("the kubelet has not answered the proxy", moment.elapsed(), ASKED));
            }
            None => reasons.push("the kubelet has not answered the proxy yet".to_owned()),
        }
        if self.needs_pods && !moments.told {
            reasons.push("nobody has told the proxy about pods yet".to_owned());
        }
        verdict(reasons)
    }

    fn started(&self) -> Result<(), Vec<String>> {
        match self.moments().served {
            true => Ok(()),
            false => Err(vec!["the proxy's socket is not served yet".to_owned()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_when_it_serves_the_kubelet_answers_and_pods_are_known() {
        let health = Health::new(true);
        let reasons = health.ready().unwrap_err();
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        assert!(health.started().is_err() && health.live().is_ok());
        health.beat(true, false);
        health.kubelet_answered();
        assert_eq!(health.ready().unwrap_err(), ["nobody has told the proxy about pods yet"]);
        health.beat(true, true);
        assert_eq!((health.ready(), health.started()), (Ok(()), Ok(())));
        advance(ASKED + Duration::from_secs(1)).await;
        let reasons = health.ready().unwrap_err();
        assert!(reasons[0].contains("has not answered the proxy for 31 s"), "{reasons:?}");
        advance(TURNS).await;
        assert!(health.live().is_err());
        let health = Health::new(false);
        health.beat(true, false);
        health.kubelet_answered();
        assert_eq!(health.ready(), Ok(()), "nothing is merged");
    }
}
