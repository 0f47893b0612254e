//! Watches the Nodes, reduced to what is needed.

use std::time::Duration;

use futures::{StreamExt, pin_mut};
use tokio::time::{Instant, sleep};

use super::{Agents, KnownNode, Work};
use crate::backoff::jittered;
use crate::cluster::{Seen, SlimNode};
use crate::controller::coverage::Coverage;
use crate::controller::followed::Change;
use crate::controller::said::Said;

/// How often all Nodes are relisted: a watch does not report a deletion that it missed, for example because
/// etcd was restored.
const ANEW: Duration = Duration::from_secs(3600);

impl Work<'_> {
    /// Follows all Nodes. Starts anew when the DaemonSet's coverage changes, and periodically.
    pub(super) async fn follow_nodes(&self) {
        let mut daemon_set = self.daemon_set.subscribe();
        loop {
            let agents = daemon_set.wait_for(|agents| *agents != Agents::Unread).await;
            let Ok(agents) = agents.map(|agents| agents.clone()) else { return };
            let coverage = coverage(&agents);
            let other = daemon_set.wait_for(|now| self::coverage(now) != coverage);
            tokio::select! {
                () = self.follow_covered(coverage) => {}
                _ = other => {}
                () = sleep(jittered(ANEW)) => {}
            }
        }
    }

    async fn follow_covered(&self, coverage: Option<&Coverage>) {
        let events = self.cluster.nodes();
        pin_mut!(events);
        let mut said = Said::default();
        while let Some(event) = events.next().await {
            let now = Instant::now();
            match event {
                Ok(seen) => {
                    if seen.is_proof() {
                        said.well("the Nodes can be watched again");
                    }
                    self.saw(seen, coverage, now);
                }
                Err(sentence) => {
                    self.metrics.watch_failed();
                    said.trouble(&sentence);
                    self.known().nodes.failed(now);
                }
            }
        }
    }

    fn saw(&self, seen: Seen<SlimNode>, coverage: Option<&Coverage>, now: Instant) {
        let complete = matches!(seen, Seen::Complete);
        let reduced = seen.map(|node| {
            let covered = coverage.is_some_and(|coverage| coverage.covers(&node));
            (node.name.into(), KnownNode { uid: node.uid.into(), covered, ready: node.ready })
        });
        let mut known = self.known();
        let known = &mut *known;
        let change = known.nodes.take(reduced);
        if complete {
            known.garbage.nodes_are(|name| known.nodes.knows(name));
        }
        match change {
            Change::None => {}
            Change::Came(name) => known.garbage.node_came(&name),
            Change::Gone(names) => {
                let changed = complete || !names.is_empty();
                names.into_iter().for_each(|name| known.garbage.node_went(name, now));
                if changed {
                    self.nodes_changed.notify_waiters();
                }
            }
        }
    }
}

fn coverage(agents: &Agents) -> Option<&Coverage> {
    match agents {
        Agents::Some { coverage, .. } => Some(coverage),
        Agents::None | Agents::Unread => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;
    use tokio::time::timeout;

    use super::*;
    use crate::controller::fake::{self, Parts};

    #[tokio::test(start_paused = true)]
    async fn a_node_whose_deletion_nobody_told_of_is_missed_within_the_hour() {
        let first = AtomicBool::new(true);
        let parts = Parts::new(fake::cluster(move |call| {
            let watch = call.contains("watch=");
            let nodes =
                if first.fetch_and(watch, Ordering::Relaxed) { vec!["a", "ghost"] } else { vec!["a"] };
            let items: Vec<_> = nodes.iter().map(|name| json!({"metadata": {"name": name}})).collect();
            async move {
                if watch {
                    std::future::pending::<()>().await;
                }
                (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
            }
        }));
        let work = parts.work();
        work.daemon_set.send_replace(Agents::None);
        let mut follow = Box::pin(work.follow_nodes());
        let _ = timeout(ANEW / 2, &mut follow).await;
        assert!(work.known().nodes.knows("ghost"));
        let _ = timeout(ANEW, &mut follow).await;
        assert!(work.known().nodes.knows("a") && !work.known().nodes.knows("ghost"));
    }
}
