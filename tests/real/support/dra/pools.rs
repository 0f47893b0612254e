//! What a driver has: `Pool::of("gpus").device(device("gpu-0").numa_node(1))`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A pool of devices, as `tests/parts/dra-driver` reads it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pool {
    name: String,
    devices: Vec<Device>,
    shared_counters: Vec<Value>,
    devices_per_slice: usize,
    cpus: BTreeMap<String, String>,
    returns_nothing: bool,
    returns_shares: bool,
}

/// A device, as in a ResourceSlice.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Device(Value);

/// Returns a device without attributes.
pub(crate) fn device(name: &str) -> Device {
    Device(json!({ "name": name }))
}

impl Pool {
    /// Returns a pool without devices.
    pub(crate) fn of(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            devices: Vec::new(),
            shared_counters: Vec::new(),
            devices_per_slice: 0,
            cpus: BTreeMap::new(),
            returns_nothing: false,
            returns_shares: false,
        }
    }

    /// Returns a pool as of dra.cpu with a device per NUMA node, of which claims get CPUs by count: NUMA node
    /// ids and their lists of CPUs, without reserved ones. The devices are `cpudevnuma000` and so on.
    pub(crate) fn cpus_by_count(name: &str, nodes: &[(u16, &str)]) -> Result<Self> {
        let mut pool = Self::of(name);
        for (node, list) in nodes {
            let count = ids(list)?.len();
            let id = format!("cpudevnuma{node:03}");
            let cpus = device(&id).int("dra.cpu/numaNodeID", i64::from(*node));
            let cpus = cpus.int("dra.cpu/numCPUs", i64::try_from(count)?);
            pool = pool.device(cpus.capacity("dra.cpu/cpu", &count.to_string()).shareable());
            pool.cpus.insert(id, (*list).to_owned());
        }
        Ok(pool)
    }

    /// Returns a pool as of dra.cpu with a device per CPU. Their names `cpudev000` and so on are running
    /// numbers, not the CPUs' ids.
    pub(crate) fn single_cpus(name: &str, nodes: &[(u16, &str)]) -> Result<Self> {
        let mut pool = Self::of(name);
        for (node, list) in nodes {
            for cpu in ids(list)? {
                let one = device(&format!("cpudev{:03}", pool.devices.len()));
                let one =
                    one.int("dra.cpu/cpuID", i64::from(cpu)).int("dra.cpu/numaNodeID", i64::from(*node));
                pool = pool.device(one);
            }
        }
        Ok(pool)
    }

    /// Adds a device.
    pub(crate) fn device(mut self, device: Device) -> Self {
        self.devices.push(device);
        self
    }

    /// Sets the CPUs of a device that stands for several, of which claims get as many as they consume of its
    /// capacity `dra.cpu/cpu`.
    pub(crate) fn cpus_of(mut self, device: &str, list: &str) -> Self {
        self.cpus.insert(device.to_owned(), list.to_owned());
        self
    }

    /// Adds a set with one counter, for partitions.
    pub(crate) fn counter(mut self, set: &str, name: &str, value: &str) -> Self {
        let counters = Map::from_iter([(name.to_owned(), json!({ "value": value }))]);
        self.shared_counters.push(json!({ "name": set, "counters": counters }));
        self
    }

    /// Puts so many devices into a ResourceSlice, instead of as many as the API server admits.
    pub(crate) fn devices_per_slice(mut self, count: usize) -> Self {
        self.devices_per_slice = count;
        self
    }

    /// Tells the kubelet of no device of a prepared claim, as dranet.
    pub(crate) fn returns_nothing(mut self) -> Self {
        self.returns_nothing = true;
        self
    }

    /// Tells the kubelet the IDs of shares, which few drivers do.
    pub(crate) fn returns_shares(mut self) -> Self {
        self.returns_shares = true;
        self
    }
}

impl Device {
    /// Sets the standard attribute of its NUMA node.
    pub(crate) fn numa_node(self, id: i64) -> Self {
        self.int("resource.kubernetes.io/numaNode", id)
    }

    /// Sets an attribute to a number.
    pub(crate) fn int(self, attribute: &str, value: i64) -> Self {
        self.attribute(attribute, json!({ "int": value }))
    }

    /// Sets an attribute to a list of numbers. The API server drops it without the feature gate
    /// `DRAListTypeAttributes`, and the driver's slices then never count as published.
    pub(crate) fn ints(self, attribute: &str, values: &[i64]) -> Self {
        self.attribute(attribute, json!({ "ints": values }))
    }

    /// Sets an attribute to a text.
    pub(crate) fn text(self, attribute: &str, value: &str) -> Self {
        self.attribute(attribute, json!({ "string": value }))
    }

    /// Sets a capacity.
    pub(crate) fn capacity(mut self, name: &str, quantity: &str) -> Self {
        self.0["capacity"][name] = json!({ "value": quantity });
        self
    }

    /// Allows several claims to have a share of it at a time.
    pub(crate) fn shareable(mut self) -> Self {
        self.0["allowMultipleAllocations"] = json!(true);
        self
    }

    /// Adds a taint with an effect: `NoSchedule`, `NoExecute`, `None`.
    pub(crate) fn taint(self, key: &str, effect: &str) -> Self {
        self.append("taints", json!({ "key": key, "effect": effect }))
    }

    /// Makes it a partition that takes something of a counter.
    pub(crate) fn consumes(self, set: &str, counter: &str, value: &str) -> Self {
        let counters = Map::from_iter([(counter.to_owned(), json!({ "value": value }))]);
        self.append("consumesCounters", json!({ "counterSet": set, "counters": counters }))
    }

    fn attribute(mut self, name: &str, value: Value) -> Self {
        self.0["attributes"][name] = value;
        self
    }

    fn append(mut self, key: &str, value: Value) -> Self {
        match &mut self.0[key] {
            Value::Array(list) => list.push(value),
            other => *other = json!([value]),
        }
        self
    }
}

/// Returns the CPUs of a list, such as `1-3,9`.
pub(crate) fn ids(list: &str) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = || anyhow::Ok(first.parse::<u32>()?..=last.parse::<u32>()?);
        all.extend(range().with_context(|| format!("{list:?} is not a list of CPUs"))?);
    }
    Ok(all)
}
