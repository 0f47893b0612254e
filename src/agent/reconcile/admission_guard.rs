//! Waits until the kubelet has admitted a pod completely.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::plan::{Check, Retry};
use crate::agent::observe::{Depth, Scan};
use crate::kubelet::PodUsage;
use crate::pod::PodName;

/// Delay before a half-admitted pod is scanned again.
const RETRY: Duration = Duration::from_millis(10);

/// Detects pods that a scan found in the middle of their admission. Each is waited for once.
#[derive(Debug, Default)]
pub(super) struct AdmissionGuard {
    waited_for: BTreeSet<PodName>,
}

impl AdmissionGuard {
    pub(super) fn check(&mut self, scan: &Scan, now: Instant) -> Check {
        let has_memory_manager = !scan.inventory.allocatable.memory.is_empty();
        let half_admitted = scan.usage.pods.iter().filter(|pod| has_memory_manager && is_half_admitted(pod));
        let half_admitted: BTreeSet<PodName> = half_admitted.map(PodUsage::full_name).collect();
        let is_new = !half_admitted.is_subset(&self.waited_for);
        self.waited_for = half_admitted;
        if !is_new {
            return Check::Pass;
        }
        let why = "a pod is being admitted".to_owned();
        Check::Wait { why, retry: Retry::At(now + RETRY, Depth::Usage) }
    }
}

/// Returns true if the kubelet is in the middle of admitting the pod. With the static Memory Manager policy,
/// a container that is allocated exclusive CPUs is allocated memory right after them, and so is every
/// container of a pod if one is: all of that is for Guaranteed pods only.
fn is_half_admitted(pod: &PodUsage) -> bool {
    let has_memory = pod.containers.iter().any(|container| !container.memory.is_empty());
    pod.containers.iter().any(|c| c.memory.is_empty() && (has_memory || !c.cpus.is_empty()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::agent::observe::Inventory;
    use crate::kubelet::{Allocatable, ContainerUsage, MemoryBlock, Usage};

    fn pod(name: &str, containers: &[(&str, bool)]) -> PodUsage {
        let container = |(cpus, memory): &(&str, bool)| ContainerUsage {
            cpus: cpus.parse().unwrap(),
            memory: vec![MemoryBlock::default(); usize::from(*memory)],
            ..ContainerUsage::default()
        };
        PodUsage {
            name: name.into(),
            containers: containers.iter().map(container).collect(),
            ..PodUsage::default()
        }
    }

    #[test]
    fn a_pod_is_half_admitted_until_every_container_has_its_memory() {
        let is_half_admitted = |containers: &[(&str, bool)]| is_half_admitted(&pod("a", containers));
        assert!(!is_half_admitted(&[("", false)]), "it may never get anything");
        assert!(is_half_admitted(&[("1", false)]));
        assert!(!is_half_admitted(&[("1", true)]));
        assert!(!is_half_admitted(&[("", true)]), "a fraction of a CPU is never exclusive");
        assert!(is_half_admitted(&[("1", true), ("", false)]));
        assert!(!is_half_admitted(&[("1", true), ("", true)]));
    }

    fn scan(pods: &[PodUsage], has_memory_manager: bool) -> Scan {
        let memory = vec![MemoryBlock::default(); usize::from(has_memory_manager)];
        let allocatable = Allocatable { memory, ..Allocatable::default() };
        Scan {
            usage: Arc::new(Usage { pods: pods.to_vec() }),
            inventory: Arc::new(Inventory { allocatable, ..Inventory::default() }),
            ..Scan::default()
        }
    }

    #[test]
    fn each_half_admitted_pod_is_waited_for_once() {
        let mut guard = AdmissionGuard::default();
        let now = Instant::now();
        let (a, b) = (pod("a", &[("1", false)]), pod("b", &[("2", false)]));
        let first = scan(std::slice::from_ref(&a), true);
        let Check::Wait { retry, .. } = guard.check(&first, now) else { panic!("it is not waited for") };
        assert_eq!(retry, Retry::At(now + RETRY, Depth::Usage));
        assert_eq!(guard.check(&first, now), Check::Pass);
        assert!(matches!(guard.check(&scan(&[a.clone(), b], true), now), Check::Wait { .. }), "b is new");
        assert_eq!(guard.check(&scan(&[pod("a", &[("1", true)])], true), now), Check::Pass);
        assert!(matches!(guard.check(&first, now), Check::Wait { .. }), "it may be another pod of that name");
        assert_eq!(AdmissionGuard::default().check(&scan(&[a], false), now), Check::Pass);
    }
}
