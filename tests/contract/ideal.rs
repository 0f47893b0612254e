//! What an ideal scheduler, without delays and with complete knowledge, could achieve with the same pods.
//! Pods of up to four CPUs leave gaps in two zones of seven, and a load just above the node's CPUs does not
//! fill them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use fastrand::Rng;

use crate::load::{CPUS, Draw, PodParameters, WANTED};

/// Number of zones.
const ZONES: usize = 2;

/// A running pod.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Runs {
    until: Duration,
    zone: usize,
    cpus: u32,
}

struct Ideal {
    draw: Draw,
    pending: Vec<PodParameters>,
    running: BinaryHeap<Reverse<Runs>>,
    free: [u32; ZONES],
    /// CPUs of all pods that have not ended.
    wanted: u32,
    busy: f64,
}

/// Returns the share of the node's CPUs, from 0 to 1, that would be busy within `time` from the start if the
/// kubelet needs `ends` to terminate a pod. With `odd` pods one CPU is always allocated.
pub(crate) fn busy(seed: u64, odd: bool, time: Duration, ends: Duration) -> f64 {
    let each = CPUS / ZONES as u32;
    let mut ideal = Ideal {
        draw: Draw::new(Rng::with_seed(seed)),
        pending: Vec::new(),
        running: BinaryHeap::new(),
        free: [each - u32::from(odd), each],
        wanted: 0,
        busy: 0.0,
    };
    let mut now = Duration::ZERO;
    while now < time {
        ideal.fill(now, time, ends);
        // Some pod is always running, since none is larger than a zone.
        let Some(Reverse(Runs { until, zone, cpus })) = ideal.running.pop() else { break };
        ideal.free[zone] += cpus;
        ideal.wanted -= cpus;
        now = until;
    }
    ideal.busy / f64::from(CPUS) / time.as_secs_f64()
}

impl Ideal {
    /// Creates pods until enough CPUs are requested, and starts those that fit, the longest waiting first.
    fn fill(&mut self, now: Duration, end: Duration, ends: Duration) {
        while self.wanted * 10 < WANTED {
            let pod = self.draw.next();
            self.wanted += pod.cpus;
            self.pending.push(pod);
        }
        for pod in std::mem::take(&mut self.pending) {
            let fits = (0..ZONES).filter(|zone| self.free[*zone] >= pod.cpus);
            let Some(zone) = fits.min_by_key(|zone| self.free[*zone]) else {
                self.pending.push(pod);
                continue;
            };
            self.free[zone] -= pod.cpus;
            self.busy += f64::from(pod.cpus) * pod.lifetime.min(end.saturating_sub(now)).as_secs_f64();
            self.running.push(Reverse(Runs { until: now + pod.lifetime + ends, zone, cpus: pod.cpus }));
        }
    }
}
