//! The expected content of the object, computed from the machine's description and the kubelet's own state
//! files.
//!
//! Shares no code with the agent's accounting. The kubelet removes a dead pod's entries late (CPUs within its
//! reconcile period, memory and devices at the next admission), so only entries of live pods count, as in the
//! kubelet's List.
//!
//! Which devices are healthy is taken from what the plugins were set to. The checkpoint lists them too, but
//! the kubelet collects and writes it without a common lock, so when two plugins update within a millisecond
//! the older of two checkpoints may persist.
//!
//! Resources of a regular init container count for as long as the kubelet keeps them allocated, which the
//! List never shows. Its CPUs and devices belong to the pod until the pod ends: the other containers reuse
//! what they can, and the rest is available to no other pod. Its memory is released as soon as a later container
//! starts; but a restarted kubelet allocates it again, for a container that ended long ago, and then keeps it
//! until the pod ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use numacast_sim::machine::{MachineSpec, NodeSpec};
use serde::Deserialize;
use serde_json::Value;

use super::node::RealNode;
use super::nrt::{Figures, Zones};

/// The highest zone that the scheduler supports; NUMA nodes with higher ids are not published.
const HIGHEST_ZONE: u16 = 63;

/// The expected zones of a node.
pub(crate) struct Expected {
    zones: Zones,
    /// Memory allocated across several NUMA nodes. Only the sum over them is certain.
    groups: Vec<Group>,
}

/// A resource that some pod is allocated from several NUMA nodes together.
struct Group {
    resource: String,
    zones: BTreeSet<String>,
}

/// Adds empty zones for ids below the highest one that no NUMA node has, with every resource that any zone
/// has.
fn fill_gaps(zones: &mut Zones, machine: &MachineSpec) {
    let resources: BTreeSet<String> = zones.values().flat_map(BTreeMap::keys).cloned().collect();
    let published = machine.nodes.iter().map(|node| node.id).filter(|id| *id <= HIGHEST_ZONE);
    let highest = published.max().unwrap_or(0);
    for id in 0..highest {
        let nothing = || resources.iter().map(|name| (name.clone(), Figures::default())).collect();
        zones.entry(zone_name(id)).or_insert_with(nothing);
    }
}

/// Returns the expected zones now. Fails while a state file does not yet cover every running pod.
pub(crate) async fn expected(node: &RealNode) -> Result<Expected> {
    let pods = node.pods().await?;
    let state = State::read(node, &pods)?;
    state.covers_every_running_pod(&pods)?;
    let mut zones = Zones::new();
    for numa in node.machine().nodes.iter().filter(|numa| numa.id <= HIGHEST_ZONE) {
        zones.insert(zone_name(numa.id), state.zone(numa)?);
    }
    fill_gaps(&mut zones, node.machine());
    let mut expected = Expected { groups: state.take_memory(&mut zones)?, zones };
    if state.is_settled {
        state.is_consistent(&expected)?;
        state.settle_groups(&mut expected)?;
    }
    Ok(expected)
}

/// Returns the most that may be available while some pods end: the expected zones now, without the pods in
/// `ending`, since the exact moment of their end is unknown.
pub(crate) async fn at_most_free(node: &RealNode, ending: &BTreeSet<String>) -> Result<Expected> {
    let mut pods = node.pods().await?;
    State::read(node, &pods)?.covers_every_running_pod(&pods)?;
    pods.retain(|pod| !ending.contains(&pod.name_any()));
    let state = State::read(node, &pods)?;
    let mut zones = Zones::new();
    for numa in node.machine().nodes.iter().filter(|numa| numa.id <= HIGHEST_ZONE) {
        zones.insert(zone_name(numa.id), state.zone(numa)?);
    }
    fill_gaps(&mut zones, node.machine());
    Ok(Expected { groups: state.take_memory(&mut zones)?, zones })
}

