//! ResourceSlices: what drivers say about a node's devices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CPU_DRIVER, MEMORY_DRIVER};
use crate::machine::Id;
use crate::quantity::{Quantity, hugepages_name, is_huge_pages};

/// The used parts of a ResourceSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Slice {
    /// The object's name.
    pub name: String,
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// The pool's generation. Only slices of the newest one count.
    pub generation: i64,
    /// How many slices this generation has.
    pub slices: u64,
    /// The devices by name; several with one name make the pool invalid.
    pub devices: Vec<(String, Device)>,
    /// Counter set to counter to amount.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, BTreeMap<String, u64>>,
}

/// The used parts of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Device {
    /// The NUMA node that the driver publishes. Of `dra.memory` it is a position, see [`super::account()`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<i64>,
    /// The PCI address that it publishes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The CPU that the device stands for (`dra.cpu/cpuID`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Id>,
    /// The socket of a device of `dra.cpu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<Id>,
    /// What an allocation takes of `cpu`, `memory` or `hugepages-<size>`; such a device is not shown as a device.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stands_for: BTreeMap<String, Amount>,
    /// Counter set to counter to what an allocation consumes of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub consumes: BTreeMap<String, BTreeMap<String, u64>>,
    /// Whether a taint keeps pods away (`NoSchedule`, `NoExecute`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_tainted: bool,
}

/// How much of `cpu` (in CPUs) or of memory (in bytes) an allocation of a device takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Amount {
    /// This much, however it is allocated.
    Fixed(u64),
    /// What it consumes of a capacity, times a factor in thousandths.
    #[serde(rename_all = "camelCase")]
    Consumed {
        /// The capacity's name.
        capacity: String,
        /// Thousandths that one unit of it counts.
        milli: u64,
        /// The device's whole capacity, in units of the amount: what an allocation without a figure takes.
        whole: u64,
    },
}

