//! Pods that are looked up by name, because the kubelet lists them and the pod source lacks them or has only
//! a terminating pod of that name.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::pod::{Pod, PodName, Wanted, drop_longest_annotations};

/// How long a successful lookup is fresh. Doubled each time the result is the same, up to [`MAX_TTL`].
const TTL: Duration = Duration::from_millis(250);
/// The same for a failed lookup.
const FAILED_TTL: Duration = Duration::from_secs(1);
/// Maximum of both.
const MAX_TTL: Duration = Duration::from_secs(30);
/// Maximum number of results that are cached.
const MAX_RESULTS: usize = 4096;

/// Where single pods are looked up: the API server, if the pod source is a watch on it.
#[derive(Clone, Debug)]
pub(in super::super) struct PodLookup {
    pub(in super::super) cluster: Cluster,
    pub(in super::super) node: String,
    pub(in super::super) wanted: Wanted,
}

#[derive(Default)]
pub(super) struct Lookups {
    results: BTreeMap<PodName, LookupResult>,
    /// Incremented when any of them changes.
    version: u64,
}

struct LookupResult {
    /// `None`: the lookup failed. `Some(None)`: there is no such pod.
    pod: Option<Option<Pod>>,
    fresh_until: Instant,
    /// How often in a row the result was the same before.
    repeats: u32,
}

impl Lookups {
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn is_fresh(&self, name: &PodName) -> bool {
        self.results.get(name).is_some_and(|result| Instant::now() < result.fresh_until)
    }

    pub(super) fn has_succeeded(&self, name: &PodName) -> bool {
        self.results.get(name).is_some_and(|result| result.pod.is_some())
    }

    pub(super) fn replaces(&self, pod: &Pod) -> bool {
        !self.results.is_empty() && self.has_succeeded(&pod.full_name())
    }

    pub(super) fn found(&self) -> impl Iterator<Item = &Pod> {
        self.results.values().filter_map(|result| result.pod.as_ref()?.as_ref())
    }

    /// Removes expired results, and those of pods that are known otherwise. Results are kept a little longer
    /// than they are fresh, to count how often they were the same.
    pub(super) fn remove_expired(&mut self, is_known: impl Fn(&PodName) -> bool) {
        let (before, now) = (self.results.len(), Instant::now());
        self.results.retain(|name, result| now < result.fresh_until + MAX_TTL && !is_known(name));
        if self.results.len() != before {
            self.version += 1;
        }
    }

    pub(super) fn insert(&mut self, name: PodName, pod: Option<Option<Pod>>) {
        let before = self.results.get(&name);
        if before.is_none() && self.results.len() >= MAX_RESULTS {
            return;
        }
        let same = before.filter(|before| before.pod == pod);
        let repeats = same.map_or(0, |before| before.repeats + 1);
        let first = if pod.is_some() { TTL } else { FAILED_TTL };
        let ttl = first.saturating_mul(1 << repeats.min(16)).min(MAX_TTL);
        if same.is_none() {
            self.version += 1;
        }
        let fresh_until = Instant::now() + ttl;
        self.results.insert(name, LookupResult { pod, fresh_until, repeats });
        let found = self.results.values_mut().filter_map(|result| result.pod.as_mut()?.as_mut());
        drop_longest_annotations(found);
    }
}
