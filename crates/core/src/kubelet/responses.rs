//! Converts podresources responses. Ids that no machine can have (negative or too high) are handled here, once,
//! so that no other code has to check: NUMA node ids are dropped; CPU ids become [`INVALID_CPU`], so that they
//! can be reported.

use super::proto::v1;
use super::types::{
    Allocatable, ClaimedDevice, ContainerUsage, DeviceGroup, INVALID_CPU, MemoryBlock, PodUsage, Usage,
};
use crate::machine::{HIGHEST_NODE, Id, IdSet};

fn cpus(raw: impl IntoIterator<Item = i64>) -> IdSet {
    raw.into_iter().map(|id| Id::try_from(id).map_or(INVALID_CPU, |id| id.min(INVALID_CPU))).collect()
}

fn nodes(topology: Option<v1::TopologyInfo>) -> IdSet {
    let ids = topology.into_iter().flat_map(|topology| topology.nodes).map(|node| Id::try_from(node.id));
    ids.filter_map(Result::ok).filter(|id| *id <= HIGHEST_NODE).collect()
}

fn memory(blocks: Vec<v1::ContainerMemory>) -> Vec<MemoryBlock> {
    let block = |block: v1::ContainerMemory| MemoryBlock {
        resource: block.memory_type,
        bytes: block.size,
        nodes: nodes(block.topology),
    };
    blocks.into_iter().map(block).collect()
}

fn devices(groups: Vec<v1::ContainerDevices>) -> Vec<DeviceGroup> {
    let group = |group: v1::ContainerDevices| DeviceGroup {
        resource: group.resource_name,
        ids: group.device_ids,
        nodes: nodes(group.topology),
    };
    groups.into_iter().map(group).collect()
}

fn claim_name(resource: &v1::DynamicResource) -> String {
    format!("{}/{}", resource.claim_namespace, resource.claim_name)
}

fn claimed(resources: Vec<v1::DynamicResource>) -> Vec<ClaimedDevice> {
    let devices = |resource: v1::DynamicResource| {
        let claim = claim_name(&resource);
        resource.claim_resources.into_iter().map(move |device| ClaimedDevice {
            claim: claim.clone(),
            driver: device.driver_name,
            pool: device.pool_name,
            device: device.device_name,
            share: device.share_id,
        })
    };
    resources.into_iter().flat_map(devices).collect()
}

impl From<v1::AllocatableResourcesResponse> for Allocatable {
    fn from(response: v1::AllocatableResourcesResponse) -> Self {
        Self {
            cpus: cpus(response.cpu_ids),
            memory: memory(response.memory),
            devices: devices(response.devices),
        }
    }
}

impl From<v1::ListPodResourcesResponse> for Usage {
    fn from(response: v1::ListPodResourcesResponse) -> Self {
        Self { pods: response.pod_resources.into_iter().map(PodUsage::from).collect() }
    }
}

impl From<v1::PodResources> for PodUsage {
    fn from(pod: v1::PodResources) -> Self {
        Self {
            namespace: pod.namespace,
            name: pod.name,
            cpus: cpus(pod.cpu_ids),
            memory: memory(pod.memory),
            containers: pod.containers.into_iter().map(ContainerUsage::from).collect(),
        }
    }
}

impl From<v1::ContainerResources> for ContainerUsage {
    fn from(container: v1::ContainerResources) -> Self {
        Self {
            name: container.name,
            cpus: cpus(container.cpu_ids),
            memory: memory(container.memory),
            devices: devices(container.devices),
            claims: container.dynamic_resources.iter().map(claim_name).collect(),
            claimed: claimed(container.dynamic_resources),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_ids_are_omitted_or_marked() {
        let response = v1::AllocatableResourcesResponse {
            cpu_ids: vec![3, -1, 1 << 40, 0],
            devices: vec![v1::ContainerDevices {
                resource_name: "example.com/nic".into(),
                device_ids: vec!["a".into()],
                topology: Some(v1::TopologyInfo { nodes: vec![v1::NumaNode { id: -1 }] }),
            }],
            memory: vec![],
        };
        let allocatable = Allocatable::from(response);
        assert_eq!(allocatable.cpus, "0,3,8192".parse().unwrap(), "an impossible CPU id is reported");
        assert!(allocatable.devices[0].nodes.is_empty(), "-1 means no affinity, not node 0");
    }
}
