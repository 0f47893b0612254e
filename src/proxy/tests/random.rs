//! Random responses, with unknown fields at every level and everything in any order, against a model on
//! decoded messages: the result is the input plus exactly what the plan has for it.

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::plan::{Device as Planned, Given, PodPlan, Table};
use super::*;
use crate::machine::IdSet;
use crate::util::wire::{Field, Value, fields_in, put_bytes, put_number};

/// Sorted, as in a plan.
const RESOURCES: [&str; 3] = ["example.com/nic", "koordinator.sh/rdma", "nvidia.com/gpu"];
const IDS: [&str; 8] = ["a", "b", "c", "0000:01:00.0", "a::1", "a0", "a::x", ""];
const CONTAINERS: [&str; 3] = ["main", "next", "sidecar"];
const PODS: [&str; 3] = ["p", "q", "r"];

/// Records in the order of `order`.
fn shuffled(mut records: Vec<Vec<u8>>, order: u64) -> Vec<u8> {
    let mut seed = order | 1;
    for last in (1..records.len()).rev() {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        records.swap(last, usize::try_from(seed % (last as u64 + 1)).unwrap());
    }
    records.concat()
}

fn record(number: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, number, content);
    out
}

/// A record around a message, sometimes with a length that is encoded in more bytes than necessary.
fn message(number: u8, content: &[u8], long: bool) -> Vec<u8> {
    if !long || content.len() >= 128 {
        return record(number.into(), content);
    }
    [&[number << 3 | 2, content.len() as u8 | 0x80, 0x80, 0x00][..], content].concat()
}

/// Fields that no message defines.
fn unknown() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let one = (20..40_u32, 0..5_u8, any::<u64>(), vec(any::<u8>(), 0..5)).prop_map(
        |(number, kind, value, bytes)| {
            let mut out = Vec::new();
            match kind {
                0 => put_number(&mut out, number, value),
                1 => put_bytes(&mut out, number, &bytes),
                2 => {
                    crate::util::wire::put_varint(&mut out, u64::from(number) << 3 | 5);
                    out.extend(&value.to_le_bytes()[..4]);
                }
                3 => {
                    crate::util::wire::put_varint(&mut out, u64::from(number) << 3 | 1);
                    out.extend(value.to_le_bytes());
                }
                _ => {
                    crate::util::wire::put_varint(&mut out, u64::from(number) << 3 | 3);
                    put_number(&mut out, 3, value);
                    crate::util::wire::put_varint(&mut out, u64::from(number) << 3 | 4);
                }
            }
            out
        },
    );
    prop_oneof![3 => Just(Vec::new()), 1 => vec(one, 1..3)]
}

fn of(texts: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    proptest::sample::select(texts)
}

fn topology(nodes: &[i64]) -> Vec<u8> {
    let nodes = nodes.iter().map(|id| v1::NumaNode { id: *id }).collect();
    v1::TopologyInfo { nodes }.encode_to_vec()
}

/// A `ContainerDevices`.
fn devices() -> impl Strategy<Value = Vec<u8>> {
    let parts = (of(&RESOURCES), vec(of(&IDS), 0..3), vec(0..4_i64, 0..3), unknown(), any::<u64>());
    parts.prop_map(|(resource, ids, nodes, mut records, order)| {
        records.push(record(1, resource.as_bytes()));
        records.extend(ids.iter().map(|id| record(2, id.as_bytes())));
        if !nodes.is_empty() {
            records.push(record(3, &topology(&nodes)));
        }
        shuffled(records, order)
    })
}

