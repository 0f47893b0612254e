//! The checkpoints of the kubelet's managers: `cpu_manager_state`, `memory_manager_state` and the device
//! manager's `kubelet_internal_checkpoint`.
//!
//! These are internal formats of the kubelet (upstream: `pkg/kubelet/cm/*/state`, `devicemanager/checkpoint`)
//! and advisory. They contain what the podresources List does not: how a memory block on several NUMA nodes
//! is split, and which resources are allocated to regular init containers. If a file is missing or cannot be
//! parsed, only this is lost.

mod reader;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::types::{ContainerUsage, DeviceGroup, MemoryBlock};
use crate::machine::{Id, IdSet};

pub use reader::{CheckpointPaths, CheckpointReader, read_checkpoints};

/// The parsed checkpoints of the managers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Checkpoints {
    /// Pod UID to allocations by container, sorted by container name and including regular init containers. May
    /// include terminated pods: the kubelet removes their entries late.
    pub pods: BTreeMap<String, Vec<ContainerUsage>>,
    /// NUMA node to resource (`memory`, `hugepages-<size>`) to the bytes of it allocated to containers.
    pub reserved: BTreeMap<Id, BTreeMap<String, u64>>,
    /// The CPUs that no container has exclusively, with the CPU Manager's policy `static`.
    #[serde(skip_serializing_if = "IdSet::is_empty")]
    pub shared_cpus: IdSet,
    /// What else the Memory Manager's checkpoint contains.
    #[serde(skip_serializing_if = "MemoryState::is_empty")]
    pub memory: MemoryState,
    /// The policies that the checkpoints were written with.
    #[serde(skip_serializing_if = "CheckpointPolicies::is_empty")]
    pub policies: CheckpointPolicies,
    /// The resources of device plugins that registered.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub registered: BTreeSet<String>,
    /// UID to namespace and name, for pods that were matched to the List. A checkpoint entry whose pod the
    /// List no longer contains is stale.
    pub names: BTreeMap<String, (String, String)>,
}

/// The policies that the managers' checkpoints were written with. A kubelet does not start with those of another
/// policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CheckpointPolicies {
    /// `none` or `static`; empty without a checkpoint.
    pub cpu: String,
    /// `None` or `Static`; empty without a checkpoint.
    pub memory: String,
}

impl CheckpointPolicies {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The parts of the Memory Manager's checkpoint that only its own decisions depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MemoryState {
    /// By NUMA node.
    pub groups: BTreeMap<Id, MemoryGroup>,
    /// Pod UID to the blocks of a pod with pod-level resources, which its containers share.
    pub of_pods: BTreeMap<String, Vec<MemoryBlock>>,
    /// Pod UID to the blocks of its init containers that later containers have taken over: 0 bytes, and still
    /// counted.
    pub taken_over: BTreeMap<String, Vec<MemoryBlock>>,
}

impl Checkpoints {
    /// Returns the memory that the Memory Manager counts for a pod.
    pub fn blocks_of(&self, uid: &str) -> Vec<&MemoryBlock> {
        let containers = self.pods.get(uid).into_iter().flatten();
        let taken_over = self.memory.taken_over.get(uid).into_iter().flatten();
        match self.memory.of_pods.get(uid) {
            Some(blocks) => blocks.iter().collect(),
            None => containers.flat_map(|container| &container.memory).chain(taken_over).collect(),
        }
    }

    /// Returns the memory that the Memory Manager counts for all pods.
    pub fn memory_blocks(&self) -> impl Iterator<Item = &MemoryBlock> {
        let uids: BTreeSet<&String> = self.pods.keys().chain(self.memory.uids()).collect();
        uids.into_iter().flat_map(|uid| self.blocks_of(uid))
    }
}

