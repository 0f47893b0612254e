use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of samples kept.
const KEPT: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct Latencies(VecDeque<Duration>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) count: usize,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
}

impl Latencies {
    pub(super) fn add(&mut self, took: Duration) {
        self.0.push_back(took);
        if self.0.len() > KEPT {
            self.0.pop_front();
        }
    }

    pub(super) fn summary(&self) -> Summary {
        let mut sorted: Vec<Duration> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        Summary { count: sorted.len(), p50: rank(&sorted, 50), p99: rank(&sorted, 99) }
    }
}

/// Returns a percentile by nearest rank: the smallest value that at least `percent` per cent of all do not
/// exceed.
fn rank(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks_of_the_latest() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.summary(), Summary::default());
        (1..=100).for_each(|ms| latencies.add(Duration::from_millis(ms)));
        let expected = Summary { count: 100, p50: Duration::from_millis(50), p99: Duration::from_millis(99) };
        assert_eq!(latencies.summary(), expected);
        (0..KEPT).for_each(|_| latencies.add(Duration::from_millis(7)));
        assert_eq!(latencies.summary().p99, Duration::from_millis(7));
    }
}
