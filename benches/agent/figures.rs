//! What was measured on one node, and what is made of many samples.

use std::time::Duration;

use serde_json::{Value, json};

/// What was measured on one node.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) first: Vec<Duration>,
    /// From the kubelet's last file to the object.
    pub(crate) latency: Vec<Duration>,
    /// From the kubelet's last file, or the first List that has all of the pod, to the object.
    pub(crate) since_listed: Vec<Duration>,
    /// From the kubelet's last file to an object that the benchmark itself writes then.
    pub(crate) floor: Vec<Duration>,
    /// Such a write when nothing else happens.
    pub(crate) floor_idle: Vec<Duration>,
    pub(crate) release: Vec<Release>,
    /// Without a pod source.
    pub(crate) release_unaided: Vec<Release>,
    pub(crate) writes: Vec<usize>,
    pub(crate) release_writes: Vec<usize>,
    /// Readings of the node, those of the slow poll among them.
    pub(crate) scans_per_change: f64,
    /// Beyond what it costs when nothing changes.
    pub(crate) cpu_per_change: Duration,
    pub(crate) idle: Duration,
    pub(crate) idle_share: f64,
    pub(crate) idle_writes: usize,
    /// KiB
    pub(crate) resident: u64,
    /// KiB
    pub(crate) peak: u64,
    /// From SIGTERM, with a write in flight to a frozen API server, to the end with exit code 0.
    pub(crate) term: Option<Duration>,
}

/// From the moment at which a pod left the List to the object. It lies between two Lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    /// From the last List that still had the pod, when it was asked for.
    pub(crate) at_most: Duration,
    /// From the answer to the first List that did not have it.
    pub(crate) at_least: Duration,
}

/// Milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// `None` of no samples.
pub(crate) fn quantiles(samples: &[Duration]) -> Option<Quantiles> {
    let mut sorted: Vec<f64> = samples.iter().map(|sample| ms(*sample)).collect();
    sorted.sort_by(f64::total_cmp);
    let max = *sorted.last()?;
    // The smallest sample that at least this share of all samples does not exceed.
    let at = |hundredths: usize| {
        let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(max)
    };
    Some(Quantiles { p50: at(50), p99: at(99), max })
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// `None` of no samples.
pub(crate) fn mean(samples: &[usize]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<usize>() as f64 / samples.len() as f64)
}

pub(crate) fn at_most(releases: &[Release]) -> Vec<Duration> {
    releases.iter().map(|release| release.at_most).collect()
}

pub(crate) fn at_least(releases: &[Release]) -> Vec<Duration> {
    releases.iter().map(|release| release.at_least).collect()
}

impl Figures {
    /// Everything, every sample included.
    pub(crate) fn as_json(&self) -> Value {
        json!({
            "firstNrt": distribution(&self.first),
            "allocation": distribution(&self.latency),
            "allocationSinceListed": distribution(&self.since_listed),
            "floorAtAdmission": distribution(&self.floor),
            "floorWhenIdle": distribution(&self.floor_idle),
            "releaseAtMost": distribution(&at_most(&self.release)),
            "releaseAtLeast": distribution(&at_least(&self.release)),
            "releaseWithoutPodSourceAtMost": distribution(&at_most(&self.release_unaided)),
            "releaseWithoutPodSourceAtLeast": distribution(&at_least(&self.release_unaided)),
            "writesPerAllocation": {"mean": mean(&self.writes), "samples": self.writes},
            "writesPerRelease": {"mean": mean(&self.release_writes), "samples": self.release_writes},
            "scansPerChange": self.scans_per_change,
            "cpuPerChangeMs": ms(self.cpu_per_change),
            "idleSeconds": self.idle.as_secs_f64(),
            "idleCpuShare": self.idle_share,
            "idleWrites": self.idle_writes,
            "residentKiB": self.resident,
            "peakKiB": self.peak,
            "sigtermDuringFrozenWriteMs": self.term.map(ms),
        })
    }
}

/// Milliseconds, in the order in which they were measured.
fn distribution(samples: &[Duration]) -> Value {
    let Some(of) = quantiles(samples) else { return Value::Null };
    let round = |value: f64| (value * 1e3).round() / 1e3;
    let all: Vec<f64> = samples.iter().map(|sample| round(ms(*sample))).collect();
    json!({
        "count": samples.len(), "p50Ms": round(of.p50), "p99Ms": round(of.p99), "maxMs": round(of.max),
        "samplesMs": all,
    })
}
