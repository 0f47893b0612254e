//! The zones of the containers that the plugin counts as exclusive, in the pods that the fingerprint covers.

use super::contract::{Contract, Rows, lists};
use super::exclusive::{has_exclusive, is_exclusive_container};
use super::{Reading, View};
use crate::machine::{Id, Machine};
use crate::pod::{ContainerKind, Pod};
use crate::topology::{Placed, Placement, home, placement};

impl Contract {
    /// Returns the placement that goes with the fingerprint; `None` if the plugin would count a different
    /// number of containers, or if any of them is not certainly on a single zone. Only the scheduler's view
    /// knows the pods' requests.
    pub fn placement<'a>(
        &self,
        pods: Option<impl IntoIterator<Item = &'a Pod>>,
        reading: &Reading<'_>,
        machine: &Machine,
    ) -> Option<Placement> {
        if self.terms().view != View::Scheduler {
            return None;
        }
        let (listed, release) = (|name: &str| lists(reading.zones, name), self.terms().release);
        let rows = Rows::of(reading.usage);
        let counted: Vec<&Pod> = pods?.into_iter().filter(|pod| self.counts(pod, reading.zones)).collect();
        let mut placed = Vec::new();
        for pod in counted {
            let exclusive = pod.containers.iter().filter(|container| {
                container.kind != ContainerKind::Init
                    && is_exclusive_container(pod, container, &listed, release)
            });
            for container in exclusive {
                let zone = if has_exclusive(pod, container, &listed, release) {
                    // With two entries, the pod's own cannot be identified.
                    let [row] = rows.of_pod(pod)[..] else { return None };
                    let usage = row.containers.iter().find(|usage| *usage.name == *container.name)?;
                    Some(home(usage, machine)?)
                } else {
                    // It requests zero of a device. The plugin counts it, and releases nothing when it
                    // simulates its eviction, so any zone will do.
                    Some(0)
                };
                let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
                placed.push(Placed { namespace, pod: name, container: &container.name, zone });
            }
        }
        placement(Id::try_from(reading.zones.len()).ok()?, placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::{ContainerUsage, PodUsage, Usage};
    use crate::machine::NumaNode;
    use crate::pod::{Container, Phase};
    use crate::scheduler::{Requirements, Terms};
    use crate::topology::{Amounts, Zone};

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
            said_guaranteed: true,
            containers: containers.iter().map(container).collect(),
            ..Pod::default()
        }
    }

    fn row(name: &str, containers: &[(&str, &str)]) -> PodUsage {
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

    fn metadata(pods: &[Pod], rows: Vec<PodUsage>) -> Option<String> {
        let zone = |id| Zone { id, ..Zone::default() };
        told(pods, &Usage { pods: rows }, &[zone(0), zone(1)])
    }

    fn told(pods: &[Pod], usage: &Usage, zones: &[Zone]) -> Option<String> {
        let requirements = Requirements::default();
        let reading =
            Reading { usage, number: 0, requirements: &requirements, zones, answers: true, unlisted: None };
        Contract::new(Terms::default()).placement(Some(pods), &reading, &machine()).map(|p| p.metadata)
    }

    #[test]
    fn every_container_that_the_plugin_counts_has_a_place_or_none_has() {
        let a = || pod("a", Phase::Running, &["x", "y"]);
        let on_one = row("a", &[("x", "1"), ("y", "8")]);
        let all = metadata(&[a()], vec![on_one.clone()]);
        assert_eq!(all.as_deref(), Some("npv0v001::ve=leb89::cc=2::nn=2::bn=0"));
        // The plugin counts terminated pods, whose zones are unknown.
        assert_eq!(metadata(&[a(), pod("b", Phase::Succeeded, &["x"])], vec![on_one.clone()]), None);
        assert_eq!(metadata(&[a(), pod("b", Phase::Pending, &["x"])], vec![on_one.clone()]), all);
        assert_eq!(metadata(&[a()], vec![row("a", &[("x", "1"), ("y", "2,8")])]), None, "on two zones");
        assert_eq!(metadata(&[a()], vec![row("a", &[("x", "1")])]), None);
        assert_eq!(metadata(&[a()], vec![on_one.clone(), on_one.clone()]), None, "which is it?");
        let modest = Pod { said_guaranteed: false, ..pod("b", Phase::Succeeded, &["x"]) };
        assert_eq!(metadata(&[a(), modest], vec![on_one]), all);
        assert_eq!(metadata(&[], vec![]).as_deref(), Some("npv0v001::ve=leb89::cc=0::nn=2::bn=0"));
    }

    #[test]
    fn who_asks_for_none_of_a_device_is_counted_and_may_be_anywhere() {
        let none =
            Container { name: "x".into(), others: Box::new([("a.b/c".into(), 0)]), ..Container::default() };
        let best_effort = Pod { said_guaranteed: false, ..pod("b", Phase::Running, &[]) };
        let none = Pod { containers: Box::new([none]), ..best_effort };
        let zone = |id| {
            let resources = [("a.b/c".to_owned(), Amounts::default())].into();
            Zone { id, resources, ..Zone::default() }
        };
        let pods = [pod("a", Phase::Running, &["x"]), none];
        let usage = Usage { pods: vec![row("a", &[("x", "8")])] };
        let told = told(&pods, &usage, &[zone(0), zone(1)]);
        assert_eq!(told.as_deref(), Some("npv0v001::ve=leb89::cc=2::nn=2::bn=0"));
    }
}
