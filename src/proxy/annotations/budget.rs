//! Limits what annotations add to a response. They are untrusted, and clients reject a response that is too
//! large, for all pods.

use super::error::ErrorKind;
use super::pod_reader::{PodDevice, PodReader};
use crate::proxy::allocations::CpusAndMemory;

/// Bytes of a device besides its id and its resource: keys, lengths and a NUMA node.
const DEVICE: usize = 24;
/// Bytes of a CPU, and of an amount of memory besides its name.
const CPU: usize = 2;
const MEMORY: usize = 24;

/// Removes devices, CPUs and memory until all pods together add no more than `bytes`, from the pods that add
/// the most. A pod that adds little loses nothing, however many others there are.
pub(super) fn enforce(pods: &mut [PodReader<'_>], bytes: usize) {
    let costs: Vec<usize> = pods.iter().map(cost).collect();
    let Some(share) = share(costs, bytes) else { return };
    for pod in pods {
        let cpus_and_memory = cost_of_cpus_and_memory(&pod.cpus_and_memory);
        let (fits, devices) = fitting(share, cpus_and_memory, pod.devices.iter().map(cost_of_device));
        if !fits {
            pod.cpus_and_memory = CpusAndMemory::default();
            pod.errors.add(ErrorKind::TooMany, || left_out("its CPUs and memory"));
        }
        if pod.devices.len() > devices {
            pod.devices.truncate(devices);
            pod.errors.add(ErrorKind::TooMany, || left_out("some of its devices"));
        }
    }
}

/// Returns whether a pod's CPUs and memory fit into its share, and how many of its devices fit besides them.
fn fitting(share: usize, cpus_and_memory: usize, devices: impl Iterator<Item = usize>) -> (bool, usize) {
    let fits = cpus_and_memory <= share;
    let mut left = if fits { share - cpus_and_memory } else { share };
    let devices = devices.take_while(|device| {
        let fits = *device <= left;
        left = left.saturating_sub(*device);
        fits
    });
    (fits, devices.count())
}

fn left_out(what: &str) -> String {
    format!("the annotations of all pods are too large for a response: {what} are left out")
}

/// Returns the maximum cost of each, so that all together cost no more than `limit`; `None` if they do not
/// exceed it.
fn share(mut costs: Vec<usize>, limit: usize) -> Option<usize> {
    if costs.iter().fold(0, |sum: usize, cost| sum.saturating_add(*cost)) <= limit {
        return None;
    }
    costs.sort_unstable();
    let (mut left, mut others) = (limit, costs.len());
    for cost in costs {
        if cost > left / others {
            break;
        }
        left -= cost;
        others -= 1;
    }
    Some(left / others)
}

fn cost(pod: &PodReader<'_>) -> usize {
    cost_of_cpus_and_memory(&pod.cpus_and_memory) + pod.devices.iter().map(cost_of_device).sum::<usize>()
}

fn cost_of_device(device: &PodDevice) -> usize {
    DEVICE + device.resource.len() + device.id.len()
}

fn cost_of_cpus_and_memory(CpusAndMemory { cpus, memory }: &CpusAndMemory) -> usize {
    let cpus = usize::try_from(cpus.len()).unwrap_or(usize::MAX);
    let memory: usize = memory.iter().map(|(name, ..)| MEMORY + name.len()).sum();
    cpus.saturating_mul(CPU).saturating_add(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_share_what_the_small_ones_leave() {
        assert_eq!(share(vec![30, 30, 40], 100), None);
        assert_eq!(share(vec![10, 30, 61], 100), Some(60));
        assert_eq!(share(vec![90, 10, 90], 100), Some(45));
        assert_eq!(share(vec![50, 50, 50, 50], 100), Some(25));
        assert_eq!(share(vec![3, 3, 5], 10), Some(4), "nothing is lost by rounding");
        assert_eq!(share(vec![7; 1000], 100), Some(0), "more pods than bytes");
    }

    #[test]
    fn devices_fit_besides_cpus_and_memory() {
        let fitting = |other, devices: &[usize]| fitting(100, other, devices.iter().copied());
        assert_eq!(fitting(100, &[]), (true, 0));
        assert_eq!(fitting(40, &[30, 30, 1]), (true, 2));
        assert_eq!(fitting(40, &[30, 31, 1]), (true, 1));
        assert_eq!(fitting(101, &[50, 50, 1]), (false, 2), "what is left out costs nothing");
    }

    #[test]
    fn cpus_and_memory_cost_their_encoded_size() {
        let memory = vec![("memory".into(), 1 << 30, 0), ("hugepages-1Gi".into(), 1 << 30, 0)];
        let both = CpusAndMemory { cpus: "0-9".parse().unwrap(), memory };
        assert_eq!(cost_of_cpus_and_memory(&both), 10 * 2 + (24 + 6) + (24 + 13));
    }
}
