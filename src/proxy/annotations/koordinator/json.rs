//! The annotations that Koordinator's scheduler writes to the pods that it schedules.

use serde::Deserialize;
use serde_json::Value;

use super::problem::{Kind, Problems};
use crate::machine::{HIGHEST_NODE, Id, IdSet};
use crate::quantity::Quantity;

/// The annotation with the devices.
pub(super) const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";
/// The annotation with the CPUs, and the memory by NUMA node.
pub(super) const STATUS: &str = "scheduling.koordinator.sh/resource-status";

/// Resources that are shares of a device: 100 is the whole device.
const SHARES: [&str; 5] = ["gpu", "gpu-core", "gpu-memory-ratio", "rdma", "fpga"];
/// The prefixes of Koordinator's resources; the second is the former one.
const DOMAINS: [&str; 2] = ["koordinator.sh/", "kubernetes.io/"];
/// Maximum number of amounts of memory of one pod: 64 nodes with memory and three sizes of huge pages.
const MEMORY_LIMIT: usize = 256;
/// Linux can be built for 8192 CPUs at most.
const HIGHEST_CPU: Id = 8191;

/// One device of one type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Allocated {
    /// Its id, if the scheduler knew it.
    pub(super) id: Option<String>,
    /// Its minor number among the devices of its type.
    pub(super) minor: Option<i64>,
    /// The virtual functions that were allocated instead of it.
    pub(super) functions: Vec<String>,
    /// Whether only a part of it was allocated.
    pub(super) part: bool,
}

/// CPUs and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) cpus: IdSet,
    /// `memory` or huge pages, bytes, NUMA node.
    pub(super) memory: Vec<(Box<str>, u64, Id)>,
}

/// Returns a resource's name without Koordinator's prefix, if it has one.
pub(super) fn own(name: &str) -> Option<&str> {
    DOMAINS.iter().find_map(|domain| name.strip_prefix(domain))
}

/// Reads the devices of each type. What cannot be read is left out and reported as a problem.
pub(super) fn devices(text: &str, problems: &mut Problems) -> Vec<(String, Vec<Allocated>)> {
    let reason = match parse(text) {
        Ok(Value::Object(types)) => {
            return types.into_iter().map(|(kind, items)| (kind, of_type(items, problems))).collect();
        }
        // Go encodes a nil map like this.
        Ok(Value::Null) => return Vec::new(),
        Ok(_) => "it is no JSON object".to_owned(),
        Err(error) => error,
    };
    malformed(problems, DEVICES, &reason);
    Vec::new()
}

fn of_type(items: Value, problems: &mut Problems) -> Vec<Allocated> {
    let items = match items {
        Value::Array(items) => items,
        Value::Null => Vec::new(),
        _ => {
            malformed(problems, DEVICES, "the devices of a type are no list");
            Vec::new()
        }
    };
    let mut devices = Vec::with_capacity(items.len());
    for item in &items {
        match device(item, problems) {
            Ok(device) => devices.push(device),
            Err(reason) => malformed(problems, DEVICES, reason),
        }
    }
    devices
}

fn device(item: &Value, problems: &mut Problems) -> Result<Allocated, &'static str> {
    let Value::Object(fields) = item else { return Err("a device is no JSON object") };
    let id = match fields.get("id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(id.clone()).filter(|id| !id.is_empty()),
        Some(_) => return Err("the id of a device is no text"),
    };
    let extension = fields.get("extension").unwrap_or(&Value::Null);
    let template = extension.get("gpuSharedResourceTemplate").and_then(Value::as_str);
    let part = template.is_some_and(|template| !template.is_empty());
    Ok(Allocated {
        id,
        minor: fields.get("minor").and_then(Value::as_i64),
        functions: functions(extension)?,
        part: part || fields.get("resources").is_some_and(|resources| is_part(resources, problems)),
    })
}