impl MemoryState {
    /// Returns the UIDs of the pods in it.
    pub fn uids(&self) -> impl Iterator<Item = &String> {
        self.of_pods.keys().chain(self.taken_over.keys())
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The use of one NUMA node by the Memory Manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MemoryGroup {
    /// The number of blocks on the node.
    pub blocks: u64,
    /// The nodes that share blocks with it, itself included.
    pub nodes: IdSet,
    /// What the kubelet counted when it started, by resource (`memory`, `hugepages-<size>`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub totals: BTreeMap<String, MemoryTotal>,
}

/// The memory of one NUMA node, as the kubelet counted it when it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryTotal {
    /// Bytes in all. Those of `memory` include the huge pages.
    pub total: u64,
    /// Bytes of `reservedMemory`.
    #[serde(rename = "systemReserved")]
    pub reserved: u64,
}

impl Checkpoints {
    /// Returns true if the pod of every entry is known.
    #[must_use]
    pub fn has_all_names(&self) -> bool {
        self.pods.keys().all(|uid| self.names.contains_key(uid))
    }

    fn container(&mut self, pod: &str, name: &str) -> &mut ContainerUsage {
        let containers = self.pods.entry(pod.to_owned()).or_default();
        let found = containers.binary_search_by(|container| container.name.as_str().cmp(name));
        let at = found.unwrap_or_else(|at| {
            containers.insert(at, ContainerUsage { name: name.to_owned(), ..ContainerUsage::default() });
            at
        });
        &mut containers[at]
    }
}

fn json<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

// Version 2 (kubelet 1.18) has all of these keys but the last two; version 3 (1.36, with the gate
// PodLevelResourceManagers) adds `podEntries`. Version 4 (1.37) is in `data`, JSON as text; beside it the
// file repeats the keys of version 2.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CpuFile {
    policy_name: String,
    #[serde(default)]
    default_cpu_set: String,
    entries: Option<BTreeMap<String, BTreeMap<String, String>>>,
    pod_entries: Option<BTreeMap<String, PodCpus>>,
    data: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodCpus {
    #[serde(default)]
    cpu_set: String,
}

/// Parses a `cpu_manager_state` into `checkpoints`.
///
/// # Errors
/// One sentence, if the text is invalid; `checkpoints` is unchanged then.
pub fn parse_cpu_checkpoint(text: &[u8], checkpoints: &mut Checkpoints) -> Result<(), String> {
    let mut file: CpuFile = json(text)?;
    if let Some(data) = &file.data {
        file = json(data.as_bytes())?;
    }
    if file.policy_name != "static" {
        checkpoints.policies.cpu = file.policy_name;
        return Ok(());
    }
    // Only the model of admission needs it, and does without.
    let shared = file.default_cpu_set.parse().unwrap_or_default();
    let mut sets = Vec::new();
    for (pod, containers) in file.entries.into_iter().flatten() {
        for (name, cpus) in containers {
            sets.push((pod.clone(), name, parse_ids(&cpus)?));
        }
    }
    // Pod-level CPUs are stored under the empty name, which no container can have.
    for (pod, PodCpus { cpu_set }) in file.pod_entries.into_iter().flatten() {
        sets.push((pod, String::new(), parse_ids(&cpu_set)?));
    }
    for (pod, name, cpus) in sets.into_iter().filter(|(.., cpus)| !cpus.is_empty()) {
        checkpoints.container(&pod, &name).cpus = cpus;
    }
    checkpoints.shared_cpus = shared;
    checkpoints.policies.cpu = file.policy_name;
    Ok(())
}

fn parse_ids(text: &str) -> Result<IdSet, String> {
    text.parse().map_err(|error: crate::machine::ParseIdSetError| error.to_string())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryFile {
    policy_name: String,
    machine_state: Option<BTreeMap<Id, MemoryOfNode>>,
    entries: Option<BTreeMap<String, BlocksOfPod>>,
    pod_entries: Option<BTreeMap<String, PodMemory>>,
    /// Since 1.37, as in the CPU Manager's file.
    data: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMemory {
    memory_blocks: Option<Vec<BlockEntry>>,
}

/// Blocks by container.
type BlocksOfPod = BTreeMap<String, Option<Vec<BlockEntry>>>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryOfNode {
    #[serde(default)]
    number_of_assignments: u64,
    cells: Option<Vec<Id>>,
    memory_map: Option<BTreeMap<String, MemoryTable>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MemoryTable {
    reserved: u64,
    total: u64,
    system_reserved: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockEntry {
    numa_affinity: Option<Vec<i64>>,
    #[serde(rename = "type")]
    resource: String,
    size: u64,
}

/// Parses a `memory_manager_state` into `checkpoints`.
///
/// # Errors
/// One sentence, if the text is invalid; `checkpoints` is unchanged then.
pub fn parse_memory_checkpoint(text: &[u8], checkpoints: &mut Checkpoints) -> Result<(), String> {
    let mut file: MemoryFile = json(text)?;
    if let Some(data) = &file.data {
        file = json(data.as_bytes())?;
    }
    checkpoints.policies.memory = file.policy_name;
    if checkpoints.policies.memory != "Static" {
        return Ok(());
    }
    for (node, of_node) in file.machine_state.into_iter().flatten() {
        let nodes = of_node.cells.into_iter().flatten().collect();
        let tables = of_node.memory_map.unwrap_or_default();
        let total = |table: &MemoryTable| MemoryTotal { total: table.total, reserved: table.system_reserved };
        let totals = tables.iter().map(|(resource, table)| (resource.clone(), total(table))).collect();
        let group = MemoryGroup { blocks: of_node.number_of_assignments, nodes, totals };
        checkpoints.memory.groups.insert(node, group);
        checkpoints
            .reserved
            .insert(node, tables.into_iter().map(|(resource, table)| (resource, table.reserved)).collect());
    }
    for (pod, containers) in file.entries.into_iter().flatten() {
        for (name, blocks) in containers {
            let (taken_over, blocks): (Vec<MemoryBlock>, Vec<MemoryBlock>) =
                blocks.into_iter().flatten().map(block).partition(|block| block.bytes == 0);
            if !taken_over.is_empty() {
                checkpoints.memory.taken_over.entry(pod.clone()).or_default().extend(taken_over);
            }
            if !blocks.is_empty() {
                checkpoints.container(&pod, &name).memory = blocks;
            }
        }
    }
    for (pod, PodMemory { memory_blocks }) in file.pod_entries.into_iter().flatten() {
        checkpoints.memory.of_pods.insert(pod, memory_blocks.into_iter().flatten().map(block).collect());
    }
    Ok(())
}

fn block(entry: BlockEntry) -> MemoryBlock {
    let BlockEntry { numa_affinity, resource, size } = entry;
    let nodes = numa_affinity.into_iter().flatten().filter_map(|id| Id::try_from(id).ok()).collect();
    MemoryBlock { resource, bytes: size, nodes }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceFile {
    data: DeviceData,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceData {
    pod_device_entries: Option<Vec<DeviceEntry>>,
    registered_devices: Option<BTreeMap<String, serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
struct DeviceEntry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// NUMA node to device ids; `-1` for devices without topology.
    #[serde(rename = "DeviceIDs")]
    ids: BTreeMap<i64, Vec<String>>,
}

/// Parses a `kubelet_internal_checkpoint` into `checkpoints` (kubelet 1.20 and later).
///
/// # Errors
/// One sentence, if the text is invalid; `checkpoints` is unchanged then.
pub fn parse_device_checkpoint(text: &[u8], checkpoints: &mut Checkpoints) -> Result<(), String> {
    let file: DeviceFile = json(text)?;
    for entry in file.data.pod_device_entries.into_iter().flatten() {
        let devices = &mut checkpoints.container(&entry.pod, &entry.container).devices;
        for (node, ids) in entry.ids.into_iter().filter(|(_, ids)| !ids.is_empty()) {
            let nodes = Id::try_from(node).into_iter().collect();
            devices.push(DeviceGroup { resource: entry.resource.clone(), ids, nodes });
        }
    }
    checkpoints.registered = file.data.registered_devices.unwrap_or_default().into_keys().collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const CPUS: &str = r#"{"policyName":"static","defaultCpuSet":"0,5-7","entries":
        {"u1":{"main":"1-2","init":"1-4"},"u2":{"main":""}},"checksum":1}"#;
    pub(super) const MEMORY: &str = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{
        "memory":{"total":9,"systemReserved":1,"allocatable":8,"reserved":3,"free":5}},"cells":[0,1]}},
        "entries":{"u1":{"main":[{"numaAffinity":[0,1],"type":"memory","size":3}],
        "init":[{"numaAffinity":[0],"type":"memory","size":0}]}},"checksum":2}"#;
    pub(super) const DEVICES: &str = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"main","ResourceName":"a/b",
        "DeviceIDs":{"0":["x"],"-1":["y"]},"AllocResp":"CgA="}],"RegisteredDevices":{"a/b":["x","y"]}},"Checksum":3}"#;

    fn parsed() -> Checkpoints {
        let mut checkpoints = Checkpoints::default();
        parse_cpu_checkpoint(CPUS.as_bytes(), &mut checkpoints).unwrap();
        parse_memory_checkpoint(MEMORY.as_bytes(), &mut checkpoints).unwrap();
        parse_device_checkpoint(DEVICES.as_bytes(), &mut checkpoints).unwrap();
        checkpoints
    }

    #[test]
    fn the_three_checkpoints_are_combined() {
        let checkpoints = parsed();
        let set = |text: &str| text.parse::<IdSet>().unwrap();
        let group = |id: &str, nodes: &str| DeviceGroup {
            resource: "a/b".into(),
            ids: vec![id.into()],
            nodes: set(nodes),
        };
        let init = ContainerUsage { name: "init".into(), cpus: set("1-4"), ..Default::default() };
        let main = ContainerUsage {
            name: "main".into(),
            cpus: set("1-2"),
            memory: vec![MemoryBlock { resource: "memory".into(), bytes: 3, nodes: set("0-1") }],
            devices: vec![group("y", ""), group("x", "0")],
            ..Default::default()
        };
        assert_eq!(checkpoints.pods, [("u1".to_owned(), vec![init, main])].into());
        assert_eq!(checkpoints.reserved, [(0, [("memory".to_owned(), 3)].into())].into());
        assert_eq!(checkpoints.shared_cpus, set("0,5-7"));
        assert_eq!(
            checkpoints.memory.groups,
            [(
                0,
                MemoryGroup {
                    blocks: 1,
                    nodes: set("0-1"),
                    totals: [("memory".to_owned(), MemoryTotal { total: 9, reserved: 1 })].into()
                }
            )]
            .into()
        );
        assert_eq!(
            checkpoints.policies,
            CheckpointPolicies { cpu: "static".into(), memory: "Static".into() }
        );
        assert_eq!(checkpoints.registered, ["a/b".to_owned()].into());
        let taken_over = MemoryBlock { resource: "memory".into(), bytes: 0, nodes: set("0") };
        assert_eq!(checkpoints.memory.taken_over, [("u1".to_owned(), vec![taken_over])].into());
    }

    #[test]
    fn pod_level_cpus_have_an_empty_container_name() {
        let (start, entries) =
            (r#""policyName":"static","defaultCpuSet":"0""#, r#""entries":{"u":{"main":"1"}}"#);
        let all = format!(r#"{{{start},{entries},"podEntries":{{"u":{{"cpuSet":"1-4"}}}}"#);
        let version_3 = format!(r#"{all},"checksum":1}}"#);
        let data = serde_json::to_string(&format!("{all}}}")).unwrap();
        let version_4 = format!(r#"{{{start},{entries},"checksum":1,"data":{data},"dataChecksum":7}}"#);
        for text in [version_3, version_4] {
            let mut checkpoints = Checkpoints::default();
            parse_cpu_checkpoint(text.as_bytes(), &mut checkpoints).unwrap();
            let names: Vec<(&str, String)> =
                checkpoints.pods["u"].iter().map(|c| (c.name.as_str(), c.cpus.to_string())).collect();
            assert_eq!(names, [("", "1-4".to_owned()), ("main", "1".to_owned())], "{text}");
        }
    }

    #[test]
    fn checkpoints_of_a_policy_without_allocations_are_empty() {
        let mut checkpoints = Checkpoints::default();
        let none = r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#;
        parse_cpu_checkpoint(none.as_bytes(), &mut checkpoints).unwrap();
        parse_memory_checkpoint(br#"{"policyName":"None","machineState":null}"#, &mut checkpoints).unwrap();
        parse_device_checkpoint(
            br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#,
            &mut checkpoints,
        )
        .unwrap();
        let policies = CheckpointPolicies { cpu: "none".into(), memory: "None".into() };
        assert_eq!(checkpoints, Checkpoints { policies, ..Checkpoints::default() });
    }
}
