use std::time::Duration;

use futures::{Stream, StreamExt, pin_mut};
use tokio::time::{Instant, sleep};

use super::{CachedAgent, DaemonSets, Workers};
use crate::cluster::{SlimPod, WatchEvent};
use crate::controller::coverage::coverage_and_labels;
use crate::controller::object_cache::ObjectCache;
use crate::util::backoff::jittered;
use crate::util::log_throttle::LogOnce;

/// How often the DaemonSets are read; they change on upgrades.
const POLL: Duration = Duration::from_secs(30);

impl Workers<'_> {
    pub(super) async fn poll_daemon_sets(&self) {
        let (namespace, names) = (&self.settings.namespace, &self.settings.daemon_sets);
        if names.is_empty() {
            self.daemon_sets.send_replace(DaemonSets::Missing);
            return;
        }
        let log = LogOnce::default();
        loop {
            match self.cluster.daemon_sets(namespace, names).await {
                Ok(found) => match coverage_and_labels(namespace, found) {
                    Ok((coverage, labels)) => {
                        log.recovered("the agents' DaemonSets can be used again");
                        self.set_daemon_sets(DaemonSets::Present { coverage, labels });
                    }
                    Err(reason) => {
                        log.warn(&format!("{reason}: agents are not checked"));
                        self.set_daemon_sets(DaemonSets::Missing);
                    }
                },
                Err(error) => {
                    self.metrics.request_failed(&error);
                    log.warn(&format!("the agents' DaemonSets cannot be read: {error}"));
                    // Keep the last known state.
                    if *self.daemon_sets.borrow() == DaemonSets::Unknown {
                        self.daemon_sets.send_replace(DaemonSets::Missing);
                    }
                }
            }
            sleep(jittered(POLL)).await;
        }
    }

    fn set_daemon_sets(&self, daemon_sets: DaemonSets) {
        self.metrics.daemon_set.set(Some(u64::from(matches!(daemon_sets, DaemonSets::Present { .. }))));
        self.daemon_sets.send_if_modified(|current| {
            let is_changed = *current != daemon_sets;
            *current = daemon_sets;
            is_changed
        });
    }

    pub(super) async fn watch_agents(&self) {
        let mut daemon_sets = self.daemon_sets.subscribe();
        loop {
            let labels = match &*daemon_sets.borrow_and_update() {
                DaemonSets::Present { labels, .. } => Some(labels.clone()),
                DaemonSets::Missing | DaemonSets::Unknown => None,
            };
            self.state().agents = ObjectCache::default();
            let watch = async {
                match &labels {
                    Some(labels) => self.watch_pods(labels).await,
                    None => std::future::pending().await,
                }
            };
            let labels_changed = daemon_sets.wait_for(|current| match current {
                DaemonSets::Present { labels: now, .. } => Some(now) != labels.as_ref(),
                DaemonSets::Missing | DaemonSets::Unknown => labels.is_some(),
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
