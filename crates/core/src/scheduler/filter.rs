//! What the plugin's Filter says about a node (upstream: scheduler-plugins v0.34.7,
//! `pkg/noderesourcetopology/filter.go` and `numaresources.go`), from the object alone: without what the plugin's
//! caches subtract for pods that it has just placed.

use std::collections::BTreeMap;

use crate::admission::{ContainerRequest, NodeAmounts, PodRequest};
use crate::machine::Id;
use crate::names::is_native_resource;
use crate::nrt::{POLICY, SCOPE};
use crate::pod::ContainerKind;
use crate::topology::Zone;

/// A zone's id, and what is available in it: `cpu` in millicores, others in whole units.
type Available = Vec<(Id, NodeAmounts)>;

/// Returns the message with which the plugin rejects a node for a pod; `None` if it accepts it. `overhead` is that of
/// the pod's RuntimeClass, `allocatable` what the Node has.
#[must_use]
pub fn filter(
    zones: &[Zone],
    attributes: &BTreeMap<String, String>,
    allocatable: &NodeAmounts,
    pod: &PodRequest,
    overhead: &NodeAmounts,
) -> Option<&'static str> {
    let attribute = |name: &str| attributes.get(name).map(String::as_str);
    if attribute(POLICY) != Some("single-numa-node") {
        return None;
    }
    let requests: Vec<NodeAmounts> = pod.containers.iter().map(requests_of).collect();
    let is_non_native = |name: &String| !is_native_resource(name);
    let has_none =
        |amounts: &NodeAmounts| amounts.iter().all(|(name, amount)| *amount == 0 && !is_non_native(name));
    if requests.iter().all(has_none) && overhead.is_empty() {
        return None;
    }
    let mut filter = Filter { available: available(zones), allocatable, guaranteed: pod.guaranteed };
    match attribute(SCOPE) {
        Some("pod") => filter.zone(&of_pod(pod, &requests, overhead)).is_none().then_some("cannot align pod"),
        _ => filter.containers(pod, &requests),
    }
}

fn available(zones: &[Zone]) -> Available {
    let zone = |zone: &Zone| {
        let amount = |(name, amounts): (&String, &crate::nrt::Amounts)| {
            let unit = if name == "cpu" { 1000 } else { 1 };
            (name.clone(), amounts.available.saturating_mul(unit))
        };
        (zone.id, zone.resources.iter().map(amount).collect())
    };
    zones.iter().map(zone).collect()
}

fn requests_of(container: &ContainerRequest) -> NodeAmounts {
    let mut requests: NodeAmounts = container.memory.clone();
    requests.extend(container.devices.clone());
    requests.extend((container.cpu_milli > 0).then(|| ("cpu".to_owned(), container.cpu_milli)));
    requests
}

/// The sum of the app containers or, if it is more, the most of any init container or sidecar; and the overhead.
fn of_pod(pod: &PodRequest, requests: &[NodeAmounts], overhead: &NodeAmounts) -> NodeAmounts {
    let (mut init, mut apps) = (NodeAmounts::new(), NodeAmounts::new());
    for (container, requests) in pod.containers.iter().zip(requests) {
        for (name, amount) in requests {
            match container.kind {
                ContainerKind::App => {
                    let sum = apps.entry(name.clone()).or_default();
                    *sum = sum.saturating_add(*amount);
                }
                _ => {
                    let most = init.entry(name.clone()).or_default();
                    *most = (*most).max(*amount);
                }
            }
        }
    }
    for (name, amount) in init {
        let most = apps.entry(name).or_default();
        *most = (*most).max(amount);
    }
    for (name, amount) in overhead {
        let sum = apps.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
    apps
}

struct Filter<'a> {
    available: Available,
    allocatable: &'a NodeAmounts,
    guaranteed: bool,
}

