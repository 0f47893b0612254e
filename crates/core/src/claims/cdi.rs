//! What drivers write about claims into CDI files: the CPUs that `dra.cpu` chose, and the memory of `dra.memory`.
//!
//! For CPUs that are given out by count nothing else tells which ones (dra-driver-cpu, `pkg/driver/cdi.go`;
//! dra-driver-memory, `pkg/cdi`, `pkg/env`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::IdSet;
use crate::quantity::{Quantity, hugepages_name};

/// The CPUs and memory in CDI files, by the claim's UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CdiAllocations {
    /// CPUs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpus: BTreeMap<String, IdSet>,
    /// By `memory` or `hugepages-<size>`: the position of the NUMA node, and bytes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub memory: BTreeMap<String, BTreeMap<String, (i64, u64)>>,
}

impl CdiAllocations {
    /// Returns true if there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.memory.is_empty()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    kind: String,
    devices: Option<Vec<SpecDevice>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecDevice {
    name: String,
    container_edits: Edits,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Edits {
    env: Option<Vec<String>>,
}

/// Adds what a CDI file says about claims. Files of other drivers add nothing.
///
/// # Errors
/// If it is malformed; then nothing is added.
pub fn parse_cdi(json: &[u8], allocations: &mut CdiAllocations) -> Result<(), serde_json::Error> {
    let Spec { kind, devices } = serde_json::from_slice(json)?;
    for device in devices.into_iter().flatten() {
        let Some(uid) = device.name.strip_prefix("claim-") else { continue };
        for variable in device.container_edits.env.into_iter().flatten() {
            let Some((name, value)) = variable.split_once('=') else { continue };
            match kind.as_str() {
                "dra.k8s.io/cpu" if name.strip_prefix("DRA_CPUSET_") == Some(uid) => {
                    let Ok(cpus) = value.parse() else { continue };
                    allocations.cpus.insert(uid.to_owned(), cpus);
                }
                "dra.k8s.io/memory" => {
                    let Some(kind) = memory_kind(name, uid) else { continue };
                    let Some(amount) = memory_amount(value) else { continue };
                    allocations.memory.entry(uid.to_owned()).or_default().insert(kind, amount);
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Returns the resource of `DRAMEMORY_<uid>_memory` or `DRAMEMORY_<uid>_hugepages_2m`.
fn memory_kind(name: &str, uid: &str) -> Option<String> {
    let kind = name.strip_prefix("DRAMEMORY_")?.strip_prefix(uid)?.strip_prefix('_')?;
    if kind == "memory" {
        return Some(kind.to_owned());
    }
    let size = kind.strip_prefix("hugepages_")?;
    let (number, unit) = size.split_at_checked(size.len().checked_sub(1)?)?;
    let unit: u64 = match unit {
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    Some(hugepages_name(number.parse::<u64>().ok()?.checked_mul(unit)?))
}

/// Reads `numanode:0,size:4Gi`.
fn memory_amount(value: &str) -> Option<(i64, u64)> {
    let field = |name: &str| {
        let fields = value.split(',').filter_map(|field| field.split_once(':'));
        fields.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let bytes: Quantity = field("size")?.parse().ok()?;
    Some((field("numanode")?.parse().ok()?, bytes.ceil()))
}