/// A ResourceSlice as the API server sends it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceObject {
    metadata: RawMetadata,
    spec: RawSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMetadata {
    name: String,
    resource_version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    driver: String,
    pool: RawPool,
    devices: Option<Vec<RawDevice>>,
    shared_counters: Option<Vec<RawCounterSet>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawPool {
    name: String,
    generation: i64,
    resource_slice_count: u64,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawCounterSet {
    name: String,
    counters: Option<BTreeMap<String, RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawConsumed {
    counter_set: String,
    counters: Option<BTreeMap<String, RawValue>>,
}

/// A capacity or a counter.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawValue {
    value: Quantity,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawDevice {
    name: String,
    /// In v1beta1 all fields but the name are below it.
    basic: Option<Box<RawDevice>>,
    attributes: Option<BTreeMap<String, RawAttribute>>,
    capacity: Option<BTreeMap<String, RawValue>>,
    consumes_counters: Option<Vec<RawConsumed>>,
    taints: Option<Vec<RawTaint>>,
    node_allocatable_resources: Option<BTreeMap<String, RawNodeAllocatable>>,
    /// The same in Kubernetes 1.36.
    node_allocatable_resource_mappings: Option<BTreeMap<String, RawMapping>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawAttribute {
    bool: Option<bool>,
    int: Option<i64>,
    ints: Option<Vec<i64>>,
    string: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawTaint {
    effect: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawNodeAllocatable {
    mapping: Option<RawMapping>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMapping {
    capacity_key: Option<String>,
    capacity_multiplier: Option<Quantity>,
    device_multiplier: Option<Quantity>,
    /// In Kubernetes 1.36 it multiplies the capacity with this key, or devices without a key.
    allocation_multiplier: Option<Quantity>,
}

impl SliceObject {
    /// Returns its `resourceVersion`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl From<SliceObject> for Slice {
    fn from(SliceObject { metadata, spec }: SliceObject) -> Self {
        let device = |device: RawDevice| {
            let RawDevice { name, basic, .. } = &device;
            let name = name.clone();
            let fields = if basic.is_some() { basic.as_deref() } else { Some(&device) };
            (name, fields.map(|fields| Device::of(&spec.driver, fields)).unwrap_or_default())
        };
        let sets = spec.shared_counters.into_iter().flatten();
        Self {
            name: metadata.name,
            pool: spec.pool.name,
            generation: spec.pool.generation,
            slices: spec.pool.resource_slice_count,
            devices: spec.devices.into_iter().flatten().map(device).collect(),
            counters: sets.map(|set| (set.name, amounts(set.counters))).collect(),
            driver: spec.driver,
        }
    }
}

fn amounts(counters: Option<BTreeMap<String, RawValue>>) -> BTreeMap<String, u64> {
    counters.into_iter().flatten().map(|(name, of)| (name, of.value.ceil())).collect()
}

/// NUMA nodes under the names that drivers used before the standard one.
const NUMA_NAMES: [&str; 5] =
    ["resource.kubernetes.io/numaNode", "dra.cpu/numaNodeID", "dra.net/numaNode", "numaNode", "numa"];
const PCI_NAMES: [&str; 5] =
    ["resource.kubernetes.io/pciBusID", "pciAddress", "pciAddr", "pcieBusID", "parentPciAddr"];

impl Device {
    fn of(driver: &str, raw: &RawDevice) -> Self {
        let consumes = raw.consumes_counters.iter().flatten().map(|of| {
            let counters = of.counters.iter().flatten().map(|(name, of)| (name.clone(), of.value.ceil()));
            (of.counter_set.clone(), counters.collect())
        });
        let keeps_away = |taint: &RawTaint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        let small = |name: &str| raw.attribute(driver, name)?.int.and_then(|id| Id::try_from(id).ok());
        Self {
            // A negative value means unknown.
            numa: NUMA_NAMES.iter().find_map(|name| raw.first_int(driver, name).filter(|node| *node >= 0)),
            pci: PCI_NAMES.iter().find_map(|name| raw.attribute(driver, name)?.string.clone()),
            cpu: small("cpuID").filter(|_| driver == CPU_DRIVER),
            socket: small("socketID").filter(|_| driver == CPU_DRIVER),
            stands_for: raw.stands_for(driver),
            consumes: consumes.collect(),
            is_tainted: raw.taints.iter().flatten().any(keeps_away),
        }
    }
}

impl RawDevice {
    /// Returns an attribute. Names without a domain are in the driver's.
    fn attribute(&self, driver: &str, name: &str) -> Option<&RawAttribute> {
        let attributes = self.attributes.as_ref()?;
        let bare = name.strip_prefix(driver).and_then(|rest| rest.strip_prefix('/'));
        let qualified = || attributes.get(&format!("{driver}/{name}")).filter(|_| !name.contains('/'));
        attributes.get(name).or_else(|| attributes.get(bare?)).or_else(qualified)
    }

    /// Returns an int, or the first of a list: the device's own node, which its neighbours follow.
    fn first_int(&self, driver: &str, name: &str) -> Option<i64> {
        let attribute = self.attribute(driver, name)?;
        attribute.int.or_else(|| attribute.ints.as_ref()?.first().copied())
    }

    fn capacity(&self, name: &str) -> u64 {
        let capacity = self.capacity.as_ref().and_then(|all| all.get(name));
        capacity.map(|of| of.value.ceil()).unwrap_or(0)
    }

    fn stands_for(&self, driver: &str) -> BTreeMap<String, Amount> {
        let consumed = |resource: &str, capacity: &str| (resource.to_owned(), self.consumed(capacity, None));
        match driver {
            // One device for each CPU has no capacity.
            CPU_DRIVER if self.capacity("dra.cpu/cpu") > 0 => return [consumed("cpu", "dra.cpu/cpu")].into(),
            CPU_DRIVER if self.capacity("cpu") > 0 => return [consumed("cpu", "cpu")].into(),
            CPU_DRIVER => return [("cpu".to_owned(), Amount::Fixed(1))].into(),
            MEMORY_DRIVER => {
                let size = self.attribute(driver, "resource.kubernetes.io/pageSize");
                let huge =
                    self.attribute(driver, "resource.kubernetes.io/hugeTLB").and_then(|huge| huge.bool);
                let resource =
                    memory_kind(size.and_then(|size| size.string.as_deref()).unwrap_or("4k"), huge);
                let capacity = if self.capacity("dra.memory/size") > 0 { "dra.memory/size" } else { "size" };
                return [consumed(&resource, capacity)].into();
            }
            _ => {}
        }
        let current = self.node_allocatable_resources.iter().flatten();
        let current = current.filter_map(|(name, of)| Some((name, self.mapped(of.mapping.as_ref()?)?)));
        let older = self.node_allocatable_resource_mappings.iter().flatten();
        let older = older.map(|(name, mapping)| (name, self.mapped_in_1_36(mapping)));
        let known = |name: &str| matches!(name, "cpu" | "memory") || is_huge_pages(name);
        let all = older.chain(current).filter(|(name, _)| known(name));
        all.map(|(name, amount)| (name.clone(), amount)).collect()
    }

    fn mapped(&self, mapping: &RawMapping) -> Option<Amount> {
        if let Some(fixed) = mapping.device_multiplier {
            return Some(Amount::Fixed(fixed.ceil()));
        }
        Some(self.consumed(mapping.capacity_key.as_ref()?, mapping.capacity_multiplier))
    }

    fn mapped_in_1_36(&self, mapping: &RawMapping) -> Amount {
        let multiplier = mapping.allocation_multiplier;
        match &mapping.capacity_key {
            Some(capacity) => self.consumed(capacity, multiplier),
            None => Amount::Fixed(multiplier.map_or(1, |multiplier| multiplier.ceil())),
        }
    }

    fn consumed(&self, capacity: &str, multiplier: Option<Quantity>) -> Amount {
        let milli = multiplier.unwrap_or(Quantity::whole(1)).ceil_milli();
        let whole = times_milli(self.capacity(capacity), milli);
        Amount::Consumed { capacity: capacity.to_owned(), milli, whole }
    }
}

/// Returns `amount * milli / 1000`, rounded up and saturating.
pub(super) fn times_milli(amount: u64, milli: u64) -> u64 {
    u64::try_from((u128::from(amount) * u128::from(milli)).div_ceil(1000)).unwrap_or(u64::MAX)
}

/// Returns the resource of a page size as `dra.memory` writes it: `4k`, `2m`, `1g`.
fn memory_kind(size: &str, huge: Option<bool>) -> String {
    let unit = |suffix: &str, bytes: u64| {
        let count: u64 = size.strip_suffix(suffix)?.parse().ok()?;
        count.checked_mul(bytes)
    };
    let bytes = unit("k", 1 << 10).or_else(|| unit("m", 1 << 20)).or_else(|| unit("g", 1 << 30));
    // Only `hugeTLB` tells whether pages of up to 64 KiB are the ordinary ones.
    let is_huge = |bytes: &u64| huge.unwrap_or(*bytes > 1 << 16);
    bytes.filter(is_huge).map_or_else(|| "memory".to_owned(), hugepages_name)
}