impl Filter<'_> {
    fn containers(&mut self, pod: &PodRequest, requests: &[NodeAmounts]) -> Option<&'static str> {
        for (container, requests) in pod.containers.iter().zip(requests) {
            match (container.kind, self.zone(requests)) {
                (ContainerKind::Init, None) => return Some("cannot align init container"),
                (ContainerKind::Sidecar, None) => return Some("cannot align sidecar container"),
                (ContainerKind::App, None) => return Some("cannot align container"),
                (ContainerKind::App, Some(Some(zone))) => self.subtract(zone, requests),
                _ => {}
            }
        }
        None
    }

    /// Returns the lowest zone that has all of it, `Some(None)` if no zone matters; `None` if no zone has it.
    fn zone(&self, requests: &NodeAmounts) -> Option<Option<Id>> {
        let mut fitting: Vec<Id> = self.available.iter().map(|(id, _)| *id).collect();
        let mut is_bound = false;
        for (name, amount) in requests.iter().filter(|(_, amount)| **amount > 0) {
            if !self.allocatable.contains_key(name) {
                return None;
            }
            let listing = self.available.iter().filter_map(|(id, has)| Some((*id, *has.get(name)?)));
            let listing: Vec<(Id, u64)> = listing.collect();
            if listing.is_empty() && !is_native_resource(name) {
                continue;
            }
            is_bound = true;
            let needs_amount = self.guaranteed || !is_native_resource(name);
            let fits =
                |id: &Id| listing.iter().any(|(zone, has)| zone == id && (!needs_amount || has >= amount));
            fitting.retain(fits);
        }
        if is_bound { fitting.first().map(|zone| Some(*zone)) } else { Some(None) }
    }

    fn subtract(&mut self, zone: Id, requests: &NodeAmounts) {
        let Some((_, has)) = self.available.iter_mut().find(|(id, _)| *id == zone) else { return };
        for (name, amount) in requests.iter().filter(|(name, _)| self.guaranteed || !is_native_resource(name))
        {
            if let Some(has) = has.get_mut(name) {
                *has = has.saturating_sub(*amount);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::tests::{container, pod};
    use crate::nrt::Amounts;
    use crate::pod::ContainerKind::{App, Init, Sidecar};

    const GIB: u64 = 1 << 30;

    fn zone(id: Id, cpus: u64, nics: u64) -> Zone {
        let amounts = |available| Amounts { capacity: 64, allocatable: 64, available };
        let resources = [("cpu", cpus), ("memory", 8 * GIB), ("nic.example.com/nic", nics)];
        let resources = resources.map(|(name, available)| (name.to_owned(), amounts(available))).into();
        Zone { id, resources, ..Zone::default() }
    }

    fn filtered(policy: &str, scope: &str, pod: &PodRequest) -> Option<&'static str> {
        let attributes =
            [(POLICY, policy), (SCOPE, scope)].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let allocatable = ["cpu", "memory", "nic.example.com/nic", "host.example.com/x"];
        let allocatable = allocatable.map(|name| (name.to_owned(), 1)).into();
        filter(&[zone(0, 4, 0), zone(1, 8, 1)], &attributes.into(), &allocatable, pod, &NodeAmounts::new())
    }

    #[test]
    fn containers_are_aligned_one_after_another() {
        let of =
            |containers: &[ContainerRequest]| filtered("single-numa-node", "container", &pod(containers));
        assert_eq!(of(&[container(App, 8, 1, 0)]), None);
        assert_eq!(of(&[container(App, 9, 1, 0)]), Some("cannot align container"));
        assert_eq!(of(&[container(App, 4, 1, 0), container(App, 8, 1, 0)]), None, "the lowest zone first");
        assert_eq!(
            of(&[container(App, 4, 1, 0), container(App, 5, 1, 0), container(App, 4, 1, 0)]),
            Some("cannot align container")
        );
        assert_eq!(
            of(&[container(Init, 9, 1, 0), container(App, 1, 1, 0)]),
            Some("cannot align init container")
        );
        assert_eq!(
            of(&[container(Sidecar, 9, 1, 0), container(App, 1, 1, 0)]),
            Some("cannot align sidecar container")
        );
        assert_eq!(
            of(&[container(Init, 8, 1, 0), container(App, 8, 1, 0)]),
            None,
            "init containers take nothing"
        );
    }

    #[test]
    fn pods_are_aligned_as_a_whole() {
        let of = |containers: &[ContainerRequest]| filtered("single-numa-node", "pod", &pod(containers));
        assert_eq!(of(&[container(App, 4, 1, 0), container(App, 4, 1, 0)]), None);
        assert_eq!(of(&[container(App, 4, 1, 0), container(App, 5, 1, 0)]), Some("cannot align pod"));
        assert_eq!(of(&[container(Init, 9, 1, 0), container(App, 4, 1, 0)]), Some("cannot align pod"));
        assert_eq!(filtered("restricted", "pod", &pod(&[container(App, 99, 1, 0)])), None, "another policy");
    }

    #[test]
    fn other_pods_are_bound_by_devices_only() {
        let of = |containers: &[ContainerRequest]| {
            filtered("single-numa-node", "container", &PodRequest { guaranteed: false, ..pod(containers) })
        };
        assert_eq!(of(&[container(App, 99, 1, 0)]), None);
        let with = |name: &str, count| {
            let devices = [(name.to_owned(), count)].into();
            ContainerRequest { devices, ..container(App, 99, 1, 0) }
        };
        assert_eq!(of(&[with("nic.example.com/nic", 1)]), None);
        assert_eq!(of(&[with("nic.example.com/nic", 2)]), Some("cannot align container"));
        assert_eq!(of(&[with("host.example.com/x", 9)]), None, "in no zone");
        assert_eq!(
            of(&[with("unknown.example.com/x", 1)]),
            Some("cannot align container"),
            "not even on the Node"
        );
    }
}
