//! Whether the kubelet's List shows everything a pod is allocated exclusively.

use std::collections::{BTreeMap, BTreeSet};

use crate::kubelet::{Allocatable, ContainerUsage, MemoryBlock, PodUsage};
use crate::pod::{Container, ContainerKind, Phase, Pod};
use crate::quantity::is_huge_pages;

/// Which resources this kubelet allocates exclusively to one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    /// Whole CPUs of Guaranteed pods: the CPU Manager policy is `static`.
    pub cpus: bool,
    /// Memory and huge pages of Guaranteed pods: the Memory Manager policy is `Static`.
    pub memory: bool,
    /// Resources of device plugins.
    pub devices: BTreeSet<String>,
}

impl Requirements {
    /// Derives the requirements from the kubelet's allocatable resources. `remembered` are device resources
    /// whose plugin may be temporarily absent.
    #[must_use]
    pub fn of(allocatable: &Allocatable, remembered: &BTreeSet<String>) -> Self {
        let reported = allocatable.devices.iter().map(|group| &group.resource);
        Self {
            cpus: !allocatable.cpus.is_empty(),
            memory: !allocatable.memory.is_empty(),
            devices: reported.chain(remembered).cloned().collect(),
        }
    }

    pub(super) fn apply_to(&self, pod: &Pod) -> bool {
        pod.containers.iter().any(|container| !self.expected_in_list(pod, container).is_empty())
    }

    /// Returns true if this List entry shows everything the pod is allocated. A pod that has left Pending may
    /// request more and wait for a resize: its entry need only show some of each resource.
    pub(super) fn are_met(&self, pod: &Pod, entry: &PodUsage) -> bool {
        pod.containers.iter().all(|container| {
            let usage = entry.containers.iter().find(|usage| *usage.name == *container.name);
            let least = |amount: u64| if pod.phase == Phase::Pending { amount } else { amount.min(1) };
            let met = |need: &Need<'_>| usage.is_some_and(|usage| need.listed(usage) >= least(need.amount));
            self.expected_in_list(pod, container).iter().all(met)
        })
    }

    /// Returns what the kubelet will allocate to the pod beyond what this List entry shows, by resource:
    /// CPUs, bytes or devices. No zeros.
    pub(super) fn missing(&self, pod: &Pod, entry: Option<&PodUsage>) -> BTreeMap<String, u64> {
        let demands = self.demands(pod, entry).into_iter();
        let missing = demands.map(|(name, demand)| (name.to_owned(), demand.missing()));
        missing.filter(|(_, amount)| *amount > 0).collect()
    }

    /// Returns what the pod is allocated by resource, and how much of it this List entry shows. As in the
    /// kubelet and the scheduler, regular init containers run one after another, alongside the sidecars
    /// before them, and later containers reuse their resources.
    pub(super) fn demands<'a>(&self, pod: &'a Pod, entry: Option<&PodUsage>) -> BTreeMap<&'a str, Demand> {
        let mut demands: BTreeMap<&str, Demand> = BTreeMap::new();
        for container in &pod.containers {
            let usage =
                entry.and_then(|entry| entry.containers.iter().find(|usage| *usage.name == *container.name));
            for need in self.of_container(pod, container) {
                let demand = demands.entry(need.resource).or_default();
                let now = demand.running.saturating_add(need.amount);
                demand.peak = demand.peak.max(now);
                if container.kind == ContainerKind::Init {
                    demand.init = demand.init.max(need.amount);
                    continue;
                }
                demand.running = now;
                let listed = usage.map_or(0, |usage| need.listed(usage).min(need.amount));
                demand.listed = demand.listed.saturating_add(listed);
            }
        }
        demands
    }

    /// Returns the CPUs of each container with exclusive CPUs, including regular init containers.
    pub(super) fn exclusive_cpus(&self, pod: &Pod) -> Vec<(ContainerKind, u64)> {
        let cpus = |container: &Container| {
            let needs = self.of_container(pod, container);
            let cpus = needs.iter().find(|need| need.resource == "cpu");
            cpus.map(|cpus| (container.kind, cpus.amount))
        };
        pod.containers.iter().filter_map(cpus).collect()
    }

    /// Returns what the List is expected to show for a container. It omits regular init containers: later
    /// containers reuse their resources.
    fn expected_in_list<'a>(&self, pod: &Pod, container: &'a Container) -> Vec<Need<'a>> {
        match container.kind {
            ContainerKind::Init => Vec::new(),
            ContainerKind::App | ContainerKind::Sidecar => self.of_container(pod, container),
        }
    }

    /// Returns what a container is allocated exclusively. The CPU and Memory Managers skip pods with
    /// pod-level resources.
    fn of_container<'a>(&self, pod: &Pod, container: &'a Container) -> Vec<Need<'a>> {
        let managed = pod.guaranteed && pod.pod_level.is_none();
        let (cpus, memory) = (self.cpus && managed, self.memory && managed);
        let mut needs = Vec::new();
        let mut need = |kind, resource, amount| needs.push(Need { kind, resource, amount });
        if cpus && container.cpu_milli > 0 && container.cpu_milli.is_multiple_of(1000) {
            need(Kind::Cpus, "cpu", container.cpu_milli / 1000);
        }
        if memory && container.memory > 0 {
            need(Kind::Memory, "memory", container.memory);
        }
        for (name, amount) in container.requested() {
            if memory && is_huge_pages(name) {
                need(Kind::Memory, name, amount);
            }
            if self.devices.contains(name) {
                need(Kind::Devices, name, amount);
            }
        }
        needs
    }
}

