//! A few faults with real components; `make real-faults` runs a hundred.

use anyhow::{Context, Result};

use crate::support::faults::{Fault, Faults};
use crate::support::{Cluster, Needs, Parts, seed};

/// A selection: the building blocks of the other faults.
const SELECTED: [Fault; 8] = [
    Fault::KubeletKilled,
    Fault::KubeletFrozen,
    Fault::StaticPod,
    Fault::PluginDown,
    Fault::ApiServerFrozen,
    Fault::EtcdFrozen,
    Fault::AgentKilled,
    Fault::RightsRevoked,
];

#[tokio::test]
async fn the_object_is_correct_after_each_fault_and_never_overstates() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let seed = seed("faults with real components");
    let mut faults = Faults::start(Cluster::start(&parts).await?, parts.program("kubectl"), seed).await?;
    for fault in SELECTED {
        let outcome = faults.inject(fault).await;
        outcome.with_context(|| format!("{fault} ({})", faults.notes()))?;
    }
    Ok(())
}
