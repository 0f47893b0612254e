//! The Nodes, reduced as they come.

use futures::{StreamExt, pin_mut};
use tokio::time::Instant;

use super::{Agents, KnownNode, Work};
use crate::cluster::{Seen, SlimNode};
use crate::controller::coverage::Coverage;
use crate::controller::followed::Change;
use crate::controller::said::Said;

impl Work<'_> {
    /// Follows all Nodes; from the beginning when the DaemonSet covers others.
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
