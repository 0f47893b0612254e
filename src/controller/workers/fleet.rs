use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tracing::debug;

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
        let (scheduler, newer) = (LogOnce::default(), LogOnce::default());
        self.wait_for_nodes(FIRST_LIST_TIMEOUT).await;
        loop {
            let started = Instant::now();
            let scheduler_started = self.scheduler_started(&scheduler).await;
            let mut fleet = Fleet::new(scheduler_started);
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

    /// Returns when the scheduler started; `None` if it is not configured or unknown now.
    async fn scheduler_started(&self, log: &LogOnce) -> Option<Timestamp> {
        let SchedulerPods { namespace, labels } = self.settings.scheduler.as_ref()?;
        match self.cluster.scheduler_started(namespace, labels).await {
            Ok(Some(started)) => {
                log.recovered("the scheduler's pods are known again");
                return Some(started);
            }
            Ok(None) => log.warn(&format!("{NO_SCHEDULER} {namespace}/{labels}")),
            Err(error) => {
                self.metrics.request_failed(&error);
                log.warn(&format!("cannot detect objects that are newer than the scheduler: {error}"));
            }
        }
        None
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
