//! What pods keep from everybody else although the List does not show it.
//!
//! The List names sidecars and app containers. What a plain init container was given stays with its pod until the
//! pod ends: the others reuse it, but what is left over nobody else gets (k/k #131764). Only the managers' books tell,
//! and they know pods by UID, the List by name: the two are joined by what containers hold, since no CPU and no device
//! is ever given to two pods.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Inputs;
use crate::kubelet::{ContainerUsage, ManagerState, MemoryBlock, PodUsage};
use crate::machine::{Id, IdSet};

/// What the books say beyond the List.
#[derive(Debug, Default)]
pub(super) struct Hidden<'a> {
    /// Containers of listed pods that the List does not name.
    pub(super) containers: Vec<&'a ContainerUsage>,
    /// CPUs of all entries but those of pods that are seen to have ended. The books are read after the List and may
    /// know more of a pod than it; and an entry that no listed pod explains is that of a pod that holds CPUs for an init
    /// container alone, or of one that ended before anybody looked, whose entries go within the CPU Manager's
    /// reconcile period.
    pub(super) cpus: IdSet,
}

/// UIDs in the books, by what the List says of their pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Links<'a> {
    /// A listed pod has this UID; the containers that it names, whichever of the pods that may have the UID it is.
    pub alive: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// A listed pod may have it: others hold the same amounts of memory, and nothing else tells them apart.
    pub doubtful: BTreeSet<&'a str>,
}

pub(super) fn of<'a>(inputs: &Inputs<'a>, state: &'a ManagerState) -> Hidden<'a> {
    let counted = links(inputs.active_pods().filter(|pod| inputs.counts(pod)), state).alive;
    // Pods that people left out have left-overs too, which are not to count.
    let left_out = inputs.active_pods().any(|pod| !inputs.counts(pod));
    let alive = if left_out { links(inputs.active_pods(), state).alive } else { BTreeMap::new() };
    let mut hidden = Hidden::default();
    for (uid, containers) in &state.pods {
        match counted.get(uid.as_str()) {
            Some(listed) => {
                hidden.containers.extend(containers.iter().filter(|c| !listed.contains(c.name.as_str())));
            }
            None if state.ended.contains(uid) || alive.contains_key(uid.as_str()) => continue,
            None => {}
        }
        containers.iter().for_each(|container| hidden.cpus.union_with(&container.cpus));
    }
    hidden
}

/// Joins the List and the books.
pub fn links<'a>(pods: impl Iterator<Item = &'a PodUsage>, state: &'a ManagerState) -> Links<'a> {
    let books = Books::new(state);
    let mut links = Links::default();
    let mut alike: BTreeMap<BTreeSet<Key<'a>>, Vec<&'a PodUsage>> = BTreeMap::new();
    for pod in pods {
        match books.owner(pod) {
            Some(uid) => links.claim(uid, &names(pod)),
            None => alike.entry(memory_of(pod)).or_default().push(pod),
        }
    }
    let mut groups: Vec<(Vec<&str>, Vec<&PodUsage>)> =
        alike.into_iter().map(|(memory, pods)| (books.holders(&memory), pods)).collect();
    // Those with the least choice first: whoever holds more of the same kinds fits fewer entries.
    groups.sort_by_key(|(uids, _)| uids.len());
    groups.iter_mut().for_each(|(uids, _)| uids.retain(|uid| !links.alive.contains_key(uid)));
    let mut chosen = BTreeSet::new();
    for (uids, pods) in &groups {
        let taken = books.by_memory(uids.iter().copied().filter(|uid| !chosen.contains(uid)));
        chosen.extend(taken.into_iter().take(pods.len()));
    }
    for (uids, pods) in &groups {
        let listed = common_names(pods);
        for uid in uids {
            if chosen.contains(uid) {
                links.claim(uid, &listed);
            } else {
                links.doubtful.insert(uid);
            }
        }
    }
    links
}

impl<'a> Links<'a> {
    /// Notes that a pod that lists these containers may have this UID.
    fn claim(&mut self, uid: &'a str, listed: &BTreeSet<&'a str>) {
        match self.alive.entry(uid) {
            Entry::Vacant(entry) => drop(entry.insert(listed.clone())),
            Entry::Occupied(mut entry) => entry.get_mut().retain(|name| listed.contains(name)),
        }
    }
}

