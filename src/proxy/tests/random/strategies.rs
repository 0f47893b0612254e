//! Random records and allocations.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::*;
use crate::proxy::allocations::{AllocatedDevice, Device as TableDevice, DeviceTable, PodAllocations};
use crate::util::wire::{put_bytes, put_number, put_varint};

/// Sorted, as in a table.
const RESOURCES: [&str; 3] = ["example.com/nic", "koordinator.sh/rdma", "nvidia.com/gpu"];
const IDS: [&str; 8] = ["a", "b", "c", "0000:01:00.0", "a::1", "a0", "a::x", ""];
const CONTAINERS: [&str; 3] = ["main", "next", "sidecar"];
const PODS: [&str; 3] = ["p", "q", "r"];

/// Records in the order of `order`.
pub(super) fn shuffled(mut records: Vec<Vec<u8>>, order: u64) -> Vec<u8> {
    let mut seed = order | 1;
    for last in (1..records.len()).rev() {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        records.swap(last, usize::try_from(seed % (last as u64 + 1)).unwrap());
    }
    records.concat()
}

pub(super) fn record(number: u32, content: &[u8]) -> Vec<u8> {
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
pub(super) fn unknown() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let one = (20..40_u32, 0..5_u8, any::<u64>(), vec(any::<u8>(), 0..5)).prop_map(
        |(number, kind, value, bytes)| {
            let mut out = Vec::new();
            match kind {
                0 => put_number(&mut out, number, value),
                1 => put_bytes(&mut out, number, &bytes),
                2 => {
                    put_varint(&mut out, u64::from(number) << 3 | 5);
                    out.extend(&value.to_le_bytes()[..4]);
                }
                3 => {
                    put_varint(&mut out, u64::from(number) << 3 | 1);
                    out.extend(value.to_le_bytes());
                }
                _ => {
                    put_varint(&mut out, u64::from(number) << 3 | 3);
                    put_number(&mut out, 3, value);
                    put_varint(&mut out, u64::from(number) << 3 | 4);
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
pub(super) fn devices() -> impl Strategy<Value = Vec<u8>> {
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
pub(super) fn pod_record() -> impl Strategy<Value = Vec<u8>> {
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
pub(super) fn list_record() -> impl Strategy<Value = Bytes> {
    (vec((pod_record(), any::<bool>()), 0..5), unknown(), any::<u64>()).prop_map(
        |(pods, mut records, order)| {
            records.extend(pods.iter().map(|(pod, long)| message(1, pod, *long)));
            shuffled(records, order).into()
        },
    )
}

/// Allocations for some of the possible pods.
pub(super) fn any_allocations() -> impl Strategy<Value = Allocations> {
    let device = (0..RESOURCES.len(), of(&IDS[..7]), vec(0..4_u16, 0..3));
    let device = device.prop_map(|(resource, id, nodes)| TableDevice {
        resource,
        id: id.into(),
        nodes: nodes.into_iter().collect(),
    });
    let allocated = (any::<prop::sample::Index>(), proptest::option::weighted(0.3, 0..3_u64));
    let pod = (vec(vec(allocated, 0..4), CONTAINERS.len()), vec(0..70_u16, 0..3), any::<bool>());
    (vec(device, 1..12), vec(pod, 0..3)).prop_map(|(mut devices, pods)| {
        devices.sort();
        devices.dedup_by(|b, a| (a.resource, &a.id) == (b.resource, &b.id));
        let pods = pods.into_iter().zip(PODS).map(|((containers, cpus, memory), name)| {
            let mut pod = PodAllocations { name: ("ns".into(), name.into()), ..PodAllocations::default() };
            for (devices_of, name) in containers.into_iter().zip(CONTAINERS) {
                let allocated = |(index, part): &(prop::sample::Index, _)| AllocatedDevice {
                    device: index.index(devices.len()),
                    part: *part,
                };
                let devices = devices_of.iter().map(allocated).collect::<Vec<_>>();
                if !devices.is_empty() {
                    pod.containers.push((name.into(), devices));
                }
            }
            pod.cpus_and_memory.cpus = cpus.into_iter().collect();
            if memory {
                pod.cpus_and_memory.memory.push(("hugepages-2Mi".into(), 7, 1));
            }
            pod
        });
        let pods = pods.collect();
        let resources = RESOURCES.iter().map(|name| Arc::from(*name)).collect();
        let table = DeviceTable { resources, devices };
        Allocations { allocatable: table.clone(), devices: table, pods, ..Allocations::default() }
    })
}