/// A `ContainerResources`.
fn container_record() -> impl Strategy<Value = Vec<u8>> {
    let claim = (of(&RESOURCES), of(&IDS)).prop_map(|(resource, id)| {
        let cdi_devices = vec![v1::CdiDevice { name: format!("{resource}={id}") }];
        let claim_resources = vec![v1::ClaimResource { cdi_devices, ..Default::default() }];
        v1::DynamicResource { claim_resources, ..Default::default() }.encode_to_vec()
    });
    let parts = (
        of(&CONTAINERS),
        any::<bool>(),
        vec(devices(), 0..3),
        vec(claim, 0..2),
        vec(0..3_u64, 0..2),
        unknown(),
        any::<u64>(),
    );
    parts.prop_map(|(name, twice, devices, claims, cpus, mut records, order)| {
        if !twice {
            records.push(record(1, name.as_bytes()));
        }
        records.extend(devices.iter().map(|devices| record(2, devices)));
        records.extend(claims.iter().map(|claim| record(5, claim)));
        for cpu in cpus {
            let mut out = Vec::new();
            put_number(&mut out, 3, cpu);
            records.push(out);
        }
        let mut all = shuffled(records, order);
        if twice {
            // The last one counts.
            all = [record(1, b"none"), all, record(1, name.as_bytes())].concat();
        }
        all
    })
}

/// A `PodResources`.
fn pod_record() -> impl Strategy<Value = Vec<u8>> {
    let containers = vec((container_record(), any::<bool>()), 0..4);
    let parts =
        (of(&PODS), any::<bool>(), containers, vec(0..3_u64, 0..2), any::<bool>(), unknown(), any::<u64>());
    parts.prop_map(|(name, other, containers, cpus, memory, mut records, order)| {
        records.push(record(1, name.as_bytes()));
        records.push(record(2, if other { b"other" } else { b"ns" }));
        records.extend(containers.iter().map(|(container, long)| message(3, container, *long)));
        if !cpus.is_empty() {
            records.push(record(4, &cpus.iter().map(|cpu| *cpu as u8).collect::<Vec<_>>()));
        }
        if memory {
            records.push(record(
                5,
                &v1::ContainerMemory { memory_type: "memory".into(), ..Default::default() }.encode_to_vec(),
            ));
        }
        shuffled(records, order)
    })
}

/// A `ListPodResourcesResponse`.
fn list_record() -> impl Strategy<Value = Bytes> {
    (vec((pod_record(), any::<bool>()), 0..5), unknown(), any::<u64>()).prop_map(
        |(pods, mut records, order)| {
            records.extend(pods.iter().map(|(pod, long)| message(1, pod, *long)));
            shuffled(records, order).into()
        },
    )
}

/// A plan for some of the possible pods.
fn any_plan() -> impl Strategy<Value = Plan> {
    let device = (0..RESOURCES.len(), of(&IDS[..7]), vec(0..4_u16, 0..3));
    let device = device.prop_map(|(resource, id, nodes)| Planned {
        resource,
        id: id.into(),
        nodes: nodes.into_iter().collect(),
    });
    let given = (any::<prop::sample::Index>(), proptest::option::weighted(0.3, 0..3_u64));
    let pod = (vec(vec(given, 0..4), CONTAINERS.len()), vec(0..70_u16, 0..3), any::<bool>());
    (vec(device, 1..12), vec(pod, 0..3)).prop_map(|(mut devices, pods)| {
        devices.sort();
        devices.dedup_by(|b, a| (a.resource, &a.id) == (b.resource, &b.id));
        let pods = pods.into_iter().zip(PODS).map(|((containers, cpus, memory), name)| {
            let mut plan = PodPlan { name: ("ns".into(), name.into()), ..PodPlan::default() };
            for (devices_of, name) in containers.into_iter().zip(CONTAINERS) {
                let given = |(index, part): &(prop::sample::Index, _)| Given {
                    device: index.index(devices.len()),
                    part: *part,
                };
                let devices = devices_of.iter().map(given).collect::<Vec<_>>();
                if !devices.is_empty() {
                    plan.containers.push((name.into(), devices));
                }
            }
            plan.status.cpus = cpus.into_iter().collect();
            if memory {
                plan.status.memory.push(("hugepages-2Mi".into(), 7, 1));
            }
            plan
        });
        let pods = pods.collect();
        let resources = RESOURCES.iter().map(|name| Arc::from(*name)).collect();
        let table = Table { resources, devices };
        Plan { allocatable: table.clone(), devices: table, pods, ..Plan::default() }
    })
}

