//! Validates machine descriptions, since a test on an impossible machine proves nothing.

use std::collections::BTreeSet;

use numacast_core::machine::{Id, IdSet};
use numacast_core::quantity::Quantity;
use serde::Deserialize;
use serde_json::Value;

use super::{Device, DeviceSpec, MachineSpec, Missing, NodeSpec};

/// Returns an error of one sentence if such a machine is impossible.
pub(super) fn check(machine: &MachineSpec) -> Result<(), String> {
    if machine.nodes.is_empty() || machine.threads_per_core == 0 {
        return Err("it has no node, or cores without threads".into());
    }
    let mut ids = BTreeSet::new();
    let mut cpus = IdSet::new();
    for node in &machine.nodes {
        let id = node.id;
        if !ids.insert(id) {
            return Err(format!("node {id} exists twice"));
        }
        if let Some(cpu) = node.present_cpus().iter().find(|cpu| cpus.contains(*cpu)) {
            return Err(format!("CPU {cpu} of node {id} is also on another node"));
        }
        if let Some(cpu) = node.cpus.intersection(&node.offline_cpus).iter().next() {
            return Err(format!("CPU {cpu} of node {id} is both online and offline"));
        }
        // `cpus` contains the CPUs of the lower nodes at this point.
        if let Some(cpu) = node.repeated_cpus.difference(&cpus).iter().next() {
            return Err(format!("node {id} repeats CPU {cpu}, which is on no lower node"));
        }
        cpus.union_with(&node.present_cpus());
        memory(node)?;
        missing(node)?;
        packages(machine, node)?;
    }
    quantities(machine)?;
    numa(machine)?;
    possible(machine, &ids, &cpus)?;
    core_types(machine, &cpus)?;
    references(machine, &ids)
}

/// A kubelet does not start with an invalid quantity.
fn quantities(machine: &MachineSpec) -> Result<(), String> {
    let keys = &machine.kubelet;
    let sections = ["kubeReserved", "systemReserved"].into_iter().filter_map(|section| keys.get(section));
    let limits = keys.get("reservedMemory").and_then(Value::as_array).into_iter().flatten();
    let maps = sections.chain(limits.filter_map(|entry| entry.get("limits"))).filter_map(Value::as_object);
    match maps.flat_map(|map| map.values()).find(|amount| Quantity::deserialize(*amount).is_err()) {
        Some(amount) => Err(format!("its kubelet reserves {amount}, which is not a quantity")),
        None => Ok(()),
    }
}

fn memory(node: &NodeSpec) -> Result<(), String> {
    let id = node.id;
    for (size, pages) in node.pages() {
        if size < 1024 || size.checked_mul(pages).is_none() {
            return Err(format!("node {id} has huge pages of an invalid size"));
        }
    }
    if node.hugepage_bytes() > node.memory.ceil() {
        return Err(format!("the huge pages of node {id} are more than its memory"));
    }
    Ok(())
}

/// The kernel reports every part that a node has.
fn missing(node: &NodeSpec) -> Result<(), String> {
    let id = node.id;
    let hidden = |what: &str| Err(format!("node {id} has {what} and does not report it"));
    let has_memory = node.memory.ceil() > 0;
    for part in &node.missing {
        match part {
            Missing::Directory if !node.present_cpus().is_empty() => return hidden("CPUs"),
            Missing::Directory if !node.distances.is_empty() => return hidden("distances"),
            Missing::Directory | Missing::Meminfo | Missing::MemTotal if has_memory => {
                return hidden("memory");
            }
            Missing::Hugepages if node.hugepage_bytes() > 0 => return hidden("huge pages"),
            _ => {}
        }
    }
    Ok(())
}

/// The sockets of a node contain all its CPUs, each once, and whole cores.
fn packages(machine: &MachineSpec, node: &NodeSpec) -> Result<(), String> {
    if node.packages.is_empty() {
        return Ok(());
    }
    let id = node.id;
    let mut all = IdSet::new();
    for cpus in node.packages.values() {
        if !all.intersection(cpus).is_empty() {
            return Err(format!("two sockets of node {id} have the same CPU"));
        }
        all.union_with(cpus);
    }
    if all != node.present_cpus() || node.package.is_some() {
        return Err(format!("the sockets of node {id} are not those of its CPUs"));
    }
    let is_split = |core: &Vec<Id>| core.iter().any(|cpu| node.package_of(*cpu) != node.package_of(core[0]));
    match machine.cores(node).into_iter().find(is_split) {
        Some(core) => Err(format!("the core of CPU {} of node {id} is in two sockets", core[0])),
        None => Ok(()),
    }
}

/// Without NUMA the kernel reports the machine as a whole and no nodes.
fn numa(machine: &MachineSpec) -> Result<(), String> {
    if machine.numa {
        return Ok(());
    }
    match machine.nodes.as_slice() {
        [node] if node.id == 0 && node.distances.is_empty() && node.missing.is_empty() => {}
        _ => return Err("a machine without NUMA has one node, with the id 0, and no distances".into()),
    }
    if machine.possible.is_empty() {
        Ok(())
    } else {
        Err("a machine without NUMA has no possible nodes".into())
    }
}

fn possible(machine: &MachineSpec, ids: &BTreeSet<Id>, cpus: &IdSet) -> Result<(), String> {
    let possible = &machine.possible;
    if let Some(id) = ids.iter().find(|id| !possible.is_empty() && !possible.contains(**id)) {
        return Err(format!("node {id} is online and not possible"));
    }
    let impossible = cpus.difference(&machine.possible_cpus);
    match impossible.iter().next().filter(|_| !machine.possible_cpus.is_empty()) {
        Some(cpu) => Err(format!("CPU {cpu} is present and not possible")),
        None => Ok(()),
    }
}

fn core_types(machine: &MachineSpec, cpus: &IdSet) -> Result<(), String> {
    let mut with_type = IdSet::new();
    for (name, kind) in &machine.core_types {
        let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if name.is_empty() || !name.bytes().all(is_valid) || kind.threads_per_core == 0 {
            return Err(format!("`{name}` is not a valid core type"));
        }
        if let Some(cpu) = kind.cpus.difference(cpus).iter().next() {
            return Err(format!("CPU {cpu} of the {name} cores is on no node"));
        }
        if let Some(cpu) = kind.cpus.intersection(&with_type).iter().next() {
            return Err(format!("CPU {cpu} has two core types"));
        }
        with_type.union_with(&kind.cpus);
    }
    Ok(())
}

/// Distances and devices refer to existing nodes only.
fn references(machine: &MachineSpec, ids: &BTreeSet<Id>) -> Result<(), String> {
    for node in &machine.nodes {
        if !node.distances.is_empty() && !node.distances.keys().eq(ids) {
            return Err(format!("node {} has distances, but not one for each node", node.id));
        }
    }
    for DeviceSpec { resource, devices } in &machine.devices {
        let mut seen = BTreeSet::new();
        for Device { id, numa, .. } in devices {
            if !seen.insert(id) {
                return Err(format!("device {id} of {resource} exists twice"));
            }
            if !numa.iter().all(|node| ids.contains(node)) {
                return Err(format!("device {id} of {resource} is on a node that does not exist"));
            }
        }
    }
    Ok(())
}
