//! The zones of the containers that the plugin counts as exclusive, in the pods that the fingerprint covers.

use super::{FingerprintGate, GateInput};
use crate::machine::Id;
use crate::pod::{Container, ContainerKind, Pod};
use crate::scheduler::exclusive::is_exclusive_container;
use crate::scheduler::list_index::ListIndex;
use crate::scheduler::placement::{Placed, Placement, only_node};
use crate::scheduler::{FingerprintView, lists};

impl FingerprintGate {
    /// Returns the placement that goes with the fingerprint; `None` if it is disabled, if the plugin would
    /// count a different number of containers, or if any of them is not certainly on a single zone. Only the
    /// scheduler's view knows the pods' requests.
    pub(super) fn placement<'a>(
        &self,
        pods: Option<impl IntoIterator<Item = &'a Pod>>,
        input: &GateInput<'_>,
    ) -> Option<Placement> {
        let is_published = self.settings.placement && Placement::is_used_by_plugin(input.topology);
        if !is_published || self.settings.view != FingerprintView::Scheduler {
            return None;
        }
        let zones = &input.topology.zones;
        let is_listed = |name: &str| lists(zones, name);
        let is_exclusive = |pod: &Pod, container: &Container, min_devices: u64| {
            is_exclusive_container(pod, container, &is_listed, self.settings.release, min_devices)
        };
        let index = ListIndex::new(input.usage);
        let counted: Vec<&Pod> = pods?.into_iter().filter(|pod| self.counts(pod, zones)).collect();
        let mut placed = Vec::new();
        for pod in counted {
            let lasting = pod.containers.iter().filter(|container| container.kind != ContainerKind::Init);
            for container in lasting.filter(|container| is_exclusive(pod, container, 0)) {
                let zone = if is_exclusive(pod, container, 1) {
                    // With two entries, the pod's own cannot be identified.
                    let [entry] = index.of_pod(pod)[..] else { return None };
                    let usage = entry.containers.iter().find(|usage| *usage.name == *container.name)?;
                    only_node(usage, input.node.machine)?
                } else {
                    // It requests zero of a device. The plugin counts it, and releases nothing when it
                    // simulates its eviction, so any zone will do.
                    0
                };
                let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
                placed.push(Placed { namespace, pod: name, container: &container.name, zone });
            }
        }
        Placement::of(Id::try_from(zones.len()).ok()?, placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::{ContainerUsage, PodUsage, Usage};
    use crate::machine::{Machine, NumaNode};
    use crate::nrt::POLICY;
    use crate::pod::Phase;
    use crate::scheduler::{GateSettings, NodeContext, Requirements};
    use crate::topology::{Amounts, NodeExclusions, Topology, Zone};

    fn machine() -> Machine {
        let node = |id: Id, cpus: &str| NumaNode { id, cpus: cpus.parse().unwrap(), ..NumaNode::default() };
        Machine { nodes: vec![node(0, "0-7"), node(1, "8-15")], ..Machine::default() }
    }

    fn pod(name: &str, phase: Phase, containers: &[&str]) -> Pod {
        let container =
            |name: &&str| Container { name: (*name).into(), cpu_milli: 1000, ..Container::default() };
        Pod {
            namespace: "ns".into(),
            name: name.into(),
            phase,
            guaranteed: true,
            qos_guaranteed: true,
            containers: containers.iter().map(container).collect(),
            ..Pod::default()
        }
    }

    fn entry(name: &str, containers: &[(&str, &str)]) -> PodUsage {
        let container = |(name, cpus): &(&str, &str)| ContainerUsage {
            name: (*name).into(),
            cpus: cpus.parse().unwrap(),
            ..ContainerUsage::default()
        };
        PodUsage {
            namespace: "ns".into(),
            name: name.into(),
            containers: containers.iter().map(container).collect(),
            ..PodUsage::default()
        }
    }

    fn topology(policy: &str, resources: &[&str]) -> Topology {
        let resources = resources.iter().map(|name| ((*name).to_owned(), Amounts::default()));
        let zone = |id| Zone { id, resources: resources.clone().collect(), ..Zone::default() };
        let attributes = vec![(POLICY.to_owned(), policy.to_owned())];
        Topology { zones: vec![zone(0), zone(1)], attributes, ..Topology::default() }
    }

    fn metadata(pods: &[Pod], entries: Vec<PodUsage>) -> Option<String> {
        metadata_for(pods, entries, &topology("single-numa-node", &[]), true)
    }

    fn metadata_for(
        pods: &[Pod],
        entries: Vec<PodUsage>,
        topology: &Topology,
        placement: bool,
    ) -> Option<String> {
        let (machine, usage) = (machine(), Usage { pods: entries });
        let (requirements, exclude) = (Requirements::default(), NodeExclusions::default());
        let node = NodeContext::of_machine(&machine);
        let input = GateInput {
            claims: None,
            usage: &usage,
            list_number: 0,
            requirements: &requirements,
            topology,
            exclude: &exclude,
            is_responding: true,
            node,
        };
        let gate = FingerprintGate::new(GateSettings { placement, ..GateSettings::default() });
        gate.placement(Some(pods), &input).map(|placement| placement.metadata)
    }

    #[test]
    fn all_containers_that_the_plugin_counts_have_a_zone_or_there_is_no_placement() {
        let a = || pod("a", Phase::Running, &["x", "y"]);
        let on_one = entry("a", &[("x", "1"), ("y", "8")]);
        let all = metadata(&[a()], vec![on_one.clone()]);
        assert_eq!(all.as_deref(), Some("npv0v001::ve=leb89::cc=2::nn=2::bn=0"));
        // The plugin counts terminated pods, whose zones are unknown.
        assert_eq!(metadata(&[a(), pod("b", Phase::Succeeded, &["x"])], vec![on_one.clone()]), None);
        assert_eq!(metadata(&[a(), pod("b", Phase::Pending, &["x"])], vec![on_one.clone()]), all);
        assert_eq!(metadata(&[a()], vec![entry("a", &[("x", "1"), ("y", "2,8")])]), None, "on two zones");
        assert_eq!(metadata(&[a()], vec![entry("a", &[("x", "1")])]), None);
        assert_eq!(metadata(&[a()], vec![on_one.clone(), on_one.clone()]), None, "two entries");
        let burstable = Pod { qos_guaranteed: false, ..pod("b", Phase::Succeeded, &["x"]) };
        assert_eq!(metadata(&[a(), burstable], vec![on_one]), all);
        assert_eq!(metadata(&[], vec![]).as_deref(), Some("npv0v001::ve=leb89::cc=0::nn=2::bn=0"));
    }

    #[test]
    fn a_container_that_requests_zero_devices_is_counted_in_any_zone() {
        let none =
            Container { name: "x".into(), others: Box::new([("a.b/c".into(), 0)]), ..Container::default() };
        let best_effort = Pod { qos_guaranteed: false, ..pod("b", Phase::Running, &[]) };
        let none = Pod { containers: Box::new([none]), ..best_effort };
        let pods = [pod("a", Phase::Running, &["x"]), none];
        let topology = topology("single-numa-node", &["a.b/c"]);
        let metadata = metadata_for(&pods, vec![entry("a", &[("x", "8")])], &topology, true);
        assert_eq!(metadata.as_deref(), Some("npv0v001::ve=leb89::cc=2::nn=2::bn=0"));
    }

    #[test]
    fn there_is_no_placement_if_it_is_disabled_or_not_read() {
        let metadata = |policy, placement| metadata_for(&[], vec![], &topology(policy, &[]), placement);
        assert!(metadata("single-numa-node", true).is_some());
        assert_eq!((metadata("single-numa-node", false), metadata("restricted", true)), (None, None));
    }
}
