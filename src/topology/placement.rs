//! Which container is on which zone, in the form that preemption in the scheduler plugin reads (nrt.md 6;
//! upstream: k8stopologyawareschedwg/numaplacement, v0.1.0, `npv0v001`).
//!
//! The plugin simulates evictions with it, so there is no placement at all if any part of it could be wrong.

use std::collections::BTreeMap;

use twox_hash::XxHash64;

use super::{HIGHEST_ZONE, Topology, attributes};
use crate::kubelet::ContainerUsage;
use crate::machine::{Id, IdSet, Machine};

/// The attribute of the NodeResourceTopology object.
const METADATA: &str = "topology.node.k8s.io/numaplacement-metadata";
/// The attribute of a zone.
const VECTOR: &str = "topology.node.k8s.io/numaplacement-vector";
/// The only policy with a placement: under any other, a container may be on several zones.
const POLICY: &str = "single-numa-node";

/// The zone of every container that the scheduler plugin considers exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// `npv0v001::ve=leb89::cc=5::nn=2::bn=0`
    pub metadata: String,
    /// Zone to the containers on it; the busiest zone and those without containers are omitted.
    pub vectors: BTreeMap<Id, String>,
}

/// A container and its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's name.
    pub pod: &'a str,
    /// The container's name.
    pub container: &'a str,
    /// Its zone, if it is on exactly one ([`home`]).
    pub zone: Option<Id>,
}

/// Returns the one NUMA node of all resources of a container: its CPUs, its memory, and those of its devices
/// that are on one node only. `None` if there is no such node, or several.
#[must_use]
pub fn home(container: &ContainerUsage, machine: &Machine) -> Option<Id> {
    let mut nodes = IdSet::new();
    for node in &machine.nodes {
        if node.cpus.intersects(&container.cpus) {
            nodes.insert(node.id);
        }
    }
    container.memory.iter().for_each(|block| nodes.union_with(&block.nodes));
    let devices = container.devices.iter().map(|group| &group.nodes);
    devices.filter(|group| group.len() == 1).for_each(|group| nodes.union_with(group));
    nodes.iter().next().filter(|_| nodes.len() == 1)
}

/// Returns the placement of all `containers` on zones 0 to `zones` - 1. `None` if the zone of any container
/// is unknown, if two containers have the same hash, or if `zones` is not from 1 to 64.
#[must_use]
pub fn placement<'a>(zones: Id, containers: impl IntoIterator<Item = Placed<'a>>) -> Option<Placement> {
    let mut places = Vec::new();
    for container in containers {
        let zone = container.zone.filter(|zone| *zone < zones)?;
        places.push((hash(&container), zone));
    }
    places.sort_unstable();
    if zones == 0 || zones > HIGHEST_ZONE + 1 || places.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return None;
    }
    let mut on: BTreeMap<Id, Vec<u64>> = BTreeMap::new();
    for (index, (_, zone)) in (0_u64..).zip(&places) {
        on.entry(*zone).or_default().push(index);
    }
    let busiest = on.iter().max_by_key(|(id, indexes)| (indexes.len(), std::cmp::Reverse(**id)));
    let busiest = busiest.map_or(0, |(id, _)| *id);
    on.remove(&busiest);
    Some(Placement {
        metadata: format!("npv0v001::ve=leb89::cc={}::nn={zones}::bn={busiest}", places.len()),
        vectors: on.into_iter().map(|(id, indexes)| (id, vector(&indexes))).collect(),
    })
}

impl Placement {
    /// Whether the plugin reads placements under the policy of this topology.
    #[must_use]
    pub fn is_read(topology: &Topology) -> bool {
        let policy = topology.attributes.iter().find(|(name, _)| name == attributes::POLICY);
        policy.is_some_and(|(_, value)| value == POLICY)
    }

    /// Whether this is the name of one of the placement attributes.
    #[must_use]
    pub fn has_attribute(name: &str) -> bool {
        name == METADATA || name == VECTOR
    }

    /// Adds the attributes to a topology, unless the plugin does not read them under its policy.
    pub fn enter(self, topology: &mut Topology) {
        if !Self::is_read(topology) {
            return;
        }
        topology.attributes.push((METADATA.to_owned(), self.metadata));
        for (id, vector) in self.vectors {
            if let Some(zone) = topology.zones.iter_mut().find(|zone| zone.id == id) {
                zone.attributes.push((VECTOR.to_owned(), vector));
            }
        }
    }
}

fn hash(container: &Placed<'_>) -> u64 {
    let Placed { namespace, pod, container, .. } = container;
    XxHash64::oneshot(0, [*namespace, *pod, *container].join("\0").as_bytes())
}

