//! ResourceClaims: what the scheduler has allocated.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::CPU_DRIVER;
use crate::kubelet::PodUsage;
use crate::machine::IdSet;
use crate::pod::Pod;
use crate::quantity::Quantity;

/// The used parts of a ResourceClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Claim {
    /// The UID; empty for a claim that is known from the List only.
    pub uid: String,
    /// Whether it is allocated.
    pub is_allocated: bool,
    /// The devices, without those for administrators.
    pub devices: Vec<Allocated>,
    /// The CPUs that the claim asks for, by request; the driver gives them with `groupBy: machine` (`dra.cpu`).
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
    source: String,
    requests: Option<Vec<String>>,
    opaque: Option<RawOpaque>,
}

/// The parameters are not parsed: anybody may write anything there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawOpaque {
    driver: String,
    parameters: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CpuParameters {
    cpu_config: CpuConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CpuConfig {
    cpuset: Option<String>,
}

impl RawConfig {
    /// Returns the CPUs that the claim asks `dra.cpu` for.
    fn cpus(&self) -> Option<IdSet> {
        let opaque =
            self.opaque.as_ref().filter(|of| of.driver == CPU_DRIVER && self.source == "FromClaim")?;
        let parameters: CpuParameters = serde_json::from_str(opaque.parameters.as_ref()?.get()).ok()?;
        parameters.cpu_config.cpuset?.parse().ok()
    }
}

impl Claim {
    /// Reads a ResourceClaim from its JSON. Devices for administrators (`adminAccess`) take nothing from anyone and are
    /// left out.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        let RawClaim { metadata, status } = serde_json::from_slice(json)?;
        let is_allocated = status.allocation.is_some();
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
        let devices_of_claim = allocated.collect();
        let mut claim =
            Self { uid: metadata.uid, is_allocated, devices: devices_of_claim, cpus: BTreeMap::new() };
        for config in devices.config.into_iter().flatten() {
            let Some(cpus) = config.cpus() else { continue };
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

/// A claim that pods of the node name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClaimInUse {
    /// The claim.
    pub claim: Claim,
    /// Whether it is known what it holds. The List is not enough if it shows no device: some drivers return none.
    pub is_known: bool,
    /// The names of these pods, which are in the claim's namespace.
    pub pods: BTreeSet<String>,
}

/// Returns the claims that active pods of the List name, by `namespace/name`, with the devices that drivers returned to
/// the kubelet. It may repeat a device.
pub fn claims_of<'a>(pods: impl IntoIterator<Item = &'a PodUsage>) -> BTreeMap<String, ClaimInUse> {
    let mut claims: BTreeMap<String, ClaimInUse> = BTreeMap::new();
    for pod in pods {
        for container in &pod.containers {
            for claim in &container.claims {
                claims.entry(claim.clone()).or_default().pods.insert(pod.name.clone());
            }
            for claimed in &container.claimed {
                let of = claims.entry(claimed.claim.clone()).or_default();
                of.pods.insert(pod.name.clone());
                let device = Allocated {
                    driver: claimed.driver.clone(),
                    pool: claimed.pool.clone(),
                    device: claimed.device.clone(),
                    share: claimed.share.clone(),
                    ..Allocated::default()
                };
                of.is_known = true;
                if !of.claim.devices.contains(&device) {
                    of.claim.devices.push(device);
                }
            }
        }
    }
    claims.values_mut().for_each(|of| of.claim.devices.sort());
    claims
}

/// Claims by `namespace/name`, each with the pods that name it.
pub type NamedClaims = BTreeMap<String, ClaimPods>;

/// The pods that name a claim. A pod that has the name of an earlier one has another UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimPods {
    /// Their names.
    pub names: BTreeSet<String>,
    /// Their UIDs, as far as they are known.
    pub uids: BTreeSet<String>,
}

impl ClaimPods {
    /// Returns true if `other` has all of these pods.
    #[must_use]
    pub fn are_among(&self, other: &Self) -> bool {
        self.names.is_subset(&other.names) && self.uids.is_subset(&other.uids)
    }
}

/// Returns the claims that the List names, and those of these pods that are not terminal.
pub fn named_claims<'a>(
    listed: &BTreeMap<String, ClaimInUse>,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> NamedClaims {
    let of_list = |(name, of): (&String, &ClaimInUse)| {
        (name.clone(), ClaimPods { names: of.pods.clone(), ..ClaimPods::default() })
    };
    let mut named: NamedClaims = listed.iter().map(of_list).collect();
    for pod in pods.into_iter().filter(|pod| !pod.phase.is_terminal()) {
        for claim in pod.claim_names() {
            let pods = named.entry(format!("{}/{claim}", pod.namespace)).or_default();
            pods.names.insert(pod.name.clone());
            pods.uids.insert(pod.uid.clone());
        }
    }
    named
}

/// Returns what is known of each claim: what the scheduler allocated, else what the List shows. `read` returns what was
/// read of a claim in the API server: `None` if it was not or cannot be read, `Some(None)` if there is no such claim.
pub fn known_claims<'a>(
    named: NamedClaims,
    listed: &BTreeMap<String, ClaimInUse>,
    read: impl Fn(&str) -> Option<Option<&'a Claim>>,
) -> BTreeMap<String, ClaimInUse> {
    let known = |(name, ClaimPods { names: pods, .. }): (String, ClaimPods)| {
        let of_list = listed.get(&name);
        let (claim, is_known) = match (read(&name), of_list) {
            // The List only says that the claim is still there.
            (Some(Some(claim)), _) if claim.is_allocated => (claim.clone(), true),
            // It is not allocated, or not read.
            (_, Some(of_list)) => (of_list.claim.clone(), of_list.is_known),
            (_, None) => return None,
        };
        Some((name, ClaimInUse { claim, is_known, pods }))
    };
    named.into_iter().filter_map(known).collect()
}
