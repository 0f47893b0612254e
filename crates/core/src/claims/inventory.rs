//! The devices of the pools that are complete.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Allocated;
use super::slice::{Device, Slice};

/// How long the devices of a pool count that is incomplete or gone. A kubelet that starts deletes all slices of its
/// node, and drivers bring them back 30 seconds later (upstream: `kubelet/cm/dra/plugin/dra_plugin_manager.go`,
/// `dynamic-resource-allocation/resourceslice`, `DefaultSyncDelay`); a driver itself may need a minute to start.
pub const KEPT_FOR: Duration = Duration::from_secs(120);

/// A device: driver, pool and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey {
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: String,
}

impl From<&Allocated> for DeviceKey {
    fn from(of: &Allocated) -> Self {
        Self { driver: of.driver.clone(), pool: of.pool.clone(), device: of.device.clone() }
    }
}

/// The devices of a node's ResourceSlices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Inventory {
    /// By driver and pool.
    pools: BTreeMap<String, BTreeMap<String, Pool>>,
}

/// The last complete contents of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Pool {
    pub(super) devices: BTreeMap<String, Device>,
    /// Counter set to counter to amount.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) counters: BTreeMap<String, BTreeMap<String, u64>>,
    /// Devices in use that the complete contents do not have: removed, or of a pool that is not complete yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) others: BTreeMap<String, Device>,
    /// Since when the pool is incomplete or gone, as time since any fixed moment.
    #[serde(skip)]
    lost_since: Option<Duration>,
    /// Whether it has been for too long.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_lost: bool,
}

impl Inventory {
    /// Takes the node's slices as they are `now`, in time since any fixed moment. Devices `in_use` stay known when
    /// their pool no longer has them.
    pub fn update<'a>(
        &mut self,
        slices: impl IntoIterator<Item = &'a Slice>,
        in_use: &BTreeSet<DeviceKey>,
        now: Duration,
    ) {
        type ByPool<'a, T> = BTreeMap<(&'a str, &'a str), T>;
        let mut by_pool: ByPool<'_, Vec<&Slice>> = BTreeMap::new();
        for slice in slices {
            by_pool.entry((&slice.driver, &slice.pool)).or_default().push(slice);
        }
        let mut used: ByPool<'_, BTreeSet<&str>> = BTreeMap::new();
        for DeviceKey { driver, pool, device } in in_use {
            used.entry((driver, pool)).or_default().insert(device);
        }
        for (driver, pool) in by_pool.keys() {
            self.pools.entry((*driver).to_owned()).or_default().entry((*pool).to_owned()).or_default();
        }
        let (no_slices, none) = (Vec::new(), BTreeSet::new());
        for (driver, pools) in &mut self.pools {
            for (name, pool) in pools.iter_mut() {
                let key = (driver.as_str(), name.as_str());
                pool.update(by_pool.get(&key).unwrap_or(&no_slices), used.get(&key).unwrap_or(&none), now);
            }
            pools.retain(|_, pool| !pool.is_lost || !pool.others.is_empty());
        }
        self.pools.retain(|_, pools| !pools.is_empty());
    }

    /// Returns when a pool that is lost now stops counting; `None` without one.
    #[must_use]
    pub fn next_loss(&self) -> Option<Duration> {
        let lost = self.pools.values().flat_map(BTreeMap::values).filter(|pool| !pool.is_lost);
        lost.filter_map(|pool| pool.lost_since).min().map(|since| since + KEPT_FOR)
    }

    /// Returns true if a pool that counts has the device.
    pub(super) fn is_offered(&self, driver: &str, pool: &str, device: &str) -> bool {
        let pool = self.pools.get(driver).and_then(|pools| pools.get(pool));
        pool.is_some_and(|pool| pool.devices.contains_key(device))
    }

    /// Returns a device that is or was in a slice.
    #[must_use]
    pub fn device(&self, driver: &str, pool: &str, device: &str) -> Option<&Device> {
        let pool = self.pools.get(driver)?.get(pool)?;
        pool.devices.get(device).or_else(|| pool.others.get(device))
    }

    /// Returns the drivers that have a pool.
    pub fn drivers(&self) -> impl Iterator<Item = &str> {
        self.pools.keys().map(String::as_str)
    }

    /// Returns the devices that are or were in a slice, with their driver.
    pub fn devices(&self) -> impl Iterator<Item = (&str, &Device)> {
        self.pools().flat_map(|(driver, _, pool)| pool.all().map(move |device| (driver, device)))
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = (&str, &str, &Pool)> {
        let drivers = self.pools.iter().map(|(driver, pools)| (driver.as_str(), pools));
        drivers.flat_map(|(driver, pools)| pools.iter().map(move |(pool, of)| (driver, pool.as_str(), of)))
    }
}

impl Pool {
    fn all(&self) -> impl Iterator<Item = &Device> {
        self.devices.values().chain(self.others.values())
    }

    fn update(&mut self, slices: &[&Slice], used: &BTreeSet<&str>, now: Duration) {
        let newest = slices.iter().map(|slice| slice.generation).max();
        let slices: Vec<&&Slice> = slices.iter().filter(|slice| Some(slice.generation) == newest).collect();
        let listed = slices.iter().flat_map(|slice| &slice.devices);
        let devices: BTreeMap<&String, &Device> =
            listed.clone().map(|(name, device)| (name, device)).collect();
        let expected = slices.first().map_or(0, |slice| slice.slices);
        let is_complete = expected > 0 && slices.len() as u64 == expected && devices.len() == listed.count();
        let before = std::mem::take(&mut self.others);
        if is_complete {
            let former = std::mem::take(&mut self.devices);
            self.others.extend(former);
            self.devices = devices.into_iter().map(|(name, device)| (name.clone(), device.clone())).collect();
            self.counters = slices.iter().flat_map(|slice| slice.counters.clone()).collect();
            self.lost_since = None;
        } else {
            let partial = devices.into_iter().map(|(name, device)| (name.clone(), device.clone()));
            self.others.extend(partial);
            self.lost_since.get_or_insert(now);
        }
        self.is_lost = self.lost_since.is_some_and(|since| now.saturating_sub(since) >= KEPT_FOR);
        if self.is_lost {
            self.others.append(&mut self.devices);
            self.counters.clear();
        }
        for (name, device) in before {
            self.others.entry(name).or_insert(device);
        }
        let devices = &self.devices;
        self.others.retain(|name, _| used.contains(name.as_str()) && !devices.contains_key(name));
    }
}
