//! Resources that pods occupy although the List does not show them.
//!
//! The List contains sidecars and app containers. What was allocated to a regular init container stays with
//! its pod until the pod terminates: the other containers reuse it, but no other pod gets the remainder (k/k
//! #131764). Only the managers' checkpoints show it, and they identify pods by UID, the List by name. The two
//! are joined by the resources of the containers, since no two pods are allocated the same set of CPUs or the same
//! device. Where cores have different numbers of threads, kubelets may allocate one CPU to two pods: the static policy
//! takes all CPUs of a core that has as many free ones as the average core.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Inputs;
use crate::kubelet::{Checkpoints, ContainerUsage, MemoryBlock, PodUsage};
use crate::machine::IdSet;

#[derive(Debug, Default)]
pub(super) struct Unlisted<'a> {
    /// Containers of listed pods that are missing from the List.
    pub(super) containers: Vec<&'a ContainerUsage>,
    /// The memory of such containers, unless their pod has pod-level memory, which already includes it.
    pub(super) memory: Vec<&'a MemoryBlock>,
    /// CPUs of all checkpoint entries except those of pods known to have terminated, or excluded. The
    /// checkpoints are read after the List and may be newer. An entry that matches no listed pod belongs to a
    /// pod that is allocated CPUs for an init container only, or to one that terminated before it was first
    /// observed; such entries are removed within the CPU Manager's reconcile period.
    pub(super) cpus: IdSet,
}

/// UIDs in the checkpoints, matched with the listed pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UidMatches<'a> {
    /// UIDs of listed pods, with the containers that the List names for the pod. If several pods may have the
    /// UID, only the containers that are listed for all of them.
    pub listed: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// UIDs whose listed pod has pod-level memory (kubelet 1.37).
    pub pod_level_memory: BTreeSet<&'a str>,
    /// UIDs that match exactly one listed pod; to be stored in [`Checkpoints::names`].
    pub certain: BTreeMap<&'a str, &'a PodUsage>,
}

pub(super) fn of<'a>(inputs: &Inputs<'a>, checkpoints: &'a Checkpoints) -> Unlisted<'a> {
    let UidMatches { listed: counted, pod_level_memory, .. } =
        match_uids(inputs.active_pods().filter(|pod| inputs.counts(pod)), checkpoints);
    // Entries of excluded pods must not count either.
    let excludes_any = inputs.active_pods().any(|pod| !inputs.counts(pod));
    let all =
        if excludes_any { match_uids(inputs.active_pods(), checkpoints).listed } else { BTreeMap::new() };
    let mut unlisted = Unlisted::default();
    for (uid, containers) in &checkpoints.pods {
        match counted.get(uid.as_str()) {
            Some(listed) => {
                let missing = || containers.iter().filter(|c| !listed.contains(c.name.as_str()));
                unlisted.containers.extend(missing());
                if !pod_level_memory.contains(uid.as_str()) {
                    unlisted.memory.extend(missing().flat_map(|container| &container.memory));
                }
            }
            // Its pod was listed before and no longer is (a stale entry), or its pod is excluded.
            None if checkpoints.names.contains_key(uid) || all.contains_key(uid.as_str()) => continue,
            None => {}
        }
        containers.iter().for_each(|container| unlisted.cpus.union_with(&container.cpus));
    }
    unlisted
}

/// Matches the pods of the List with the checkpoints' entries.
pub fn match_uids<'a>(
    pods: impl Iterator<Item = &'a PodUsage>,
    checkpoints: &'a Checkpoints,
) -> UidMatches<'a> {
    let index = Index::new(checkpoints);
    let mut matches = UidMatches::default();
    let mut ambiguous: BTreeMap<BTreeSet<Key<'a>>, Vec<&'a PodUsage>> = BTreeMap::new();
    for pod in pods {
        match index.known(pod).or_else(|| index.owner(pod)) {
            Some(uid) => matches.add_certain(uid, pod),
            None => ambiguous.entry(memory_of(pod)).or_default().push(pod),
        }
    }
    match_by_memory(&mut matches, &index, ambiguous);
    matches
}

