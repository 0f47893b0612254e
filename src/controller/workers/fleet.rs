use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tracing::{debug, info};

use super::Workers;
use crate::controller::events::Reason;
use crate::controller::fleet::{Fleet, NEWER, NO_SCHEDULER};
use crate::controller::names::first_names;
use crate::controller::node_problems::Problem;
use crate::controller::scheduler_pods::SchedulerPods;
use crate::util::backoff::jittered;
use crate::util::log_throttle::LogOnce;

/// How long the first pass waits for the Nodes.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval is at least this many times the duration of a pass.
const MIN_INTERVAL_PER_PASS: u32 = 10;

impl Workers<'_> {
    /// Aggregates all objects at each interval, which grows if a pass takes long.
    pub(super) async fn aggregate_fleet(&self) {
        let (requests, invalid) = (LogOnce::default(), LogOnce::default());
        let (scheduler, newer, evictions) = (LogOnce::default(), LogOnce::default(), LogOnce::default());
        self.wait_for_nodes(FIRST_LIST_TIMEOUT).await;
        loop {
            let started = Instant::now();
            let pods = self.scheduler_pods(&scheduler).await;
            let mut fleet =
                Fleet::new(pods.iter().map(|(_, started)| *started).min()).with_shapes(&self.settings.shapes);
            let read = self.cluster.topology_summaries().for_each(|summary| fleet.add(summary)).await;
            let next = self.settings.fleet_interval.max(started.elapsed() * MIN_INTERVAL_PER_PASS);
            match read {
                Ok(()) => {
                    debug!("{} objects were aggregated in {:?}", fleet.names.len(), started.elapsed());
                    requests.recovered("all objects can be listed for the fleet metrics again");
                    match &fleet.invalid {
                        Some((name, error)) => {
                            invalid.warn(&format!("missing in the totals, of object {name}: {error}"));
                        }
                        None => invalid.recovered("all quantities of the objects are valid again"),
                    }
                    match &fleet.newer[..] {
                        [] => newer.recovered("no object is newer than the scheduler any longer"),
                        _ if self.settings.restarts_scheduler() => {
                            self.restart_scheduler(&fleet, &pods, &evictions).await;
                        }
                        names => newer.warn(&format!("{} {NEWER}: {}", names.len(), first_names(names))),
                    }
                    self.report_fleet(&fleet).await;
                    self.metrics.fleet_pass(next);
                }
                Err(error) => {
                    self.metrics.request_failed(&error);
                    requests.warn(&format!("cannot list all objects for the fleet metrics: {error}"));
                }
            }
            sleep(jittered(next)).await;
        }
    }

    /// Returns the scheduler's pods and when they started; none if they are not configured or unknown now.
    async fn scheduler_pods(&self, log: &LogOnce) -> Vec<(String, Timestamp)> {
        let Some(SchedulerPods { namespace, labels }) = &self.settings.scheduler else { return Vec::new() };
        match self.cluster.running_pods(namespace, labels).await {
            Ok(pods) if pods.is_empty() => log.warn(&format!("{NO_SCHEDULER} {namespace}/{labels}")),
            Ok(pods) => {
                log.recovered("the scheduler's pods are known again");
                return pods;
            }
            Err(error) => {
                self.metrics.request_failed(&error);
                log.warn(&format!("cannot detect objects that are newer than the scheduler: {error}"));
            }
        }
        Vec::new()
    }

    /// Evicts the scheduler's pods that started before the newest object was created. Their
    /// PodDisruptionBudget decides how many at once; the next pass evicts the others.
    async fn restart_scheduler(&self, fleet: &Fleet, pods: &[(String, Timestamp)], log: &LogOnce) {
        let Some(SchedulerPods { namespace, .. }) = &self.settings.scheduler else { return };
        for (pod, _) in pods.iter().filter(|(_, started)| Some(*started) < fleet.newest) {
            match self.cluster.evict(namespace, pod).await {
                Ok(true) => info!(
                    "evicted the scheduler's pod {namespace}/{pod}: it does not know {} objects: {}",
                    fleet.newer.len(),
                    first_names(&fleet.newer)
                ),
                Ok(false) => info!(
                    "the scheduler's pod {namespace}/{pod} was not evicted: its PodDisruptionBudget does not allow it now, \
                     or it is gone"
                ),
                Err(error) => {
                    self.metrics.request_failed(&error);
                    return log.warn(&format!("{} {NEWER}: {error}", fleet.newer.len()));
                }
            }
        }
        log.recovered("the scheduler's pods can be evicted again");
    }

    async fn report_fleet(&self, fleet: &Fleet) {
        let now = Instant::now();
        let healthy = self.state().covered_nodes(now).map(|covered| covered.healthy);
        let missing: Option<Vec<Box<str>>> =
            healthy.map(|healthy| healthy.into_iter().filter(|name| !fleet.names.contains(name)).collect());
        self.metrics.fleet(fleet, missing.as_ref().map(Vec::len));
        let Some(missing) = missing else { return };
        let unreported = {
            let mut state = self.state();
            state.missing.set(missing.iter().map(|name| &**name), now);
            state.missing.unreported(now)
        };
        for name in unreported {
            if !self.post(Reason::ObjectMissing, &name, &Problem::NoObject).await {
                break;
            }
            self.state().missing.reported(&name, Instant::now());
        }
    }
}
