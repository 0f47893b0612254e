//! Finds Nodes with a problem, and tracks for how long they have it: pure, given the time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// Interval at which a Node whose problem lasts is reported again.
const REPEAT: Duration = Duration::from_secs(3600);

/// The problem of a Node that should have an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    NoAgent,
    AgentNotReady(Box<str>),
    NoObject,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAgent => f.write_str("no agent runs on it"),
            Self::AgentNotReady(pod) => write!(f, "its agent {pod} is not Ready"),
            Self::NoObject => f.write_str("it has no NodeResourceTopology although its agent is Ready"),
        }
    }
}

/// The Nodes that should have an agent.
#[derive(Debug, Default)]
pub(super) struct CoveredNodes {
    pub(super) count: u64,
    /// How many of them, Ready or not, have a Ready agent.
    pub(super) with_agent: u64,
    /// Ready Nodes without a Ready agent.
    pub(super) without_ready_agent: BTreeMap<Box<str>, Problem>,
    /// Ready Nodes with a Ready agent.
    pub(super) healthy: BTreeSet<Box<str>>,
}

impl CoveredNodes {
    /// `nodes` are the covered Nodes: the name, and whether it is Ready. `agents` are the agents' pods: the
    /// Node, the name, and whether it is Ready.
    pub(super) fn new<'a>(
        nodes: impl Iterator<Item = (&'a str, bool)>,
        agents: impl Iterator<Item = (&'a str, &'a str, bool)>,
    ) -> Self {
        let mut pods: BTreeMap<&str, (&str, bool)> = BTreeMap::new();
        for (node, name, ready) in agents {
            let pod = pods.entry(node).or_insert((name, false));
            if ready {
                *pod = (name, true);
            }
        }
        let mut covered = Self::default();
        for (name, ready) in nodes {
            covered.count += 1;
            let pod = pods.get(name).copied();
            let has_agent = pod.is_some_and(|(_, ready)| ready);
            covered.with_agent += u64::from(has_agent);
            if ready && has_agent {
                covered.healthy.insert(name.into());
            } else if ready {
                let problem = pod.map_or(Problem::NoAgent, |(pod, _)| Problem::AgentNotReady(pod.into()));
                covered.without_ready_agent.insert(name.into(), problem);
            }
        }
        covered
    }
}

#[derive(Debug)]
pub(super) struct NodeProblems {
    report_after: Duration,
    nodes: BTreeMap<Box<str>, Entry>,
}

#[derive(Debug)]
struct Entry {
    since: Instant,
    reported: Option<Instant>,
}

impl NodeProblems {
    /// Creates a tracker that counts a Node after this time.
    pub(super) fn new(report_after: Duration) -> Self {
        Self { report_after, nodes: BTreeMap::new() }
    }

    /// Sets the Nodes that have the problem now. All others are dropped.
    pub(super) fn set<'a>(&mut self, names: impl IntoIterator<Item = &'a str>, now: Instant) {
        let mut before = std::mem::take(&mut self.nodes);
        for name in names {
            let (name, entry) =
                before.remove_entry(name).unwrap_or((name.into(), Entry { since: now, reported: None }));
            self.nodes.insert(name, entry);
        }
    }

    /// Returns how many Nodes have had the problem for long enough.
    pub(super) fn count(&self, now: Instant) -> usize {
        self.lasting(now).count()
    }

    /// Returns those of them that were not reported recently: first those never reported, or longest ago.
    pub(super) fn unreported(&self, now: Instant) -> Vec<Box<str>> {
        let is_due = |entry: &Entry| entry.reported.is_none_or(|at| now.duration_since(at) >= REPEAT);
        let due = self.lasting(now).filter(|(_, entry)| is_due(entry));
        // If there are more than can be reported each hour, all get their turn.
        let mut due: Vec<_> = due.map(|(name, entry)| (entry.reported, name)).collect();
        due.sort();
        due.into_iter().map(|(_, name)| name.into()).collect()
    }

    pub(super) fn reported(&mut self, name: &str, now: Instant) {
        if let Some(entry) = self.nodes.get_mut(name) {
            entry.reported = Some(now);
        }
    }

    /// Returns the Nodes that have had the problem for long enough.
    fn lasting(&self, now: Instant) -> impl Iterator<Item = (&str, &Entry)> {
        let nodes = self.nodes.iter().map(|(name, entry)| (&**name, entry));
        nodes.filter(move |(_, entry)| now.duration_since(entry.since) >= self.report_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_lasting_problem_is_reported_once_an_hour() {
        let start = Instant::now();
        let mut problems = NodeProblems::new(5 * MINUTE);
        problems.set(["a", "b"], start);
        assert_eq!((problems.count(start), problems.unreported(start)), (0, Vec::new()));
        problems.set(["a"], start + 3 * MINUTE);
        problems.set(["a", "b"], start + 4 * MINUTE);
        let now = start + 5 * MINUTE;
        assert_eq!((problems.count(now), problems.unreported(now)), (1, vec!["a".into()]), "b recovered");
        problems.reported("a", now);
        assert_eq!(problems.unreported(now + 3 * MINUTE), Vec::new());
        assert_eq!(problems.unreported(now + 4 * MINUTE), ["b".into()]);
        assert_eq!(problems.unreported(now + 60 * MINUTE), ["b".into(), "a".into()], "b was never reported");
        problems.set([], now);
        assert_eq!(problems.count(now + 60 * MINUTE), 0);
    }
}
