//! Which container of a pod has which device: what is allocated by annotation is allocated to the pod as a whole.

use super::UNASKED_LIMIT;
use super::koordinator::own;
use super::names::{GPU, counts_accelerators};
use crate::pod::{Container, ContainerKind};

/// All of a device.
const WHOLE: u64 = 100;

/// For each of `count` devices the position of its container among `containers`; nothing if there is none for them. Fewer
/// than `count` if nobody asks for that many: an annotation is whatever the pod's owner wrote, and must not make answers large.
///
/// Containers that ask get as many as they ask for, in the order of the specification. Of what is no accelerator more may be
/// given than is asked for; that goes to the last of them. Where nobody asks, the first container that is no sidecar has all.
/// Each device is with one container: of those that share one, two that ask for half a card each, it is the first.
/// Koordinator lets every container of a pod see all of its accelerators, but whoever counts ids counts devices.
pub(super) fn distribute(
    containers: &[Container],
    kind: Option<&str>,
    resource: &str,
    count: usize,
) -> Option<Vec<usize>> {
    let stays = |container: &Container| container.kind != ContainerKind::Init;
    let staying = || containers.iter().enumerate().filter(|(_, container)| stays(container));
    // Where requests are counts (`RequestsAsCount` of Koordinator's `device-allocate-hint`) they are what was allocated.
    let raw = staying().flat_map(|(_, container)| container.wanted());
    let raw = raw.filter(|(name, _)| kind != Some(GPU) && own(name).is_some_and(|own| kind == Some(own)));
    let all = match raw.map(|(_, amount)| u128::from(amount)).sum::<u128>() == count as u128 {
        true => 1,
        false => WHOLE,
    };
    let asking = staying().map(|(at, container)| (at, asked(container, kind, resource, all)));
    let asking: Vec<(usize, usize)> = asking.filter(|(_, asked)| *asked > 0).collect();
    let Some((last, _)) = asking.last() else {
        let regular = containers.iter().position(|container| container.kind == ContainerKind::App)?;
        return Some(vec![regular; count.min(UNASKED_LIMIT)]);
    };
    let shares = asking.iter().flat_map(|(at, asked)| std::iter::repeat_n(*at, (*asked).min(count)));
    let unasked = if kind == Some(GPU) { 0 } else { UNASKED_LIMIT };
    Some(shares.chain(std::iter::repeat_n(*last, unasked)).take(count).collect())
}

/// How many devices of a resource a container may be given by name.
pub(super) fn at_most(container: &Container, resource: &str) -> usize {
    asked(container, None, resource, WHOLE).max(UNASKED_LIMIT)
}

/// How many devices a container asks for; all of one that is no accelerator is so much.
fn asked(container: &Container, kind: Option<&str>, resource: &str, all: u64) -> usize {
    let devices = |(name, amount)| devices(name, amount, kind, resource, all);
    // Of two names for the same devices one tells as much as the other.
    let most = container.wanted().map(devices).max().unwrap_or(0);
    // Shares of several devices are their sum; this says how many they are.
    let shared = container.wanted().find(|(name, _)| kind == Some(GPU) && own(name) == Some("gpu.shared"));
    usize::try_from(shared.map_or(most, |(_, amount)| amount)).unwrap_or(usize::MAX)
}

/// How many devices an amount of a resource is.
fn devices(name: &str, amount: u64, kind: Option<&str>, resource: &str, all: u64) -> u64 {
    match (kind, own(name)) {
        (Some(GPU), Some("gpu" | "gpu-core" | "gpu-memory-ratio")) => amount.div_ceil(WHOLE),
        (Some(GPU), Some("gpu-memory")) => 1,
        (Some(GPU), None) if name.starts_with("huawei.com/npu-") => 1,
        (Some(GPU), None) if counts_accelerators(name) || name.starts_with("huawei.com/Ascend") => amount,
        (Some(kind), Some(own)) if own == kind => amount.div_ceil(all),
        _ if name == resource => amount,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::container;
    use super::*;

    /// Of two containers, the first of which asks for one whole device, how many of three devices the second has.
    fn of_the_second(kind: &str, resource: &str, wanted: &[(&str, u64)]) -> usize {
        let one = if kind == GPU { ("koordinator.sh/gpu", 100) } else { ("koordinator.sh/rdma", 100) };
        let containers = [container("a", &[one]), container("b", wanted)];
        let given = distribute(&containers, Some(kind), resource, 3).unwrap();
        given.into_iter().filter(|at| *at == 1).count()
    }

    #[test]
    fn every_name_of_accelerators_says_how_many() {
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

    #[test]
    fn requests_that_add_up_to_the_devices_are_counts() {
        let given = |first: &[(&str, u64)], second: &[(&str, u64)]| {
            let containers = [container("a", first), container("b", second)];
            distribute(&containers, Some("rdma"), "koordinator.sh/rdma", 3).unwrap()
        };
        let rdma = "koordinator.sh/rdma";
        assert_eq!(given(&[(rdma, 2), ("koordinator.sh/gpu", 100)], &[(rdma, 1)]), [0, 0, 1]);
        assert_eq!(given(&[(rdma, 200)], &[(rdma, 100)]), [0, 0, 1]);
    }
}
