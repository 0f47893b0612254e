//! Sums up all objects.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::Work;
use crate::cluster::ClusterError;
use crate::controller::SchedulerPods;
use crate::controller::fleet::{Fleet, NEWER, NO_SCHEDULER};
use crate::controller::notices::Reason;
use crate::controller::said::{Said, first_of};
use crate::controller::silence::Lack;
use crate::util::backoff::jittered;

/// How long the first pass waits for the Nodes.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval is at least this many times the duration of a pass.
const SHARE: u32 = 10;

impl Work<'_> {
    /// Sums up at each interval, which grows if a pass takes long.
    pub(super) async fn sum_up(&self) {
        let (mut said, mut unread) = (Said::default(), Said::default());
        let (mut scheduler, mut newer) = (Said::default(), Said::default());
        self.wait_for_nodes(PATIENCE).await;
        loop {
            let started = Instant::now();
            let scheduler_started = self.scheduler_started(&mut scheduler).await;
            let fleet = self.fleet(scheduler_started).await;
            let next = self.settings.fleet_interval.max(started.elapsed() * SHARE);
            match fleet {
                Ok(fleet) => {
                    debug!("{} objects were added up in {:?}", fleet.objects(), started.elapsed());
                    said.well("the objects can be added up again");
                    match &fleet.unread {
                        Some((name, what)) => {
                            unread.trouble(&format!("left out of the sums, of object {name}: {what}"))
                        }
                        None => unread.well("all quantities of the objects can be read again"),
                    }
                    match &fleet.newer[..] {
                        [] => newer.well("no object is newer than the scheduler any longer"),
                        names => newer.trouble(&format!("{} {NEWER}: {}", names.len(), first_of(names))),
                    }
                    self.show(&fleet).await;
                    self.metrics.summed_up(next);
                }
                Err(error) => {
                    self.metrics.call_failed(&error);
                    said.trouble(&format!("the objects cannot be added up: {error}"));
                }
            }
            sleep(jittered(next)).await;
        }
    }

    /// Returns when the scheduler started; `None` if it is not configured or unknown now.
    async fn scheduler_started(&self, said: &mut Said) -> Option<Timestamp> {
        let SchedulerPods { namespace, labels } = self.settings.scheduler.as_ref()?;
        match self.cluster.scheduler_started(namespace, labels).await {
            Ok(Some(started)) => {
                said.well("the scheduler's pods are known again");
                return Some(started);
            }
            Ok(None) => said.trouble(&format!("{NO_SCHEDULER} {namespace}/{labels}")),
            Err(error) => {
                self.metrics.call_failed(&error);
                said.trouble(&format!("nobody knows which objects are newer than the scheduler: {error}"));
            }
        }
        None
    }

    async fn fleet(&self, scheduler_started: Option<Timestamp>) -> Result<Fleet, ClusterError> {
        let mut fleet = Fleet::new(scheduler_started);
        let mut pages = self.cluster.briefs();
        while let Some(briefs) = pages.next().await? {
            briefs.into_iter().for_each(|brief| fleet.add(brief));
        }
        Ok(fleet)
    }

    async fn show(&self, fleet: &Fleet) {
        let now = Instant::now();
        let well = self.known().picture(now).map(|picture| picture.well);
        let missing: Option<Vec<Box<str>>> =
            well.map(|well| well.into_iter().filter(|name| !fleet.has(name)).collect());
        self.metrics.figures(|figures| {
            figures.nodes.clone_from(&fleet.nodes);
            figures.resources.clone_from(&fleet.resources);
            figures.objects = u64::try_from(fleet.objects()).ok();
            figures.foreign = Some(fleet.foreign);
            figures.newer = fleet.newer_than_scheduler();
            figures.missing = missing.as_ref().and_then(|names| u64::try_from(names.len()).ok());
        });
        let Some(missing) = missing else { return };
        let untold = {
            let mut known = self.known();
            known.missing.observe(missing.iter().map(|name| &**name), now);
            known.missing.untold(now)
        };
        for name in untold {
            if !self.tell_of(Reason::ObjectMissing, &name, &Lack::Object).await {
                break;
            }
            self.known().missing.told(&name, Instant::now());
        }
    }
}