/// Returns the virtual functions. An empty list stands for the device itself.
fn functions(extension: &Value) -> Result<Vec<String>, &'static str> {
    let items = match extension.get("vfs") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err("the virtual functions of a device are no list"),
    };
    let address = |item: &Value| item.get("busID").and_then(Value::as_str).map(str::to_owned);
    let addresses: Option<_> = items.iter().map(address).collect();
    addresses.ok_or("a virtual function has no busID")
}

/// Whether any of the shares is below 100.
fn is_part(resources: &Value, problems: &mut Problems) -> bool {
    let Value::Object(resources) = resources else { return false };
    let mut part = false;
    for (_, amount) in
        resources.iter().filter(|(name, _)| own(name).is_some_and(|name| SHARES.contains(&name)))
    {
        match quantity(amount) {
            Some(share) => part |= share < Quantity::whole(100),
            None => malformed(problems, DEVICES, "a share of a device cannot be read"),
        }
    }
    part
}

/// Reads a string or a number. Null is 0, as in Go.
fn quantity(amount: &Value) -> Option<Quantity> {
    match amount {
        Value::Null => Some(Quantity::default()),
        amount => Quantity::deserialize(amount).ok(),
    }
}

/// Reads the CPUs and the memory. What cannot be read is left out and reported as a problem.
pub(super) fn status(text: &str, problems: &mut Problems) -> Status {
    let mut status = Status::default();
    let reason = match parse(text) {
        Ok(Value::Object(fields)) => {
            let field = |name: &str| fields.get(name).unwrap_or(&Value::Null);
            match cpus(field("cpuset")) {
                Ok(cpus) => status.cpus = cpus,
                Err(reason) => malformed(problems, STATUS, reason),
            }
            let nodes = match field("numaNodeResources") {
                Value::Array(nodes) => nodes.as_slice(),
                Value::Null => &[],
                _ => {
                    malformed(problems, STATUS, "its numaNodeResources are no list");
                    &[]
                }
            };
            for node in nodes {
                memory(node, &mut status.memory).unwrap_or_else(|reason| malformed(problems, STATUS, reason));
            }
            return status;
        }
        Ok(Value::Null) => return status,
        Ok(_) => "it is no JSON object".to_owned(),
        Err(error) => error,
    };
    malformed(problems, STATUS, &reason);
    status
}

fn cpus(list: &Value) -> Result<IdSet, &'static str> {
    let list = match list {
        Value::Null => return Ok(IdSet::new()),
        Value::String(list) => list.parse::<IdSet>().ok(),
        _ => None,
    };
    let known = list.filter(|cpus| cpus.last().is_none_or(|last| last <= HIGHEST_CPU));
    known.ok_or("its cpuset is no list of CPUs")
}

/// Reads the memory of one NUMA node. Each node may occur once.
fn memory(entry: &Value, all: &mut Vec<(Box<str>, u64, Id)>) -> Result<(), &'static str> {
    let node = entry.get("node").and_then(Value::as_u64).and_then(|node| Id::try_from(node).ok());
    let node = node.filter(|node| *node <= HIGHEST_NODE).ok_or("a NUMA node without a number")?;
    if all.iter().any(|(_, _, known)| *known == node) {
        return Err("a NUMA node twice");
    }
    let resources = match entry.get("resources") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(resources)) => resources,
        Some(_) => return Err("the resources of a NUMA node are no JSON object"),
    };
    for (name, amount) in resources {
        if name != "memory" && !name.starts_with("hugepages-") {
            continue;
        }
        if all.len() >= MEMORY_LIMIT {
            return Err("more amounts of memory than a node can have");
        }
        let bytes = quantity(amount).ok_or("an amount of memory that cannot be read")?.ceil();
        if bytes > 0 && name.len() <= 63 {
            all.push((name.as_str().into(), bytes, node));
        }
    }
    Ok(())
}

/// Parses a whole annotation, which has at most 64 KiB.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("it is no JSON ({error})"))
}

/// Reports that a part of an annotation cannot be read.
pub(super) fn malformed(problems: &mut Problems, annotation: &str, reason: &str) {
    problems.add(Kind::Malformed, 0, || format!("annotation `{annotation}` is not understood: {reason}"));
}
