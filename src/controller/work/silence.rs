//! Reports Nodes whose agent is not working.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{Known, Work};
use crate::cluster::Regarding;
use crate::controller::notices::Reason;
use crate::controller::silence::Lack;

/// Bounds of the check interval, which is a tenth of `silent_after`.
const TICKS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Maximum number of Nodes named in one log line.
const NAMED: usize = 10;

/// The state of the Nodes that should have an agent.
#[derive(Debug, Default)]
pub(super) struct Picture {
    pub(super) covered: u64,
    /// Covered Nodes with a Ready agent.
    pub(super) with_agent: u64,
    /// Covered, Ready Nodes without a Ready agent.
    lacking: BTreeMap<Box<str>, Lack>,
    /// Covered, Ready Nodes with a Ready agent.
    pub(super) well: BTreeSet<Box<str>>,
}

impl Known {
    /// Returns the state; `None` if Nodes or agents are unknown or stale.
    pub(super) fn picture(&self, now: Instant) -> Option<Picture> {
        let (nodes, agents) = (self.nodes.trusted(now)?, self.agents.trusted(now)?);
        let mut pods: BTreeMap<&str, (&str, bool)> = BTreeMap::new();
        for (name, agent) in agents {
            let pod = pods.entry(&agent.node).or_insert((name, false));
            if agent.ready {
                *pod = (name, true);
            }
        }
        let mut picture = Picture::default();
        for (name, node) in nodes.iter().filter(|(_, node)| node.covered) {
            let pod = pods.get(&**name);
            let works = pod.is_some_and(|(_, ready)| *ready);
            picture.covered += 1;
            picture.with_agent += u64::from(works);
            match pod {
                _ if !node.ready => {}
                _ if works => drop(picture.well.insert(name.clone())),
                Some((pod, _)) => drop(picture.lacking.insert(name.clone(), Lack::Readiness((*pod).into()))),
                None => drop(picture.lacking.insert(name.clone(), Lack::Pod)),
            }
        }
        Some(picture)
    }
}

impl Work<'_> {
    /// Checks periodically.
    pub(super) async fn look_for_silence(&self) {
        let tick = (self.settings.silent_after / 10).clamp(TICKS.0, TICKS.1);
        let mut before = 0;
        loop {
            sleep(tick).await;
            let now = Instant::now();
            let picture = self.known().picture(now);
            let Some(picture) = picture else {
                self.metrics.figures(|figures| {
                    (figures.covered, figures.agents, figures.silent) = (None, None, None);
                });
                continue;
            };
            let (count, untold) = {
                let mut known = self.known();
                known.silent.observe(picture.lacking.keys().map(|name| &**name), now);
                (known.silent.count(now), known.silent.untold(now))
            };
            self.metrics.figures(|figures| {
                figures.covered = Some(picture.covered);
                figures.agents = Some(picture.with_agent);
                figures.silent = u64::try_from(count).ok();
            });
            say(&mut before, count, &untold);
            for name in untold {
                let Some(lack) = picture.lacking.get(&name) else { continue };
                if !self.tell_of(Reason::AgentSilent, &name, lack).await {
                    break;
                }
                self.known().silent.told(&name, Instant::now());
            }
        }
    }

    /// Posts an Event about a Node. Returns false if it must be retried later.
    pub(super) async fn tell_of(&self, reason: Reason, name: &str, lack: &Lack) -> bool {
        let Some(uid) = self.uid_of(name) else { return true };
        let minutes = self.settings.silent_after.as_secs_f64() / 60.0;
        let note = format!("for at least {} min: {lack}", (minutes * 10.0).round() / 10.0);
        self.notices.post(reason, Regarding::Node { name, uid: &uid }, &note).await
    }

    fn uid_of(&self, name: &str) -> Option<Box<str>> {
        self.known().nodes.trusted(Instant::now())?.get(name).map(|node| node.uid.clone())
    }
}

/// Logs a line when the number changes.
fn say(before: &mut usize, count: usize, names: &[Box<str>]) {
    if *before == count {
        return;
    }
    *before = count;
    if count == 0 {
        return info!("no agent is silent any longer");
    }
    let named = names.iter().take(NAMED).map(|name| &**name).collect::<Vec<_>>().join(", ");
    let named = if named.is_empty() { named } else { format!(", among them {named}") };
    warn!("{count} Ready Nodes have no Ready agent{named}");
}
