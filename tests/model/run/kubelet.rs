//! The kubelet: single-numa-node, pod scope, static CPU manager, and the content of its List over time: a pod
//! is listed before its admission, without CPUs, and a terminated one no longer (from 1.34 on).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::cluster::{Kind, Phase, PodId, Request};
use super::time::Time;

/// The stage of a pod in the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// In the List without CPUs.
    Pending,
    /// Its CPUs are allocated.
    Admitted,
    /// Its containers run.
    Running,
    /// Its containers are terminating.
    Terminating,
}

/// A pod that the kubelet knows and has not rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownPod {
    pub(crate) stage: Stage,
    /// Its CPUs as a bit mask.
    pub(crate) cpus: u64,
    pub(crate) kind: Kind,
    /// When its containers terminate by themselves.
    pub(crate) ends: Time,
}

/// One pod in the List.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) pod: PodId,
    pub(crate) cpus: u64,
}

/// The List; `None` if the kubelet does not respond.
pub(crate) type List = Option<Vec<Listed>>;

/// The kubelet's own state.
#[derive(Debug)]
pub(crate) struct Kubelet {
    /// The allocatable CPUs of each zone as a bit mask.
    pub(crate) zones: Vec<u64>,
    pub(crate) pods: BTreeMap<PodId, KnownPod>,
    /// Terminated pods, with the phase that is still to be reported.
    pub(crate) unreported: BTreeMap<PodId, Phase>,
    /// Pods that it has released; old events about them are ignored.
    pub(crate) released: BTreeSet<PodId>,
    /// Pods waiting for admission, which is one pod at a time.
    pub(crate) waiting: VecDeque<PodId>,
    /// Whether a pod is being admitted.
    pub(crate) busy: bool,
    /// Whether it is stopped.
    pub(crate) down: bool,
    /// Whether it has started but does not know all its pods yet.
    pub(crate) loading: bool,
    /// The pods that it knows already while it loads.
    pub(crate) loaded: Vec<PodId>,
    /// The runtime is relisted at this offset in each second.
    pub(crate) relist: Time,
    /// Number of starts, to drop the tasks of earlier processes.
    pub(crate) starts: u32,
}

impl Kubelet {
    /// Creates a kubelet with zones of these numbers of allocatable CPUs.
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
            released: BTreeSet::new(),
            waiting: VecDeque::new(),
            busy: false,
            down: false,
            loading: false,
            loaded: Vec::new(),
            relist,
            starts: 0,
        }
    }

    /// CPUs that are not allocated.
    pub(crate) fn free(&self) -> u64 {
        let all = self.zones.iter().fold(0, |all, zone| all | zone);
        all & !self.pods.values().fold(0, |used, entry| used | entry.cpus)
    }

    /// Number of free CPUs in each zone.
    pub(crate) fn free_by_zone(&self) -> Vec<u32> {
        let free = self.free();
        self.zones.iter().map(|zone| (zone & free).count_ones()).collect()
    }

    /// The CPUs that a pod would be allocated, from the lowest zone with enough. `None` if it must be
    /// rejected.
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

    /// The response to List.
    pub(crate) fn list(&self) -> List {
        if self.down {
            return None;
        }
        let listed = |(pod, entry): (&PodId, &KnownPod)| {
            let known = !self.loading || self.loaded.contains(pod) || entry.kind == Kind::Static;
            known.then_some(Listed { pod: *pod, cpus: entry.cpus })
        };
        Some(self.pods.iter().filter_map(listed).collect())
    }

    /// The time of the next relist of the runtime.
    pub(crate) fn next_relist(&self, now: Time) -> Time {
        let second = super::time::S;
        let since = (now + second - self.relist % second) % second;
        now + second - since
    }
}

/// Number of CPUs of each zone that are not in `used`.
pub(crate) fn left_over(zones: &[u64], used: u64) -> Vec<u32> {
    zones.iter().map(|zone| (zone & !used).count_ones()).collect()
}

#[cfg(test)]
#[allow(dead_code, unused_imports)] // the long form has no test harness
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_its_cpus_from_the_lowest_zone_that_has_enough() {
        let mut kubelet = Kubelet::new(&[3, 4], 0);
        let mut admit = |pod, cpus| {
            let chosen = kubelet.choose(Request::whole(cpus))?;
            let entry = KnownPod { stage: Stage::Admitted, cpus: chosen, kind: Kind::Ordinary, ends: 0 };
            kubelet.pods.insert(pod, entry);
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
    fn the_runtime_is_relisted_once_a_second() {
        let kubelet = Kubelet::new(&[1], 300);
        let second = super::super::time::S;
        assert_eq!(kubelet.next_relist(0), 300);
        assert_eq!(kubelet.next_relist(299), 300);
        assert_eq!(kubelet.next_relist(300), second + 300);
        assert_eq!(kubelet.next_relist(5 * second + 400), 6 * second + 300);
    }
}
