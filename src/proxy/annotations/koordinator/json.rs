//! The JSON in Koordinator's annotations. What cannot be parsed is left out and reported.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::error::PodErrors;
use super::super::resource_names::unprefixed;
use super::{DEVICES, STATUS};
use crate::kubelet::INVALID_CPU;
use crate::machine::{HIGHEST_NODE, Id, IdSet};
use crate::proxy::allocations::CpusAndMemory;
use crate::quantity::{Quantity, is_huge_pages};

/// Resources that are shares of a device: 100 is the whole device.
const SHARES: [&str; 5] = ["gpu", "gpu-core", "gpu-memory-ratio", "rdma", "fpga"];
/// Maximum number of amounts of memory of one pod: 64 nodes with memory and three sizes of huge pages.
const MAX_MEMORY: usize = 256;
/// The highest CPU id of any machine.
const MAX_CPU: Id = INVALID_CPU - 1;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct JsonDevice {
    /// Its id, if the scheduler knew it.
    pub(super) id: Option<String>,
    /// Its minor number among the devices of its type.
    pub(super) minor: Option<i64>,
    /// The virtual functions that were allocated instead of it.
    pub(super) functions: Vec<String>,
    /// Whether only a part of it was allocated.
    pub(super) is_part: bool,
}

pub(super) fn devices(text: &str, errors: &mut PodErrors) -> Vec<(String, Vec<JsonDevice>)> {
    let Some(types) = parse(text, DEVICES, errors) else { return Vec::new() };
    types.into_iter().map(|(kind, items)| (kind, devices_of_type(items, errors))).collect()
}

/// Parses an annotation, which has at most 64 KiB. `null` is no error: Go encodes a nil map so.
fn parse(text: &str, annotation: &str, errors: &mut PodErrors) -> Option<Map<String, Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => return Some(fields),
        Ok(Value::Null) => {}
        Ok(_) => errors.add_malformed(annotation, "it is not a JSON object"),
        Err(error) => errors.add_malformed(annotation, &format!("it is not JSON ({error})")),
    }
    None
}

fn devices_of_type(items: Value, errors: &mut PodErrors) -> Vec<JsonDevice> {
    let items = match items {
        Value::Array(items) => items,
        Value::Null => Vec::new(),
        _ => {
            errors.add_malformed(DEVICES, "the devices of a type are not a list");
            Vec::new()
        }
    };
    let mut devices = Vec::with_capacity(items.len());
    for item in &items {
        match device(item, errors) {
            Ok(device) => devices.push(device),
            Err(reason) => errors.add_malformed(DEVICES, reason),
        }
    }
    devices
}

fn device(item: &Value, errors: &mut PodErrors) -> Result<JsonDevice, &'static str> {
    let Value::Object(fields) = item else { return Err("a device is not a JSON object") };
    let id = match fields.get("id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(id.clone()).filter(|id| !id.is_empty()),
        Some(_) => return Err("the id of a device is not a string"),
    };
    let extension = fields.get("extension").unwrap_or(&Value::Null);
    let template = extension.get("gpuSharedResourceTemplate").and_then(Value::as_str);
    let has_template = template.is_some_and(|template| !template.is_empty());
    Ok(JsonDevice {
        id,
        minor: fields.get("minor").and_then(Value::as_i64),
        functions: functions(extension)?,
        is_part: has_template
            || fields.get("resources").is_some_and(|resources| has_partial_share(resources, errors)),
    })
}

/// Returns the virtual functions. An empty list stands for the device itself.
fn functions(extension: &Value) -> Result<Vec<String>, &'static str> {
    let items = match extension.get("vfs") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err("the virtual functions of a device are not a list"),
    };
    let address = |item: &Value| item.get("busID").and_then(Value::as_str).map(str::to_owned);
    let addresses: Option<_> = items.iter().map(address).collect();
    addresses.ok_or("a virtual function has no busID")
}

fn has_partial_share(resources: &Value, errors: &mut PodErrors) -> bool {
    let Value::Object(resources) = resources else { return false };
    let is_share = |name: &str| unprefixed(name).is_some_and(|name| SHARES.contains(&name));
    let mut is_partial = false;
    for (_, amount) in resources.iter().filter(|(name, _)| is_share(name)) {
        match quantity(amount) {
            Some(share) => is_partial |= share < Quantity::whole(100),
            None => errors.add_malformed(DEVICES, "a share of a device is not a quantity"),
        }
    }
    is_partial
}

/// Parses a string or a number. Null is 0, as in Go.
fn quantity(amount: &Value) -> Option<Quantity> {
    match amount {
        Value::Null => Some(Quantity::default()),
        amount => Quantity::deserialize(amount).ok(),
    }
}

pub(in super::super) fn cpus_and_memory(text: &str, errors: &mut PodErrors) -> CpusAndMemory {
    let Some(fields) = parse(text, STATUS, errors) else { return CpusAndMemory::default() };
    let field = |name: &str| fields.get(name).unwrap_or(&Value::Null);
    let cpus = cpus(field("cpuset")).unwrap_or_else(|reason| {
        errors.add_malformed(STATUS, reason);
        IdSet::new()
    });
    let nodes = match field("numaNodeResources") {
        Value::Array(nodes) => nodes.as_slice(),
        Value::Null => &[],
        _ => {
            errors.add_malformed(STATUS, "its numaNodeResources are not a list");
            &[]
        }
    };
    let mut memory = Vec::new();
    for node in nodes {
        add_memory(node, &mut memory).unwrap_or_else(|reason| errors.add_malformed(STATUS, reason));
    }
    CpusAndMemory { cpus, memory }
}

fn cpus(list: &Value) -> Result<IdSet, &'static str> {
    let list = match list {
        Value::Null => return Ok(IdSet::new()),
        Value::String(list) => list.parse::<IdSet>().ok(),
        _ => None,
    };
    let known = list.filter(|cpus| cpus.last().is_none_or(|last| last <= MAX_CPU));
    known.ok_or("its cpuset is not a list of CPUs")
}

/// Parses the memory of one NUMA node. Each node may occur once.
fn add_memory(entry: &Value, all: &mut Vec<(Box<str>, u64, Id)>) -> Result<(), &'static str> {
    let node = entry.get("node").and_then(Value::as_u64).and_then(|node| Id::try_from(node).ok());
    let node = node.filter(|node| *node <= HIGHEST_NODE).ok_or("a NUMA node without a number")?;
    if all.iter().any(|(_, _, known)| *known == node) {
        return Err("a NUMA node occurs twice");
    }
    let resources = match entry.get("resources") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(resources)) => resources,
        Some(_) => return Err("the resources of a NUMA node are not a JSON object"),
    };
    for (name, amount) in resources {
        if name != "memory" && !is_huge_pages(name) {
            continue;
        }
        if all.len() >= MAX_MEMORY {
            return Err("more amounts of memory than a node can have");
        }
        let bytes = quantity(amount).ok_or("an amount of memory that is not a quantity")?.ceil();
        if bytes > 0 && name.len() <= 63 {
            all.push((name.as_str().into(), bytes, node));
        }
    }
    Ok(())
}
