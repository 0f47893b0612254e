//! The agents' DaemonSet and its pods.

use std::time::Duration;

use futures::{StreamExt, pin_mut};
use tokio::time::{Instant, sleep};

use super::{Agents, KnownAgent, Work};
use crate::backoff::jittered;
use crate::cluster::{AgentPod, Seen, pod_labels};
use crate::controller::coverage::Coverage;
use crate::controller::followed::Followed;
use crate::controller::said::Said;

/// How often the DaemonSet is read; it changes on upgrades.
const EVERY: Duration = Duration::from_secs(30);

impl Work<'_> {
    /// Reads the DaemonSet periodically.
    pub(super) async fn read_daemon_set(&self) {
        let Some(name) = &self.settings.daemon_set else {
            self.daemon_set.send_replace(Agents::None);
            return;
        };
        let namespace = &self.settings.namespace;
        let mut said = Said::default();
        loop {
            match self.cluster.daemon_set(namespace, name).await {
                Ok(Some(found)) => {
                    let agents = match (Coverage::of(&found), pod_labels(&found)) {
                        (Some(coverage), Some(labels)) => Agents::Some { coverage, labels },
                        _ => Agents::None,
                    };
                    said.well("the agents' DaemonSet can be read again");
                    self.tell(agents);
                }
                Ok(None) => {
                    said.trouble(&format!(
                        "there is no DaemonSet {namespace}/{name}: nobody looks for silent agents until there is"
                    ));
                    self.tell(Agents::None);
                }
                Err(error) => {
                    self.metrics.call_failed(&error);
                    said.trouble(&format!("the agents' DaemonSet cannot be read: {error}"));
                    // Keep the last known state.
                    self.daemon_set.send_if_modified(|agents| {
                        let unread = *agents == Agents::Unread;
                        if unread {
                            *agents = Agents::None;
                        }
                        unread
                    });
                }
            }
            sleep(jittered(EVERY)).await;
        }
    }

    fn tell(&self, now: Agents) {
        let there = matches!(now, Agents::Some { .. });
        self.metrics.figures(|figures| figures.daemon_set = Some(there));
        self.daemon_set.send_if_modified(|agents| {
            let changed = *agents != now;
            *agents = now;
            changed
        });
    }

    /// Follows the pods that the DaemonSet selects.
    pub(super) async fn follow_agents(&self) {
        let mut daemon_set = self.daemon_set.subscribe();
        loop {
            let labels = match &*daemon_set.borrow_and_update() {
                Agents::Some { labels, .. } => Some(labels.clone()),
                Agents::None | Agents::Unread => None,
            };
            self.known().agents = Followed::default();
            let follow = async {
                match &labels {
                    Some(labels) => self.follow_pods(labels).await,
                    None => std::future::pending().await,
                }
            };
            let other_labels = daemon_set.wait_for(|agents| match agents {
                Agents::Some { labels: now, .. } => Some(now) != labels.as_ref(),
                Agents::None | Agents::Unread => labels.is_some(),
            });
            tokio::select! {
                () = follow => {}
                _ = other_labels => {}
            }
        }
    }

    async fn follow_pods(&self, labels: &str) {
        let events = self.cluster.agents(&self.settings.namespace, labels);
        pin_mut!(events);
        let mut said = Said::default();
        while let Some(event) = events.next().await {
            match event {
                Ok(seen) => {
                    if seen.is_proof() {
                        said.well("the agents' pods can be watched again");
                    }
                    self.known().agents.take(reduced(seen));
                }
                Err(sentence) => {
                    self.metrics.watch_failed();
                    said.trouble(&sentence);
                    self.known().agents.failed(Instant::now());
                }
            }
        }
    }
}

fn reduced(seen: Seen<AgentPod>) -> Seen<(Box<str>, KnownAgent)> {
    seen.map(|pod| (pod.name.into(), KnownAgent { node: pod.node.into(), ready: pod.ready }))
}
