//! The annotation in which KAI-Scheduler reads where a pod's resources are (KAI-Scheduler v0.17.0,
//! `pkg/apis/scheduling/v1alpha2/numa_placement_types.go` and `plugins/numa/reconstruct.go`).
//!
//! With `reconstructAvailable`, its default, KAI-Scheduler reads what zones have available from no object: it takes what
//! is allocatable, less what the annotations of the node's pods say.

use serde::Serialize;
use std::collections::BTreeMap;

use crate::nrt::zone_name;
use crate::topology::PodAmounts;

/// The key of the annotation.
pub const OBSERVED_PLACEMENT: &str = "kai.scheduler/numa-placement-observed";

#[derive(Serialize)]
struct ZonePlacement {
    zone: String,
    amount: BTreeMap<String, String>,
}

/// Returns the annotation's value for a pod that has these amounts: JSON, with zones sorted by name and amounts as
/// quantities.
#[must_use]
pub fn observed_placement(amounts: &PodAmounts) -> String {
    let quantity = |(resource, amount): (&'_ String, &u64)| (resource.clone(), amount.to_string());
    let mut zones: Vec<ZonePlacement> = amounts
        .iter()
        .map(|(id, amounts)| ZonePlacement {
            zone: zone_name(*id),
            amount: amounts.iter().map(quantity).collect(),
        })
        .collect();
    zones.sort_unstable_by(|a, b| a.zone.cmp(&b.zone));
    serde_json::to_string(&zones).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_sorted_by_name_and_amounts_are_quantities() {
        let of =
            |amounts: &[(&str, u64)]| amounts.iter().map(|(name, of)| ((*name).to_owned(), *of)).collect();
        let amounts = [(10, of(&[("memory", 1 << 34)])), (2, of(&[("nvidia.com/gpu", 2), ("cpu", 8)]))];
        assert_eq!(
            observed_placement(&amounts.into()),
            r#"[{"zone":"node-10","amount":{"memory":"17179869184"}},{"zone":"node-2","amount":{"cpu":"8","nvidia.com/gpu":"2"}}]"#
        );
    }
}