/// Matches pods that differ only in their amounts of memory. If there are more UIDs than pods, those with the
/// most memory are assumed to be alive, so that the available memory is never overstated.
fn match_by_memory<'a>(
    matches: &mut UidMatches<'a>,
    index: &Index<'a>,
    pods_by_memory: BTreeMap<BTreeSet<Key<'a>>, Vec<&'a PodUsage>>,
) {
    let is_candidate = |uid: &&str, pods: &[&PodUsage]| {
        !matches.listed.contains_key(uid)
            && !index.checkpoints.names.contains_key(*uid)
            && pods.iter().any(|pod| index.has_no_more(uid, pod))
    };
    let mut groups: Vec<(Vec<&'a str>, Vec<&'a PodUsage>)> = pods_by_memory
        .into_iter()
        .map(|(memory, pods)| (index.with_memory(&memory), pods))
        .map(|(uids, pods)| (uids.into_iter().filter(|uid| is_candidate(uid, &pods)).collect(), pods))
        .collect();
    // The groups with the fewest candidates first: a pod with one container may match a part of a larger pod.
    groups.sort_by_key(|(uids, _)| uids.len());
    let groups_with = |uid: &str| groups.iter().filter(|(uids, _)| uids.contains(&uid)).count();
    let mut chosen = BTreeSet::new();
    for (uids, pods) in &groups {
        if let ([uid], [pod]) = (&uids[..], &pods[..])
            && groups_with(uid) == 1
        {
            chosen.insert(*uid);
            matches.add_certain(uid, pod);
            continue;
        }
        let (taken, free): (Vec<_>, Vec<_>) = uids.iter().partition(|uid| chosen.contains(*uid));
        if free.len() < pods.len() {
            // Some pod of this group has no UID of its own: one that another group took may be that pod's.
            taken.into_iter().for_each(|uid| pods.iter().for_each(|pod| matches.add(uid, pod)));
        }
        for uid in index.most_memory_first(free.into_iter()).into_iter().take(pods.len()) {
            chosen.insert(uid);
            pods.iter().for_each(|pod| matches.add(uid, pod));
        }
    }
}

impl<'a> UidMatches<'a> {
    fn add_certain(&mut self, uid: &'a str, pod: &'a PodUsage) {
        self.certain.insert(uid, pod);
        self.add(uid, pod);
    }

    fn add(&mut self, uid: &'a str, pod: &'a PodUsage) {
        let names = || pod.containers.iter().map(|container| container.name.as_str());
        if !pod.memory.is_empty() {
            self.pod_level_memory.insert(uid);
        }
        match self.listed.entry(uid) {
            Entry::Vacant(entry) => drop(entry.insert(names().collect())),
            Entry::Occupied(mut entry) => {
                entry.get_mut().retain(|listed| names().any(|name| name == *listed))
            }
        }
    }
}

/// The checkpoints with their indexes. Indexes are built on first use, since in the long run every UID is
/// known and most Lists need none of them.
struct Index<'a> {
    checkpoints: &'a Checkpoints,
    /// UIDs by the namespace and name of pods in earlier Lists.
    known: HashMap<(&'a str, &'a str), &'a str>,
    cpus: OnceCell<HashMap<&'a IdSet, &'a str>>,
    devices: OnceCell<HashMap<Device<'a>, &'a str>>,
    memory: OnceCell<HashMap<Key<'a>, Vec<&'a str>>>,
}

impl<'a> Index<'a> {
    fn new(checkpoints: &'a Checkpoints) -> Self {
        let known = checkpoints.names.iter().filter(|(uid, _)| checkpoints.pods.contains_key(*uid));
        Self {
            checkpoints,
            known: known
                .map(|(uid, (namespace, name))| ((namespace.as_str(), name.as_str()), uid.as_str()))
                .collect(),
            cpus: OnceCell::new(),
            devices: OnceCell::new(),
            memory: OnceCell::new(),
        }
    }

    fn containers(&self) -> impl Iterator<Item = (&'a str, &'a ContainerUsage)> {
        let pods = self.checkpoints.pods.iter();
        pods.flat_map(|(uid, of)| of.iter().map(move |container| (uid.as_str(), container)))
    }

    fn by_cpus(&self) -> &HashMap<&'a IdSet, &'a str> {
        self.cpus.get_or_init(|| {
            let with_cpus = self.containers().filter(|(_, container)| !container.cpus.is_empty());
            with_cpus.map(|(uid, container)| (&container.cpus, uid)).collect()
        })
    }

    fn by_device(&self) -> &HashMap<Device<'a>, &'a str> {
        self.devices.get_or_init(|| {
            let all =
                self.containers().flat_map(|(uid, container)| devices(container).map(move |d| (d, uid)));
            all.collect()
        })
    }

