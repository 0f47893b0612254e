//! Publishes the newest state to the API server, or to a file.
//!
//! It runs in a task of its own: scans continue while the API server is slow or unavailable, and afterwards
//! only the newest state is written, never a queue of old ones. The task starts by reading the live object.

mod apply;
pub(super) mod competing_managers;
mod drift;
mod field_manager;
mod object;
mod other_writers;
mod ownership;
mod retry_timer;
mod task;
mod to_file;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::debug;

use crate::agent::live_object::LiveObject;
use crate::agent::metrics::Metrics;
use crate::agent::report::EventRecorder;
use crate::agent::settings::Settings;
use crate::cluster::Cluster;
use crate::scheduler::Publishable;
use crate::util::task::Task;

pub use competing_managers::ConflictPolicy;
pub use object::object;
pub use task::Published;

use task::PublishTask;
use to_file::FileTask;

/// How long the task may take at shutdown to end a write in flight and withhold the fingerprint.
const SHUTDOWN: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Publisher {
    newest: Option<watch::Sender<Option<Publishable>>>,
    pub(super) published: watch::Receiver<Published>,
    /// The live object before this agent's first write. It is known soon after the API server responds.
    pub(super) live_object: watch::Receiver<LiveObject>,
    task: Task,
}

impl Publisher {
    pub(super) fn start(
        settings: &Settings,
        cluster: Option<Cluster>,
        metrics: Arc<Metrics>,
        events: EventRecorder,
    ) -> Self {
        let (newest, receiver) = watch::channel(None);
        let (report, published) = watch::channel(Published::default());
        let (read, live_object) = watch::channel(LiveObject::Unknown);
        let task = match (&settings.file, cluster) {
            (Some(path), _) => {
                read.send_replace(LiveObject::Missing);
                Task::spawn(FileTask::new(settings, path.clone(), receiver, report, metrics).run())
            }
            (None, Some(cluster)) => {
                let task = PublishTask::new(settings, cluster, receiver, report, read, metrics, events);
                Task::spawn(task.run())
            }
            // There is nowhere to publish.
            (None, None) => Task::spawn(pending()),
        };
        Self { newest: Some(newest), published, live_object, task }
    }

    /// Publishes a state; an older one that is still waiting is dropped.
    pub(super) fn publish(&self, state: Publishable) {
        if let Some(newest) = &self.newest {
            newest.send_replace(Some(state));
        }
    }

    /// Stops the task, which ends a write in flight and then withholds the fingerprint.
    pub(super) async fn stop(mut self) {
        self.newest = None;
        if timeout(SHUTDOWN, &mut self.task).await.is_err() {
            debug!("the publish task did not end in time");
        }
    }
}

#[cfg(test)]
mod tests;
