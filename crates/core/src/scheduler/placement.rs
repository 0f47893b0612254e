//! Which container is on which zone, in the form that preemption in the scheduler plugin reads (upstream:
//! k8stopologyawareschedwg/numaplacement, v0.1.0, `npv0v001`).
//!
//! The plugin simulates evictions with it, so there is no placement at all if any part of it could be wrong.

mod leb89;

use std::collections::BTreeMap;

use twox_hash::XxHash64;

use crate::kubelet::ContainerUsage;
use crate::machine::{Id, Machine};
use crate::nrt;
use crate::topology::{HIGHEST_ZONE, Topology, Zone};

/// The attribute of the NodeResourceTopology object.
const METADATA: &str = "topology.node.k8s.io/numaplacement-metadata";
/// The attribute of a zone.
const VECTOR: &str = "topology.node.k8s.io/numaplacement-vector";
/// The only policy with a placement: under any other, a container may be on several zones.
const POLICY: &str = nrt::SINGLE_NUMA_NODE;

/// The zone of every container that the scheduler plugin considers exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// `npv0v001::ve=leb89::cc=5::nn=2::bn=0`
    pub metadata: String,
    /// Zone to the containers on it; the busiest zone and those without containers are omitted.
    pub vectors: BTreeMap<Id, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed<'a> {
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) container: &'a str,
    pub(super) zone: Id,
}

/// Returns the one NUMA node of all resources of a container: its CPUs, its memory, and those of its devices
/// that are on one node only. `None` if there is no such node, or several.
pub(super) fn only_node(container: &ContainerUsage, machine: &Machine) -> Option<Id> {
    let mut nodes = machine.nodes_of(&container.cpus);
    container.memory.iter().for_each(|block| nodes.union_with(&block.nodes));
    let devices = container.devices.iter().map(|group| &group.nodes);
    devices.filter(|group| group.len() == 1).for_each(|group| nodes.union_with(group));
    nodes.iter().next().filter(|_| nodes.len() == 1)
}

impl Placement {
    /// Returns the placement of all `containers` on zones 0 to `zones` - 1. `None` if a container is on
    /// another zone, if two containers have the same hash, or if `zones` is not from 1 to 64.
    pub(super) fn of<'a>(zones: Id, containers: impl IntoIterator<Item = Placed<'a>>) -> Option<Self> {
        let places = containers.into_iter().map(|container| (hash(&container), container.zone));
        let mut places: Vec<(u64, Id)> = places.collect();
        places.sort_unstable();
        let is_unclear = places.iter().any(|place| place.1 >= zones)
            || places.windows(2).any(|pair| pair[0].0 == pair[1].0);
        if is_unclear || zones == 0 || zones > HIGHEST_ZONE + 1 {
            return None;
        }
        let mut on: BTreeMap<Id, Vec<u64>> = BTreeMap::new();
        for (index, (_, zone)) in (0_u64..).zip(&places) {
            on.entry(*zone).or_default().push(index);
        }
        let busiest = on.iter().max_by_key(|(id, indexes)| (indexes.len(), std::cmp::Reverse(**id)));
        let busiest = busiest.map_or(0, |(id, _)| *id);
        on.remove(&busiest);
        Some(Self {
            metadata: format!("npv0v001::ve=leb89::cc={}::nn={zones}::bn={busiest}", places.len()),
            vectors: on.into_iter().map(|(id, indexes)| (id, leb89::encode(&indexes))).collect(),
        })
    }

    /// Returns the zone of each of these containers, given as (namespace, pod, container), if they are those that the
    /// object with these attributes and zones counts. `None` if it has no placement, or one of other containers.
    #[must_use]
    pub fn zones_of(
        attributes: &BTreeMap<String, String>,
        with: &[Zone],
        containers: &[(&str, &str, &str)],
    ) -> Option<Vec<Id>> {
        let field = |name: &str| {
            attributes
                .get(METADATA)?
                .split("::")
                .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        if field("ve") != Some("leb89") || field("cc")?.parse() != Ok(containers.len()) {
            return None;
        }
        let mut order: Vec<usize> = (0..containers.len()).collect();
        let hash = |at: &usize| {
            let (namespace, pod, container) = containers[*at];
            hash(&Placed { namespace, pod, container, zone: 0 })
        };
        order.sort_by_cached_key(hash);
        let mut zones = vec![field("bn")?.parse::<Id>().ok()?; containers.len()];
        for zone in with {
            for index in leb89::decode(zone.attributes.get(VECTOR).map_or("", String::as_str))? {
                zones[*order.get(usize::try_from(index).ok()?)?] = zone.id;
            }
        }
        Some(zones)
    }

    /// Returns true under the only policy for which the plugin reads a placement.
    pub(super) fn is_used_by_plugin(topology: &Topology) -> bool {
        let policy = topology.attributes.iter().find(|(name, _)| name == nrt::POLICY);
        policy.is_some_and(|(_, value)| value == POLICY)
    }

    /// Returns name and value of the object's attribute.
    #[must_use]
    pub fn attribute(&self) -> (&'static str, &str) {
        (METADATA, &self.metadata)
    }

    /// Returns name and value of a zone's attribute, if the zone has one.
    #[must_use]
    pub fn zone_attribute(&self, zone: Id) -> Option<(&'static str, &str)> {
        self.vectors.get(&zone).map(|vector| (VECTOR, vector.as_str()))
    }
}

