//! The available resources in an object's zones: the only part that an allocation or a release must change.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

/// Zone -> resource -> available quantity, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zones(BTreeMap<String, BTreeMap<String, String>>);

impl Zones {
    pub(crate) fn of(object: &Value) -> Result<Self> {
        let zones = object["zones"].as_array().context("an object without zones")?;
        Ok(Self(zones.iter().map(|zone| (text(&zone["name"]), resources(zone))).collect()))
    }

    /// Returns the number of available CPUs in all zones together.
    pub(crate) fn free_cpus(&self) -> u64 {
        let cpus = self.0.values().filter_map(|zone| zone.get("cpu"));
        cpus.filter_map(|available| available.parse::<u64>().ok()).sum()
    }
}

fn resources(zone: &Value) -> BTreeMap<String, String> {
    let all = zone["resources"].as_array().into_iter().flatten();
    all.map(|resource| (text(&resource["name"]), text(&resource["available"]))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns when the object first had its current zones: earlier versions may have had a withheld
/// fingerprint or reservations, and versions after the first of them may have changed something else.
pub(crate) fn current_since(versions: &[(Instant, Zones)]) -> Option<Instant> {
    let (_, now) = versions.last()?;
    versions.iter().rev().take_while(|(_, zones)| zones == now).last().map(|(at, _)| *at)
}
