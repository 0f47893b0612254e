//! Does the kubelet's List show everything that is a pod's alone?

use std::collections::BTreeSet;

use super::exclusive::is_huge_pages;
use crate::kubelet::{Allocatable, ContainerUsage, MemoryBlock, PodUsage};
use crate::pod::{Container, ContainerKind, Phase, Pod};

/// What this kubelet gives to one container alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    /// Whole CPUs of Guaranteed pods: the CPU Manager is `static`.
    pub cpus: bool,
    /// Memory and huge pages of Guaranteed pods: the Memory Manager is `Static`.
    pub memory: bool,
    /// Resources of device plugins.
    pub devices: BTreeSet<String>,
}

impl Requirements {
    /// As what the kubelet may hand out tells; `known` are device resources whose plugin may be away for a moment.
    #[must_use]
    pub fn of(allocatable: &Allocatable, known: &BTreeSet<String>) -> Self {
        let offered = allocatable.devices.iter().map(|group| &group.resource);
        Self {
            cpus: !allocatable.cpus.is_empty(),
            memory: !allocatable.memory.is_empty(),
            devices: offered.chain(known).cloned().collect(),
        }
    }

    /// Will the List show anything of this pod at all?
    pub(super) fn concern(&self, pod: &Pod) -> bool {
        pod.containers.iter().any(|container| !self.of_container(pod, container).is_empty())
    }

    /// Does the List show all of it, in this row? Who is out of Pending may ask for more meanwhile, and wait for a resize:
    /// of that pod the row need show only something of each thing.
    pub(super) fn are_met(&self, pod: &Pod, row: &PodUsage) -> bool {
        pod.containers.iter().all(|container| {
            let usage = row.containers.iter().find(|usage| *usage.name == *container.name);
            let met = |need: &Need<'_>| usage.is_some_and(|usage| need.is_met(usage));
            self.of_container(pod, container).iter().all(met)
        })
    }

    /// The List shows neither ordinary init containers, whose resources the others take over, nor those that managers
    /// leave alone because their pod has resources of its own.
    fn of_container<'a>(&self, pod: &Pod, container: &'a Container) -> Vec<Need<'a>> {
        if container.kind == ContainerKind::Init {
            return Vec::new();
        }
        let managed = pod.guaranteed && !pod.pod_level;
        let (cpus, memory) = (self.cpus && managed, self.memory && managed);
        let least = |amount: u64| if pod.phase == Phase::Pending { amount } else { amount.min(1) };
        let mut needs = Vec::new();
        if cpus && container.cpu_milli > 0 && container.cpu_milli.is_multiple_of(1000) {
            needs.push(Need::Cpus(least(container.cpu_milli / 1000)));
        }
        if memory && container.memory > 0 {
            needs.push(Need::Memory("memory", least(container.memory)));
        }
        for (name, amount) in &container.others {
            if memory && is_huge_pages(name) {
                needs.push(Need::Memory(name, least(*amount)));
            }
            if self.devices.contains(&**name) {
                needs.push(Need::Devices(name, least(*amount)));
            }
        }
        needs
    }
}