    fn by_memory(&self) -> &HashMap<Key<'a>, Vec<&'a str>> {
        self.memory.get_or_init(|| {
            let mut index: HashMap<Key<'a>, Vec<&'a str>> = HashMap::new();
            for (uid, container) in self.containers() {
                for block in &container.memory {
                    let uids = index.entry(key(container, block)).or_default();
                    // UIDs come in ascending order; add each once.
                    if uids.last() != Some(&uid) {
                        uids.push(uid);
                    }
                }
            }
            index
        })
    }

    /// Returns the UID that this pod had in an earlier List; `None` if nothing is allocated to the pod, since
    /// it may be a new pod with the same name.
    fn known(&self, pod: &PodUsage) -> Option<&'a str> {
        let uid = self.known.get(&(pod.namespace.as_str(), pod.name.as_str()));
        uid.filter(|_| pod.has_allocations()).copied()
    }

    /// Returns the UID whose entry has the CPUs of one of this pod's containers, or one of its devices, if its CPUs
    /// agree with the pod's.
    fn owner(&self, pod: &PodUsage) -> Option<&'a str> {
        let sets = pod.containers.iter().map(|container| &container.cpus).chain([&pod.cpus]);
        let by_cpu = sets.filter(|cpus| !cpus.is_empty()).find_map(|cpus| self.by_cpus().get(cpus));
        let mut own = pod.containers.iter().flat_map(devices).peekable();
        let by_device = || own.peek().is_some().then(|| own.filter_map(|d| self.by_device().get(&d)).min());
        let uid = by_cpu.or_else(|| by_device().flatten())?;
        // A UID that is already known belongs to another pod, whose entry is stale.
        (self.has_cpus_of(uid, pod) && !self.checkpoints.names.contains_key(*uid)).then_some(*uid)
    }

    /// Whether the checkpoints give this UID's containers the CPUs that the List reports for the pod's.
    fn has_cpus_of(&self, uid: &str, pod: &PodUsage) -> bool {
        let entry = &self.checkpoints.pods[uid];
        let find = |name: &str| entry.iter().find(|container| container.name == name);
        pod.containers
            .iter()
            .filter(|container| !container.cpus.is_empty())
            .all(|listed| find(&listed.name).is_some_and(|container| container.cpus == listed.cpus))
    }

    /// Whether the checkpoints give this UID's containers nothing that the List does not report for the
    /// pod's. Containers that use their pod's pod-level resources (kubelet 1.37) have CPUs only in the
    /// checkpoints.
    fn has_no_more(&self, uid: &str, pod: &PodUsage) -> bool {
        let entry = &self.checkpoints.pods[uid];
        let pod_level = entry.iter().find(|container| container.name.is_empty());
        pod_level.is_none_or(|pod_level| pod_level.cpus == pod.cpus)
            && pod.containers.iter().all(|listed| {
                entry.iter().find(|container| container.name == listed.name).is_none_or(|container| {
                    (pod_level.is_some() || container.cpus == listed.cpus)
                        && container.devices.is_empty() == listed.devices.is_empty()
                })
            })
    }

    /// Returns the UIDs whose containers have all this memory, ascending; none if `memory` is empty.
    fn with_memory(&self, memory: &BTreeSet<Key<'a>>) -> Vec<&'a str> {
        let mut keys = memory.iter();
        let mut uids = keys.next().and_then(|key| self.by_memory().get(key)).cloned().unwrap_or_default();
        for key in keys {
            let others = self.by_memory().get(key);
            uids.retain(|uid| others.is_some_and(|others| others.binary_search(uid).is_ok()));
        }
        uids
    }

    /// Sorts UIDs by memory, most first.
    fn most_memory_first(&self, uids: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let bytes = |uid: &str| -> u64 {
            let blocks = self.checkpoints.pods[uid].iter().flat_map(|container| &container.memory);
            blocks.fold(0, |sum, block| sum.saturating_add(block.bytes))
        };
        let mut uids: Vec<&str> = uids.collect();
        uids.sort_by_cached_key(|uid| (Reverse(bytes(uid)), *uid));
        uids
    }
}

type Device<'a> = (&'a str, &'a str);

fn devices(container: &ContainerUsage) -> impl Iterator<Item = Device<'_>> {
    let groups = container.devices.iter();
    groups.flat_map(|group| group.ids.iter().map(|id| (group.resource.as_str(), id.as_str())))
}

