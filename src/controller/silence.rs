//! Nodes that lack something, and for how long: pure, but for the time that is given.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// A Node that still lacks it is told of again.
const AGAIN: Duration = Duration::from_secs(3600);

/// What a Node lacks that should have an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// An agent's pod.
    Pod,
    /// An agent that works: this is its pod.
    Readiness(Box<str>),
    /// Its object, although its agent says that it works.
    Object,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod => f.write_str("no agent runs on it"),
            Self::Readiness(pod) => write!(f, "its agent {pod} is not Ready"),
            Self::Object => f.write_str("it has no NodeResourceTopology although its agent is Ready"),
        }
    }
}

/// Since when Nodes lack something.
#[derive(Debug)]
pub(super) struct Silence {
    after: Duration,
    since: BTreeMap<Box<str>, Since>,
}

#[derive(Debug)]
struct Since {
    at: Instant,
    told: Option<Instant>,
}

impl Silence {
    /// After this long it counts.
    pub(super) fn new(after: Duration) -> Self {
        Self { after, since: BTreeMap::new() }
    }

    /// Takes the Nodes that lack something now. Whoever is not among them lacks nothing any more.
    pub(super) fn observe<'a>(&mut self, lacking: impl IntoIterator<Item = &'a str>, now: Instant) {
        let mut before = std::mem::take(&mut self.since);
        for name in lacking {
            let (name, since) =
                before.remove_entry(name).unwrap_or((name.into(), Since { at: now, told: None }));
            self.since.insert(name, since);
        }
    }

    /// How many have lacked it for long.
    pub(super) fn count(&self, now: Instant) -> usize {
        self.since.values().filter(|since| self.is_long(since, now)).count()
    }

    /// Those of them that nobody was told of lately; first those that were told of longest ago, or never.
    pub(super) fn untold(&self, now: Instant) -> Vec<Box<str>> {
        let untold = |since: &Since| since.told.is_none_or(|at| now.duration_since(at) >= AGAIN);
        let chosen = self.since.iter().filter(|(_, since)| self.is_long(since, now) && untold(since));
        // Where there are more than can be told of each hour, all have their turn.
        let mut chosen: Vec<_> = chosen.map(|(name, since)| (since.told, name)).collect();
        chosen.sort();
        chosen.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// Somebody was told of this one.
    pub(super) fn told(&mut self, name: &str, now: Instant) {
        if let Some(since) = self.since.get_mut(name) {
            since.told = Some(now);
        }
    }

    fn is_long(&self, since: &Since, now: Instant) -> bool {
        now.duration_since(since.at) >= self.after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn what_lasts_counts_and_is_told_once_an_hour() {
        let start = Instant::now();
        let mut silence = Silence::new(5 * MINUTE);
        silence.observe(["a", "b"], start);
        assert_eq!((silence.count(start), silence.untold(start)), (0, Vec::new()));
        silence.observe(["a"], start + 3 * MINUTE);
        silence.observe(["a", "b"], start + 4 * MINUTE);
        let now = start + 5 * MINUTE;
        assert_eq!((silence.count(now), silence.untold(now)), (1, vec!["a".into()]), "b was well in between");
        silence.told("a", now);
        assert_eq!(silence.untold(now + 3 * MINUTE), Vec::new());
        assert_eq!(silence.untold(now + 4 * MINUTE), ["b".into()]);
        assert_eq!(silence.untold(now + 60 * MINUTE), ["b".into(), "a".into()], "b never was");
        silence.observe([], now);
        assert_eq!(silence.count(now + 60 * MINUTE), 0);
    }
}
