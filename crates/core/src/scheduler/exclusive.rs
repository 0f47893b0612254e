//! Which pods have exclusive resources in the plugin's view: by their requests, whatever the kubelet
//! managers' policies are (upstream: scheduler-plugins, `resourcerequests/exclusive.go`).

use super::PluginRelease;
use crate::names::is_native_resource;
use crate::pod::{Container, ContainerKind, Pod};
use crate::quantity::is_huge_pages;

/// Returns true if the plugin counts `pod` as having exclusive resources. `listed` reports whether some zone
/// lists a resource.
pub fn is_exclusive(pod: &Pod, listed: &dyn Fn(&str) -> bool, release: PluginRelease) -> bool {
    pod.containers.iter().any(|container| is_exclusive_container(pod, container, listed, release, 0))
}

/// Returns true if the plugin counts this container, which is not a regular init container, as having exclusive
/// resources, in the newest release.
pub fn is_counted_container(pod: &Pod, container: &Container, listed: &dyn Fn(&str) -> bool) -> bool {
    is_exclusive_container(pod, container, listed, PluginRelease::default(), 0)
}

/// Like [`is_exclusive`], for one container that requests at least `min_devices` of a device. The plugin also
/// counts containers that request zero of one: 0 applies its rule, and 1 requires an allocation.
pub(super) fn is_exclusive_container(
    pod: &Pod,
    container: &Container,
    listed: &dyn Fn(&str) -> bool,
    release: PluginRelease,
    min_devices: u64,
) -> bool {
    let is_old = release == PluginRelease::V0_34;
    if container.kind == ContainerKind::Init && !is_old {
        return false;
    }
    let is_device = |name: &str| !is_native_resource(name) && (is_old || listed(name));
    if container.others.iter().any(|(name, amount)| is_device(name) && *amount >= min_devices) {
        return true;
    }
    let whole_cpus = container.cpu_milli > 0 && container.cpu_milli.is_multiple_of(1000);
    let huge_pages =
        || container.requested().any(|(name, _)| is_native_resource(name) && is_huge_pages(name));
    pod.qos_guaranteed && (whole_cpus || container.memory > 0 || huge_pages())
}

#[cfg(test)]
mod tests {
    use super::*;
    use PluginRelease::{V0_34, V0_35};

    fn pod(guaranteed: bool, kind: ContainerKind, cpu: u64, memory: u64, others: &[(&str, u64)]) -> Pod {
        let others = others.iter().map(|(name, amount)| ((*name).into(), *amount)).collect();
        let container = Container { kind, cpu_milli: cpu, memory, others, ..Container::default() };
        Pod { qos_guaranteed: guaranteed, containers: Box::new([container]), ..Pod::default() }
    }

    #[test]
    fn pods_are_exclusive_by_their_requests() {
        let listed = |name: &str| name == "example.com/nic";
        let check = |pod: Pod, both: [bool; 2]| {
            assert_eq!([V0_34, V0_35].map(|release| is_exclusive(&pod, &listed, release)), both, "{pod:?}");
        };
        use ContainerKind::{App, Init, Sidecar};
        check(pod(false, App, 2000, 1 << 30, &[]), [false; 2]);
        check(pod(true, App, 2000, 0, &[]), [true; 2]);
        check(pod(true, App, 1500, 0, &[]), [false; 2]);
        check(pod(true, App, 1500, 1 << 20, &[]), [true; 2]);
        check(pod(true, App, 0, 0, &[("hugepages-2Mi", 1 << 21)]), [true; 2]);
        check(pod(false, App, 0, 0, &[("hugepages-2Mi", 1 << 21)]), [false; 2]);
        check(pod(false, App, 0, 0, &[("example.com/nic", 1)]), [true; 2]);
        check(pod(false, Sidecar, 0, 0, &[("example.com/nic", 1)]), [true; 2]);
        check(pod(false, App, 0, 0, &[("example.com/unlisted", 1)]), [true, false]);
        // `IsExclusive` ignores the quantity of non-native resources.
        check(pod(false, App, 0, 0, &[("example.com/nic", 0)]), [true; 2]);
        check(pod(false, Sidecar, 0, 0, &[("example.com/nic", 0)]), [true; 2]);
        check(pod(false, Init, 0, 0, &[("example.com/nic", 0)]), [true, false]);
        check(pod(false, App, 0, 0, &[("example.com/unlisted", 0)]), [true, false]);
        check(pod(false, App, 0, 0, &[("example.kubernetes.io/native", 0)]), [false; 2]);
        check(pod(true, App, 0, 0, &[("hugepages-2Mi", 0)]), [false; 2]);
        // Its domain makes it a device.
        check(pod(true, App, 0, 0, &[("hugepages-a.b/c", 1)]), [true, false]);
        check(pod(false, Init, 0, 0, &[("example.com/nic", 1)]), [true, false]);
        check(pod(true, Init, 1000, 1, &[]), [true, false]);
        check(pod(false, App, 0, 0, &[("example.kubernetes.io/native", 1)]), [false; 2]);
    }
}
