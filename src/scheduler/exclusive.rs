//! Which pods have resources of their own, as the plugin sees it: by what they ask for, whatever the managers' policies
//! are (nrt.md 4.3; upstream: scheduler-plugins, `resourcerequests/exclusive.go`).

use super::PluginRelease;
use crate::pod::{Container, ContainerKind, Pod};

/// Does the plugin count `pod` among those with exclusive resources? `listed` says which resources some zone lists.
pub fn is_exclusive(pod: &Pod, listed: &dyn Fn(&str) -> bool, release: PluginRelease) -> bool {
    pod.containers.iter().any(|container| is_exclusive_container(pod, container, listed, release))
}

/// As [`is_exclusive`], for one container.
pub fn is_exclusive_container(
    pod: &Pod,
    container: &Container,
    listed: &dyn Fn(&str) -> bool,
    release: PluginRelease,
) -> bool {
    let old = release == PluginRelease::V0_34;
    if container.kind == ContainerKind::Init && !old {
        return false;
    }
    let names = || container.others.iter().map(|(name, _)| name.as_ref());
    if names().any(|name| !is_native(name) && (old || listed(name))) {
        return true;
    }
    let whole_cpus = container.cpu_milli > 0 && container.cpu_milli.is_multiple_of(1000);
    pod.said_guaranteed && (whole_cpus || container.memory > 0 || names().any(is_huge_pages))
}

/// As Kubernetes has it: everything without a domain, or with its own.
fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

pub(super) fn is_huge_pages(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use PluginRelease::{V0_34, V0_35};

    fn pod(guaranteed: bool, kind: ContainerKind, cpu: u64, memory: u64, others: &[(&str, u64)]) -> Pod {
        let others = others.iter().map(|(name, amount)| ((*name).into(), *amount)).collect();
        let container = Container { kind, cpu_milli: cpu, memory, others, ..Container::default() };
        Pod { said_guaranteed: guaranteed, containers: Box::new([container]), ..Pod::default() }
    }

    #[test]
    fn the_rule_goes_by_what_is_asked_for() {
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
        check(pod(false, Init, 0, 0, &[("example.com/nic", 1)]), [true, false]);
        check(pod(true, Init, 1000, 1, &[]), [true, false]);
        check(pod(false, App, 0, 0, &[("example.kubernetes.io/native", 1)]), [false; 2]);
    }
}
