//! Which pods have a node's exclusive resources, and in which zones: from its object and its pods.

use std::collections::BTreeMap;

use crate::core_v1::PlacedPod;
use crate::machine::{Id, IdSet};
use crate::nrt::POLICY;
use crate::pod::{Container, ContainerKind, Phase, Pod};
use crate::quantity::is_huge_pages;
use crate::scheduler::{Placement, is_counted_container};
use crate::topology::{Zone, real_zones};

/// What one container has exclusively.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
    /// The zones that it is in; `None` if the object does not tell.
    pub zones: Option<IdSet>,
    /// Exclusive CPUs.
    pub cpus: u64,
    /// Bytes by `memory` or `hugepages-<size>`.
    pub memory: BTreeMap<String, u64>,
    /// Devices by resource.
    pub devices: BTreeMap<String, u64>,
}

impl Holder {
    /// Returns what it has of a resource: CPUs, bytes or devices.
    #[must_use]
    pub fn amount(&self, resource: &str) -> u64 {
        let of = |amounts: &BTreeMap<String, u64>| amounts.get(resource).copied();
        if resource == "cpu" {
            self.cpus
        } else {
            of(&self.memory).or_else(|| of(&self.devices)).unwrap_or(0)
        }
    }

    fn is_empty(&self) -> bool {
        self.cpus == 0 && self.memory.is_empty() && self.devices.is_empty()
    }
}

/// What the kubelet of an object allocates exclusively.
struct Managers<'a> {
    zones: &'a [Zone],
    cpus: bool,
    memory: bool,
}

/// Returns the containers with exclusive resources. `pods` are those of the node; terminated ones have nothing any
/// more, and what regular init containers keep is left out.
#[must_use]
pub fn holders(zones: &[Zone], attributes: &BTreeMap<String, String>, pods: &[PlacedPod]) -> Vec<Holder> {
    let policy = |name: &str| attributes.get(name).map_or("", String::as_str);
    let managers = Managers {
        zones,
        cpus: policy("cpuManagerPolicy") == "static",
        memory: policy("memoryManagerPolicy") == "Static",
    };
    let running: Vec<&Pod> =
        pods.iter().map(|placed| &placed.pod).filter(|pod| !pod.phase.is_terminal()).collect();
    let placement = placement(zones, attributes, &running);
    let mut holders = Vec::new();
    for pod in running {
        for container in pod.containers.iter().filter(|container| container.kind != ContainerKind::Init) {
            let key = (pod.namespace.as_str(), pod.name.as_str(), &*container.name);
            let mut holder = managers.holder(pod, container);
            if holder.is_empty() {
                continue;
            }
            holder.zones =
                placement.as_ref().and_then(|zones| zones.get(&key).map(|zone| IdSet::from_iter([*zone])));
            if holder.zones.is_none() {
                holder.zones = managers.only_zone(&holder, policy(POLICY) == "single-numa-node");
            }
            holders.push(holder);
        }
    }
    holders
}

impl Managers<'_> {
    fn holder(&self, pod: &Pod, container: &Container) -> Holder {
        let managed = pod.qos_guaranteed && pod.pod_level.is_none();
        let whole = container.cpu_milli.is_multiple_of(1000);
        let cpus = if self.cpus && managed && whole { container.cpu_milli / 1000 } else { 0 };
        let mut memory = BTreeMap::new();
        if self.memory && managed {
            memory.extend((container.memory > 0).then(|| ("memory".to_owned(), container.memory)));
            let pages = container.requested().filter(|(name, _)| is_huge_pages(name));
            memory.extend(pages.map(|(name, bytes)| (name.to_owned(), bytes)));
        }
        let listed = |name: &str| self.zones.iter().any(|zone| zone.resources.contains_key(name));
        let devices = container.requested().filter(|(name, _)| !is_huge_pages(name) && listed(name));
        Holder {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.name.to_string(),
            zones: None,
            cpus,
            memory,
            devices: devices.map(|(name, count)| (name.to_owned(), count)).collect(),
        }
    }

    /// Returns the only zone of a machine with one, or the only one with that much in use if the kubelet uses one
    /// zone per container.
    fn only_zone(&self, holder: &Holder, is_single: bool) -> Option<IdSet> {
        let real = real_zones(self.zones);
        let is_possible = |zone: &&&Zone| {
            let in_use = |resource: &str| {
                let amounts = zone.resources.get(resource).copied().unwrap_or_default();
                amounts.allocatable.saturating_sub(amounts.available)
            };
            let names = holder.memory.keys().chain(holder.devices.keys()).map(String::as_str).chain(["cpu"]);
            names.into_iter().all(|name| holder.amount(name) <= in_use(name))
        };
        let possible: Vec<&&Zone> = match (real.len(), is_single) {
            (1, _) => real.iter().collect(),
            // A container may have memory of all of a group.
            (_, true) if real.iter().any(|zone| zone.memory_group().is_some_and(|group| group.len() > 1)) => {
                Vec::new()
            }
            (_, true) => real.iter().filter(is_possible).collect(),
            (_, false) => Vec::new(),
        };
        (possible.len() == 1).then(|| possible.iter().map(|zone| zone.id).collect())
    }
}

