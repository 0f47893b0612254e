//! The kubelet's checkpoints and configuration file. All checksums are 0: they are computed over Go's
//! formatting of the data, so readers other than the kubelet do not verify them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::allocation::{AllocatedDevices, Block};
use super::model::Model;
use super::settings::KubeletVersion;
use crate::machine::MachineSpec;

/// `cpu_manager_state`: version 2; version 3 with pod-level entries (1.36); version 4 from 1.37 on.
pub(super) fn cpu_checkpoint(model: &Model) -> Value {
    if !model.settings.static_cpus {
        return with_checksum(model, json!({"policyName": "none", "defaultCpuSet": ""}));
    }
    let shared = model.cpus.shared().to_string();
    let mut state = json!({"policyName": "static", "defaultCpuSet": shared});
    if !model.cpus.entries.is_empty() {
        state["entries"] = json!(model.cpus.entries);
    }
    if !model.cpus.pod_entries.is_empty() {
        let entries = model.cpus.pod_entries.iter().map(|(uid, cpus)| (uid, json!({"cpuSet": cpus})));
        state["podEntries"] = json!(entries.collect::<BTreeMap<_, _>>());
    }
    with_checksum(model, state)
}

/// Adds the checksum. From 1.37 on, the whole state is JSON text in `data`, and its fields are repeated
/// beside it without the pod-level entries, which older kubelets do not understand.
fn with_checksum(model: &Model, mut state: Value) -> Value {
    if model.version >= KubeletVersion::V1_37 {
        let data = state.to_string();
        if let Some(fields) = state.as_object_mut() {
            fields.remove("podEntries");
        }
        state["data"] = json!(data);
        state["dataChecksum"] = json!(0);
    }
    state["checksum"] = json!(0);
    state
}

/// `memory_manager_state`; `None` without a Memory Manager, which writes no file.
pub(super) fn memory_checkpoint(model: &Model) -> Option<Value> {
    if !model.settings.static_memory {
        return None;
    }
    let mut machine = Map::new();
    for (id, node) in &model.memory.nodes {
        let pools = node.pools.iter().map(|(resource, pool)| {
            let table = json!({
                "total": pool.total,
                "systemReserved": pool.reserved,
                "allocatable": pool.allocatable,
                "reserved": pool.used,
                "free": pool.free(),
            });
            (resource.clone(), table)
        });
        let entry = json!({
            "numberOfAssignments": node.assignments,
            "memoryMap": pools.collect::<Map<String, Value>>(),
            "cells": node.cells,
        });
        machine.insert(id.to_string(), entry);
    }
    let mut state = json!({"policyName": "Static", "machineState": machine});
    let of_pod = |containers: &BTreeMap<String, Vec<Block>>| -> Map<String, Value> {
        containers.iter().map(|(name, of)| (name.clone(), blocks(of))).collect()
    };
    let entries = model.memory.entries.iter().map(|(uid, of)| (uid.clone(), Value::Object(of_pod(of))));
    let entries: Map<String, Value> = entries.collect();
    if !entries.is_empty() {
        state["entries"] = Value::Object(entries);
    }
    let pods = model.memory.pod_entries.iter();
    let pods: Map<String, Value> =
        pods.map(|(uid, of)| (uid.clone(), json!({"memoryBlocks": blocks(of)}))).collect();
    if !pods.is_empty() {
        state["podEntries"] = Value::Object(pods);
    }
    Some(with_checksum(model, state))
}

fn blocks(blocks: &[Block]) -> Value {
    let block = |block: &Block| {
        let nodes: Vec<_> = block.split.keys().collect();
        json!({"numaAffinity": nodes, "type": block.resource, "size": block.bytes})
    };
    blocks.iter().map(block).collect()
}

/// `device-plugins/kubelet_internal_checkpoint`.
pub(super) fn device_checkpoint(model: &Model) -> Value {
    let mut pods = Vec::new();
    for (uid, containers) in &model.devices.entries {
        for (container, resources) in containers {
            for (resource, devices) in resources {
                pods.push(json!({
                    "PodUID": uid,
                    "ContainerName": container,
                    "ResourceName": resource,
                    "DeviceIDs": by_node(devices),
                    "AllocResp": "",
                }));
            }
        }
    }
    let mut registered: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    for (resource, id, _) in model.devices.offered() {
        registered.entry(resource).or_default().push(id);
    }
    json!({"Data": {"PodDeviceEntries": pods, "RegisteredDevices": registered}, "Checksum": 0})
}

/// NUMA node to device ids, with `-1` for devices without topology.
fn by_node(devices: &AllocatedDevices) -> BTreeMap<String, Vec<&String>> {
    let mut map: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    for (id, nodes) in devices {
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
