//! Random responses, with unknown fields at every level and everything in any order, against a model on
//! decoded messages: the result is the input plus exactly the allocations for it.

mod strategies;

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::machine::IdSet;
use crate::proxy::allocations::{AllocatedDevice, Device as TableDevice, DeviceTable, PodAllocations};
use crate::proxy::merge::Merged;
use crate::util::wire::{Field, Value, fields_in};

use strategies::{any_allocations, devices, list_record, pod_record, record, shuffled, unknown};

/// Every device in these groups.
fn ids<'a>(groups: impl IntoIterator<Item = &'a v1::ContainerDevices>) -> Vec<(String, String)> {
    let of = |group: &'a v1::ContainerDevices| {
        group.device_ids.iter().map(move |id| (group.resource_name.clone(), id.clone()))
    };
    groups.into_iter().flat_map(of).collect()
}

/// Every device that a response lists.
fn listed_devices(pods: &[v1::PodResources]) -> Vec<(String, String)> {
    ids(pods.iter().flat_map(|pod| &pod.containers).flat_map(|container| &container.devices))
}

/// Returns true if one of two ids is the other, or `<other>::<number>`.
fn same(one: &str, other: &str) -> bool {
    let is_part = |long: &str, short: &str| {
        let rest = long.strip_prefix(short).and_then(|rest| rest.strip_prefix("::"));
        rest.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    one == other || is_part(one, other) || is_part(other, one)
}

/// Merges a pod's allocations into it, on decoded messages. Returns the number of devices, and whether it is
/// the pod that is meant.
fn model_pod(
    pod: &mut v1::PodResources,
    allocations: &PodAllocations,
    table: &DeviceTable,
    listed_ids: &[(String, String)],
    v1: bool,
) -> (usize, bool) {
    let own = listed_devices(std::slice::from_ref(pod));
    let claimed: Vec<String> = pod
        .containers
        .iter()
        .flat_map(|container| &container.dynamic_resources)
        .flat_map(|claim| &claim.claim_resources)
        .flat_map(|device| &device.cdi_devices)
        .map(|cdi| cdi.name.clone())
        .collect();
    let has_cpus =
        !pod.cpu_ids.is_empty() || pod.containers.iter().any(|container| !container.cpu_ids.is_empty());
    let has_memory =
        !pod.memory.is_empty() || pod.containers.iter().any(|container| !container.memory.is_empty());
    let (mut count, mut found) = (0, allocations.containers.is_empty());
    for (name, devices) in &allocations.containers {
        let Some(container) = pod.containers.iter_mut().find(|container| container.name == **name) else {
            continue;
        };
        found = true;
        let mut last: Option<(usize, IdSet)> = None;
        for AllocatedDevice { device, part } in devices {
            let TableDevice { resource, id, nodes } = &table.devices[*device];
            let name = table.resources[*resource].to_string();
            let allocated = own.iter().any(|(known, _)| *known == name);
            let listed = listed_ids.iter().any(|(known, other)| *known == name && same(other, id));
            let cdi = |cdi: &String| {
                cdi.split_once('=').is_some_and(|(known, other)| known == name && same(other, id))
            };
            if allocated || listed || claimed.iter().any(cdi) {
                continue;
            }
            let id = part.map_or_else(|| id.to_string(), |part| format!("{id}::{part}"));
            count += 1;
            if last.as_ref() == Some(&(*resource, nodes.clone())) {
                container.devices.last_mut().unwrap().device_ids.push(id);
                continue;
            }
            let on: Vec<v1::NumaNode> = nodes.iter().map(|id| v1::NumaNode { id: id.into() }).collect();
            let topology = (v1 && !on.is_empty()).then_some(v1::TopologyInfo { nodes: on });
            container.devices.push(v1::ContainerDevices {
                resource_name: name,
                device_ids: vec![id],
                topology,
            });
            last = Some((*resource, nodes.clone()));
        }
    }
    if v1 && !has_cpus {
        pod.cpu_ids = allocations.cpus_and_memory.cpus.iter().map(i64::from).collect();
    }
    if v1 && !has_memory {
        let memory = allocations.cpus_and_memory.memory.iter();
        pod.memory.extend(memory.map(|(kind, size, node)| v1::ContainerMemory {
            memory_type: kind.to_string(),
            size: *size,
            topology: Some(v1::TopologyInfo { nodes: vec![v1::NumaNode { id: (*node).into() }] }),
        }));
    }
    (count, found)
}

fn model_list(response: &mut v1::ListPodResourcesResponse, allocations: &Allocations, v1: bool) -> usize {
    let listed_ids = listed_devices(&response.pod_resources);
    let mut count = 0;
    for pod_allocations in &allocations.pods {
        for pod in &mut response.pod_resources {
            if (&pod.namespace, &pod.name) == (&pod_allocations.name.0, &pod_allocations.name.1) {
                let (more, found) = model_pod(pod, pod_allocations, &allocations.devices, &listed_ids, v1);
                count += more;
                if found {
                    break;
                }
            }
        }
    }
    count
}

/// Checks that the records in a part of `new` are those of a part of `old`, byte for byte, followed only by
/// fields in `may_follow`; fields numbered `deeper` may have grown by the same rule.
fn check_kept(
    (old, old_part): (&[u8], Range<usize>),
    (new, new_part): (&[u8], Range<usize>),
    levels: &[(u32, &[u32])],
) {
    let all = |bytes: &[u8], part: Range<usize>| -> Vec<Field> {
        fields_in(bytes, part).collect::<Result<_, _>>().unwrap()
    };
    let (before, after) = (all(old, old_part), all(new, new_part));
    assert!(before.len() <= after.len());
    let ((deeper, may_follow), rest) = levels.split_first().map(|(first, rest)| (*first, rest)).unwrap();
    for (old_field, new_field) in before.iter().zip(&after) {
        if old[old_field.record.clone()] == new[new_field.record.clone()] {
            continue;
        }
        assert_eq!((old_field.number, new_field.number), (deeper, deeper));
        let (Value::Bytes(old_part), Value::Bytes(new_part)) = (&old_field.value, &new_field.value) else {
            panic!("{old_field:?} became {new_field:?}");
        };
        check_kept((old, old_part.clone()), (new, new_part.clone()), rest);
    }
    assert!(after[before.len()..].iter().all(|field| may_follow.contains(&field.number)));
}

/// In a List: nothing may follow the pods; CPUs and memory may follow the fields of a pod, devices those of a
/// container.
const LEVELS: [(u32, &[u32]); 3] = [(1, &[]), (3, &[4, 5]), (0, &[2])];

proptest! {
    #![proptest_config(crate::randomised::cases())]

    #[test]
    fn a_list_is_what_it_was_plus_the_allocations(list in list_record(), allocations in any_allocations()) {
        let merged = allocations.merge_list(&list, PodResourcesVersion::V1).unwrap();
        let before = v1::ListPodResourcesResponse::decode(list.clone()).unwrap();
        let mut expected = before.clone();
        let count = model_list(&mut expected, &allocations, true);
        prop_assert_eq!(merged.devices, count);
        prop_assert_eq!(merged.bytes.as_ptr() == list.as_ptr(), expected == before);
        prop_assert_eq!(v1::ListPodResourcesResponse::decode(merged.bytes.clone()).unwrap(), expected);
        check_kept((&list, 0..list.len()), (&merged.bytes, 0..merged.bytes.len()), &LEVELS);
        let nothing = Allocations::default().merge_list(&list, PodResourcesVersion::V1).unwrap();
        prop_assert_eq!(nothing.bytes.as_ptr(), list.as_ptr());
    }

    #[test]
    fn v1alpha1_gets_devices_only(list in list_record(), allocations in any_allocations()) {
        let merged = allocations.merge_list(&list, PodResourcesVersion::V1alpha1).unwrap();
        let mut expected = v1::ListPodResourcesResponse::decode(list.clone()).unwrap();
        let count = model_list(&mut expected, &allocations, false);
        prop_assert_eq!(v1::ListPodResourcesResponse::decode(merged.bytes.clone()).unwrap(), expected);
        prop_assert_eq!(merged.devices, count);
        prop_assert!(v1alpha1::ListPodResourcesResponse::decode(merged.bytes).is_ok());
    }

    /// In any number of records: to every parser they are one message.
    #[test]
    fn get_is_one_pod_of_a_list(parts in vec(pod_record(), 0..4), allocations in any_allocations()) {
        let response = Bytes::from(parts.iter().flat_map(|part| record(1, part)).collect::<Vec<_>>());
        let merged = allocations.merge_get(&response).unwrap();
        let mut expected = v1::GetPodResourcesResponse::decode(response.clone()).unwrap();
        let mut count = 0;
        if let Some(pod) = &mut expected.pod_resources {
            let is_named = |one: &&PodAllocations| (&one.name.0, &one.name.1) == (&pod.namespace, &pod.name);
            let found = allocations.pods.iter().find(is_named);
            let listed_ids = listed_devices(std::slice::from_ref(pod));
            count = found.map_or(0, |one| model_pod(pod, one, &allocations.devices, &listed_ids, true).0);
        }
        prop_assert_eq!(v1::GetPodResourcesResponse::decode(merged.bytes.clone()).unwrap(), expected);
        prop_assert_eq!(merged.devices, count);
        check_kept((&response, 0..response.len()), (&merged.bytes, 0..merged.bytes.len()), &LEVELS);
    }

    #[test]
    fn allocatable_is_what_it_was_plus_missing_devices(
        groups in vec(devices(), 0..4),
        more in unknown(),
        allocations in any_allocations(),
        order in any::<u64>(),
    ) {
        let mut records = more;
        records.extend(groups.iter().map(|group| record(1, group)));
        records.push(record(2, &[3]));
        let response = Bytes::from(shuffled(records, order));
        let merged = allocations.merge_allocatable(&response).unwrap();
        let before = v1::AllocatableResourcesResponse::decode(response.clone()).unwrap();
        let after = v1::AllocatableResourcesResponse::decode(merged.bytes.clone()).unwrap();
        prop_assert_eq!(&after.devices[..before.devices.len()], &before.devices[..]);
        let same_start = (&after.cpu_ids, &merged.bytes[..response.len()]);
        prop_assert_eq!(same_start, (&before.cpu_ids, &response[..]));
        let had = ids(&before.devices);
        let DeviceTable { resources, devices } = &allocations.allocatable;
        let named = devices.iter().map(|one| (resources[one.resource].to_string(), one.id.to_string()));
        let is_listed = |(name, id): &(String, String)| {
            had.iter().any(|(known, other)| known == name && same(other, id))
        };
        let missing: Vec<_> = named.filter(|one| !is_listed(one)).collect();
        prop_assert_eq!(ids(&after.devices[before.devices.len()..]), missing);
    }

    /// No input makes it panic, and an invalid message stays invalid.
    #[test]
    fn any_bytes_are_accepted_or_rejected(
        bytes in vec(prop_oneof![any::<u8>(), Just(0x0a), Just(0x1a), Just(0x12), 0..6_u8], 0..80),
        allocations in any_allocations(),
    ) {
        let bytes = Bytes::from(bytes);
        let list = allocations.merge_list(&bytes, PodResourcesVersion::V1);
        let is_list = list.is_ok();
        let merged = [list, allocations.merge_get(&bytes), allocations.merge_allocatable(&bytes)];
        let has_grown = |merged: Merged| merged.bytes.len() >= bytes.len() || merged.devices > 0;
        prop_assert!(merged.into_iter().flatten().all(has_grown));
        prop_assert!(is_list || v1::ListPodResourcesResponse::decode(bytes.clone()).is_err());
    }
}
