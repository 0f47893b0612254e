//! The checkpoints of the kubelet's managers: `cpu_manager_state`, `memory_manager_state` and the device
//! manager's `kubelet_internal_checkpoint`.
//!
//! These are internal formats of the kubelet (kubelet.md section 5) and advisory. They contain what the
//! podresources List does not: how a memory block on several NUMA nodes is split, and which resources are
//! allocated to plain init containers. If a file is missing or cannot be parsed, only this is lost.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::types::{ContainerUsage, DeviceGroup, MemoryBlock};
use crate::machine::{Id, IdSet};

/// Maximum file size: for 500 pods with their device plugins' responses the files have a few MiB.
const FILE_LIMIT: u64 = 16 << 20;

/// The parsed checkpoints of the managers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ManagerState {
    /// Pod UID to allocations by container, sorted by container name and including plain init containers. May
    /// include terminated pods: the kubelet removes their entries late.
    pub pods: BTreeMap<String, Vec<ContainerUsage>>,
    /// NUMA node to resource (`memory`, `hugepages-<size>`) to the bytes of it allocated to containers.
    pub reserved: BTreeMap<Id, BTreeMap<String, u64>>,
    /// UID to namespace and name, for pods that were matched to the List. A checkpoint entry whose pod the
    /// List no longer contains is left over.
    pub names: BTreeMap<String, (String, String)>,
}

impl ManagerState {
    /// Returns true if the pod of every entry is known.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.pods.keys().all(|uid| self.names.contains_key(uid))
    }

    fn container(&mut self, pod: &str, name: &str) -> &mut ContainerUsage {
        let containers = self.pods.entry(pod.to_owned()).or_default();
        let at = match containers.binary_search_by(|container| container.name.as_str().cmp(name)) {
            Ok(at) => at,
            Err(at) => {
                containers.insert(at, ContainerUsage { name: name.to_owned(), ..ContainerUsage::default() });
                at
            }
        };
        &mut containers[at]
    }
}

/// The paths of the managers' checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePaths {
    /// The CPU Manager's file.
    pub cpus: PathBuf,
    /// The Memory Manager's file.
    pub memory: PathBuf,
    /// The device manager's checkpoint.
    pub devices: PathBuf,
}

impl StatePaths {
    /// Returns the kubelet's own paths in its root directory and its device plugin directory.
    #[must_use]
    pub fn new(root: &Path, device_plugins: &Path) -> Self {
        Self {
            cpus: root.join("cpu_manager_state"),
            memory: root.join("memory_manager_state"),
            devices: device_plugins.join("kubelet_internal_checkpoint"),
        }
    }
}

/// Reads the managers' checkpoints again whenever one of the files is replaced.
#[derive(Debug)]
pub struct StateReader {
    paths: StatePaths,
    seen: [Option<Stamp>; 3],
    state: Option<Arc<ManagerState>>,
    problems: Vec<String>,
}

/// Inode, mtime (seconds, nanoseconds) and size: identifies a version of a file. The kubelet replaces its
/// files by renaming.
type Stamp = (u64, i64, i64, u64);

impl StateReader {
    /// Returns a reader that has read nothing yet.
    #[must_use]
    pub fn new(paths: StatePaths) -> Self {
        Self { paths, seen: [None; 3], state: None, problems: Vec::new() }
    }

    /// Returns the current checkpoints; `None` if none of them can be read. [`ManagerState::names`] is
    /// preserved for pods that still have entries.
    pub fn read(&mut self) -> Option<&mut Arc<ManagerState>> {
        let StatePaths { cpus, memory, devices } = &self.paths;
        let seen = [stamp(cpus), stamp(memory), stamp(devices)];
        if seen != self.seen {
            let (mut state, problems) = read_state(&self.paths);
            if let (Some(new), Some(old)) = (&mut state, &self.state) {
                let still = old.names.iter().filter(|(uid, _)| new.pods.contains_key(*uid));
                new.names = still.map(|(uid, name)| (uid.clone(), name.clone())).collect();
            }
            (self.state, self.problems, self.seen) = (state.map(Arc::new), problems, seen);
        }
        self.state.as_mut()
    }

    /// Returns true if the CPU Manager's file exists. The kubelet writes one under every policy.
    #[must_use]
    pub fn has_cpus(&self) -> bool {
        self.seen[0].is_some()
    }

    /// Returns the problems of the files last read, one sentence each.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let data = std::fs::metadata(path).ok()?;
    Some((data.ino(), data.mtime(), data.mtime_nsec(), data.len()))
}

/// Reads the checkpoints once. The second value lists files that exist and cannot be parsed.
#[must_use]
pub fn read_state(paths: &StatePaths) -> (Option<ManagerState>, Vec<String>) {
    let mut problems = Vec::new();
    let mut text = |path: &Path| match read_file(path) {
        Ok(text) => text,
        Err(reason) => {
            problems.push(problem(path, &reason));
            None
        }
    };
    let texts = [text(&paths.cpus), text(&paths.memory), text(&paths.devices)];
    if texts.iter().all(Option::is_none) {
        return (None, problems);
    }
    let mut state = ManagerState::default();
    let parsers = [parse_cpus, parse_memory, parse_devices];
    let places = [&paths.cpus, &paths.memory, &paths.devices];
    for ((text, parse), path) in texts.into_iter().zip(parsers).zip(places) {
        if let Some(Err(reason)) = text.map(|text| parse(&text, &mut state)) {
            problems.push(problem(path, &reason));
        }
    }
    (Some(state), problems)
}

