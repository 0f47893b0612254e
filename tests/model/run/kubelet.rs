//! The kubelet: single-numa-node, pod scope, static CPU manager, and what its List says when (kubelet.md 3.3).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::chance::Time;
use super::cluster::{Kind, Phase, PodId, Request};

/// How far the kubelet is with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The List names it, without CPUs.
    Known,
    /// It has what it asked for.
    Admitted,
    /// Its containers run.
    Running,
    /// They were told to end.
    Ending,
}

/// A pod that the kubelet knows and has not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) stage: Stage,
    /// Its CPUs, one bit each.
    pub(crate) cpus: u64,
    pub(crate) kind: Kind,
    /// When its containers end by themselves.
    pub(crate) ends: Time,
}

/// One pod in the List.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) pod: PodId,
    pub(crate) cpus: u64,
}

/// What the List says; `None`: it could not be asked.
pub(crate) type List = Option<Vec<Listed>>;

/// The kubelet's own state.
#[derive(Debug)]
pub(crate) struct Kubelet {
    /// The allocatable CPUs of each zone, one bit each.
    pub(crate) zones: Vec<u64>,
    pub(crate) pods: BTreeMap<PodId, Held>,
    /// Pods that have ended, with what is still to be reported.
    pub(crate) unreported: BTreeMap<PodId, Phase>,
    /// Pods that it is done with: what an old event says of them is no news.
    pub(crate) done: BTreeSet<PodId>,
    /// Waiting for admission, which is one pod at a time.
    pub(crate) waiting: VecDeque<PodId>,
    /// Somebody is being admitted.
    pub(crate) busy: bool,
    /// It does not run.
    pub(crate) down: bool,
    /// It has started and does not know all its pods yet.
    pub(crate) loading: bool,
    /// Those it knows already while it loads.
    pub(crate) loaded: Vec<PodId>,
    /// When the runtime is looked at: that far into each second.
    pub(crate) relist: Time,
    /// Counts starts, so that what an earlier one meant to do is void.
    pub(crate) life: u32,
}

impl Kubelet {
    /// Zones of so many allocatable CPUs each.
    pub(crate) fn new(sizes: &[u32], relist: Time) -> Self {
        let mut first = 0;
        let zone = |size: &u32| {
            let bits = ((1_u64 << size) - 1) << first;
            first += size;
            bits
        };
        Self {
            zones: sizes.iter().map(zone).collect(),
            pods: BTreeMap::new(),
            unreported: BTreeMap::new(),
            done: BTreeSet::new(),
            waiting: VecDeque::new(),
            busy: false,
            down: false,
            loading: false,
            loaded: Vec::new(),
            relist,
            life: 0,
        }
    }

    /// CPUs that nobody holds.
    pub(crate) fn free(&self) -> u64 {
        let all = self.zones.iter().fold(0, |all, zone| all | zone);
        all & !self.pods.values().fold(0, |used, held| used | held.cpus)
    }

    /// How many are free in each zone.
    pub(crate) fn free_by_zone(&self) -> Vec<u32> {
        let free = self.free();
        self.zones.iter().map(|zone| (zone & free).count_ones()).collect()
    }

    /// The CPUs that a pod would get: from the lowest zone that has enough. `None`: it must be refused.
    pub(crate) fn choose(&self, request: Request) -> Option<u64> {
        let wanted = request.exclusive();
        if wanted == 0 {
            return Some(0);
        }
        let free = self.free();
        let zone = self.zones.iter().map(|zone| zone & free).find(|zone| zone.count_ones() >= wanted)?;
        let mut left = zone;
        let mut chosen = 0;
        for _ in 0..wanted {
            let lowest = left & left.wrapping_neg();
            chosen |= lowest;
            left &= !lowest;
        }
        Some(chosen)
    }

    /// What the List says.
    pub(crate) fn list(&self) -> List {
        if self.down {
            return None;
        }
        let listed = |(pod, held): (&PodId, &Held)| {
            let known = !self.loading || self.loaded.contains(pod) || held.kind == Kind::Static;
            known.then_some(Listed { pod: *pod, cpus: held.cpus })
        };
        Some(self.pods.iter().filter_map(listed).collect())
    }

    /// The next look at the runtime.
    pub(crate) fn next_relist(&self, now: Time) -> Time {
        let second = super::chance::S;
        let since = (now + second - self.relist % second) % second;
        now + second - since
    }
}

/// The CPUs of each zone that are left when `used` are gone.
pub(crate) fn left_over(zones: &[u64], used: u64) -> Vec<u32> {
    zones.iter().map(|zone| (zone & !used).count_ones()).collect()
}

#[cfg(test)]
#[allow(dead_code, unused_imports)] // the long form has no harness and so no tests
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_its_cpus_from_the_lowest_zone_that_has_enough() {
        let mut kubelet = Kubelet::new(&[3, 4], 0);
        let mut admit = |pod, cpus| {
            let chosen = kubelet.choose(Request::whole(cpus))?;
            kubelet
                .pods
                .insert(pod, Held { stage: Stage::Admitted, cpus: chosen, kind: Kind::Ordinary, ends: 0 });
            Some(chosen)
        };
        assert_eq!(admit(1, 2), Some(0b11));
        assert_eq!(admit(2, 2), Some(0b11 << 3));
        assert_eq!(admit(3, 3), None, "three are free, but not in one zone");
        assert_eq!(admit(4, 1), Some(0b100));
        assert_eq!(kubelet.free_by_zone(), [0, 2]);
        assert_eq!(kubelet.choose(Request { milli: 1500, guaranteed: true }), Some(0));
        assert_eq!(left_over(&kubelet.zones, 0b100_0001), [2, 3]);
    }

    #[test]
    fn the_runtime_is_looked_at_once_a_second() {
        let kubelet = Kubelet::new(&[1], 300);
        let second = super::super::chance::S;
        assert_eq!(kubelet.next_relist(0), 300);
        assert_eq!(kubelet.next_relist(299), 300);
        assert_eq!(kubelet.next_relist(300), second + 300);
        assert_eq!(kubelet.next_relist(5 * second + 400), 6 * second + 300);
    }
}