/// Something that is a container's alone.
enum Need<'a> {
    Cpus(u64),
    Memory(&'a str, u64),
    Devices(&'a str, u64),
}

impl Need<'_> {
    fn is_met(&self, usage: &ContainerUsage) -> bool {
        match *self {
            Self::Cpus(count) => usage.cpus.len() >= count,
            Self::Memory(resource, bytes) => {
                let blocks = usage.memory.iter().filter(|block| block.resource == resource);
                blocks.map(|MemoryBlock { bytes, .. }| *bytes).fold(0, u64::saturating_add) >= bytes
            }
            Self::Devices(resource, count) => {
                let groups = usage.devices.iter().filter(|group| group.resource == resource);
                let ids: BTreeSet<&String> = groups.flat_map(|group| &group.ids).collect();
                // A driver may stand for a plugin of the same name; what it gives is in no zone.
                ids.len() as u64 >= count || !usage.claimed.is_empty()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::DeviceGroup;

    fn requirements() -> Requirements {
        Requirements { cpus: true, memory: true, devices: ["example.com/nic".to_owned()].into() }
    }

    fn container(
        name: &str,
        kind: ContainerKind,
        cpu: u64,
        memory: u64,
        others: &[(&str, u64)],
    ) -> Container {
        let others = others.iter().map(|(name, amount)| ((*name).into(), *amount)).collect();
        Container { name: name.into(), kind, cpu_milli: cpu, memory, others }
    }

    fn pod(guaranteed: bool, containers: Vec<Container>) -> Pod {
        Pod { guaranteed, containers: containers.into(), ..Pod::default() }
    }

    fn usage(name: &str, cpus: &str, memory: &[(&str, u64)], devices: &[&str]) -> PodUsage {
        let block = |(resource, bytes): &(&str, u64)| MemoryBlock {
            resource: (*resource).into(),
            bytes: *bytes,
            ..MemoryBlock::default()
        };
        // A device on two nodes is listed twice.
        let group = |id: &&str| DeviceGroup {
            resource: "example.com/nic".into(),
            ids: vec![(*id).into()],
            ..DeviceGroup::default()
        };
        let container = ContainerUsage {
            name: name.into(),
            cpus: cpus.parse().unwrap(),
            memory: memory.iter().map(block).collect(),
            devices: devices.iter().map(group).collect(),
            claimed: Vec::new(),
        };
        PodUsage { containers: vec![container], ..PodUsage::default() }
    }

    #[test]
    fn a_pod_is_accounted_when_the_list_shows_all_that_is_its_own() {
        let all = container(
            "main",
            ContainerKind::App,
            2000,
            64,
            &[("example.com/nic", 2), ("example.com/unknown", 1), ("hugepages-2Mi", 4)],
        );
        let pod = pod(true, vec![all]);
        assert!(requirements().concern(&pod));
        let met = |usage: &PodUsage| requirements().are_met(&pod, usage);
        let memory = [("memory", 64), ("hugepages-2Mi", 4)];
        assert!(met(&usage("main", "1-2", &memory, &["a", "b"])));
        assert!(!met(&usage("main", "", &memory, &["a", "b"])), "it is named before it is admitted");
        assert!(!met(&usage("main", "1", &memory, &["a", "b"])));
        assert!(!met(&usage("main", "1-2", &memory[..1], &["a", "b"])));
        assert!(!met(&usage("main", "1-2", &memory, &["a", "a"])), "one device on two nodes");
        assert!(!met(&usage("other", "1-2", &memory, &["a", "b"])));
        assert!(!requirements().are_met(&pod, &PodUsage::default()));
    }

    #[test]
    fn nothing_is_asked_of_the_list_that_it_never_shows() {
        use ContainerKind::{App, Init, Sidecar};
        let own = |kind| container("main", kind, 1000, 64, &[("hugepages-2Mi", 4)]);
        for (pod, what) in [
            (pod(false, vec![own(App)]), "only Guaranteed pods have CPUs and memory of their own"),
            (pod(true, vec![own(Init)]), "the others take over what an init container had"),
            (Pod { pod_level: true, ..pod(true, vec![own(App)]) }, "managers leave it alone"),
            (pod(true, vec![container("main", App, 0, 0, &[("example.com/unknown", 1)])]), "not a plugin's"),
        ] {
            assert!(!requirements().concern(&pod), "{what}");
            assert!(requirements().are_met(&pod, &PodUsage::default()), "{what}");
        }
        let fraction = pod(true, vec![container("main", App, 1500, 64, &[])]);
        assert!(requirements().are_met(&fraction, &usage("main", "", &[("memory", 64)], &[])));
        let none = Requirements::default();
        assert!(none.are_met(&pod(true, vec![own(App)]), &PodUsage::default()), "no manager gives anything");
        let nic = pod(false, vec![container("main", Sidecar, 0, 0, &[("example.com/nic", 1)])]);
        assert!(!none.concern(&nic) && requirements().concern(&nic));
    }

    #[test]
    fn a_device_behind_a_claim_is_no_plugins() {
        let nic = pod(false, vec![container("main", ContainerKind::App, 0, 0, &[("example.com/nic", 1)])]);
        let mut listed = usage("main", "", &[], &[]);
        assert!(!requirements().are_met(&nic, &listed));
        listed.containers[0].claimed.push(crate::kubelet::ClaimedDevice::default());
        assert!(requirements().are_met(&nic, &listed));
    }
}
