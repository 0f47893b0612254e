//! What one run of the benchmark leaves behind: `benches/figures.json`, of which the documents' tables are made.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The file of the last complete run, in the repository.
pub(crate) const FILE: &str = "benches/figures.json";

/// The whole file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) run: Run,
    pub(crate) nodes: Vec<Node>,
    /// Entered by hand; `make bench` leaves it as it is.
    pub(crate) peers: Option<Peers>,
}

/// When, where and with what.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Run {
    /// In UTC: 2026-11-22.
    pub(crate) date: String,
    /// What git calls the measured code.
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
    /// The file in `tests/machines`, without its ending.
    pub(crate) machine: String,
    pub(crate) title: String,
    /// From the kubelet's last state file to an object that the benchmark itself writes at that moment.
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
    /// As `VARIANT` has it.
    pub(crate) variant: String,
    /// What is set, in Markdown.
    pub(crate) title: String,
    /// From the start of the process to the first object.
    pub(crate) first_object: Quantiles,
    /// From the kubelet's last state file of an admission to the object that accounts for the pod.
    pub(crate) allocation: Quantiles,
    /// From the request to delete a pod to the object without it.
    pub(crate) release: Quantiles,
    /// From the last List that still had the pod to the object without it: at most this long.
    pub(crate) release_since_listed: Quantiles,
    /// Requests to write the object, by the API server's own count, per start or end of a pod.
    pub(crate) writes_per_change: f64,
    /// Lists of the kubelet by the agent, beyond those of its poll.
    pub(crate) lists_per_change: f64,
    /// Beyond what the agent uses when nothing changes.
    pub(crate) cpu_ms_per_change: f64,
    pub(crate) idle: Idle,
    pub(crate) resident_mib: f64,
    pub(crate) peak_mib: f64,
    /// From SIGTERM, with a write in flight to a frozen API server, to exit code 0. Of the default only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sigterm_seconds: Option<f64>,
}

/// While nothing changes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Idle {
    pub(crate) seconds: u64,
    pub(crate) writes: u64,
    pub(crate) cpu_percent: f64,
}

/// Of times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Quantiles {
    pub(crate) count: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// Other publishers, and this one beside them, all in one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Peers {
    pub(crate) date: String,
    /// What all of them ran on.
    pub(crate) parts: String,
    pub(crate) publishers: Vec<Peer>,
    /// numacast in that run.
    pub(crate) ours: Peer,
}

/// One of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Where they differ from its defaults.
    pub(crate) settings: String,
    pub(crate) small: PeerFigures,
    pub(crate) large: PeerFigures,
}

/// What was measured of a peer on one node; what was not is missing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PeerFigures {
    /// Text: ranges, and what they come from.
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
    /// `None` of no samples.
    pub(crate) fn of(samples: &[Duration]) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.iter().map(|sample| sample.as_secs_f64() * 1e3).collect();
        sorted.sort_by(f64::total_cmp);
        let max = *sorted.last()?;
        // The smallest sample that at least this share of all samples does not exceed.
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or(max)
        };
        Some(Self { count: sorted.len(), p50: rounded(at(50)), p99: rounded(at(99)), max: rounded(max) })
    }
}

/// Three decimals: what the tables need, and no more.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
