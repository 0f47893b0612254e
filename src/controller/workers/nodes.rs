use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{CachedNode, DaemonSets, Workers};
use crate::cluster::{SlimNode, WatchEvent};
use crate::controller::coverage::{Coverage, is_covered};
use crate::util::backoff::jittered;

/// How often all Nodes are relisted: a watch does not report a deletion that it missed, for example because
/// etcd was restored.
const RELIST: Duration = Duration::from_secs(3600);

impl Workers<'_> {
    /// Watches all Nodes. Starts anew when the DaemonSets' coverage changes, and periodically.
    pub(super) async fn watch_nodes(&self) {
        let mut daemon_sets = self.daemon_sets.subscribe();
        loop {
            let current = daemon_sets.wait_for(|current| *current != DaemonSets::Unknown).await;
            let Ok(current) = current.map(|current| current.clone()) else { return };
            let coverage = coverage(&current);
            let coverage_changed = daemon_sets.wait_for(|now| self::coverage(now) != coverage);
            tokio::select! {
                () = self.watch_nodes_with(coverage) => {}
                _ = coverage_changed => {}
                () = sleep(jittered(RELIST)) => {}
            }
        }
    }

    async fn watch_nodes_with(&self, coverage: &[Coverage]) {
        let apply = |event: Option<WatchEvent<SlimNode>>| match event {
            Some(event) => self.apply_event(event, coverage, Instant::now()),
            None => self.state().nodes.failed(Instant::now()),
        };
        self.follow(self.cluster.nodes(), "the Nodes can be watched again", apply).await;
    }

    fn apply_event(&self, event: WatchEvent<SlimNode>, coverage: &[Coverage], now: Instant) {
        let is_complete = matches!(event, WatchEvent::InitDone);
        let reduced = event.map(|node| {
            let covered = is_covered(coverage, &node);
            (node.name.into_boxed_str(), CachedNode { uid: node.uid.into(), covered, ready: node.ready })
        });
        let mut state = self.state();
        let state = &mut *state;
        if let WatchEvent::Apply((name, _)) = &reduced {
            state.garbage.node_exists(name);
        }
        let deleted = state.nodes.apply(reduced);
        if is_complete {
            state.garbage.nodes_listed(|name| state.nodes.contains(name));
        }
        if is_complete || !deleted.is_empty() {
            deleted.into_iter().for_each(|name| state.garbage.node_deleted(name, now));
            self.nodes_changed.notify_waiters();
        }
    }
}

fn coverage(daemon_sets: &DaemonSets) -> &[Coverage] {
    match daemon_sets {
        DaemonSets::Present { coverage, .. } => coverage,
        DaemonSets::Missing | DaemonSets::Unknown => &[],
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
    async fn a_missed_deletion_is_noticed_within_the_hour() {
        let first = AtomicBool::new(true);
        let parts = Parts::new(fake::cluster(move |call| {
            let watch = call.contains("watch=");
            let nodes =
                if first.fetch_and(watch, Ordering::Relaxed) { vec!["a", "deleted"] } else { vec!["a"] };
            let items: Vec<_> = nodes.iter().map(|name| json!({"metadata": {"name": name}})).collect();
            async move {
                if watch {
                    std::future::pending::<()>().await;
                }
                (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
            }
        }));
        let workers = parts.workers();
        workers.daemon_sets.send_replace(DaemonSets::Missing);
        let mut watch = Box::pin(workers.watch_nodes());
        let _ = timeout(RELIST / 2, &mut watch).await;
        assert!(workers.state().nodes.contains("deleted"));
        let _ = timeout(RELIST, &mut watch).await;
        assert!(workers.state().nodes.contains("a") && !workers.state().nodes.contains("deleted"));
    }
}
