//! The results of a benchmark run: `benches/figures.json`, from which the documents' tables are generated.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The repository's file with the last complete run.
pub(crate) const FILE: &str = "benches/figures.json";

/// The contents of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) run: Run,
    pub(crate) nodes: Vec<Node>,
    /// Entered by hand; `make bench` leaves it unchanged.
    pub(crate) peers: Option<Peers>,
}

/// When, where and with what a run was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Run {
    /// Date in UTC, such as 2026-11-22.
    pub(crate) date: String,
    /// Output of `git describe` for the measured code.
    pub(crate) commit: String,
    pub(crate) seed: u64,
    pub(crate) binary_mib: f64,
    pub(crate) machine: BTreeMap<String, String>,
    pub(crate) versions: BTreeMap<String, String>,
}

/// Everything that was measured on one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Node {
    /// The file in `tests/machines`, without its extension.
    pub(crate) machine: String,
    pub(crate) title: String,
    /// From the kubelet's last checkpoint write to an object that the benchmark itself writes at that moment.
    pub(crate) floor: Option<Quantiles>,
    /// How long such a write takes when nothing else happens.
    pub(crate) floor_when_idle: Option<Quantiles>,
    /// The default first.
    pub(crate) variants: Vec<Figures>,
}

/// What was measured of one variant on one node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Figures {
    /// The name, as in `VARIANT`.
    pub(crate) variant: String,
    /// What is configured, in Markdown.
    pub(crate) title: String,
    /// From the start of the process to the first object.
    pub(crate) first_object: Quantiles,
    /// From the kubelet's last checkpoint write of an admission to the object that accounts for the pod.
    pub(crate) allocation: Quantiles,
    /// From the request to delete a pod to the object without it.
    pub(crate) release: Quantiles,
    /// From the last List with the pod to the object without it: an upper bound.
    pub(crate) release_since_listed: Quantiles,
    /// Write requests for the object, from the API server's metrics, per start or end of a pod.
    pub(crate) writes_per_change: f64,
    /// The agent's List calls to the kubelet, beyond those of its poll.
    pub(crate) lists_per_change: f64,
    /// CPU time beyond what the agent uses when nothing changes.
    pub(crate) cpu_ms_per_change: f64,
    pub(crate) idle: Idle,
    pub(crate) resident_mib: f64,
    pub(crate) peak_mib: f64,
    /// From SIGTERM, during a write to a frozen API server, to exit code 0. Only for the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sigterm_seconds: Option<f64>,
}

/// Figures while nothing changes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Idle {
    pub(crate) seconds: u64,
    pub(crate) writes: u64,
    /// Reads of ResourceSlices and ResourceClaims.
    #[serde(default)]
    pub(crate) claims: u64,
    pub(crate) cpu_percent: f64,
}

/// Quantiles of durations in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Quantiles {
    pub(crate) count: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// Other publishers and numacast, measured in one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Peers {
    pub(crate) date: String,
    /// The components that all of them ran on.
    pub(crate) parts: String,
    pub(crate) publishers: Vec<Peer>,
    /// numacast in that run.
    pub(crate) ours: Peer,
}

/// One publisher.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Settings that differ from its defaults.
    pub(crate) settings: String,
    pub(crate) small: PeerFigures,
    pub(crate) large: PeerFigures,
}

/// The figures of a publisher on one node; fields that were not measured are `None`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PeerFigures {
    /// Text: ranges, and their causes.
    pub(crate) first_object: Option<String>,
    pub(crate) allocation_p50_ms: Option<f64>,
    pub(crate) allocation_p99_ms: Option<f64>,
    pub(crate) release_p50_ms: Option<f64>,
    pub(crate) writes_per_change: Option<f64>,
    pub(crate) idle_writes: Option<u64>,
    pub(crate) idle_seconds: Option<u64>,
    pub(crate) cpu_ms_per_change: Option<f64>,
    pub(crate) resident_mib: Option<f64>,
}

impl Quantiles {
    /// Returns the quantiles; `None` if there are no samples.
    pub(crate) fn of(samples: &[Duration]) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.iter().map(|sample| sample.as_secs_f64() * 1e3).collect();
        sorted.sort_by(f64::total_cmp);
        let max = *sorted.last()?;
        // Nearest rank: the smallest sample that this share of all samples does not exceed.
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or(max)
        };
        Some(Self { count: sorted.len(), p50: rounded(at(50)), p99: rounded(at(99)), max: rounded(max) })
    }
}

/// Rounds to three decimals, as much as the tables need.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
