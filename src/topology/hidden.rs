//! What pods keep from everybody else although the List does not show it.
//!
//! The List names sidecars and app containers. What a plain init container was given stays with its pod until the
//! pod ends: the others reuse it, but what is left over nobody else gets (k/k #131764). Only the managers' books tell,
//! and they know pods by UID, the List by name: the two are joined by what containers hold, since no CPU and no device
//! is ever given to two pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Inputs;
use crate::kubelet::{ContainerUsage, ManagerState, MemoryBlock, PodUsage};
use crate::machine::{Id, IdSet};

/// What the books say beyond the List.
#[derive(Debug, Default)]
pub(super) struct Hidden<'a> {
    /// Containers of listed pods that the List does not name.
    pub(super) containers: Vec<&'a ContainerUsage>,
    /// The memory of such containers, unless their pods have memory as a whole: then it is a part of that.
    pub(super) memory: Vec<&'a MemoryBlock>,
    /// CPUs of entries that no listed pod explains: pods that hold them for an init container alone, and pods that
    /// ended before anybody looked, whose entries go within the CPU Manager's reconcile period.
    pub(super) cpus: IdSet,
}

/// UIDs in the books, by what the List says of their pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Links<'a> {
    /// A listed pod has this UID.
    pub alive: BTreeMap<&'a str, &'a PodUsage>,
    /// A listed pod may have it: others hold the same amounts of memory, and nothing else tells them apart.
    pub doubtful: BTreeSet<&'a str>,
}

pub(super) fn of<'a>(inputs: &Inputs<'a>, state: &'a ManagerState) -> Hidden<'a> {
    let Links { alive, .. } = links(inputs.active_pods(), state);
    let mut hidden = Hidden::default();
    for (uid, containers) in &state.pods {
        match alive.get(uid.as_str()) {
            Some(pod) if !inputs.counts(pod) => {}
            Some(pod) => {
                let listed: BTreeSet<&str> = pod.containers.iter().map(|c| c.name.as_str()).collect();
                let unlisted = || containers.iter().filter(|c| !listed.contains(c.name.as_str()));
                hidden.containers.extend(unlisted());
                if pod.memory.is_empty() {
                    hidden.memory.extend(unlisted().flat_map(|container| &container.memory));
                }
            }
            None if state.ended.contains(uid) => {}
            None => containers.iter().for_each(|container| hidden.cpus.union_with(&container.cpus)),
        }
    }
    hidden
}

/// Joins the List and the books.
pub fn links<'a>(pods: impl Iterator<Item = &'a PodUsage>, state: &'a ManagerState) -> Links<'a> {
    let books = Books::new(state);
    let mut links = Links::default();
    let mut alike: BTreeMap<Vec<&'a str>, Vec<&'a PodUsage>> = BTreeMap::new();
    for pod in pods {
        match books.owner(pod) {
            Some(uid) => drop(links.alive.insert(uid, pod)),
            None => {
                let candidates = books.with_memory_of(pod);
                if !candidates.is_empty() {
                    alike.entry(candidates).or_default().push(pod);
                }
            }
        }
    }
    // Who has the least choice first: a pod of one container may be like a part of a larger one.
    let mut alike: Vec<_> = alike.into_iter().collect();
    alike.sort_by_key(|(candidates, _)| candidates.len());
    for (candidates, pods) in alike {
        join_alike(&mut links, state, candidates, &pods);
    }
    links
}

/// Pods that hold the same: those with the most to hide are taken to be alive, so that too much is never promised.
fn join_alike<'a>(
    links: &mut Links<'a>,
    state: &'a ManagerState,
    mut candidates: Vec<&'a str>,
    pods: &[&'a PodUsage],
) {
    candidates.retain(|uid| !links.alive.contains_key(uid));
    let held = |uid: &str| -> u64 {
        let blocks = state.pods[uid].iter().flat_map(|container| &container.memory);
        blocks.fold(0, |sum, block| sum.saturating_add(block.bytes))
    };
    candidates.sort_by_key(|uid| (std::cmp::Reverse(held(uid)), *uid));
    let mut candidates = candidates.into_iter();
    links.alive.extend(candidates.by_ref().zip(pods.iter().copied()));
    links.doubtful.extend(candidates);
}

