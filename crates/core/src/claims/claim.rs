//! ResourceClaims: what the scheduler has allocated.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::CPU_DRIVER;
use crate::kubelet::Usage;
use crate::machine::IdSet;
use crate::quantity::Quantity;

/// Namespace and name of a claim.
pub type ClaimName = (String, String);

/// The used parts of a ResourceClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Claim {
    /// The UID; empty for a claim that is known from the List only.
    pub uid: String,
    /// The devices; empty for a claim that is not allocated.
    pub devices: Vec<Allocated>,
    /// The CPUs that a device over the whole machine gives, by request (`dra.cpu` with `groupBy: machine`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpus: BTreeMap<String, IdSet>,
}

/// One device of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Allocated {
    /// The request, or `request/subrequest` of a prioritised list.
    pub request: String,
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: String,
    /// Set if the device is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Capacity to what is consumed of it, in whole units.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub consumed: BTreeMap<String, u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawClaim {
    metadata: RawMetadata,
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawMetadata {
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    allocation: Option<RawAllocation>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawAllocation {
    devices: RawDevices,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawDevices {
    results: Option<Vec<RawResult>>,
    config: Option<Vec<RawConfig>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawResult {
    request: String,
    driver: String,
    pool: String,
    device: String,
    admin_access: Option<bool>,
    #[serde(rename = "shareID")]
    share: Option<String>,
    consumed_capacity: Option<BTreeMap<String, Quantity>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawConfig {
    requests: Option<Vec<String>>,
    opaque: Option<RawOpaque>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawOpaque {
    driver: String,
    parameters: serde_json::Value,
}

impl Claim {
    /// Reads a ResourceClaim from its JSON. Devices for administrators (`adminAccess`) take nothing from anyone and are
    /// left out.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        let RawClaim { metadata, status } = serde_json::from_slice(json)?;
        let devices = status.allocation.unwrap_or_default().devices;
        let allocated = devices.results.into_iter().flatten().filter(|of| of.admin_access != Some(true));
        let allocated = allocated.map(|of| Allocated {
            request: of.request,
            driver: of.driver,
            pool: of.pool,
            device: of.device,
            share: of.share,
            consumed: of
                .consumed_capacity
                .into_iter()
                .flatten()
                .map(|(name, of)| (name, of.ceil()))
                .collect(),
        });
        let mut claim = Self { uid: metadata.uid, devices: allocated.collect(), cpus: BTreeMap::new() };
        for config in devices.config.into_iter().flatten() {
            let cpus = config.opaque.filter(|opaque| opaque.driver == CPU_DRIVER);
            let cpus = cpus.and_then(|opaque| {
                opaque.parameters["cpuConfig"]["cpuset"].as_str().and_then(|text| text.parse::<IdSet>().ok())
            });
            let Some(cpus) = cpus else { continue };
            // Without requests it is for all of them.
            let requests = config.requests.filter(|requests| !requests.is_empty());
            for request in requests.unwrap_or_else(|| vec![String::new()]) {
                claim.cpus.insert(request, cpus.clone());
            }
        }
        Ok(claim)
    }

    /// Returns the CPUs that are configured for a request.
    pub(super) fn cpus_of(&self, request: &str) -> Option<&IdSet> {
        let main = request.split_once('/').map_or(request, |(main, _)| main);
        self.cpus.get(request).or_else(|| self.cpus.get(main)).or_else(|| self.cpus.get(""))
    }
}

fn claim_name(text: &str) -> ClaimName {
    let (namespace, name) = text.split_once('/').unwrap_or_default();
    (namespace.to_owned(), name.to_owned())
}

/// Returns the claims that the List names, with the devices that drivers returned to the kubelet. The kubelet may repeat
/// a device.
#[must_use]
pub fn claims_of(usage: &Usage) -> BTreeMap<ClaimName, Vec<Allocated>> {
    let mut claims: BTreeMap<ClaimName, BTreeSet<Allocated>> = BTreeMap::new();
    for container in usage.pods.iter().flat_map(|pod| &pod.containers) {
        for claim in &container.claims {
            claims.entry(claim_name(claim)).or_default();
        }
        for claimed in &container.claimed {
            claims.entry(claim_name(&claimed.claim)).or_default().insert(Allocated {
                driver: claimed.driver.clone(),
                pool: claimed.pool.clone(),
                device: claimed.device.clone(),
                share: claimed.share.clone(),
                ..Allocated::default()
            });
        }
    }
    claims.into_iter().map(|(name, devices)| (name, devices.into_iter().collect())).collect()
}
