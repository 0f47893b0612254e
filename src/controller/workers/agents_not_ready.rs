use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{State, Workers};
use crate::cluster::Regarding;
use crate::controller::events::Reason;
use crate::controller::names::first_names;
use crate::controller::node_problems::{CoveredNodes, Problem};

/// Limits of the check interval, which is a tenth of `not_ready_after`.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(5);

impl State {
    /// Returns the covered Nodes; `None` if Nodes or agents are unknown or stale.
    pub(super) fn covered_nodes(&self, now: Instant) -> Option<CoveredNodes> {
        let (nodes, agents) = (self.nodes.trusted(now)?, self.agents.trusted(now)?);
        let covered = nodes.iter().filter(|(_, node)| node.covered);
        Some(CoveredNodes::new(
            covered.map(|(name, node)| (&**name, node.ready)),
            agents.iter().map(|(name, agent)| (&*agent.node, &**name, agent.ready)),
        ))
    }
}

impl Workers<'_> {
    pub(super) async fn report_agents_not_ready(&self) {
        let interval = (self.settings.not_ready_after / 10).clamp(MIN_INTERVAL, MAX_INTERVAL);
        let mut last_count = 0;
        loop {
            sleep(interval).await;
            let now = Instant::now();
            let covered = self.state().covered_nodes(now);
            let Some(covered) = covered else {
                self.metrics.agents(None);
                continue;
            };
            let (count, unreported) = {
                let mut state = self.state();
                let nodes = &mut state.without_ready_agent;
                nodes.set(covered.without_ready_agent.keys().map(|name| &**name), now);
                (nodes.count(now), nodes.unreported(now))
            };
            self.metrics.agents(Some((covered.count, count)));
            log(&mut last_count, count, &unreported);
            for name in unreported {
                let Some(problem) = covered.without_ready_agent.get(&name) else { continue };
                if !self.post(Reason::AgentNotReady, &name, problem).await {
                    break;
                }
                self.state().without_ready_agent.reported(&name, Instant::now());
            }
        }
    }

    /// Posts an Event about a Node. Returns false if it must be retried later.
    pub(super) async fn post(&self, reason: Reason, name: &str, problem: &Problem) -> bool {
        let Some(uid) = self.uid_of(name) else { return false };
        let minutes = self.settings.not_ready_after.as_secs_f64() / 60.0;
        let note = format!("for at least {} min: {problem}", (minutes * 10.0).round() / 10.0);
        self.events.post(reason, Regarding::Node { name, uid: &uid }, &note).await
    }

    /// Returns the Node's UID; `None` if the Node is not known now.
    fn uid_of(&self, name: &str) -> Option<Box<str>> {
        self.state().nodes.trusted(Instant::now())?.get(name).map(|node| node.uid.clone())
    }
}

fn log(last_count: &mut usize, count: usize, names: &[Box<str>]) {
    if std::mem::replace(last_count, count) == count {
        return;
    }
    match (count, names) {
        (0, _) => info!("all covered Ready Nodes have a Ready agent again"),
        (_, []) => warn!("{count} Ready Nodes have no Ready agent"),
        (_, names) => warn!("{count} Ready Nodes have no Ready agent, among them {}", first_names(names)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::fake::{self, Parts};

    #[tokio::test]
    async fn an_event_about_a_node_that_is_not_known_now_is_retried() {
        let parts = Parts::new(fake::cluster(|_| async { (201, json!({"metadata": {"name": "e"}})) }));
        assert!(!parts.workers().post(Reason::AgentNotReady, "a", &Problem::NoAgent).await);
    }
}
