//! Which pod has what of each zone: the other side of the account. What is allocatable in a zone, less what all pods
//! have of it, is what is available there.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Amounts, InUse, Inputs, Topology, Zone, cpus, memory};
use crate::claims;
use crate::kubelet::{ContainerUsage, MemoryBlock, PodUsage};
use crate::machine::{Id, IdSet};

/// What one pod has: zone to resource to amount, in CPUs, bytes and devices. No amount is 0.
pub type PodAmounts = BTreeMap<Id, BTreeMap<String, u64>>;

/// Returns what each pod has of the zones that were computed from these inputs, by namespace and name; only pods that
/// have anything.
///
/// What two pods have, such as a CPU that the kubelet gave to both or a claim that they share, is counted for one of
/// them. A block on several nodes is split as in the account. What the account takes for no known pod is left out: of a
/// pod that has CPUs for its init containers only, and memory that the kubelet did not release.
#[must_use]
pub fn amounts_by_pod(inputs: &Inputs<'_>, topology: &Topology) -> BTreeMap<(String, String), PodAmounts> {
    let in_use = InUse::of(inputs);
    let mut pods: Vec<Holder<'_>> = in_use.pods.iter().map(|pod| Holder::of(pod, inputs)).collect();
    pods.sort_unstable_by_key(|holder| holder.name());
    let mut charges = Charges::new(inputs, topology);
    pods.iter().for_each(|pod| charges.add_cpus(pod));
    charges.add_devices(&pods);
    charges.add_memory(&pods);
    charges.add_claims();
    charges.of_pods
}

type PodName<'a> = (&'a str, &'a str);

/// A pod with the containers that the List does not show.
struct Holder<'a> {
    pod: &'a PodUsage,
    unlisted: Vec<&'a ContainerUsage>,
}

impl<'a> Holder<'a> {
    fn of(pod: &'a PodUsage, inputs: &Inputs<'a>) -> Self {
        let entry = inputs.checkpoints.and_then(|checkpoints| {
            let name = (&*pod.namespace, &*pod.name);
            let (uid, _) =
                checkpoints.names.iter().find(|(_, (namespace, of))| (&**namespace, &**of) == name)?;
            checkpoints.pods.get(uid)
        });
        let is_listed = |name: &str| pod.containers.iter().any(|container| container.name == name);
        let containers = entry.into_iter().flatten().filter(|container| !is_listed(&container.name));
        Self { pod, unlisted: containers.collect() }
    }

    fn name(&self) -> PodName<'a> {
        (&self.pod.namespace, &self.pod.name)
    }

    fn containers(&self) -> impl Iterator<Item = &'a ContainerUsage> {
        self.pod.containers.iter().chain(self.unlisted.iter().copied())
    }

    fn blocks(&self) -> impl Iterator<Item = &'a MemoryBlock> + use<'a> {
        // Pod-level memory includes that of the init containers.
        let unlisted = if self.pod.memory.is_empty() { self.unlisted.clone() } else { Vec::new() };
        memory::blocks(self.pod).chain(unlisted.into_iter().flat_map(|container| &container.memory))
    }
}

struct Charges<'a> {
    inputs: &'a Inputs<'a>,
    /// What is allocatable and not available, by zone and resource, as far as it is not counted for a pod yet.
    left: BTreeMap<Id, BTreeMap<&'a str, u64>>,
    /// Allocatable CPUs that are not counted yet.
    cpus: IdSet,
    of_pods: BTreeMap<(String, String), PodAmounts>,
}

impl<'a> Charges<'a> {
    fn new(inputs: &'a Inputs<'a>, topology: &'a Topology) -> Self {
        let taken = |(resource, amounts): (&'a String, &Amounts)| {
            (resource.as_str(), amounts.allocatable - amounts.available)
        };
        let of_zone = |zone: &'a Zone| (zone.id, zone.resources.iter().map(taken).collect());
        Self {
            inputs,
            left: topology.zones.iter().map(of_zone).collect(),
            cpus: cpus::offered(inputs),
            of_pods: BTreeMap::new(),
        }
    }

    /// Counts as much of this amount as is left, and returns the rest.
    fn add(&mut self, pod: PodName<'_>, zone: Id, resource: &str, amount: u64) -> u64 {
        let Some(left) = self.left.get_mut(&zone).and_then(|zone| zone.get_mut(resource)) else {
            return amount;
        };
        let part = amount.min(*left);
        *left -= part;
        if part > 0 {
            let of_pod = self.of_pods.entry((pod.0.to_owned(), pod.1.to_owned())).or_default();
            *of_pod.entry(zone).or_default().entry(resource.to_owned()).or_default() += part;
        }
        amount - part
    }

    fn add_cpus(&mut self, holder: &Holder<'_>) {
        let mut cpus = holder.pod.cpus.clone();
        holder.containers().for_each(|container| cpus.union_with(&container.cpus));
        self.add_ids(holder.name(), &cpus);
    }

    fn add_ids(&mut self, pod: PodName<'_>, cpus: &IdSet) {
        let cpus = self.cpus.intersection(cpus);
        self.cpus = self.cpus.difference(&cpus);
        for node in &self.inputs.machine.nodes {
            self.add(pod, node.id, "cpu", cpus.common(&node.cpus));
        }
    }

    /// Counts each device once, in the zones where its plugin offers it.
    fn add_devices(&mut self, pods: &[Holder<'_>]) {
        let mut offered: HashMap<(&str, &str), IdSet> = HashMap::new();
        for group in &self.inputs.allocatable.devices {
            for id in &group.ids {
                offered.entry((&group.resource, id)).or_default().union_with(&group.nodes);
            }
        }
        for holder in pods {
            let groups = holder.containers().flat_map(|container| &container.devices);
            for (group, id) in groups.flat_map(|group| group.ids.iter().map(move |id| (group, id))) {
                for zone in offered.remove(&(&*group.resource, &**id)).unwrap_or_default().iter() {
                    self.add(holder.name(), zone, &group.resource, 1);
                }
            }
        }
    }

    /// Counts blocks in the order of the account: those on one node first.
    fn add_memory(&mut self, pods: &[Holder<'a>]) {
        let of_pod = |holder: &Holder<'a>| {
            let name = holder.name();
            holder.blocks().map(move |block| (name, block))
        };
        let mut blocks: Vec<(PodName<'_>, &MemoryBlock)> = pods.iter().flat_map(of_pod).collect();
        blocks
            .sort_by_cached_key(|(_, block)| (block.nodes.len() > 1, block.nodes.iter().collect::<Vec<_>>()));
        for (pod, block) in blocks {
            let add = |rest, node| self.add(pod, node, &block.resource, rest);
            block.nodes.iter().fold(block.bytes, add);
        }
    }

    /// Counts each claim for the first of its pods.
    fn add_claims(&mut self) {
        let inputs = self.inputs;
        let Some(claims) = inputs.claims else { return };
        let counts = |namespace: &str, pod: &str| !inputs.rules.exclude.pod(namespace, pod);
        for (namespace, pods, held) in claims::held_by_claim(inputs.machine, claims) {
            let pods: BTreeSet<&str> =
                pods.iter().map(String::as_str).filter(|pod| counts(namespace, pod)).collect();
            let Some(pod) = pods.first().map(|pod| (namespace, *pod)) else { continue };
            self.add_ids(pod, &held.cpus.ids);
            for (node, cpus) in &held.cpus.others {
                self.add(pod, *node, "cpu", *cpus);
            }
            for ((node, resource), bytes) in &held.memory {
                self.add(pod, *node, resource, *bytes);
            }
        }
    }
}
