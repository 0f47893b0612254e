//! A few faults with real components; `make real-faults` runs a hundred.

use std::io::Write;

use anyhow::{Context, Result};

use crate::support::faults::{Fault, Faults};
use crate::support::{Cluster, Needs, Parts};

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
    let given = std::env::var("NUMACAST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    // To stderr directly, since the test harness captures the output of passing tests.
    let _ = writeln!(std::io::stderr(), "faults over real parts: NUMACAST_SEED={seed}");
    let mut faults = Faults::start(Cluster::start(&parts).await?, parts.program("kubectl"), seed).await?;
    for fault in SELECTED {
        let outcome = faults.inject(fault).await;
        outcome.with_context(|| format!("{fault} ({})", faults.notes()))?;
    }
    Ok(())
}
