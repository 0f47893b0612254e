//! Random pods.

use numacast::machine::Id;
use numacast::quantity::hugepages_name;
use numacast_sim::kubelet::{ClaimedDevice, ContainerSpec, KubeletVersion, PodLevel, PodSpec, Role};

use super::{MIB, Walk};

impl Walk {
    /// Returns a pod that fits the machine or is slightly too large. There are few sizes, so that pods look
    /// alike as replicas do.
    pub(super) fn pod(&mut self) -> PodSpec {
        self.pods += 1;
        let guaranteed = self.chance(70);
        let mut pod =
            PodSpec { guaranteed, containers: Vec::new(), ..PodSpec::new(&format!("p{}", self.pods)) };
        let best_effort = !guaranteed && self.chance(50);
        let fractions = guaranteed && self.chance(20);
        let (init, apps) = (self.rng.usize(0..10).saturating_sub(7), self.rng.usize(1..4));
        let sidecars = usize::from(self.cell.version >= KubeletVersion::V1_29 && self.chance(25));
        let roles = [(Role::Init, init), (Role::Sidecar, sidecars), (Role::App, apps)];
        for (role, count) in roles {
            for number in 0..count {
                let mut container = self.container(&format!("{role:?}-{number}").to_lowercase(), best_effort);
                container.role = role;
                if fractions {
                    container.milli_cpu += 500;
                }
                pod.containers.push(container);
            }
        }
        if guaranteed && self.cell.pod_level && self.chance(40) {
            self.make_pod_level(&mut pod);
        } else if guaranteed && self.chance(8) && self.hardware.nodes.len() > 1 {
            let nodes: Vec<Id> = self.at_start.nodes.iter().map(|node| node.id).collect();
            pod.affinity = Some([*self.pick(&nodes), *self.pick(&nodes)].into_iter().collect());
        }
        let has_listed_devices =
            pod.containers.iter().any(|of| of.role != Role::Init && !of.devices.is_empty());
        // Without a pod source, the reader cannot match such a pod in the checkpoints with the List.
        if !has_listed_devices {
            pod.containers.iter_mut().for_each(|container| container.devices.clear());
        }
        if self.dra.is_some() {
            if self.chance(70) {
                self.add_claims_of_drivers(&mut pod);
            }
        } else if self.chance(15) {
            let claims = self.claims();
            let last = pod.containers.len() - 1;
            pod.containers[last].claims = claims;
        }
        pod
    }

    fn container(&mut self, name: &str, best_effort: bool) -> ContainerSpec {
        let mut container = ContainerSpec { name: name.to_owned(), ..ContainerSpec::default() };
        if self.chance(30) && !self.described.is_empty() {
            let resources: Vec<String> = self.described.keys().cloned().collect();
            let resource = self.pick(&resources).clone();
            container.devices.insert(resource, self.rng.u64(1..4));
        }
        if best_effort {
            return container;
        }
        container.milli_cpu = 1000 * *self.pick(&[1, 1, 2, 2, 3, 4, 8]);
        container.memory = self.bytes();
        let sizes: Vec<u64> = self.at_start.page_sizes().into_iter().collect();
        if !sizes.is_empty() && self.chance(30) {
            let size = *self.pick(&sizes);
            let name = hugepages_name(size);
            container.hugepages.insert(name, size * self.rng.u64(1..5));
        }
        container
    }

    /// Returns between one eighth and one and a half of a random node's memory.
    pub(super) fn bytes(&mut self) -> u64 {
        let nodes: Vec<u64> = self.at_start.nodes.iter().map(|node| node.memory.ceil()).collect();
        let memory = *self.pick(&nodes);
        let eighths = *self.pick(&[1, 1, 1, 2, 2, 3, 5, 12]);
        (memory / 8 / MIB * MIB * eighths).max(64 * MIB)
    }

    /// Sets pod-level resources: the sum of the containers other than init containers, sometimes with room
    /// for one container without requests.
    fn make_pod_level(&mut self, pod: &mut PodSpec) {
        let lasting = |pod: &PodSpec| {
            let containers = pod.containers.iter().filter(|container| container.role != Role::Init);
            containers.fold(PodLevel::default(), |mut sum, container| {
                sum.milli_cpu += container.milli_cpu;
                sum.memory += container.memory;
                for (size, bytes) in &container.hugepages {
                    *sum.hugepages.entry(size.clone()).or_default() += bytes;
                }
                sum
            })
        };
        let mut total = lasting(pod);
        if self.chance(60) {
            pod.containers.push(ContainerSpec { name: "sharing".into(), ..ContainerSpec::default() });
            total.milli_cpu += 2000;
            total.memory += 256 * MIB;
            total.hugepages.clear();
            pod.containers.iter_mut().for_each(|container| container.hugepages.clear());
        }
        for init in pod.containers.iter().filter(|container| container.role == Role::Init) {
            total.milli_cpu = total.milli_cpu.max(init.milli_cpu);
            total.memory = total.memory.max(init.memory);
            for (size, bytes) in &init.hugepages {
                let max = total.hugepages.entry(size.clone()).or_default();
                *max = (*max).max(*bytes);
            }
        }
        pod.pod_level = Some(total);
    }

    fn claims(&mut self) -> Vec<ClaimedDevice> {
        let count = self.rng.usize(1..4);
        let one = |number: usize, share: bool| ClaimedDevice {
            claim: format!("claim-{}", number / 2),
            driver: "gpu.example.com".into(),
            pool: "worker".into(),
            device: format!("gpu-{number}"),
            share: share.then(|| "half".to_owned()),
        };
        (0..count).map(|number| one(number, self.rng.bool())).collect()
    }
}