fn names(pod: &PodUsage) -> BTreeSet<&str> {
    pod.containers.iter().map(|container| container.name.as_str()).collect()
}

/// The containers that each of the pods lists.
fn common_names<'a>(pods: &[&'a PodUsage]) -> BTreeSet<&'a str> {
    let mut sets = pods.iter().map(|pod| names(pod));
    let mut common = sets.next().unwrap_or_default();
    sets.for_each(|names| common.retain(|name| names.contains(name)));
    common
}

/// The books, by what they say.
struct Books<'a> {
    state: &'a ManagerState,
    cpus: HashMap<Id, &'a str>,
    devices: HashMap<(&'a str, &'a str), &'a str>,
    memory: HashMap<Key<'a>, Vec<&'a str>>,
}

impl<'a> Books<'a> {
    fn new(state: &'a ManagerState) -> Self {
        let mut books = Self { state, cpus: HashMap::new(), devices: HashMap::new(), memory: HashMap::new() };
        for (uid, containers) in &state.pods {
            for container in containers {
                books.cpus.extend(container.cpus.iter().map(|cpu| (cpu, uid.as_str())));
                for group in &container.devices {
                    let ids = group.ids.iter().map(|id| (group.resource.as_str(), id.as_str()));
                    books.devices.extend(ids.map(|device| (device, uid.as_str())));
                }
                for block in &container.memory {
                    let uids: &mut Vec<&str> = books.memory.entry(key(container, block)).or_default();
                    // Ascending, and each once: a container may hold the same on two nodes.
                    if uids.last() != Some(&uid.as_str()) {
                        uids.push(uid);
                    }
                }
            }
        }
        books
    }

    /// The UID of the pod that holds a CPU or a device of this pod's, if it holds them all.
    fn owner(&self, pod: &PodUsage) -> Option<&'a str> {
        let lowest = pod.containers.iter().filter_map(|container| container.cpus.iter().next()).min();
        let cpu = lowest.or_else(|| pod.cpus.iter().next());
        let groups = pod.containers.iter().flat_map(|container| &container.devices);
        let devices = groups.flat_map(|g| g.ids.iter().map(|id| (g.resource.as_str(), id.as_str())));
        let by_cpu = cpu.and_then(|cpu| self.cpus.get(&cpu));
        let uid = by_cpu.or_else(|| devices.filter_map(|device| self.devices.get(&device)).min())?;
        self.agrees(uid, pod).then_some(*uid)
    }

    /// Do the books give this UID's containers the CPUs that the List gives the pod's?
    fn agrees(&self, uid: &str, pod: &PodUsage) -> bool {
        let books = &self.state.pods[uid];
        let written = |name: &str| books.iter().find(|container| container.name == name);
        pod.containers
            .iter()
            .filter(|container| !container.cpus.is_empty())
            .all(|container| written(&container.name).is_some_and(|written| written.cpus == container.cpus))
    }

    /// The UIDs whose containers have all this memory, ascending; none have none.
    fn holders(&self, memory: &BTreeSet<Key<'a>>) -> Vec<&'a str> {
        let mut keys = memory.iter();
        let mut uids = keys.next().and_then(|key| self.memory.get(key)).cloned().unwrap_or_default();
        for key in keys {
            let others = self.memory.get(key);
            uids.retain(|uid| others.is_some_and(|others| others.binary_search(uid).is_ok()));
        }
        uids
    }

    /// Those with the most memory first: they are taken to be alive, so that too much is never promised.
    fn by_memory(&self, uids: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let held = |uid: &str| -> u64 {
            let blocks = self.state.pods[uid].iter().flat_map(|container| &container.memory);
            blocks.fold(0, |sum, block| sum.saturating_add(block.bytes))
        };
        let mut uids: Vec<&str> = uids.collect();
        uids.sort_by_cached_key(|uid| (Reverse(held(uid)), *uid));
        uids
    }
}

/// A container's memory of one type: its name, the type and the bytes.
type Key<'a> = (&'a str, &'a str, u64);

fn key<'a>(container: &'a ContainerUsage, block: &'a MemoryBlock) -> Key<'a> {
    (&container.name, &block.resource, block.bytes)
}

fn memory_of(pod: &PodUsage) -> BTreeSet<Key<'_>> {
    pod.containers.iter().flat_map(|c| c.memory.iter().map(move |block| key(c, block))).collect()
}
