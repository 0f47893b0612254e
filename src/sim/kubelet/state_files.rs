//! The kubelet's state files, in the formats of its checkpoints. Nobody verifies their checksums, since those
//! cover a Go pretty-print; ours are 0.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::model::{Block, Given, Model, Pod};
use crate::machine::IdSet;
use crate::sim::machine::MachineSpec;

/// `cpu_manager_state`, version 2.
pub(super) fn cpu_manager(model: &Model) -> Value {
    if !model.settings.static_cpus {
        return json!({"policyName": "none", "defaultCpuSet": "", "checksum": 0});
    }
    let mut exclusive = IdSet::new();
    model.given().for_each(|given| exclusive.union_with(&given.cpus));
    let shared = model.online_cpus().difference(&exclusive);
    let mut state = json!({"policyName": "static", "defaultCpuSet": shared.to_string(), "checksum": 0});
    let entries =
        entries(model, |given| (!given.cpus.is_empty()).then(|| Value::String(given.cpus.to_string())));
    if !entries.is_empty() {
        state["entries"] = Value::Object(entries);
    }
    state
}

/// `memory_manager_state`; `None` without a Memory Manager, which then writes no file.
pub(super) fn memory_manager(model: &Model) -> Option<Value> {
    if !model.settings.static_memory {
        return None;
    }
    let mut machine = Map::new();
    for (id, node) in &model.nodes {
        let pools = node.pools.iter().map(|(resource, pool)| {
            let free = model.free_memory(*id, resource);
            let table = json!({
                "total": pool.total,
                "systemReserved": pool.reserved,
                "allocatable": pool.allocatable,
                "reserved": pool.allocatable - free,
                "free": free,
            });
            (resource.clone(), table)
        });
        let entry = json!({
            "numberOfAssignments": model.assignments(*id),
            "memoryMap": pools.collect::<Map<String, Value>>(),
            "cells": model.group(*id),
        });
        machine.insert(id.to_string(), entry);
    }
    let mut state = json!({"policyName": "Static", "machineState": machine, "checksum": 0});
    let entries = entries(model, |given| {
        let blocks: Vec<Value> = given.memory.iter().map(block).collect();
        (!blocks.is_empty()).then_some(Value::Array(blocks))
    });
    if !entries.is_empty() {
        state["entries"] = Value::Object(entries);
    }
    Some(state)
}

fn block(block: &Block) -> Value {
    let nodes: Vec<_> = block.split.keys().collect();
    json!({"numaAffinity": nodes, "type": block.resource, "size": block.bytes})
}

/// uid to container to what `of` says.
fn entries(model: &Model, of: impl Fn(&Given) -> Option<Value>) -> Map<String, Value> {
    let containers = |pod: &Pod| -> Map<String, Value> {
        pod.given.iter().filter_map(|given| Some((given.container.clone(), of(given)?))).collect()
    };
    let pods = model.pods.iter().map(|(uid, pod)| (uid.clone(), containers(pod)));
    pods.filter(|(_, of)| !of.is_empty()).map(|(uid, of)| (uid, Value::Object(of))).collect()
}

/// `device-plugins/kubelet_internal_checkpoint`.
pub(super) fn devices(model: &Model) -> Value {
    let mut pods = Vec::new();
    for (uid, pod) in &model.pods {
        for given in &pod.given {
            for (resource, ids) in &given.devices {
                pods.push(json!({
                    "PodUID": uid,
                    "ContainerName": given.container,
                    "ResourceName": resource,
                    "DeviceIDs": by_node(model, resource, ids.iter()),
                    "AllocResp": "",
                }));
            }
        }
    }
    let registered: Map<String, Value> = model
        .plugins
        .iter()
        .filter(|(_, plugin)| plugin.registered)
        .map(|(resource, plugin)| {
            let ids = plugin.devices.iter().filter(|(_, device)| device.healthy).map(|(id, _)| id);
            (resource.clone(), json!(ids.collect::<Vec<_>>()))
        })
        .collect();
    json!({"Data": {"PodDeviceEntries": pods, "RegisteredDevices": registered}, "Checksum": 0})
}

/// NUMA node to device ids; `-1` for a device without topology.
fn by_node<'a>(
    model: &Model,
    resource: &str,
    ids: impl Iterator<Item = &'a String>,
) -> BTreeMap<String, Vec<&'a String>> {
    let mut map: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    for id in ids {
        let device = model.plugins.get(resource).and_then(|plugin| plugin.devices.get(id));
        let nodes = device.map(|device| device.nodes.clone()).unwrap_or_default();
        if nodes.is_empty() {
            map.entry("-1".into()).or_default().push(id);
        }
        nodes.iter().for_each(|node| map.entry(node.to_string()).or_default().push(id));
    }
    map
}

/// `config.yaml`. JSON is YAML, and the kubelet reads both.
pub(super) fn config(spec: &MachineSpec) -> Value {
    let mut config = spec.kubelet.clone();
    config.insert("apiVersion".into(), json!("kubelet.config.k8s.io/v1beta1"));
    config.insert("kind".into(), json!("KubeletConfiguration"));
    Value::Object(config)
}
