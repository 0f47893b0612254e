//! Limits what annotations add to a response. They are untrusted, written by the pods' creators, and a
//! response that is too large is rejected by the clients for all pods.

use super::koordinator::Status;
use super::plan::{Draft, Wanted};
use super::problem::Kind;

/// Bytes of a device besides its id and its resource: keys, lengths and a NUMA node.
const DEVICE: usize = 24;
/// Bytes of a CPU, and of an amount of memory besides its name.
const CPU: usize = 2;
const MEMORY: usize = 24;

/// Removes devices, CPUs and memory until all pods together add no more than `bytes`, from the pods that add
/// the most. A pod that adds little loses nothing, however many others there are.
pub(super) fn keep(drafts: &mut [Draft<'_>], bytes: usize) {
    let costs: Vec<usize> = drafts.iter().map(cost).collect();
    let Some(share) = share(costs, bytes) else { return };
    for draft in drafts {
        let (status, devices) = fitting(share, of_status(&draft.status), draft.wanted.iter().map(of_device));
        if !status {
            draft.status = Status::default();
            draft.problems.add(Kind::TooMany, 0, || too_much("its CPUs and memory"));
        }
        let more = draft.wanted.split_off(devices).len();
        if more > 0 {
            draft.problems.add(Kind::TooMany, more, || too_much("some of its devices"));
        }
    }
}

/// Returns whether a pod's CPUs and memory fit into its share, and how many of its devices fit besides them.
fn fitting(share: usize, status: usize, devices: impl Iterator<Item = usize>) -> (bool, usize) {
    let fits = status <= share;
    let mut left = if fits { share - status } else { share };
    let devices = devices.take_while(|device| {
        let fits = *device <= left;
        left = left.saturating_sub(*device);
        fits
    });
    (fits, devices.count())
}

fn too_much(what: &str) -> String {
    format!("the annotations of all pods are too large for an answer: {what} are left out")
}

/// Returns the maximum cost of each, so that all together cost no more than `most`; `None` if they do not
/// exceed it.
fn share(mut costs: Vec<usize>, most: usize) -> Option<usize> {
    if costs.iter().fold(0, |sum: usize, cost| sum.saturating_add(*cost)) <= most {
        return None;
    }
    costs.sort_unstable();
    let (mut left, mut others) = (most, costs.len());
    for cost in costs {
        if cost > left / others {
            break;
        }
        left -= cost;
        others -= 1;
    }
    Some(left / others)
}

fn cost(draft: &Draft<'_>) -> usize {
    of_status(&draft.status) + draft.wanted.iter().map(of_device).sum::<usize>()
}

fn of_device(wanted: &Wanted) -> usize {
    DEVICE + wanted.resource.len() + wanted.id.len()
}

fn of_status(status: &Status) -> usize {
    let cpus = usize::try_from(status.cpus.len()).unwrap_or(usize::MAX);
    let memory: usize = status.memory.iter().map(|(name, ..)| MEMORY + name.len()).sum();
    cpus.saturating_mul(CPU).saturating_add(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_little_keeps_it_and_the_others_share_what_is_left() {
        assert_eq!(share(vec![30, 30, 40], 100), None);
        assert_eq!(share(vec![10, 30, 61], 100), Some(60));
        assert_eq!(share(vec![90, 10, 90], 100), Some(45));
        assert_eq!(share(vec![50, 50, 50, 50], 100), Some(25));
        assert_eq!(share(vec![3, 3, 5], 10), Some(4), "nothing is lost by rounding");
        assert_eq!(share(vec![7; 1000], 100), Some(0), "more pods than bytes");
    }

    #[test]
    fn devices_fit_beside_cpus_and_memory() {
        let fitting = |status, devices: &[usize]| fitting(100, status, devices.iter().copied());
        assert_eq!(fitting(100, &[]), (true, 0));
        assert_eq!(fitting(40, &[30, 30, 1]), (true, 2));
        assert_eq!(fitting(40, &[30, 31, 1]), (true, 1));
        assert_eq!(fitting(101, &[50, 50, 1]), (false, 2), "what is left out takes no room");
    }

    #[test]
    fn cpus_and_memory_take_what_they_take_in_an_answer() {
        let memory = vec![("memory".into(), 1 << 30, 0), ("hugepages-1Gi".into(), 1 << 30, 0)];
        let status = Status { cpus: "0-9".parse().unwrap(), memory };
        assert_eq!(of_status(&status), 10 * 2 + (24 + 6) + (24 + 13));
    }
}