/// Checks that a kubelet started now would accept its own checkpoints. The kubelet writes them in several
/// steps, and does not start if it was killed between two of them, until the files are removed.
pub(crate) fn checkpoints_are_complete(node: &RealNode) -> Result<()> {
    let dir = node.kubelet_dir();
    let cpus: CpuState = read_json(&dir.join("cpu_manager_state"))?;
    let mut known = cpus.assigned()?;
    known.extend(cpu_list(&cpus.default_cpu_set)?);
    let online: BTreeSet<u16> = node.machine().nodes.iter().flat_map(|numa| numa.cpus.iter()).collect();
    ensure!(known == online, "the checkpoint has CPUs {known:?} of {online:?}");
    let memory: MemoryState = read_json(&dir.join("memory_manager_state"))?;
    let mut allocated = BTreeMap::<&String, u64>::new();
    for block in memory.entries.values().flat_map(BTreeMap::values).flatten() {
        *allocated.entry(&block.kind).or_default() += block.size;
    }
    for (kind, allocated) in allocated {
        let figures = || memory.machine_state.values().filter_map(|node| node.memory_map.get(kind));
        let missing: u64 = figures().map(|figures| figures.allocatable.saturating_sub(figures.free)).sum();
        ensure!(missing == allocated, "{allocated} of {kind} are allocated, and {missing} not free");
    }
    Ok(())
}

/// Returns the devices allocated to live pods: resource and id.
pub(crate) async fn devices_in_use(node: &RealNode) -> Result<BTreeSet<(String, String)>> {
    let pods = node.pods().await?;
    let state = State::read(node, &pods)?;
    let of = |entry: &DeviceEntry| -> Vec<(String, String)> {
        entry.ids.values().flatten().map(|id| (entry.resource.clone(), id.clone())).collect()
    };
    Ok(state.devices.iter().flat_map(of).collect())
}

impl Expected {
    /// Returns the figures of one resource in one zone.
    pub(crate) fn figures(&self, zone: &str, resource: &str) -> Result<Figures> {
        let found = self.zones.get(zone).and_then(|resources| resources.get(resource));
        found.copied().with_context(|| format!("{zone} has no {resource}"))
    }

    /// Returns every difference from the published zones, one sentence each.
    pub(crate) fn differences(&self, published: &Zones) -> Vec<String> {
        let mut found = Vec::new();
        let names = |zones: &Zones| zones.keys().cloned().collect::<Vec<_>>();
        if names(&self.zones) != names(published) {
            found.push(format!("zones: expected {:?}, published {:?}", names(&self.zones), names(published)));
        }
        for (zone, resources) in &self.zones {
            let nothing = BTreeMap::new();
            self.compare_zone(zone, resources, published.get(zone).unwrap_or(&nothing), &mut found);
        }
        for group in &self.groups {
            let (expected, published) = (group.sum(&self.zones), group.sum(published));
            if expected != published {
                let Group { zones, resource } = group;
                found.push(format!(
                    "{zones:?} {resource}: expected {expected} together, published {published}"
                ));
            }
        }
        found
    }

    fn compare_zone(
        &self,
        zone: &str,
        expected: &BTreeMap<String, Figures>,
        published: &BTreeMap<String, Figures>,
        found: &mut Vec<String>,
    ) {
        let names: BTreeSet<&String> = expected.keys().chain(published.keys()).collect();
        for name in names {
            let (want, have) = match (expected.get(name), published.get(name)) {
                (Some(want), Some(have)) => (want, have),
                (want, have) => {
                    found.push(format!("{zone} {name}: expected {want:?}, published {have:?}"));
                    continue;
                }
            };
            let shared = self.groups.iter().any(|g| g.resource == *name && g.zones.contains(zone));
            let parts = [
                ("capacity", want.capacity, have.capacity),
                ("allocatable", want.allocatable, have.allocatable),
                ("available", want.available, if shared { want.available } else { have.available }),
            ];
            for (part, want, have) in parts.into_iter().filter(|(_, want, have)| want != have) {
                found.push(format!("{zone} {name} {part}: expected {want}, published {have}"));
            }
        }
    }