fn problem(path: &Path, reason: &str) -> String {
    format!("cannot understand {}: {reason}; going by the kubelet's List alone", path.display())
}

fn read_file(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let mut bytes = Vec::new();
    match std::fs::File::open(path).and_then(|file| file.take(FILE_LIMIT + 1).read_to_end(&mut bytes)) {
        Ok(_) if bytes.len() as u64 > FILE_LIMIT => Err("it is larger than 16 MiB".into()),
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
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
    entries: Option<BTreeMap<String, BTreeMap<String, String>>>,
    #[serde(default)]
    pod_entries: Option<BTreeMap<String, PodCpus>>,
    #[serde(default)]
    data: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodCpus {
    #[serde(default)]
    cpu_set: String,
}

/// Parses a `cpu_manager_state` into `state`.
///
/// # Errors
/// One sentence, if the text is invalid; `state` is unchanged then.
pub fn parse_cpus(text: &[u8], state: &mut ManagerState) -> Result<(), String> {
    let mut file: CpuFile = json(text)?;
    if let Some(data) = &file.data {
        file = json(data.as_bytes())?;
    }
    if file.policy_name != "static" {
        return Ok(());
    }
    let mut sets = Vec::new();
    for (pod, containers) in file.entries.into_iter().flatten() {
        for (name, cpus) in containers {
            sets.push((pod.clone(), name, parse_set(&cpus)?));
        }
    }
    // Pod-level CPUs are stored under the empty name, which no container can have.
    for (pod, PodCpus { cpu_set }) in file.pod_entries.into_iter().flatten() {
        sets.push((pod, String::new(), parse_set(&cpu_set)?));
    }
    for (pod, name, cpus) in sets.into_iter().filter(|(.., cpus)| !cpus.is_empty()) {
        state.container(&pod, &name).cpus = cpus;
    }
    Ok(())
}

fn parse_set(text: &str) -> Result<IdSet, String> {
    text.parse().map_err(|error: crate::machine::ParseIdSetError| error.to_string())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryFile {
    policy_name: String,
    #[serde(default)]
    machine_state: Option<BTreeMap<Id, MemoryOfNode>>,
    #[serde(default)]
    entries: Option<BTreeMap<String, BlocksOfPod>>,
}

/// Blocks by container.
type BlocksOfPod = BTreeMap<String, Option<Vec<BlockEntry>>>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryOfNode {
    #[serde(default)]
    memory_map: Option<BTreeMap<String, MemoryTable>>,
}

#[derive(Deserialize)]
struct MemoryTable {
    #[serde(default)]
    reserved: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockEntry {
    #[serde(default)]
    numa_affinity: Option<Vec<i64>>,
    #[serde(rename = "type")]
    resource: String,
    size: u64,
}

/// Parses a `memory_manager_state` into `state`.
///
/// # Errors
/// One sentence, if the text is invalid; `state` is unchanged then.
pub fn parse_memory(text: &[u8], state: &mut ManagerState) -> Result<(), String> {
    let file: MemoryFile = json(text)?;
    if file.policy_name != "Static" {
        return Ok(());
    }
    for (node, of_node) in file.machine_state.into_iter().flatten() {
        let tables = of_node.memory_map.into_iter().flatten();
        state.reserved.insert(node, tables.map(|(resource, table)| (resource, table.reserved)).collect());
    }
    for (pod, containers) in file.entries.into_iter().flatten() {
        for (name, blocks) in containers {
            // An init container whose memory was all reused has blocks of size 0.
            let blocks = blocks.into_iter().flatten().filter(|block| block.size > 0);
            let blocks: Vec<MemoryBlock> = blocks.map(block).collect();
            if !blocks.is_empty() {
                state.container(&pod, &name).memory = blocks;
            }
        }
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
    #[serde(default)]
    pod_device_entries: Option<Vec<DeviceEntry>>,
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

/// Parses a `kubelet_internal_checkpoint` into `state` (kubelet 1.20 and later).
///
/// # Errors
/// One sentence, if the text is invalid; `state` is unchanged then.
pub fn parse_devices(text: &[u8], state: &mut ManagerState) -> Result<(), String> {
    let file: DeviceFile = json(text)?;
    for entry in file.data.pod_device_entries.into_iter().flatten() {
        let devices = &mut state.container(&entry.pod, &entry.container).devices;
        for (node, ids) in entry.ids.into_iter().filter(|(_, ids)| !ids.is_empty()) {
            let nodes = Id::try_from(node).into_iter().collect();
            devices.push(DeviceGroup { resource: entry.resource.clone(), ids, nodes });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: &str = r#"{"policyName":"static","defaultCpuSet":"0,5-7","entries":
        {"u1":{"main":"1-2","init":"1-4"},"u2":{"main":""}},"checksum":1}"#;
    const MEMORY: &str = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{
        "memory":{"total":9,"systemReserved":1,"allocatable":8,"reserved":3,"free":5}},"cells":[0,1]}},
        "entries":{"u1":{"main":[{"numaAffinity":[0,1],"type":"memory","size":3}],
        "init":[{"numaAffinity":[0],"type":"memory","size":0}]}},"checksum":2}"#;
    const DEVICES: &str = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"main","ResourceName":"a/b",
        "DeviceIDs":{"0":["x"],"-1":["y"]},"AllocResp":"CgA="}],"RegisteredDevices":{"a/b":["x","y"]}},"Checksum":3}"#;

    fn parsed() -> ManagerState {
        let mut state = ManagerState::default();
        parse_cpus(CPUS.as_bytes(), &mut state).unwrap();
        parse_memory(MEMORY.as_bytes(), &mut state).unwrap();
        parse_devices(DEVICES.as_bytes(), &mut state).unwrap();
        state
    }

    #[test]
    fn the_three_books_are_read_together() {
        let state = parsed();
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
        assert_eq!(state.pods, [("u1".to_owned(), vec![init, main])].into());
        assert_eq!(state.reserved, [(0, [("memory".to_owned(), 3)].into())].into());
    }

    #[test]
    fn pod_level_sets_of_newer_kubelets_stand_beside_the_containers() {
        let (start, entries) =
            (r#""policyName":"static","defaultCpuSet":"0""#, r#""entries":{"u":{"main":"1"}}"#);
        let all = format!(r#"{{{start},{entries},"podEntries":{{"u":{{"cpuSet":"1-4"}}}}"#);
        let version_3 = format!(r#"{all},"checksum":1}}"#);
        let data = serde_json::to_string(&format!("{all}}}")).unwrap();
        let version_4 = format!(r#"{{{start},{entries},"checksum":1,"data":{data},"dataChecksum":7}}"#);
        for text in [version_3, version_4] {
            let mut state = ManagerState::default();
            parse_cpus(text.as_bytes(), &mut state).unwrap();
            let names: Vec<(&str, String)> =
                state.pods["u"].iter().map(|c| (c.name.as_str(), c.cpus.to_string())).collect();
            assert_eq!(names, [("", "1-4".to_owned()), ("main", "1".to_owned())], "{text}");
        }
    }

    #[test]
    fn books_of_a_policy_that_keeps_none_say_nothing() {
        let mut state = ManagerState::default();
        let none = r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#;
        parse_cpus(none.as_bytes(), &mut state).unwrap();
        parse_memory(br#"{"policyName":"None","machineState":null}"#, &mut state).unwrap();
        parse_devices(
            br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#,
            &mut state,
        )
        .unwrap();
        assert_eq!(state, ManagerState::default());
    }

    #[test]
    fn a_book_that_makes_no_sense_is_told_and_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(dir.path(), dir.path());
        assert_eq!(read_state(&paths), (None, vec![]), "missing is normal");
        std::fs::write(&paths.cpus, CPUS.replace("1-4", "four")).unwrap();
        std::fs::write(&paths.memory, MEMORY).unwrap();
        let (state, problems) = read_state(&paths);
        assert_eq!(
            problems,
            [format!(
                "cannot understand {}: `four` is not a list of ids such as 0-3,8; going by the kubelet's List alone",
                paths.cpus.display()
            )]
        );
        assert_eq!(state.unwrap().pods["u1"].len(), 1);
    }

    #[test]
    fn the_device_managers_file_alone_does_not_tell_of_cpus() {
        let dir = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(dir.path(), &dir.path().join("device-plugins"));
        std::fs::create_dir(dir.path().join("device-plugins")).unwrap();
        std::fs::write(&paths.devices, DEVICES).unwrap();
        let mut reader = StateReader::new(paths.clone());
        assert!(reader.read().is_some() && !reader.has_cpus());
        std::fs::write(&paths.cpus, CPUS).unwrap();
        assert!(reader.read().is_some() && reader.has_cpus());
    }

    #[test]
    fn files_are_read_again_when_they_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(dir.path(), dir.path());
        let mut reader = StateReader::new(paths.clone());
        assert_eq!(reader.read(), None);
        let replace = |text: &str| {
            std::fs::write(dir.path().join("new"), text).unwrap();
            std::fs::rename(dir.path().join("new"), &paths.cpus).unwrap();
        };
        replace(CPUS);
        let name = |uid: &str| (uid.to_owned(), ("ns".to_owned(), format!("pod-{uid}")));
        Arc::make_mut(reader.read().unwrap()).names = [name("u1"), name("u9")].into();
        assert_eq!(reader.read().unwrap().names.len(), 2, "nothing was read again");
        replace(&CPUS.replace("1-4", "1-3"));
        let state = reader.read().unwrap();
        assert_eq!(state.pods["u1"][0].cpus.to_string(), "1-3");
        assert_eq!(state.names, [name("u1")].into(), "u9 has no entry any more");
    }
}
