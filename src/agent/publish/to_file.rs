//! Writes the object to a file: for a kubelet without an API server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::object::object;
use super::task::Published;
use crate::agent::metrics::{Metrics, WriteReason};
use crate::agent::report::replace;
use crate::agent::settings::Settings;
use crate::nrt::{Form, NodeResourceTopology};
use crate::scheduler::Publishable;
use crate::util::backoff::{back_off, jittered};

const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(60);

pub(super) struct FileTask {
    path: PathBuf,
    node: String,
    form: Form,
    newest: watch::Receiver<Option<Publishable>>,
    published: watch::Sender<Published>,
    metrics: Arc<Metrics>,
    /// How often the file is written again: it may have been removed.
    refresh: Duration,
    reason: WriteReason,
    failures: u32,
}

impl FileTask {
    pub(super) fn new(
        settings: &Settings,
        path: PathBuf,
        newest: watch::Receiver<Option<Publishable>>,
        published: watch::Sender<Published>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            path,
            node: settings.node.clone(),
            form: settings.form,
            newest,
            published,
            metrics,
            refresh: settings.refresh,
            reason: WriteReason::First,
            failures: 0,
        }
    }

    /// Runs until the agent drops the sender of the newest state.
    pub(super) async fn run(mut self) {
        let mut due = None;
        loop {
            tokio::select! {
                changed = self.newest.changed() => if changed.is_err() { return },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            let newest = self.newest.borrow_and_update().clone();
            if let Some(newest) = newest {
                due = Some(Instant::now() + self.write(&newest).await);
            }
        }
    }

    /// Writes this state, and returns when to write it again.
    async fn write(&mut self, state: &Publishable) -> Duration {
        let begin = Instant::now();
        let written = match yaml(object(&self.node, None, state), self.form) {
            Ok(text) => replace(&self.path, &text).await.map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {
                self.metrics.wrote(self.reason, begin.elapsed());
                debug!("wrote {}", self.path.display());
                if self.failures > 0 {
                    info!("{} is written again", self.path.display());
                }
                (self.reason, self.failures) = (WriteReason::Change, 0);
                self.published.send_modify(|published| {
                    (published.writes, published.error) = (published.writes + 1, None);
                });
                jittered(self.refresh)
            }
            Err(error) => {
                self.fail(&error);
                back_off(&mut self.failures, RETRY, RETRY_LIMIT)
            }
        }
    }

    fn fail(&self, error: &str) {
        self.metrics.publish_errors.with(["file"]).inc();
        let message = format!("cannot write {}: {error}", self.path.display());
        if self.failures == 0 {
            warn!("{message}");
        }
        self.published.send_modify(|published| published.error = Some(message));
    }
}

/// Returns the object in this form, as YAML.
fn yaml(object: NodeResourceTopology, form: Form) -> Result<String, String> {
    let printed = form.printed(object).map_err(|error| error.to_string())?;
    serde_saphyr::to_string(&printed).map_err(|error| error.to_string())
}