/// The books, by what they say.
struct Books<'a> {
    state: &'a ManagerState,
    cpus: HashMap<Id, &'a str>,
    devices: HashMap<(&'a str, &'a str), &'a str>,
    memory: HashMap<(&'a str, &'a str, u64), Vec<&'a str>>,
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
                    books.memory.entry(key(container, block)).or_default().push(uid);
                }
            }
        }
        books
    }

    /// The UID of the pod that holds a CPU or a device of this pod's, if it holds them all.
    fn owner(&self, pod: &PodUsage) -> Option<&'a str> {
        let cpu = || pod.containers.iter().flat_map(|c| c.cpus.iter()).next().or(pod.cpus.iter().next());
        let groups = pod.containers.iter().flat_map(|container| &container.devices);
        let mut devices = groups.flat_map(|g| g.ids.iter().map(|id| (g.resource.as_str(), id.as_str())));
        let by_cpu = cpu().and_then(|cpu| self.cpus.get(&cpu));
        let uid = by_cpu.or_else(|| devices.find_map(|device| self.devices.get(&device)))?;
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

    /// Do the books give this UID's containers nothing that the List does not give the pod's? Containers that live on
    /// what their pod has as a whole (kubelet 1.37) have CPUs in the books alone.
    fn has_no_more(&self, uid: &str, pod: &PodUsage) -> bool {
        let books = &self.state.pods[uid];
        let whole = books.iter().find(|container| container.name.is_empty());
        whole.is_none_or(|whole| whole.cpus == pod.cpus)
            && pod.containers.iter().all(|listed| {
                books.iter().find(|written| written.name == listed.name).is_none_or(|written| {
                    (whole.is_some() || written.cpus == listed.cpus)
                        && written.devices.is_empty() == listed.devices.is_empty()
                })
            })
    }

    /// The UIDs whose containers have all the memory that the pod's containers have, and nothing else that those do not
    /// have; ascending.
    fn with_memory_of(&self, pod: &'a PodUsage) -> Vec<&'a str> {
        let mut keys = pod.containers.iter().flat_map(|c| c.memory.iter().map(|block| key(c, block)));
        let Some(first) = keys.next() else { return Vec::new() };
        let mut uids = self.memory.get(&first).cloned().unwrap_or_default();
        for key in keys {
            let others = self.memory.get(&key);
            uids.retain(|uid| others.is_some_and(|others| others.contains(uid)));
        }
        uids.retain(|uid| self.has_no_more(uid, pod));
        uids
    }
}

fn key<'a>(container: &'a ContainerUsage, block: &'a MemoryBlock) -> (&'a str, &'a str, u64) {
    (&container.name, &block.resource, block.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, cpus: &str, bytes: u64) -> ContainerUsage {
        let memory = MemoryBlock { resource: "memory".into(), bytes, nodes: [0].into_iter().collect() };
        let cpus = cpus.parse().unwrap();
        ContainerUsage { name: name.into(), cpus, memory: vec![memory], ..ContainerUsage::default() }
    }

    fn pod(name: &str, containers: &[ContainerUsage]) -> PodUsage {
        PodUsage { name: name.into(), containers: containers.to_vec(), ..PodUsage::default() }
    }

    fn joined(pods: &[PodUsage], books: &[(&str, &[ContainerUsage])]) -> Vec<(String, String)> {
        let pods_in_books = books.iter().map(|(uid, of)| ((*uid).to_owned(), of.to_vec()));
        let state = ManagerState { pods: pods_in_books.collect(), ..ManagerState::default() };
        let Links { alive, doubtful } = links(pods.iter(), &state);
        assert!(doubtful.is_empty(), "{doubtful:?}");
        alive.into_iter().map(|(uid, pod)| (uid.to_owned(), pod.name.clone())).collect()
    }

    #[test]
    fn a_pod_without_cpus_is_not_taken_for_one_that_had_some_and_as_much_memory() {
        let (shared, pinned) = ([container("app", "", 64)], [container("app", "1-2", 64)]);
        let pods = [pod("shared", &shared)];
        assert_eq!(joined(&pods, &[("u1", &pinned), ("u2", &shared)]), [("u2".into(), "shared".into())]);
    }

    #[test]
    fn a_small_pod_is_not_taken_for_a_large_one_that_has_a_container_like_its_own() {
        let small = [container("app", "", 64)];
        let large = [container("app", "", 64), container("db", "", 512)];
        let pods = [pod("small", &small), pod("large", &large)];
        for (of_small, of_large) in [("u1", "u2"), ("u2", "u1")] {
            let mut joined = joined(&pods, &[(of_small, &small), (of_large, &large)]);
            joined.sort();
            let mut expected = [(of_small.to_owned(), "small".into()), (of_large.to_owned(), "large".into())];
            expected.sort();
            assert_eq!(joined, expected);
        }
    }
}
