//! What KAI-Scheduler makes of an object and of pods' annotations, translated from its plugin `numa` (v0.17.0,
//! `pkg/scheduler/plugins/numa/reconstruct.go`, `seed_placements.go`). Shares no code with the agent.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;

use super::nrt::Zones;

/// The annotation.
pub(crate) const OBSERVED: &str = "kai.scheduler/numa-placement-observed";

#[derive(Deserialize)]
struct ZonePlacement {
    zone: String,
    amount: BTreeMap<String, String>,
}

/// Returns what KAI-Scheduler takes as available, by zone and resource: what is allocatable less the annotations of the
/// node's pods. Pods that have ended, or are being deleted, do not count.
pub(crate) fn available(zones: &Zones, pods: &[Pod]) -> Result<BTreeMap<(String, String), i128>> {
    let mut available: BTreeMap<(String, String), i128> = BTreeMap::new();
    for (zone, resources) in zones {
        for (resource, figures) in resources {
            available.insert((zone.clone(), resource.clone()), i128::from(figures.allocatable));
        }
    }
    for pod in pods {
        for ZonePlacement { zone, amount } in placement(pod, zones) {
            for (resource, quantity) in amount {
                let amount: i128 = quantity.parse().with_context(|| format!("{quantity} of {resource}"))?;
                if let Some(available) = available.get_mut(&(zone.clone(), resource)) {
                    *available -= amount;
                }
            }
        }
    }
    Ok(available)
}

/// Returns a pod's record: none if it is malformed, empty, or has a zone that the object does not have.
fn placement(pod: &Pod, zones: &Zones) -> Vec<ZonePlacement> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let counts = pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"));
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(OBSERVED)).filter(|_| counts);
    let parsed: Option<Vec<ZonePlacement>> = annotation.and_then(|text| serde_json::from_str(text).ok());
    parsed.filter(|all| all.iter().all(|one| zones.contains_key(&one.zone))).unwrap_or_default()
}