/// Amounts of one resource that a pod is allocated: CPUs, bytes or devices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// The maximum at one time.
    pub(super) peak: u64,
    /// The maximum of any regular init container.
    pub(super) init: u64,
    /// The sum over app containers and sidecars.
    running: u64,
    /// How much of `running` the List shows.
    listed: u64,
}

impl Demand {
    pub(super) fn missing(&self) -> u64 {
        self.peak.saturating_sub(self.listed)
    }
}

struct Need<'a> {
    kind: Kind,
    /// The resource name, as in the zones.
    resource: &'a str,
    /// CPUs, bytes or devices.
    amount: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Cpus,
    Memory,
    Devices,
}

impl Need<'_> {
    fn listed(&self, usage: &ContainerUsage) -> u64 {
        match self.kind {
            Kind::Cpus => usage.cpus.len(),
            Kind::Memory => {
                let blocks = usage.memory.iter().filter(|block| block.resource == self.resource);
                blocks.map(|MemoryBlock { bytes, .. }| *bytes).fold(0, u64::saturating_add)
            }
            // A DRA driver may provide the resource instead of a device plugin; its devices are in no zone.
            Kind::Devices if !usage.claimed.is_empty() => self.amount,
            Kind::Devices => {
                let groups = usage.devices.iter().filter(|group| group.resource == self.resource);
                groups.flat_map(|group| &group.ids).collect::<BTreeSet<&String>>().len() as u64
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
        Container { name: name.into(), kind, cpu_milli: cpu, memory, others, ..Container::default() }
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
        // A device on two NUMA nodes is listed twice.
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
            claims: Vec::new(),
            claimed: Vec::new(),
        };
        PodUsage { containers: vec![container], ..PodUsage::default() }
    }

    #[test]
    fn a_pod_is_accounted_when_the_list_shows_all_its_exclusive_resources() {
        let all = container(
            "main",
            ContainerKind::App,
            2000,
            64,
            &[("example.com/nic", 2), ("example.com/unknown", 1), ("hugepages-2Mi", 4)],
        );
        let pod = pod(true, vec![all]);
        assert!(requirements().apply_to(&pod));
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
    fn only_resources_that_the_list_shows_are_required() {
        use ContainerKind::{App, Init, Sidecar};
        let own = |kind| container("main", kind, 1000, 64, &[("hugepages-2Mi", 4)]);
        for (pod, what) in [
            (pod(false, vec![own(App)]), "only Guaranteed pods have exclusive CPUs and memory"),
            (pod(true, vec![own(Init)]), "later containers reuse the resources of an init container"),
            (Pod { pod_level: Some(Box::default()), ..pod(true, vec![own(App)]) }, "the managers skip it"),
            (pod(true, vec![container("main", App, 0, 0, &[("example.com/unknown", 1)])]), "no plugin"),
        ] {
            assert!(!requirements().apply_to(&pod), "{what}");
            assert!(requirements().are_met(&pod, &PodUsage::default()), "{what}");
        }
        let fraction = pod(true, vec![container("main", App, 1500, 64, &[])]);
        assert!(requirements().are_met(&fraction, &usage("main", "", &[("memory", 64)], &[])));
        let none = Requirements::default();
        assert!(none.are_met(&pod(true, vec![own(App)]), &PodUsage::default()), "no manager allocates");
        let nic = pod(false, vec![container("main", Sidecar, 0, 0, &[("example.com/nic", 1)])]);
        assert!(!none.apply_to(&nic) && requirements().apply_to(&nic));
    }

    #[test]
    fn a_device_of_a_claim_is_not_a_plugins() {
        let nic = pod(false, vec![container("main", ContainerKind::App, 0, 0, &[("example.com/nic", 1)])]);
        let mut listed = usage("main", "", &[], &[]);
        assert!(!requirements().are_met(&nic, &listed));
        listed.containers[0].claimed.push(crate::kubelet::ClaimedDevice::default());
        assert!(requirements().are_met(&nic, &listed));
    }

    fn missing(pod: &Pod, entry: Option<&PodUsage>) -> String {
        let missing = requirements().missing(pod, entry);
        missing.iter().map(|(name, amount)| format!("{name} {amount}")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn unlisted_requests_are_missing() {
        use ContainerKind::App;
        let nic = [("example.com/nic", 2), ("example.com/unknown", 1)];
        let one = container("one", App, 2000, 64, &nic);
        let two = container("two", App, 3000, 36, &[("hugepages-2Mi", 4)]);
        let all = pod(true, vec![one, two]);
        assert_eq!(missing(&all, None), "cpu 5, example.com/nic 2, hugepages-2Mi 4, memory 100");
        let partly = usage("one", "1-2", &[("memory", 64)], &["a"]);
        assert_eq!(missing(&all, Some(&partly)), "cpu 3, example.com/nic 1, hugepages-2Mi 4, memory 36");
        let mut listed = usage("two", "1-5", &[("memory", 36), ("hugepages-2Mi", 4)], &[]);
        assert_eq!(
            missing(&all, Some(&listed)),
            "cpu 2, example.com/nic 2, memory 64",
            "what it did not request is not counted"
        );
        listed.containers.extend(usage("one", "6-7", &[("memory", 64)], &["a", "b"]).containers);
        assert_eq!(missing(&all, Some(&listed)), "");
        let burstable = Pod { guaranteed: false, ..all.clone() };
        assert_eq!(missing(&burstable, None), "example.com/nic 2");
        let running = Pod { phase: Phase::Running, ..all };
        assert_eq!(missing(&running, None), "cpu 5, example.com/nic 2, hugepages-2Mi 4, memory 100");
        assert!(Requirements::default().missing(&running, None).is_empty());
    }

    #[test]
    fn init_containers_run_one_after_another() {
        use ContainerKind::{App, Init, Sidecar};
        let of = |containers: &[(&str, ContainerKind, u64)]| {
            let one =
                |(name, kind, cpus): &(&str, ContainerKind, u64)| container(name, *kind, cpus * 1000, 0, &[]);
            pod(true, containers.iter().map(one).collect())
        };
        assert_eq!(missing(&of(&[("i", Init, 2), ("a", App, 3)]), None), "cpu 3");
        let more = of(&[("i", Init, 5), ("j", Init, 4), ("a", App, 3)]);
        assert_eq!(missing(&more, None), "cpu 5");
        assert_eq!(missing(&more, Some(&usage("a", "1-3", &[], &[]))), "cpu 2");
        assert_eq!(missing(&of(&[("s", Sidecar, 1), ("i", Init, 5), ("a", App, 3)]), None), "cpu 6");
        assert_eq!(missing(&of(&[("i", Init, 5), ("s", Sidecar, 1), ("a", App, 3)]), None), "cpu 5");
        assert_eq!(missing(&of(&[("i", Init, 4), ("s", Sidecar, 1), ("a", App, 4)]), None), "cpu 5");
    }

    #[test]
    fn allocatable_and_remembered_resources_are_required() {
        let known = BTreeSet::from(["a.b/away".to_owned()]);
        let none = Requirements { devices: known.clone(), ..Requirements::default() };
        assert_eq!(Requirements::of(&Allocatable::default(), &known), none);
        let group = DeviceGroup { resource: "a.b/nic".into(), ..DeviceGroup::default() };
        let block = MemoryBlock { resource: "memory".into(), bytes: 1, ..MemoryBlock::default() };
        let offered = Allocatable { cpus: "0-3".parse().unwrap(), memory: vec![block], devices: vec![group] };
        let devices = BTreeSet::from(["a.b/away".to_owned(), "a.b/nic".to_owned()]);
        assert_eq!(Requirements::of(&offered, &known), Requirements { cpus: true, memory: true, devices });
    }

    #[test]
    fn whole_cpus_are_exclusive() {
        let containers = vec![
            container("init", ContainerKind::Init, 3000, 1, &[]),
            container("main", ContainerKind::App, 2000, 1, &[]),
            container("share", ContainerKind::App, 500, 1, &[]),
        ];
        let expected = [(ContainerKind::Init, 3), (ContainerKind::App, 2)];
        assert_eq!(requirements().exclusive_cpus(&pod(true, containers)), expected);
    }
}