    /// Returns the maximum of both availabilities.
    pub(crate) fn max_available(mut self, other: &Self) -> Self {
        for (zone, resources) in &mut self.zones {
            for (name, figures) in resources {
                let there = other.zones.get(zone).and_then(|resources| resources.get(name));
                figures.available = figures.available.max(there.map_or(0, |figures| figures.available));
            }
        }
        self
    }

    /// Adds `devices` to what may be available: devices that recovered are available until they are
    /// allocated.
    pub(crate) fn add_available(mut self, resource: &str, devices: u64) -> Self {
        for figures in self.zones.values_mut().filter_map(|resources| resources.get_mut(resource)) {
            figures.available += devices;
        }
        self
    }

    /// Returns the zones.
    pub(crate) fn into_zones(self) -> Zones {
        self.zones
    }

    /// Lists where a published object reports more as available than there is, which would mislead a
    /// scheduler, and what it lacks.
    pub(crate) fn overstated(&self, published: &Zones) -> Vec<String> {
        let of = |zones: &Zones, zone: &String, name: &String| zones.get(zone)?.get(name).copied();
        let mut found = Vec::new();
        for (zone, resources) in &self.zones {
            let missing = resources.keys().filter(|name| of(published, zone, name).is_none());
            found.extend(missing.map(|name| format!("{zone} {name} is not there")));
        }
        for (zone, resources) in published {
            for (name, have) in resources {
                let available = of(&self.zones, zone, name).map_or(0, |want| want.available);
                if have.available > available {
                    let have = have.available;
                    found.push(format!("{zone} {name}: {have} published as available, {available} are"));
                }
            }
        }
        found
    }
}

impl Group {
    fn sum(&self, zones: &Zones) -> u64 {
        let of = |zone: &String| zones.get(zone)?.get(&self.resource);
        self.zones.iter().filter_map(of).map(|figures| figures.available).sum()
    }
}

// ---- the kubelet's files

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CpuState {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, String>>,
}

