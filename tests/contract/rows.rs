//! The configurations to run, and their requirements.

use crate::run::Total;
use crate::scheduler::{Cache, Clocks};

/// With a direct cache, the minimum ratio of busy CPUs to the ideal.
const LEAST_OF_IDEAL: f64 = 0.9;

/// With DiscardReserved, the maximum percentage of rejected pods. Some are always rejected: the scheduler may place a pod before the
/// reservation of the previous one is written. Without reservations it is 5 to 7 %.
const MAX_REJECTED: f64 = 4.0;

/// Like [`MAX_REJECTED`], with the overreserving cache: a pod is rejected if the plugin reads the object after
/// another pod's bind and before the agent's write for that bind.
const MAX_REJECTED_BY_TICKS: f64 = 2.0;

/// A row of the table: a scheduler, and what else is on the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) cache: Cache,
    pub(crate) clocks: Clocks,
    /// Whether there are a Completed pod and one with an image that cannot be pulled, both Guaranteed.
    pub(crate) odd: bool,
    /// Whether numacast subtracts a bound pod's requests from every zone until the kubelet's List shows it.
    pub(crate) reserves: bool,
    /// Number of runs, each with its own seed.
    pub(crate) seeds: u64,
    /// Duration of each run in seconds.
    pub(crate) seconds: u64,
}

const fn over_reserve(resync: u64, backoff: (u64, u64), odd: bool) -> Row {
    let clocks = Clocks { resync, backoff };
    Row { cache: Cache::OverReserve, clocks, odd, reserves: false, seeds: 3, seconds: 90 }
}

const fn direct(cache: Cache, odd: bool, reserves: bool) -> Row {
    let clocks = Clocks { resync: 0, backoff: (1, 2) };
    Row { cache, clocks, odd, reserves, seeds: 6, seconds: 60 }
}

/// All rows; together they take less than an hour.
pub(crate) const ALL: [Row; 9] = [
    over_reserve(1, (1, 2), false),
    over_reserve(5, (1, 10), false),
    over_reserve(1, (1, 2), true),
    direct(Cache::DiscardReserved, false, true),
    direct(Cache::DiscardReserved, true, true),
    direct(Cache::DiscardReserved, false, false),
    direct(Cache::Passthrough, false, true),
    direct(Cache::Passthrough, true, true),
    direct(Cache::Passthrough, false, false),
];

impl Row {
    /// Returns the name by which the row is selected.
    pub(crate) fn name(&self) -> String {
        let cache = match self.cache {
            Cache::OverReserve => format!("overReserve {}", self.clocks),
            Cache::DiscardReserved => "discardReserved".to_owned(),
            Cache::Passthrough => "passthrough".to_owned(),
        };
        let odd = if self.odd { ", odd pods" } else { "" };
        let bare = if self.cache.is_direct() && !self.reserves { ", no reservations" } else { "" };
        format!("{cache}{odd}{bare}")
    }

    /// Returns numacast's settings.
    pub(crate) fn settings(&self) -> &'static [&'static str] {
        match (self.cache.is_direct(), self.reserves) {
            (false, _) => &[],
            (true, true) => &["consumer=schedulerPluginsDirect"],
            (true, false) => &["consumer=none"],
        }
    }

    /// Returns the controller's settings. Consumers that read the object directly need no nudges, and the
    /// chart disables them.
    pub(crate) fn controller_settings(&self) -> &'static [&'static str] {
        if self.cache.is_direct() { &["controller.nudge=off"] } else { &[] }
    }

    /// Returns the maximum percentage of pods that the kubelet may reject, or `None` if there is no limit. Passthrough has no limit
    /// because the scheduler may place a pod before the previous pod is bound.
    fn max_rejected(&self) -> Option<f64> {
        match self.cache {
            Cache::OverReserve => Some(MAX_REJECTED_BY_TICKS),
            Cache::DiscardReserved => self.reserves.then_some(MAX_REJECTED),
            Cache::Passthrough => None,
        }
    }

    /// Returns the requirements that numacast violated.
    pub(crate) fn broken(&self, total: &Total) -> Vec<String> {
        let mut broken = Vec::new();
        if total.frozen > 0 {
            broken.push(format!("{} runs with a frozen node", total.frozen));
        }
        if self.cache == Cache::OverReserve && total.preventable > 0 {
            broken.push(format!(
                "{} rejected pods that a withheld fingerprint would have prevented",
                total.preventable
            ));
        }
        if self.max_rejected().is_some_and(|most| total.rejected_percent() > most) {
            broken.push(format!("{:.1} % of the pods rejected", total.rejected_percent()));
        }
        if self.cache.is_direct() && self.reserves && total.busy() < LEAST_OF_IDEAL * total.ideal() {
            broken.push(format!(
                "{:.0} % of the CPUs busy, where {:.0} % can be",
                100.0 * total.busy(),
                100.0 * total.ideal()
            ));
        }
        broken
    }
}