/// A container's memory block: the container's name, the type, the bytes and the nodes.
type Key<'a> = (&'a str, &'a str, u64, &'a IdSet);

fn key<'a>(container: &'a ContainerUsage, block: &'a MemoryBlock) -> Key<'a> {
    (&container.name, &block.resource, block.bytes, &block.nodes)
}

fn memory_of(pod: &PodUsage) -> BTreeSet<Key<'_>> {
    pod.containers.iter().flat_map(|c| c.memory.iter().map(move |block| key(c, block))).collect()
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

    /// Returns the matched UIDs, each with the containers that the List names for it.
    fn matched(pods: &[PodUsage], entries: &[(&str, &[ContainerUsage])]) -> Vec<String> {
        let entries = entries.iter().map(|(uid, of)| ((*uid).to_owned(), of.to_vec()));
        let checkpoints = Checkpoints { pods: entries.collect(), ..Checkpoints::default() };
        let UidMatches { listed, .. } = match_uids(pods.iter(), &checkpoints);
        listed.into_iter().map(|(uid, names)| format!("{uid} {names:?}")).collect()
    }

    #[test]
    fn a_pod_without_cpus_does_not_match_an_entry_with_cpus_and_the_same_memory() {
        let (shared, pinned) = ([container("app", "", 64)], [container("app", "1-2", 64)]);
        let pods = [pod("shared", &shared)];
        assert_eq!(matched(&pods, &[("u1", &pinned), ("u2", &shared)]), ["u2 {\"app\"}"]);
    }

    #[test]
    fn a_pod_without_cpus_does_not_match_an_entry_with_pod_level_cpus() {
        let shared = [container("app", "", 64)];
        let pod_level = ContainerUsage { cpus: "1-2".parse().unwrap(), ..ContainerUsage::default() };
        let with_pod_level = [pod_level, container("app", "", 64)];
        let pods = [pod("shared", &shared)];
        assert_eq!(matched(&pods, &[("u1", &with_pod_level), ("u2", &shared)]), ["u2 {\"app\"}"]);
    }

    /// As kubelets allocate them where cores have different numbers of threads.
    #[test]
    fn a_pod_matches_its_entry_although_another_has_its_lowest_cpu() {
        let (large, small) = ([container("app", "4-7", 64)], [container("app", "4", 64)]);
        let pods = [pod("large", &large), pod("small", &small)];
        let entry = [large[0].clone(), container("init", "5-6", 64)];
        for entries in [[("u1", &entry[..]), ("u2", &small)], [("u1", &small), ("u2", &entry)]] {
            let checkpoints = Checkpoints {
                pods: entries.iter().map(|(uid, of)| ((*uid).to_owned(), of.to_vec())).collect(),
                ..Checkpoints::default()
            };
            let certain = match_uids(pods.iter(), &checkpoints).certain;
            let names: BTreeSet<&str> = certain.values().map(|pod| pod.name.as_str()).collect();
            assert_eq!(names, ["large", "small"].into());
        }
    }

    /// A pod without an entry of its own may have ended since the List, or the entry is its own.
    #[test]
    fn an_entry_that_pods_of_two_kinds_may_have_counts_in_full() {
        let pods = [pod("small", &[container("init", "", 64)]), pod("large", &[container("app", "", 64)])];
        let entry = [container("init", "", 64), container("app", "", 64)];
        assert_eq!(matched(&pods, &[("u1", &entry)]), ["u1 {}"]);
        let own = [container("init", "", 64)];
        assert_eq!(matched(&pods, &[("u1", &entry), ("u2", &own)]), ["u1 {\"app\"}", "u2 {\"init\"}"]);
    }

    #[test]
    fn a_small_pod_does_not_match_the_entry_of_a_larger_pod_with_an_equal_container() {
        let small = [container("app", "", 64)];
        let large = [container("app", "", 64), container("db", "", 512)];
        let pods = [pod("small", &small), pod("large", &large)];
        let both = matched(&pods, &[("u1", &small), ("u2", &large)]);
        assert_eq!(both, ["u1 {\"app\"}", "u2 {\"app\", \"db\"}"]);
        let both = matched(&pods, &[("u1", &large), ("u2", &small)]);
        assert_eq!(both, ["u1 {\"app\", \"db\"}", "u2 {\"app\"}"]);
    }
}