impl CpuState {
    /// Returns the CPUs that are assigned to containers.
    fn assigned(&self) -> Result<BTreeSet<u16>> {
        let mut assigned = BTreeSet::new();
        for list in self.entries.values().flat_map(BTreeMap::values) {
            assigned.extend(cpu_list(list)?);
        }
        Ok(assigned)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryState {
    machine_state: BTreeMap<u16, MemoryOfNode>,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryOfNode {
    memory_map: BTreeMap<String, MemoryFigures>,
}

#[derive(Deserialize)]
struct MemoryFigures {
    allocatable: u64,
    free: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    numa_affinity: BTreeSet<u16>,
    #[serde(rename = "type")]
    kind: String,
    size: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceState {
    data: DeviceData,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceData {
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
    /// NUMA node -> ids; `-1` for devices without affinity.
    #[serde(rename = "DeviceIDs")]
    ids: BTreeMap<String, BTreeSet<String>>,
}

/// The state files at one moment, without the entries of dead pods.
struct State<'a> {
    node: &'a RealNode,
    machine: &'a MachineSpec,
    cpus: CpuState,
    /// `None` under the Memory Manager policy None.
    memory: Option<MemoryState>,
    devices: Vec<DeviceEntry>,
    /// Whether the files had no entry of a dead pod, so that their totals cover live pods only.
    is_settled: bool,
}

impl<'a> State<'a> {
    fn read(node: &'a RealNode, pods: &[Pod]) -> Result<Self> {
        let dir = node.kubelet_dir();
        let alive: BTreeSet<String> = pods.iter().filter(|pod| !has_ended(pod)).filter_map(uid_of).collect();
        let mut cpus: CpuState = read_json(&dir.join("cpu_manager_state"))?;
        let mut memory: Option<MemoryState> = match policy(node.machine(), "memoryManagerPolicy") {
            "Static" => Some(read_json(&dir.join("memory_manager_state"))?),
            _ => None,
        };
        let devices: DeviceState = read_json(&dir.join("device-plugins/kubelet_internal_checkpoint"))?;
        let mut is_settled = true;
        let mut is_live = |pod: &String| {
            let is_live = alive.contains(pod);
            is_settled &= is_live;
            is_live
        };
        cpus.entries.retain(|pod, _| is_live(pod));
        if let Some(memory) = &mut memory {
            memory.entries.retain(|pod, _| is_live(pod));
        }
        let entries = devices.data.pod_device_entries.unwrap_or_default();
        Ok(Self {
            node,
            machine: node.machine(),
            is_settled,
            cpus,
            memory,
            devices: entries.into_iter().filter(|entry| alive.contains(&entry.pod)).collect(),
        })
    }

    /// Returns the figures of a zone, with the memory of pods not yet subtracted.
    fn zone(&self, numa: &NodeSpec) -> Result<BTreeMap<String, Figures>> {
        let mut resources = BTreeMap::from([("cpu".to_owned(), self.cpu(numa)?)]);
        resources.extend(self.memory(numa)?);
        for resource in self.node.inventory().keys() {
            if self.is_near_any_zone(resource) {
                resources.insert(resource.clone(), self.device(numa, resource));
            }
        }
        Ok(resources)
    }

    fn cpu(&self, numa: &NodeSpec) -> Result<Figures> {
        let online: BTreeSet<u16> = numa.cpus.iter().collect();
        let allocatable: BTreeSet<u16> = online.difference(&self.reserved_cpus()?).copied().collect();
        let taken = self.exclusive_cpus()?;
        Ok(Figures {
            capacity: count(online.len()),
            allocatable: count(allocatable.len()),
            available: count(allocatable.difference(&taken).count()),
        })
    }

    fn exclusive_cpus(&self) -> Result<BTreeSet<u16>> {
        let mut taken = BTreeSet::new();
        for list in self.cpus.entries.values().flat_map(BTreeMap::values) {
            taken.extend(cpu_list(list)?);
        }
        Ok(taken)
    }

    fn reserved_cpus(&self) -> Result<BTreeSet<u16>> {
        match self.machine.kubelet.get("reservedSystemCPUs") {
            Some(list) => cpu_list(list.as_str().context("reservedSystemCPUs is no text")?),
            None if policy(self.machine, "cpuManagerPolicy") == "static" => self.chosen_cpus(),
            None => Ok(BTreeSet::new()),
        }
    }

    /// Returns the CPUs that the kubelet chose to reserve if only their number is configured: it logs them.
    fn chosen_cpus(&self) -> Result<BTreeSet<u16>> {
        let log = self.node.kubelet_log()?;
        let line = log
            .lines()
            .rfind(|line| line.contains("\"Reserved CPUs not available for exclusive assignment\""));
        let list = line.and_then(|line| line.split(" reserved=\"").nth(1)?.split('"').next());
        cpu_list(list.context("the kubelet has not logged which CPUs it reserves")?)
    }

    fn memory(&self, numa: &NodeSpec) -> Result<BTreeMap<String, Figures>> {
        let mut figures = BTreeMap::new();
        let total = numa.memory.ceil();
        let reserved = self.reserved_memory(numa.id, "memory")?;
        let allocatable =
            self.allocatable_memory(numa.id, "memory", total - numa.hugepage_bytes() - reserved)?;
        figures.insert("memory".to_owned(), untouched(total, allocatable));
        let sizes: BTreeSet<&String> = self.machine.nodes.iter().flat_map(|n| n.hugepages.keys()).collect();
        for size in sizes {
            let bytes: numacast::quantity::Quantity = size.parse()?;
            let capacity = numa.hugepages.get(size).copied().unwrap_or(0) * bytes.ceil();
            let resource = format!("hugepages-{size}");
            let reserved = self.reserved_memory(numa.id, &resource)?;
            let allocatable = self.allocatable_memory(numa.id, &resource, capacity - reserved)?;
            figures.insert(resource, untouched(capacity, allocatable));
        }
        Ok(figures)
    }

    /// Returns the allocatable memory and checks that the kubelet's state agrees with the description.
    fn allocatable_memory(&self, numa: u16, resource: &str, described: u64) -> Result<u64> {
        if let Some(state) = &self.memory {
            let of_node = state.machine_state.get(&numa).and_then(|node| node.memory_map.get(resource));
            let stated = of_node.map_or(0, |figures| figures.allocatable);
            ensure!(
                stated == described,
                "{resource} of node {numa}: {stated} in the checkpoint, {described} described"
            );
        }
        Ok(described)
    }

    fn reserved_memory(&self, numa: u16, resource: &str) -> Result<u64> {
        let all = self.machine.kubelet.get("reservedMemory").and_then(Value::as_array);
        let mut reserved = 0;
        for entry in all.into_iter().flatten().filter(|entry| entry["numaNode"] == numa) {
            if let Some(quantity) = entry["limits"][resource].as_str() {
                reserved += quantity.parse::<numacast::quantity::Quantity>()?.ceil();
            }
        }
        Ok(reserved)
    }

    /// Subtracts the memory of pods from the zones. How the kubelet split an allocation across several nodes
    /// is recorded beside the entries, as what each node has left; while these totals still include dead
    /// pods, only the sum is certain.
    fn take_memory(&self, zones: &mut Zones) -> Result<Vec<Group>> {
        let mut groups = Vec::new();
        let Some(state) = &self.memory else { return Ok(groups) };
        let blocks = || state.entries.values().flat_map(BTreeMap::values).flatten();
        for block in blocks().filter(|block| block.numa_affinity.len() == 1) {
            take(zones, block)?;
        }
        for block in blocks().filter(|block| block.numa_affinity.len() > 1) {
            take(zones, block)?;
            let zones = block.numa_affinity.iter().copied().map(zone_name).collect();
            groups.push(Group { resource: block.kind.clone(), zones });
        }
        Ok(groups)
    }

    /// Replaces the computed availability in the zones of groups by what the kubelet recorded for each.
    fn settle_groups(&self, expected: &mut Expected) -> Result<()> {
        for Group { resource, zones } in std::mem::take(&mut expected.groups) {
            for zone in &zones {
                let figures = expected.zones.get_mut(zone).and_then(|resources| resources.get_mut(&resource));
                let figures = figures.with_context(|| format!("no {resource} in {zone}"))?;
                figures.available = self.free_memory(zone, &resource)?;
            }
        }
        Ok(())
    }

    fn free_memory(&self, zone: &str, resource: &str) -> Result<u64> {
        let nodes = self.memory.iter().flat_map(|state| &state.machine_state);
        let mut of_zone = nodes.filter(|(id, _)| zone_name(**id) == zone);
        let found = of_zone.next().and_then(|(_, node)| node.memory_map.get(resource));
        Ok(found.with_context(|| format!("the checkpoint has no {resource} in {zone}"))?.free)
    }

    fn device(&self, numa: &NodeSpec, resource: &str) -> Figures {
        let near = |id: &&String| self.nodes_of(resource, id).contains(&numa.id);
        let healthy = self.node.healthy_devices(resource);
        let allocatable: BTreeSet<&String> = healthy.iter().filter(near).collect();
        let taken = self.taken_devices(resource);
        let of_zone: BTreeSet<&String> = taken.iter().filter(|id| near(id)).collect();
        Figures {
            capacity: count(allocatable.union(&of_zone).count()),
            allocatable: count(allocatable.len()),
            available: count(allocatable.difference(&of_zone).count()),
        }
    }

    fn taken_devices(&self, resource: &str) -> BTreeSet<String> {
        let entries = self.devices.iter().filter(|entry| entry.resource == resource);
        entries.flat_map(|entry| entry.ids.values().flatten()).cloned().collect()
    }

    fn nodes_of(&self, resource: &str, id: &str) -> BTreeSet<u16> {
        self.node.inventory().get(resource).and_then(|ids| ids.get(id)).cloned().unwrap_or_default()
    }

    fn is_near_any_zone(&self, resource: &str) -> bool {
        self.node.inventory().get(resource).is_some_and(|ids| ids.values().any(|nodes| !nodes.is_empty()))
    }

    // ---- checks of the checkpoints themselves

    /// Checks that every running pod has what its spec requests: otherwise a file is older than the pod, or
    /// was misread.
    fn covers_every_running_pod(&self, pods: &[Pod]) -> Result<()> {
        let running = |pod: &&Pod| pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running"));
        for pod in pods.iter().filter(running) {
            let uid = uid_of(pod).context("a pod without a uid")?;
            // The mirror pod may have a different QoS class than the static pod.
            if pod.uid().as_ref() != Some(&uid) {
                continue;
            }
            for container in containers(pod) {
                self.covers_container(pod, &uid, &container)
                    .with_context(|| format!("container {} of pod {}", container.name, pod.name_any()))?;
            }
        }
        Ok(())
    }

    fn covers_container(&self, pod: &Pod, uid: &str, container: &Container) -> Result<()> {
        let requested = Requested::by(container)?;
        let guaranteed = pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) == Some("Guaranteed");
        let pins = self.cpus.policy_name == "static" && guaranteed;
        let has = match self.cpus.entries.get(uid).and_then(|of_pod| of_pod.get(&container.name)) {
            Some(list) => cpu_list(list)?,
            None => BTreeSet::new(),
        };
        // A resized pod may still have its old resources; it may never get the new ones.
        let as_created = pod.metadata.generation.is_none_or(|generation| generation <= 1);
        let wanted = if pins { requested.cpus } else { 0 };
        ensure!(count(has.len()) == wanted || !as_created, "it has CPUs {has:?}, and requests {wanted}");
        for (resource, wanted) in &requested.devices {
            let entries = self.devices.iter().filter(|e| e.pod == uid && e.container == container.name);
            let entries = entries.filter(|e| e.resource == *resource);
            let ids: BTreeSet<&String> = entries.flat_map(|e| e.ids.values().flatten()).collect();
            ensure!(count(ids.len()) == *wanted, "it has {ids:?} of {wanted} {resource}");
        }
        if let Some(memory) = &self.memory {
            let has = memory.entries.get(uid).is_some_and(|of_pod| of_pod.contains_key(&container.name));
            let regular_init = is_regular_init(pod, &container.name);
            ensure!(has || regular_init || !guaranteed, "it has no memory");
        }
        Ok(())
    }

    /// Checks the entries against the kubelet's totals. Without dead pods among the entries, both must agree.
    /// One exception: on a hybrid processor a kubelet may assign a CPU to two pods (k/k #140495), and returns
    /// it to the shared pool when the first of them ends.
    fn is_consistent(&self, expected: &Expected) -> Result<()> {
        let shared = cpu_list(&self.cpus.default_cpu_set)?;
        let reserved = self.reserved_cpus()?;
        let hybrid = !self.machine.core_types.is_empty();
        let shares_assigned = hybrid && !shared.is_disjoint(&self.cpus.assigned()?);
        for numa in self.machine.nodes.iter().filter(|numa| numa.id <= HIGHEST_ZONE) {
            let zone = &expected.zones[&zone_name(numa.id)];
            let free = numa.cpus.iter().filter(|cpu| shared.contains(cpu) && !reserved.contains(cpu)).count();
            ensure!(
                self.cpus.policy_name != "static" || shares_assigned || zone["cpu"].available == count(free),
                "node {}: entries leave {} CPUs, the shared pool has {free}",
                numa.id,
                zone["cpu"].available
            );
            self.memory_is_consistent(numa, &expected.zones, &expected.groups)?;
        }
        Ok(())
    }

    fn memory_is_consistent(&self, numa: &NodeSpec, zones: &Zones, groups: &[Group]) -> Result<()> {
        let Some(of_node) = self.memory.as_ref().and_then(|state| state.machine_state.get(&numa.id)) else {
            return Ok(());
        };
        for (resource, MemoryFigures { free, .. }) in &of_node.memory_map {
            let name = zone_name(numa.id);
            // For a group only the sum can be computed.
            if let Some(group) = groups.iter().find(|g| g.resource == *resource && g.zones.contains(&name)) {
                let mut stated = 0;
                for zone in &group.zones {
                    stated += self.free_memory(zone, resource)?;
                }
                let computed = group.sum(zones);
                ensure!(
                    computed == stated,
                    "{:?} {resource}: entries leave {computed}, the state says {stated}",
                    group.zones
                );
                continue;
            }
            let computed = zones[&name].get(resource).map_or(0, |figures| figures.available);
            ensure!(computed == *free, "{name} {resource}: entries leave {computed}, the state says {free}");
        }
        Ok(())
    }
}

/// What the kubelet allocates exclusively to a container according to its spec: CPUs if its pod is
/// Guaranteed, and devices.
struct Requested {
    cpus: u64,
    devices: BTreeMap<String, u64>,
}

impl Requested {
    fn by(container: &Container) -> Result<Self> {
        let mut requested = Self { cpus: 0, devices: BTreeMap::new() };
        let resources = container.resources.clone().unwrap_or_default();
        for (resource, quantity) in resources.requests.unwrap_or_default() {
            match quantity.0.parse::<u64>() {
                Ok(whole) if resource == "cpu" => requested.cpus = whole,
                Ok(whole) if resource.contains('/') => {
                    requested.devices.insert(resource, whole);
                }
                _ => {}
            }
        }
        Ok(requested)
    }
}

fn containers(pod: &Pod) -> Vec<Container> {
    let spec = pod.spec.clone().unwrap_or_default();
    spec.init_containers.into_iter().flatten().chain(spec.containers).collect()
}

/// Returns true for an init container that ends before the others start.
fn is_regular_init(pod: &Pod, container: &str) -> bool {
    let inits = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    inits.filter(|c| c.restart_policy.is_none()).any(|c| c.name == container)
}

/// Subtracts a block from its NUMA nodes in order, from each what it has left.
fn take(zones: &mut Zones, block: &Block) -> Result<()> {
    let mut left = block.size;
    for numa in &block.numa_affinity {
        let figures = zones.get_mut(&zone_name(*numa)).and_then(|zone| zone.get_mut(&block.kind));
        let figures = figures.with_context(|| format!("no {} on node {numa}", block.kind))?;
        let taken = left.min(figures.available);
        figures.available -= taken;
        left -= taken;
    }
    ensure!(left == 0, "{} of {} exceeds what its nodes have", block.size, block.kind);
    Ok(())
}

/// Returns the uid that the kubelet uses for a pod: for a static pod it differs from its mirror pod's.
fn uid_of(pod: &Pod) -> Option<String> {
    pod.annotations().get("kubernetes.io/config.hash").cloned().or_else(|| pod.uid())
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn untouched(capacity: u64, allocatable: u64) -> Figures {
    Figures { capacity, allocatable, available: allocatable }
}

fn policy<'a>(machine: &'a MachineSpec, key: &str) -> &'a str {
    machine.kubelet.get(key).and_then(Value::as_str).unwrap_or("none")
}

fn zone_name(numa: u16) -> String {
    format!("node-{numa}")
}

fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// Parses the kernel's list syntax: `0-3,8`.
fn cpu_list(text: &str) -> Result<BTreeSet<u16>> {
    let mut ids = BTreeSet::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        ids.extend(first.parse::<u16>()?..=last.parse::<u16>()?);
    }
    Ok(ids)
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}
