use std::time::Duration;

use futures::{Stream, StreamExt, pin_mut};
use tokio::time::{Instant, sleep};

use super::{CachedAgent, DaemonSet, Workers};
use crate::cluster::{SlimPod, WatchEvent};
use crate::controller::coverage::coverage_and_labels;
use crate::controller::object_cache::ObjectCache;
use crate::util::backoff::jittered;
use crate::util::log_throttle::LogOnce;

/// How often the DaemonSet is read; it changes on upgrades.
const POLL: Duration = Duration::from_secs(30);

impl Workers<'_> {
    pub(super) async fn poll_daemon_set(&self) {
        let Some(name) = &self.settings.daemon_set else {
            self.daemon_set.send_replace(DaemonSet::Missing);
            return;
        };
        let namespace = &self.settings.namespace;
        let log = LogOnce::default();
        loop {
            match self.cluster.daemon_set(namespace, name).await {
                Ok(found) => match coverage_and_labels(found.as_ref(), &format!("{namespace}/{name}")) {
                    Ok((coverage, labels)) => {
                        log.recovered("the agents' DaemonSet can be used again");
                        self.set_daemon_set(DaemonSet::Present { coverage, labels });
                    }
                    Err(reason) => {
                        log.warn(&format!("{reason}: agents are not checked"));
                        self.set_daemon_set(DaemonSet::Missing);
                    }
                },
                Err(error) => {
                    self.metrics.request_failed(&error);
                    log.warn(&format!("the agents' DaemonSet cannot be read: {error}"));
                    // Keep the last known state.
                    if *self.daemon_set.borrow() == DaemonSet::Unknown {
                        self.daemon_set.send_replace(DaemonSet::Missing);
                    }
                }
            }
            sleep(jittered(POLL)).await;
        }
    }

    fn set_daemon_set(&self, daemon_set: DaemonSet) {
        self.metrics.daemon_set.set(Some(u64::from(matches!(daemon_set, DaemonSet::Present { .. }))));
        self.daemon_set.send_if_modified(|current| {
            let is_changed = *current != daemon_set;
            *current = daemon_set;
            is_changed
        });
    }

    pub(super) async fn watch_agents(&self) {
        let mut daemon_set = self.daemon_set.subscribe();
        loop {
            let labels = match &*daemon_set.borrow_and_update() {
                DaemonSet::Present { labels, .. } => Some(labels.clone()),
                DaemonSet::Missing | DaemonSet::Unknown => None,
            };
            self.state().agents = ObjectCache::default();
            let watch = async {
                match &labels {
                    Some(labels) => self.watch_pods(labels).await,
                    None => std::future::pending().await,
                }
            };
            let labels_changed = daemon_set.wait_for(|current| match current {
                DaemonSet::Present { labels: now, .. } => Some(now) != labels.as_ref(),
                DaemonSet::Missing | DaemonSet::Unknown => labels.is_some(),
            });
            tokio::select! {
                () = watch => {}
                _ = labels_changed => {}
            }
        }
    }

    async fn watch_pods(&self, labels: &str) {
        let reduced =
            |pod: SlimPod| (pod.name.into(), CachedAgent { node: pod.node.into(), ready: pod.ready });
        let apply = |event: Option<WatchEvent<SlimPod>>| match event {
            Some(event) => drop(self.state().agents.apply(event.map(reduced))),
            None => self.state().agents.failed(Instant::now()),
        };
        let events = self.cluster.agents(&self.settings.namespace, labels);
        self.follow(events, "the agents' pods can be watched again", apply).await;
    }

    /// Passes the events of a watch to `apply`, and `None` for each failure, which is logged.
    pub(super) async fn follow<T>(
        &self,
        events: impl Stream<Item = Result<WatchEvent<T>, String>>,
        recovered: &str,
        apply: impl Fn(Option<WatchEvent<T>>),
    ) {
        pin_mut!(events);
        let log = LogOnce::default();
        while let Some(event) = events.next().await {
            match &event {
                Ok(event) if event.confirms_health() => log.recovered(recovered),
                Ok(_) => {}
                Err(error) => {
                    self.metrics.errors.with(["request", "watch"]).inc();
                    log.warn(error);
                }
            }
            apply(event.ok());
        }
    }
}
