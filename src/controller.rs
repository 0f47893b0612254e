//! The controller keeps the cluster's NodeResourceTopology objects in order: it deletes those of removed
//! Nodes, reports Nodes without a Ready agent, aggregates the objects, and updates ("nudges") one while pods
//! are pending because of the scheduler plugin.
//!
//! One replica is active, elected by a Lease. Decisions are made in pure modules (`garbage_collection`,
//! `coverage`, `node_problems`, `fleet`, `nudge`); `workers` query the API server and carry them out.

pub(crate) mod health;
pub(crate) mod metrics;

mod coverage;
mod events;
#[cfg(test)]
mod fake;
mod fleet;
mod garbage_collection;
mod leader_election;
mod names;
mod node_problems;
mod nudge;
mod object_cache;
mod object_wait;
mod purge;
mod scheduler_pods;
mod settings;
mod workers;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tracing::info;

use crate::cluster::Cluster;
use crate::telemetry::health::Probes;
use crate::telemetry::registry::Registry;

pub use coverage::Coverage;
pub use garbage_collection::Rules;
pub use nudge::{NudgePlan, Nudger};
pub use object_wait::{ObjectWait, wait_for_objects};
pub use purge::{PurgeError, Purged, purge};
pub use scheduler_pods::SchedulerPods;
pub use settings::{NoNamespace, Settings};

use events::EventRecorder;
use health::Health;
use leader_election::LeaderElection;
use metrics::Metrics;
use workers::Workers;

/// A controller that works while it leads, until shutdown.
#[derive(Debug)]
pub struct Controller {
    settings: Settings,
    cluster: Cluster,
    metrics: Arc<Metrics>,
}

impl Controller {
    /// Creates a controller for this cluster. [`Controller::run`] starts it.
    pub fn new(settings: Settings, cluster: Cluster, registry: &mut Registry) -> Self {
        let has_lease = settings.lease.is_some();
        let health = Health::new(has_lease, settings.garbage.interval, settings.fleet_interval);
        let metrics = Arc::new(Metrics::register(registry, Arc::new(health)));
        Self { cluster: cluster.in_form(settings.form), settings, metrics }
    }

    /// Returns the controller's health, to be served.
    pub fn health(&self) -> Arc<dyn Probes> {
        self.metrics.health.clone()
    }

    /// Runs until `shutdown` completes, then releases the Lease.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { settings, cluster, metrics } = self;
        let mut election = settings.lease.as_ref().map(|lease| {
            let (namespace, identity) = (settings.namespace.clone(), settings.identity.clone());
            LeaderElection::new(cluster.clone(), namespace, lease.clone(), identity)
        });
        let (identity, events) = (settings.identity.clone(), settings.events);
        let events = EventRecorder::new(cluster.clone(), identity, events, Arc::clone(&metrics));
        let workers = Workers::new(&settings, &cluster, &metrics, &events);
        let work = async {
            let Some(election) = &mut election else { return lead(&workers, &metrics).await };
            loop {
                let since = election.acquire(&metrics).await;
                info!("became the leader");
                tokio::select! {
                    () = election.renew(since, &metrics) => {}
                    () = lead(&workers, &metrics) => {}
                }
                metrics.leads(false);
            }
        };
        // All in one task: nothing outlives this function.
        tokio::select! {
            () = shutdown => {}
            () = work => {}
            () = heartbeat(&metrics) => {}
        }
        metrics.leads(false);
        if let Some(mut election) = election {
            election.release().await;
        }
    }
}

async fn heartbeat(metrics: &Metrics) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        metrics.health.iteration.confirm();
    }
}

async fn lead(workers: &Workers<'_>, metrics: &Metrics) {
    metrics.leads(true);
    workers.run().await;
}