fn hash(container: &Placed<'_>) -> u64 {
    let Placed { namespace, pod, container, .. } = container;
    XxHash64::oneshot(0, [*namespace, *pod, *container].join("\0").as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kubelet::{DeviceGroup, MemoryBlock};
    use crate::machine::{IdSet, NumaNode};

    fn placed(names: &str, zone: Id) -> Placed<'_> {
        let mut names = names.split('/');
        let mut next = || names.next().unwrap();
        Placed { namespace: next(), pod: next(), container: next(), zone }
    }

    #[test]
    fn container_hashes_equal_the_upstream_ones() {
        assert_eq!(hash(&placed("//", 0)), 11_145_182_160_106_660_097);
        assert_eq!(hash(&placed("ns/pod/cnt", 0)), 9_468_815_510_407_277_218);
    }

    #[test]
    fn placements_equal_the_upstream_ones() {
        let containers = [
            ("ns/pod-a/c1", 0),
            ("ns/pod-a/c2", 1),
            ("ns/pod-b/c1", 0),
            ("ns2/pod-c/main", 1),
            ("ns2/pod-d/main", 0),
        ];
        let of = |zones, containers: &[(&str, Id)]| {
            let placed = containers.iter().map(|(names, zone)| placed(names, *zone));
            let Placement { metadata, vectors } = Placement::of(zones, placed).unwrap();
            (metadata, vectors.into_iter().collect::<Vec<_>>())
        };
        let vectors = vec![(1, "$#".to_owned())];
        assert_eq!(of(2, &containers), ("npv0v001::ve=leb89::cc=5::nn=2::bn=0".to_owned(), vectors));
        assert_eq!(of(2, &[]), ("npv0v001::ve=leb89::cc=0::nn=2::bn=0".to_owned(), vec![]));
        let one = containers.map(|(names, _)| (names, 0));
        assert_eq!(of(1, &one), ("npv0v001::ve=leb89::cc=5::nn=1::bn=0".to_owned(), vec![]));
        let even = &[containers[0], containers[1]];
        assert_eq!(of(2, even).0, "npv0v001::ve=leb89::cc=2::nn=2::bn=0", "the lowest of equally busy zones");
        assert_eq!(of(2, &even[1..]).0, "npv0v001::ve=leb89::cc=1::nn=2::bn=1");
    }

    #[test]
    fn a_published_placement_is_read_again() {
        let names = ["ns/pod-a/c1", "ns/pod-a/c2", "ns/pod-b/c1", "ns2/pod-c/main", "ns2/pod-d/main"];
        let zones = [0, 1, 2, 1, 1];
        let placement =
            Placement::of(3, names.into_iter().zip(zones).map(|(names, zone)| placed(names, zone)));
        let placement = placement.unwrap();
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let attributes: BTreeMap<String, String> = [own(placement.attribute())].into();
        let zone = |id, attributes| Zone { id, attributes, ..Zone::default() };
        let of_zone = |id| zone(id, placement.zone_attribute(id).map(own).into_iter().collect());
        let published: Vec<Zone> = (0..3).map(of_zone).collect();
        let containers = names.map(|names| {
            let Placed { namespace, pod, container, .. } = placed(names, 0);
            (namespace, pod, container)
        });
        let read = |containers: &[_]| Placement::zones_of(&attributes, &published, containers);
        assert_eq!(read(&containers), Some(zones.to_vec()));
        assert_eq!(read(&containers[1..]), None, "other containers");
        assert_eq!(Placement::zones_of(&BTreeMap::new(), &published, &containers), None);
        let odd = |value: &str| [(METADATA.to_owned(), value.to_owned())].into();
        for value in ["", "npv0v001::ve=x::cc=5::nn=3::bn=1", "npv0v001::ve=leb89::cc=5::nn=3::bn=-1"] {
            assert_eq!(Placement::zones_of(&odd(value), &published, &containers), None, "{value}");
        }
        let beyond = [zone(0, [(VECTOR.to_owned(), "&".to_owned())].into())];
        assert_eq!(Placement::zones_of(&attributes, &beyond, &containers), None);
        let beyond = [zone(0, [(VECTOR.to_owned(), "(".to_owned())].into())];
        assert_eq!(Placement::zones_of(&attributes, &beyond, &containers), None, "there is no index 5");
    }

    #[test]
    fn an_uncertain_placement_is_none() {
        let good = placed("ns/a/c", 0);
        assert!(Placement::of(2, [good]).is_some());
        assert_eq!(Placement::of(2, [good, placed("ns/b/c", 2)]), None, "there is no such zone");
        assert_eq!(Placement::of(2, [good, placed("ns/a/c", 1)]), None, "the same name twice");
        assert_eq!(Placement::of(0, []), None);
        assert!(Placement::of(64, []).is_some());
        assert_eq!(Placement::of(65, []), None);
    }

    #[test]
    fn a_container_is_on_the_node_of_all_its_resources() {
        let numa = |id, cpus: &str| NumaNode { id, cpus: cpus.parse().unwrap(), ..NumaNode::default() };
        let machine = Machine { nodes: vec![numa(0, "0-3"), numa(8, "4-7")], ..Machine::default() };
        let set = |text: &str| -> IdSet { text.parse().unwrap() };
        let group = |nodes: &str| DeviceGroup { nodes: set(nodes), ..DeviceGroup::default() };
        let block = |nodes: &str| MemoryBlock { nodes: set(nodes), ..MemoryBlock::default() };
        let node = |cpus: &str, devices: &[&str], memory: &[&str]| {
            let container = ContainerUsage {
                cpus: set(cpus),
                devices: devices.iter().map(|nodes| group(nodes)).collect(),
                memory: memory.iter().map(|nodes| block(nodes)).collect(),
                ..ContainerUsage::default()
            };
            only_node(&container, &machine)
        };
        assert_eq!(node("5", &[], &[]), Some(8));
        assert_eq!(node("5", &["0,8", "8", ""], &["8"]), Some(8), "a device on both nodes is ignored");
        assert_eq!(node("", &["0,8", "0"], &[]), Some(0));
        assert_eq!(node("", &[], &["8", "8"]), Some(8));
        assert_eq!(node("", &[], &[]), None);
        assert_eq!(node("", &["0,8"], &[]), None);
        for (cpus, devices, memory) in
            [("3-4", "", ""), ("4", "0", ""), ("4", "", "0"), ("", "0", "8"), ("", "", "0,8")]
        {
            assert_eq!(node(cpus, &[devices], &[memory]), None, "{cpus} {devices} {memory}");
        }
    }

    #[test]
    fn a_placement_has_attributes_and_is_read_under_one_policy() {
        let placement =
            Placement::of(2, [placed("ns/a/c", 1), placed("ns/b/c", 1), placed("ns/c/c", 0)]).unwrap();
        assert_eq!(placement.attribute(), (METADATA, placement.metadata.as_str()));
        assert_eq!(placement.zone_attribute(0), Some((VECTOR, placement.vectors[&0].as_str())));
        assert_eq!(placement.zone_attribute(1), None, "the busiest");
        let is_used = |policy: &str| {
            let attributes = vec![(nrt::POLICY.to_owned(), policy.to_owned())];
            Placement::is_used_by_plugin(&Topology { attributes, ..Topology::default() })
        };
        assert!(is_used("single-numa-node") && !is_used("restricted"));
        assert!(!Placement::is_used_by_plugin(&Topology::default()));
    }

    proptest! {
        #[test]
        fn every_container_is_found_in_the_placement(zones in proptest::collection::vec(0..4_u16, 0..60)) {
            let names: Vec<String> = (0..zones.len()).map(|at| format!("ns/pod-{at}/c")).collect();
            let containers = || names.iter().zip(&zones).map(|(names, zone)| placed(names, *zone));
            let placement = Placement::of(4, containers()).unwrap();
            let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            let attributes = [own(placement.attribute())].into();
            let of_zone = |id| {
                let attributes = placement.zone_attribute(id).map(own).into_iter().collect();
                Zone { id, attributes, ..Zone::default() }
            };
            let published: Vec<Zone> = (0..4).map(of_zone).collect();
            let keys: Vec<_> = containers().map(|of| (of.namespace, of.pod, of.container)).collect();
            let read = Placement::zones_of(&attributes, &published, &keys);
            prop_assert_eq!(read, Some(zones));
        }
    }
}
