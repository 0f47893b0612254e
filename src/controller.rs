//! The controller keeps the cluster's NodeResourceTopology objects in order: it deletes those of removed
//! Nodes, reports silent agents, sums up the objects, and updates one as a nudge while pods are pending
//! because of the scheduler plugin.
//!
//! One replica is active, elected by a Lease. Decisions are made in pure modules (`garbage`, `coverage`,
//! `silence`, `fleet`, `nudge`); this module and `work` query the API server and carry them out.

mod check;
mod coverage;
mod election;
#[cfg(test)]
mod fake;
mod fleet;
mod followed;
mod garbage;
mod notices;
mod nudge;
mod purge;
mod said;
mod scheduler_pods;
mod settings;
mod silence;
mod work;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tracing::info;

use crate::cluster::Cluster;
use crate::telemetry::controller::{Bounds, Health, Metrics};

pub use check::{Report, check};
pub use coverage::Coverage;
pub use garbage::Rules;
pub use notices::Reason;
pub use nudge::{Nudger, Plan};
pub use purge::{PurgeError, Purged, purge};
pub use scheduler_pods::SchedulerPods;
pub use settings::{NoNamespace, Settings};

use election::Election;
use notices::Notices;
use work::Work;

/// Interval of the loop's heartbeat.
const BEAT: Duration = Duration::from_secs(1);

/// A controller that works while it leads, until shutdown.
#[derive(Debug)]
pub struct Controller {
    settings: Settings,
    cluster: Cluster,
    metrics: Arc<Metrics>,
}

impl Controller {
    /// Creates a controller for this cluster. [`Controller::run`] starts it.
    #[must_use]
    pub fn new(settings: Settings, cluster: Cluster) -> Self {
        let bounds = Bounds {
            lease: settings.lease.is_some(),
            garbage: settings.garbage.interval,
            fleet: settings.fleet_interval,
        };
        let metrics = Arc::new(Metrics::new(Arc::new(Health::new(bounds))));
        Self { cluster: cluster.in_form(settings.form), settings, metrics }
    }

    /// Returns the controller's metrics, including its health.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Runs until `shutdown` completes, then releases the Lease.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { settings, cluster, metrics } = self;
        let mut election = settings.lease.as_ref().map(|lease| {
            let (namespace, identity) = (settings.namespace.clone(), settings.identity.clone());
            Election::new(cluster.clone(), namespace, lease.clone(), identity)
        });
        let notices =
            Notices::new(cluster.clone(), settings.identity.clone(), settings.events, Arc::clone(&metrics));
        let worker = Work::new(&settings, &cluster, &metrics, &notices);
        let work = async {
            match &mut election {
                None => lead(&worker, &metrics).await,
                Some(election) => take_turns(election, &worker, &metrics).await,
            }
        };
        // All in one task: nothing outlives this function.
        tokio::select! {
            () = shutdown => {}
            () = work => {}
            () = beat(&metrics) => {}
        }
        metrics.leads(false);
        if let Some(mut election) = election {
            election.give_up().await;
        }
    }
}

async fn beat(metrics: &Metrics) {
    let mut ticks = interval(BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        metrics.health().beat();
    }
}

async fn take_turns(election: &mut Election, worker: &Work<'_>, metrics: &Metrics) {
    loop {
        let since = election.win(metrics).await;
        info!("this controller leads");
        tokio::select! {
            () = election.keep(since, metrics) => {}
            () = lead(worker, metrics) => {}
        }
        metrics.leads(false);
    }
}

async fn lead(worker: &Work<'_>, metrics: &Metrics) {
    metrics.leads(true);
    worker.run().await;
}
