//! Which container of a pod gets a device whose annotation names no container.

use super::MAX_UNREQUESTED;
use super::resource_names::{GPU, counts_accelerators, unprefixed};
use crate::pod::{Container, ContainerKind};

/// The amount that stands for a whole device.
const WHOLE: u64 = 100;

/// Assigns `count` devices to a pod's containers. Returns the container's index for each device; `None` if no
/// container can have any.
///
/// - Containers that request devices get as many as they request, in the order of the specification.
/// - Up to `MAX_UNREQUESTED` more go to the last of these containers, unless they are accelerators.
/// - If no container requests any, up to `MAX_UNREQUESTED` go to the first app container.
/// - Init containers get none.
///
/// The indices are fewer than `count` if devices are left over: an annotation is untrusted, and must not make
/// responses large.
///
/// A device is assigned to one container only, even if two request half of it each: clients count ids.
/// (Koordinator itself lets every container of a pod see all of the pod's accelerators.)
pub(super) fn assign(
    containers: &[Container],
    kind: Option<&str>,
    resource: &str,
    count: usize,
) -> Option<Vec<usize>> {
    let running = || {
        let all = containers.iter().enumerate();
        all.filter(|(_, container)| container.kind != ContainerKind::Init)
    };
    // Koordinator's types other than `gpu` are requested in hundredths of a device, unless the requests add up
    // to the number of allocated devices: then they are counts (`RequestsAsCount` of its `device-allocate-hint`).
    let requests = running().flat_map(|(_, container)| container.requested());
    let has_unit = kind.is_some_and(|kind| kind != GPU);
    let requests = requests.filter(|(name, _)| has_unit && unprefixed(name) == kind);
    let unit = match requests.map(|(_, amount)| u128::from(amount)).sum::<u128>() == count as u128 {
        true => 1,
        false => WHOLE,
    };
    let requesting = running().map(|(at, container)| (at, requested(container, kind, resource, unit)));
    let requesting: Vec<(usize, usize)> = requesting.filter(|(_, requested)| *requested > 0).collect();
    let Some((last, _)) = requesting.last() else {
        let app = containers.iter().position(|container| container.kind == ContainerKind::App)?;
        return Some(vec![app; count.min(MAX_UNREQUESTED)]);
    };
    let shares = requesting.iter().flat_map(|(at, number)| std::iter::repeat_n(*at, (*number).min(count)));
    let unrequested = if kind == Some(GPU) { 0 } else { MAX_UNREQUESTED };
    Some(shares.chain(std::iter::repeat_n(*last, unrequested)).take(count).collect())
}

pub(super) fn max_devices(container: &Container, resource: &str) -> usize {
    requested(container, None, resource, WHOLE).max(MAX_UNREQUESTED)
}

/// Returns how many devices a container requests. Except for accelerators, `unit` is the amount that stands
/// for one device.
fn requested(container: &Container, kind: Option<&str>, resource: &str, unit: u64) -> usize {
    let devices = |(name, amount)| devices(name, amount, kind, resource, unit);
    // Two names for the same devices are not added up: the larger amount counts.
    let most = container.requested().map(devices).max().unwrap_or(0);
    // Shares of several devices are given as their sum; `gpu.shared` is the number of devices.
    let is_shared = |name: &str| kind == Some(GPU) && unprefixed(name) == Some("gpu.shared");
    let shared = container.requested().find(|(name, _)| is_shared(name));
    usize::try_from(shared.map_or(most, |(_, amount)| amount)).unwrap_or(usize::MAX)
}

fn devices(name: &str, amount: u64, kind: Option<&str>, resource: &str, unit: u64) -> u64 {
    match (kind, unprefixed(name)) {
        (Some(GPU), Some("gpu" | "gpu-core" | "gpu-memory-ratio")) => amount.div_ceil(WHOLE),
        (Some(GPU), Some("gpu-memory")) => 1,
        (Some(GPU), None) if name.starts_with("huawei.com/npu-") => 1,
        (Some(GPU), None) if counts_accelerators(name) || name.starts_with("huawei.com/Ascend") => amount,
        (Some(kind), Some(own)) if own == kind => amount.div_ceil(unit),
        _ if name == resource => amount,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::tests::container;

    /// Returns how many of three devices the second container gets, if the first requests one whole device.
    fn of_the_second(kind: &str, resource: &str, wanted: &[(&str, u64)]) -> usize {
        let one = if kind == GPU { ("koordinator.sh/gpu", 100) } else { ("koordinator.sh/rdma", 100) };
        let containers = [container("a", &[one]), container("b", wanted)];
        let assigned = assign(&containers, Some(kind), resource, 3).unwrap();
        assigned.into_iter().filter(|at| *at == 1).count()
    }

    #[test]
    fn every_resource_name_of_accelerators_is_counted() {
        let names = [
            ("koordinator.sh/gpu", 200, 2),
            ("koordinator.sh/gpu-core", 150, 2),
            ("koordinator.sh/gpu-memory-ratio", 50, 1),
            ("koordinator.sh/gpu-memory", 16 << 30, 1),
            ("koordinator.sh/gpu.shared", 2, 2),
            ("koordinator.sh/rdma", 200, 0),
            ("huawei.com/npu-core", 2, 1),
            ("huawei.com/Ascend910", 2, 2),
            ("nvidia.com/gpu", 2, 2),
            ("dcu.com/gpu", 2, 2),
            ("example.com/other", 2, 0),
            ("example.com/own", 2, 2),
        ];
        for (name, amount, devices) in names {
            assert_eq!(of_the_second(GPU, "example.com/own", &[(name, amount)]), devices, "{name}");
        }
    }
}