/// Encodes the first index and then the differences between successive indexes.
fn vector(indexes: &[u64]) -> String {
    let mut before = 0;
    let mut text = String::new();
    for index in indexes {
        leb89(index - before, &mut text);
        before = *index;
    }
    text
}

/// 89 characters that need no quoting in JSON: all printable ones except space, `"`, `&`, `<`, `>` and `\`.
const fn alphabet() -> [char; 89] {
    let mut letters = ['!'; 89];
    let (mut at, mut next) = (0, b'!');
    while next < 0x7F {
        if !matches!(next, b'"' | b'&' | b'<' | b'>' | b'\\') {
            letters[at] = next as char;
            at += 1;
        }
        next += 1;
    }
    letters
}

/// The first 64 characters end a number...
const ENDS: u64 = 64;
/// ...and the other 25 continue it.
const GO_ON: u64 = 25;

/// Writes a number: its lowest digit as the last character, preceded by the rest, most significant digit
/// first.
fn leb89(value: u64, text: &mut String) {
    const ALPHABET: [char; 89] = alphabet();
    // Indexes are below 89, so they fit into any `usize`.
    let letter = |at: u64| ALPHABET[usize::try_from(at).unwrap_or_default()];
    if value < ENDS {
        return text.push(letter(value));
    }
    let (mut rest, end) = ((value - ENDS) / ENDS, (value - ENDS) % ENDS);
    let mut digits = Vec::new();
    loop {
        digits.push(letter(ENDS + rest % GO_ON));
        rest /= GO_ON;
        if rest == 0 {
            break;
        }
    }
    text.extend(digits.iter().rev());
    text.push(letter(end));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kubelet::{DeviceGroup, MemoryBlock};
    use crate::machine::NumaNode;
    use crate::topology::Zone;

    fn number(value: u64) -> String {
        let mut text = String::new();
        leb89(value, &mut text);
        text
    }

    #[test]
    fn numbers_are_spelt_as_upstream_spells_them() {
        for (value, text) in [
            (0, "!"),
            (1, "#"),
            (63, "e"),
            (64, "f!"),
            (800, "qE"),
            (1663, "~e"),
            (1664, "gf!"),
            (2047, "gke"),
            (40063, "~~e"),
            (40064, "gff!"),
            (100_000, "hrqE"),
        ] {
            assert_eq!(number(value), text, "{value}");
        }
    }

    #[test]
    fn indexes_are_spelt_as_upstream_spells_them() {
        for (indexes, text) in [
            (&[1, 3, 7, 42][..], "#$'H"),
            (&[0, 4, 8, 10], "!''$"),
            (&[100, 108, 116], "fI++"),
            (&[2000, 2008], "gk3+"),
            (&[], ""),
        ] {
            assert_eq!(vector(indexes), text, "{indexes:?}");
        }
    }

    fn placed<'a>(names: &'a str, zone: impl Into<Option<Id>>) -> Placed<'a> {
        let mut names = names.split('/');
        let mut next = || names.next().unwrap();
        Placed { namespace: next(), pod: next(), container: next(), zone: zone.into() }
    }

    #[test]
    fn containers_have_the_hashes_that_upstream_gives_them() {
        assert_eq!(hash(&placed("//", 0)), 11_145_182_160_106_660_097);
        assert_eq!(hash(&placed("ns/pod/cnt", 0)), 9_468_815_510_407_277_218);
    }

    #[test]
    fn a_node_has_the_placement_that_upstream_gives_it() {
        let containers = [
            ("ns/pod-a/c1", 0),
            ("ns/pod-a/c2", 1),
            ("ns/pod-b/c1", 0),
            ("ns2/pod-c/main", 1),
            ("ns2/pod-d/main", 0),
        ];
        let of = |zones, containers: &[(&str, Id)]| {
            let placed = containers.iter().map(|(names, zone)| placed(names, *zone));
            let Placement { metadata, vectors } = placement(zones, placed).unwrap();
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
    fn what_could_be_wrong_is_left_out() {
        let good = placed("ns/a/c", 0);
        assert!(placement(2, [good]).is_some());
        assert_eq!(placement(2, [good, placed("ns/b/c", None)]), None, "nobody knows where it is");
        assert_eq!(placement(2, [good, placed("ns/b/c", 2)]), None, "there is no such zone");
        assert_eq!(placement(2, [good, placed("ns/a/c", 1)]), None, "nobody can tell them apart");
        assert_eq!(placement(0, []), None);
        assert!(placement(64, []).is_some());
        assert_eq!(placement(65, []), None);
    }

    #[test]
    fn a_container_is_where_all_it_holds_is() {
        let node = |id, cpus: &str| NumaNode { id, cpus: cpus.parse().unwrap(), ..NumaNode::default() };
        let machine = Machine { nodes: vec![node(0, "0-3"), node(8, "4-7")], ..Machine::default() };
        let set = |text: &str| -> IdSet { text.parse().unwrap() };
        let group = |nodes: &str| DeviceGroup { nodes: set(nodes), ..DeviceGroup::default() };
        let block = |nodes: &str| MemoryBlock { nodes: set(nodes), ..MemoryBlock::default() };
        let home = |cpus: &str, devices: &[&str], memory: &[&str]| {
            let container = ContainerUsage {
                cpus: set(cpus),
                devices: devices.iter().map(|nodes| group(nodes)).collect(),
                memory: memory.iter().map(|nodes| block(nodes)).collect(),
                ..ContainerUsage::default()
            };
            home(&container, &machine)
        };
        assert_eq!(home("5", &[], &[]), Some(8));
        assert_eq!(home("5", &["0,8", "8", ""], &["8"]), Some(8), "a device on both says nothing");
        assert_eq!(home("", &["0,8", "0"], &[]), Some(0));
        assert_eq!(home("", &[], &["8", "8"]), Some(8));
        assert_eq!(home("", &[], &[]), None);
        assert_eq!(home("", &["0,8"], &[]), None);
        for (cpus, devices, memory) in
            [("3-4", "", ""), ("4", "0", ""), ("4", "", "0"), ("", "0", "8"), ("", "", "0,8")]
        {
            assert_eq!(home(cpus, &[devices], &[memory]), None, "{cpus} {devices} {memory}");
        }
    }

    #[test]
    fn the_attributes_are_written_for_a_policy_that_has_a_use_for_them() {
        let placement =
            placement(2, [placed("ns/a/c", 1), placed("ns/b/c", 1), placed("ns/c/c", 0)]).unwrap();
        let entered = |policy: &str| {
            let zones = [0, 1].map(|id| Zone { id, ..Zone::default() }).to_vec();
            let attributes = vec![(attributes::POLICY.to_owned(), policy.to_owned())];
            let mut topology = Topology { zones, attributes, ..Topology::default() };
            placement.clone().enter(&mut topology);
            topology
        };
        let topology = entered("single-numa-node");
        assert_eq!(topology.attributes[1], (METADATA.to_owned(), placement.metadata.clone()));
        assert_eq!(topology.zones[0].attributes, [(VECTOR.to_owned(), placement.vectors[&0].clone())]);
        assert_eq!(topology.zones[1].attributes, [], "the busiest");
        assert_eq!([attributes::POLICY, METADATA, VECTOR].map(Placement::has_attribute), [false, true, true]);
        let topology = entered("restricted");
        assert_eq!(topology.attributes.len(), 1);
        assert!(topology.zones.iter().all(|zone| zone.attributes.is_empty()));
    }

    /// Decodes numbers as the reader does.
    fn read(text: &str) -> Vec<u64> {
        let letters: Vec<char> =
            ('!'..='~').filter(|letter| !['"', '&', '<', '>', '\\'].contains(letter)).collect();
        let (mut numbers, mut high) = (Vec::new(), None);
        for letter in text.chars() {
            let at = letters.iter().position(|known| *known == letter).unwrap() as u64;
            match high {
                _ if at >= ENDS => high = Some(high.unwrap_or(0) * GO_ON + at - ENDS),
                None => numbers.push(at),
                Some(digits) => {
                    numbers.push(ENDS + digits * ENDS + at);
                    high = None;
                }
            }
        }
        assert_eq!(high, None, "it ends in the middle of a number");
        numbers
    }

    proptest! {
        #[test]
        fn what_is_written_can_be_read(numbers in proptest::collection::vec(0..5_000_000_000_u64, 0..20)) {
            let text: String = numbers.iter().map(|value| number(*value)).collect();
            prop_assert_eq!(read(&text), numbers);
        }

        #[test]
        fn every_container_is_found_again(zones in proptest::collection::vec(0..4_u16, 0..60)) {
            let names: Vec<String> = (0..zones.len()).map(|at| format!("ns/pod-{at}/c")).collect();
            let containers = || names.iter().zip(&zones).map(|(names, zone)| placed(names, *zone));
            let placement = placement(4, containers()).unwrap();
            let mut hashes: Vec<u64> = containers().map(|container| hash(&container)).collect();
            hashes.sort_unstable();
            let busiest: Id = placement.metadata.rsplit('=').next().unwrap().parse().unwrap();
            for container in containers() {
                let index = hashes.binary_search(&hash(&container)).unwrap() as u64;
                let mut lists = placement.vectors.iter().filter(|(_, text)| {
                    let mut sum = 0;
                    read(text).iter().any(|step| { sum += step; sum == index })
                });
                prop_assert_eq!(lists.next().map_or(busiest, |(id, _)| *id), container.zone.unwrap());
            }
        }
    }
}