type ContainerKey<'a> = (&'a str, &'a str, &'a str);

/// Returns the zone of each container that the object's placement counts. It counts pods that are Pending only once
/// they have started, so both are tried.
fn placement<'a>(
    zones: &[Zone],
    attributes: &BTreeMap<String, String>,
    pods: &[&'a Pod],
) -> Option<BTreeMap<ContainerKey<'a>, Id>> {
    let listed = |name: &str| zones.iter().any(|zone| zone.resources.contains_key(name));
    let of = |with_pending: bool| {
        let counted = pods.iter().filter(|pod| with_pending || pod.phase != Phase::Pending);
        let containers = counted.flat_map(|pod| {
            let exclusive = pod.containers.iter().filter(|one| is_counted_container(pod, one, &listed));
            exclusive.map(|container| (pod.namespace.as_str(), pod.name.as_str(), &*container.name))
        });
        let containers: Vec<ContainerKey<'a>> = containers.collect();
        let ids = Placement::zones_of(attributes, zones, &containers)?;
        Some(containers.into_iter().zip(ids).collect())
    };
    of(false).or_else(|| of(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Amounts;

    fn zone(id: Id, available: u64) -> Zone {
        let amounts = Amounts { capacity: 8, allocatable: 8, available };
        let names = ["cpu", "memory", "example.com/nic"];
        let resources = names.map(|name| (name.to_owned(), amounts)).into();
        Zone { id, resources, ..Zone::default() }
    }

    fn pod(name: &str, cpu_milli: u64, nics: u64, phase: Phase) -> PlacedPod {
        let others = (nics > 0).then(|| ("example.com/nic".into(), nics)).into_iter().collect();
        let container = Container { name: "c".into(), cpu_milli, memory: 1, others, ..Container::default() };
        let (namespace, name) = ("ns".to_owned(), name.to_owned());
        let containers = Box::new([container]);
        let pod = Pod { namespace, name, phase, qos_guaranteed: true, containers, ..Pod::default() };
        PlacedPod { pod, ..PlacedPod::default() }
    }

    fn attributes(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn ids(holder: &Holder) -> Option<String> {
        holder.zones.as_ref().map(ToString::to_string)
    }

    #[test]
    fn containers_have_what_the_policies_give_them() {
        let pods = [
            pod("whole", 2000, 1, Phase::Running),
            pod("shared", 1500, 0, Phase::Running),
            pod("ended", 2000, 1, Phase::Succeeded),
        ];
        let static_cpus = attributes(&[("cpuManagerPolicy", "static")]);
        let found = holders(&[zone(0, 4), zone(1, 8)], &static_cpus, &pods);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].amount("cpu"), found[0].amount("example.com/nic"), found[0].amount("memory")),
            (2, 1, 0)
        );
        assert_eq!(ids(&found[0]), None, "only a placement tells the zone");
        let both = attributes(&[("cpuManagerPolicy", "static"), ("memoryManagerPolicy", "Static")]);
        assert_eq!(holders(&[zone(0, 4)], &both, &pods).len(), 2);
        let none = holders(&[zone(0, 4)], &BTreeMap::new(), &pods);
        assert_eq!((none.len(), none[0].cpus), (1, 0), "devices are always exclusive");
    }

    #[test]
    fn the_zone_is_known_if_only_one_is_possible() {
        let single = attributes(&[("cpuManagerPolicy", "static"), (POLICY, "single-numa-node")]);
        let pods = [pod("a", 2000, 1, Phase::Running)];
        let of = |zones: &[Zone]| ids(&holders(zones, &single, &pods)[0]);
        assert_eq!(of(&[zone(0, 8), zone(1, 4)]).as_deref(), Some("1"));
        assert_eq!(of(&[zone(0, 4), zone(1, 4)]), None);
        assert_eq!(of(&[zone(0, 8)]).as_deref(), Some("0"), "a machine with one node");
    }

    #[test]
    fn the_placement_tells_the_zone() {
        let single = [
            ("cpuManagerPolicy", "static"),
            (POLICY, "single-numa-node"),
            ("topology.node.k8s.io/numaplacement-metadata", "npv0v001::ve=leb89::cc=1::nn=2::bn=1"),
        ];
        let zones = [zone(0, 4), zone(1, 4)];
        let pods = [pod("a", 2000, 1, Phase::Running), pod("new", 2000, 1, Phase::Pending)];
        let found = holders(&zones, &attributes(&single), &pods);
        let known: Vec<Option<String>> = found.iter().map(ids).collect();
        assert_eq!(known, [Some("1".to_owned()), None]);
    }
}
