//! Devices: each `(resource, id)` is one device, wherever and however often the kubelet lists it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Amounts, Finding, HIGHEST_ZONE, InUse, Inputs, ZoneBuilder};
use crate::kubelet::DeviceGroup;
use crate::machine::{Id, IdSet};

/// One device, merged from all groups that list it.
#[derive(Default)]
struct Device {
    /// The zones it is on; one bit per id.
    zones: u64,
    /// The zones in which its plugin reports it. A plugin may register again with another topology, but for a
    /// device in use the List shows the topology at the time of the allocation.
    offered: u64,
    used: bool,
}

#[derive(Default)]
struct Devices<'a> {
    by_id: HashMap<&'a str, Device>,
    /// All nodes with any of the devices, published or not.
    nodes: IdSet,
}

pub(super) fn account<'a>(
    inputs: &Inputs<'a>,
    in_use: &InUse<'a>,
    builder: &mut ZoneBuilder<'_>,
    findings: &mut BTreeSet<Finding>,
) {
    let mut resources: BTreeMap<&str, Devices<'a>> = BTreeMap::new();
    for group in &inputs.allocatable.devices {
        record(&mut resources, group, |device, zones| device.offered |= zones);
    }
    for group in in_use.containers().flat_map(|container| &container.devices) {
        record(&mut resources, group, |device, _| device.used = true);
    }
    // A filler has no node, so it has no devices.
    let zones = builder.mask(|id| inputs.machine.node(id).is_some());
    for (resource, devices) in &resources {
        // Devices without topology belong to no zone; a resource with only such devices is not published.
        if devices.nodes.low_mask() & zones != 0 {
            add(builder, resource, devices, zones);
        }
        let has_no_zone = |node: &Id| *node > HIGHEST_ZONE || zones & (1 << node) == 0;
        let nodes: IdSet = devices.nodes.iter().filter(has_no_zone).collect();
        if !nodes.is_empty() {
            findings.insert(Finding::DevicesOnUnknownNodes { resource: (*resource).to_owned(), nodes });
        }
    }
    for resource in inputs.remembered.iter().filter(|name| !builder.lists(name)).collect::<Vec<_>>() {
        builder.add(resource, |_| Amounts::default());
    }
}

/// Records the devices of a group. The kubelet repeats a device for each of its nodes, so the sets are
/// united.
fn record<'a>(
    resources: &mut BTreeMap<&'a str, Devices<'a>>,
    group: &'a DeviceGroup,
    mark: impl Fn(&mut Device, u64),
) {
    let devices = resources.entry(&group.resource).or_default();
    devices.nodes.union_with(&group.nodes);
    let zones = group.nodes.low_mask();
    for id in &group.ids {
        let device = devices.by_id.entry(id).or_default();
        device.zones |= zones;
        mark(device, zones);
    }
}

fn add(builder: &mut ZoneBuilder<'_>, resource: &str, devices: &Devices<'_>, published: u64) {
    let mut totals = [Amounts::default(); 64];
    for device in devices.by_id.values() {
        let mut zones = device.zones & published;
        while zones != 0 {
            let zone = zones.trailing_zeros();
            let offered = device.offered & (1 << zone) != 0;
            zones &= zones - 1;
            let amounts = &mut totals[zone as usize];
            amounts.capacity += 1;
            amounts.allocatable += u64::from(offered);
            amounts.available += u64::from(offered && !device.used);
        }
    }
    builder.add(resource, |id| totals.get(usize::from(id)).copied().unwrap_or_default());
}
