//! Tracks Nodes that lack something, and for how long: pure, given the time.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// Interval at which a Node that still lacks it is reported again.
const AGAIN: Duration = Duration::from_secs(3600);

/// What a Node that should have an agent lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// An agent pod.
    Pod,
    /// A Ready agent: this is its pod.
    Readiness(Box<str>),
    /// Its object, although its agent is Ready.
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

/// The Nodes that lack something, and since when.
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
    /// Creates a tracker that counts a Node after this time.
    pub(super) fn new(after: Duration) -> Self {
        Self { after, since: BTreeMap::new() }
    }

    /// Records the Nodes that lack something now. All others are dropped.
    pub(super) fn observe<'a>(&mut self, lacking: impl IntoIterator<Item = &'a str>, now: Instant) {
        let mut before = std::mem::take(&mut self.since);
        for name in lacking {
            let (name, since) =
                before.remove_entry(name).unwrap_or((name.into(), Since { at: now, told: None }));
            self.since.insert(name, since);
        }
    }

    /// Returns how many Nodes have lacked it for long enough.
    pub(super) fn count(&self, now: Instant) -> usize {
        self.since.values().filter(|since| self.is_long(since, now)).count()
    }

    /// Returns those of them not reported recently: first those never reported, or longest ago.
    pub(super) fn untold(&self, now: Instant) -> Vec<Box<str>> {
        let untold = |since: &Since| since.told.is_none_or(|at| now.duration_since(at) >= AGAIN);
        let chosen = self.since.iter().filter(|(_, since)| self.is_long(since, now) && untold(since));
        // If there are more than can be reported each hour, all get their turn.
        let mut chosen: Vec<_> = chosen.map(|(name, since)| (since.told, name)).collect();
        chosen.sort();
        chosen.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// Marks a Node as reported.
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
