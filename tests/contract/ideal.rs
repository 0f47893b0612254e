//! What a scheduler could make of the same pods that needs no time and knows everything: pods of up to four CPUs leave gaps in
//! two zones of seven, and a load that is just above the node's CPUs does not fill them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use fastrand::Rng;

use crate::load::{CPUS, Draw, Drawn, WANTED};

/// Zones, and the CPUs of each that pods may have.
const ZONES: usize = 2;

/// A pod that has its CPUs.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Runs {
    until: Duration,
    zone: usize,
    cpus: u32,
}

struct Ideal {
    draw: Draw,
    pending: Vec<Drawn>,
    running: BinaryHeap<Reverse<Runs>>,
    free: [u32; ZONES],
    /// CPUs of the pods that have not ended.
    wanted: u32,
    busy: f64,
}

/// The share of the node's CPUs that would be busy within `time` from the start, of 1, if the kubelet needs `ends` to end a pod. With
/// `odd` pods one CPU is never free.
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
        // Something runs: no pod is larger than a zone.
        let Some(Reverse(Runs { until, zone, cpus })) = ideal.running.pop() else { break };
        ideal.free[zone] += cpus;
        ideal.wanted -= cpus;
        now = until;
    }
    ideal.busy / f64::from(CPUS) / time.as_secs_f64()
}

impl Ideal {
    /// Creates pods until they want enough, and starts those that fit, the one that waits for longest first.
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
            self.busy += f64::from(pod.cpus) * pod.life.min(end.saturating_sub(now)).as_secs_f64();
            self.running.push(Reverse(Runs { until: now + pod.life + ends, zone, cpus: pod.cpus }));
        }
    }
}
