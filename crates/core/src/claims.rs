//! Dynamic resource allocation: the devices of a node's ResourceSlices, and what ResourceClaims hold of them.
//!
//! The truth about a claim is its allocation in the API server, not the podresources List: some drivers return no
//! devices to the kubelet, and most no share ids. A claim holds its devices as soon as it is allocated, prepared or
//! not, since the scheduler gives them to nobody else. What is not known never makes more look available.
//!
//! Types are those of `resource.k8s.io` v1, read leniently; v1beta2 and v1beta1 differ only in where a device's fields
//! are (upstream: `k8s.io/api/resource/v1/types.go`, 1.34 to 1.37).

mod account;
mod cdi;
mod claim;
mod inventory;
mod slice;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::machine::Id;

pub(crate) use account::held_by_claim;
pub use account::{ClaimFinding, Held, HeldCpus, Holding, account, holdings};
pub use cdi::{CdiAllocations, parse_cdi};
pub use claim::{
    Allocated, Claim, ClaimInUse, ClaimPods, NamedClaims, claims_of, known_claims, named_claims,
};
pub use inventory::{DeviceKey, Inventory, KEPT_FOR};
pub use slice::{Amount, Device, Slice, SliceObject};

/// The driver that gives out CPUs (kubernetes-sigs/dra-driver-cpu).
pub const CPU_DRIVER: &str = "dra.cpu";
/// The driver that gives out memory and huge pages (ffromani/dra-driver-memory).
pub const MEMORY_DRIVER: &str = "dra.memory";

/// Returns true if the devices of this driver are a resource of zones. Other resources have no dot, or a slash.
#[must_use]
pub fn is_shown(driver: &str) -> bool {
    driver.contains('.') && !driver.contains('/')
}

/// What was read of the claims of a node at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeClaims {
    /// The devices of the node's slices.
    pub inventory: Arc<Inventory>,
    /// The claims of the node's pods, by `namespace/name`.
    pub claims: BTreeMap<String, ClaimInUse>,
    /// What the drivers' CDI files say.
    #[serde(skip_serializing_if = "CdiAllocations::is_empty")]
    pub cdi: CdiAllocations,
    /// The NUMA nodes of PCI devices, by the address that a driver publishes, as in sysfs; `None` for a device without
    /// one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pci: Arc<BTreeMap<String, Option<Id>>>,
    /// PCI addresses that a driver publishes, and at which the machine has no device.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub absent_pci: Arc<BTreeSet<String>>,
}

impl NodeClaims {
    /// Returns the drivers with a device that is on a known NUMA node and is no CPU or memory.
    #[must_use]
    pub fn placed_drivers(&self) -> BTreeSet<&str> {
        let is_placed = |device: &Device| {
            let pci = device.pci.as_ref().and_then(|pci| self.pci.get(pci));
            device.stands_for.is_empty() && (device.numa.is_some() || pci.is_some_and(Option::is_some))
        };
        let shown = self.inventory.devices().filter(|(driver, _)| is_shown(driver));
        let placed = shown.filter(|(_, device)| is_placed(device));
        placed.map(|(driver, _)| driver).collect()
    }
}