/// Every device that a response lists.
fn listed_devices(pods: &[v1::PodResources]) -> Vec<(String, String)> {
    let groups = pods.iter().flat_map(|pod| &pod.containers).flat_map(|container| &container.devices);
    groups
        .flat_map(|group| group.device_ids.iter().map(|id| (group.resource_name.clone(), id.clone())))
        .collect()
}

/// Whether one of two ids is the other, or `<other>::<number>`.
fn same(one: &str, other: &str) -> bool {
    let is_part = |long: &str, short: &str| {
        let rest = long.strip_prefix(short).and_then(|rest| rest.strip_prefix("::"));
        rest.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    one == other || is_part(one, other) || is_part(other, one)
}

/// Merges a pod's plan into it, on decoded messages. Returns the number of devices, and whether it is the pod
/// that is meant.
fn model_pod(
    pod: &mut v1::PodResources,
    plan: &PodPlan,
    table: &Table,
    taken: &[(String, String)],
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
    let (mut count, mut found) = (0, plan.containers.is_empty());
    for (name, devices) in &plan.containers {
        let Some(container) = pod.containers.iter_mut().find(|container| container.name == **name) else {
            continue;
        };
        found = true;
        let mut last: Option<(usize, IdSet)> = None;
        for Given { device, part } in devices {
            let Planned { resource, id, nodes } = &table.devices[*device];
            let name = table.resources[*resource].to_string();
            let allocated = own.iter().any(|(known, _)| *known == name);
            let listed = taken.iter().any(|(known, other)| *known == name && same(other, id));
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
        pod.cpu_ids = plan.status.cpus.iter().map(i64::from).collect();
    }
    if v1 && !has_memory {
        pod.memory.extend(plan.status.memory.iter().map(|(kind, size, node)| v1::ContainerMemory {
            memory_type: kind.to_string(),
            size: *size,
            topology: Some(v1::TopologyInfo { nodes: vec![v1::NumaNode { id: (*node).into() }] }),
        }));
    }
    (count, found)
}

fn model_list(answer: &mut v1::ListPodResourcesResponse, plan: &Plan, v1: bool) -> usize {
    let taken = listed_devices(&answer.pod_resources);
    let mut count = 0;
    for planned in &plan.pods {
        for pod in &mut answer.pod_resources {
            if (&pod.namespace, &pod.name) == (&planned.name.0, &planned.name.1) {
                let (more, found) = model_pod(pod, planned, &plan.devices, &taken, v1);
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
    fn a_list_is_what_it_was_and_what_the_plan_has_for_it(list in list_record(), plan in any_plan()) {
        let merged = plan.list(&list, Version::V1).unwrap();
        let mut expected = v1::ListPodResourcesResponse::decode(list.clone()).unwrap();
        let count = model_list(&mut expected, &plan, true);
        prop_assert_eq!(v1::ListPodResourcesResponse::decode(merged.bytes.clone()).unwrap(), expected);
        prop_assert_eq!(merged.devices, count);
        prop_assert_eq!(merged.pods == 0, merged.bytes == list);
        if merged.pods == 0 {
            prop_assert_eq!(merged.bytes.as_ptr(), list.as_ptr());
        }
        check_kept((&list, 0..list.len()), (&merged.bytes, 0..merged.bytes.len()), &LEVELS);
        let nothing = Plan::default().list(&list, Version::V1).unwrap();
        prop_assert_eq!(nothing.bytes.as_ptr(), list.as_ptr());
    }

    #[test]
    fn v1alpha1_gets_devices_only(list in list_record(), plan in any_plan()) {
        let merged = plan.list(&list, Version::V1alpha1).unwrap();
        let mut expected = v1::ListPodResourcesResponse::decode(list.clone()).unwrap();
        let count = model_list(&mut expected, &plan, false);
        prop_assert_eq!(v1::ListPodResourcesResponse::decode(merged.bytes.clone()).unwrap(), expected);
        prop_assert_eq!(merged.devices, count);
        prop_assert!(v1alpha1::ListPodResourcesResponse::decode(merged.bytes).is_ok());
    }

    /// In any number of records: to every parser they are one message.
    #[test]
    fn get_is_the_one_pod_of_it(parts in vec(pod_record(), 0..4), plan in any_plan()) {
        let answer = Bytes::from(parts.iter().flat_map(|part| record(1, part)).collect::<Vec<_>>());
        let merged = plan.get(&answer).unwrap();
        let mut expected = v1::GetPodResourcesResponse::decode(answer.clone()).unwrap();
        let mut count = 0;
        if let Some(pod) = &mut expected.pod_resources {
            let planned = plan.pods.iter().find(|plan| (&plan.name.0, &plan.name.1) == (&pod.namespace, &pod.name));
            let taken = listed_devices(std::slice::from_ref(pod));
            count = planned.map_or(0, |planned| model_pod(pod, planned, &plan.devices, &taken, true).0);
        }
        prop_assert_eq!(v1::GetPodResourcesResponse::decode(merged.bytes.clone()).unwrap(), expected);
        prop_assert_eq!(merged.devices, count);
        check_kept((&answer, 0..answer.len()), (&merged.bytes, 0..merged.bytes.len()), &LEVELS);
    }

    #[test]
    fn allocatable_is_what_it_was_and_what_is_not_in_it(groups in vec(devices(), 0..4), more in unknown(), plan in any_plan(), order in any::<u64>()) {
        let mut records = more;
        records.extend(groups.iter().map(|group| record(1, group)));
        records.push(record(2, &[3]));
        let answer = Bytes::from(shuffled(records, order));
        let merged = plan.allocatable(&answer).unwrap();
        let before = v1::AllocatableResourcesResponse::decode(answer.clone()).unwrap();
        let after = v1::AllocatableResourcesResponse::decode(merged.bytes.clone()).unwrap();
        prop_assert_eq!(&after.devices[..before.devices.len()], &before.devices[..]);
        prop_assert_eq!((&after.cpu_ids, &merged.bytes[..answer.len()]), (&before.cpu_ids, &answer[..]));
        let all = |groups: &[v1::ContainerDevices]| -> Vec<(String, String)> {
            groups.iter().flat_map(|group| group.device_ids.iter().map(|id| (group.resource_name.clone(), id.clone()))).collect()
        };
        let had = all(&before.devices);
        let named = plan.allocatable.devices.iter().map(|device| (plan.allocatable.resources[device.resource].to_string(), device.id.to_string()));
        let missing: Vec<_> = named.filter(|(name, id)| !had.iter().any(|(known, other)| known == name && same(other, id))).collect();
        prop_assert_eq!(all(&after.devices[before.devices.len()..]), missing);
    }

    /// No input makes it panic, and an invalid message stays invalid.
    #[test]
    fn any_bytes_are_borne(bytes in vec(prop_oneof![any::<u8>(), Just(0x0a), Just(0x1a), Just(0x12), 0..6_u8], 0..80), plan in any_plan()) {
        let bytes = Bytes::from(bytes);
        let merged = [plan.list(&bytes, Version::V1), plan.get(&bytes), plan.allocatable(&bytes)];
        prop_assert!(merged.into_iter().flatten().all(|merged| merged.bytes.len() >= bytes.len() || merged.devices > 0));
        if v1::ListPodResourcesResponse::decode(bytes.clone()).is_ok() {
            prop_assert!(plan.list(&bytes, Version::V1).is_ok());
        }
    }
}
