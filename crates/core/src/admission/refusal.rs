//! Why a kubelet refuses a pod.

use std::fmt;

use super::Placement;

/// Why a kubelet refuses a pod, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason in the pod's status.
    pub reason: Reason,
    /// The message in the pod's status.
    pub message: String,
    /// The container that cannot be placed; empty if it is the pod as a whole.
    pub container: String,
    /// The resources that no set of nodes suits; several that each fit somewhere do not fit together.
    pub resources: Vec<String>,
    /// What the pod's containers were allocated before.
    pub placed: Vec<Placement>,
}

/// The reasons of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The Topology Manager's policy does not allow any placement.
    TopologyAffinity,
    /// The CPUs are not whole cores.
    SmtAlignment,
    /// Containers of a pod with pod-level resources have nothing left to share.
    EmptyPodSharedPool,
    /// A manager cannot allocate what the Topology Manager has admitted.
    UnexpectedAdmission,
}

impl Reason {
    /// Returns the reason in the pod's status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TopologyAffinity => "TopologyAffinityError",
            Self::SmtAlignment => "SMTAlignmentError",
            Self::EmptyPodSharedPool => "EmptyPodSharedPoolError",
            Self::UnexpectedAdmission => "UnexpectedAdmissionError",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

const MISALIGNED: &str = "Resources cannot be allocated with Topology locality";

impl Refusal {
    fn new(reason: Reason, message: String) -> Self {
        Self { reason, message, container: String::new(), resources: Vec::new(), placed: Vec::new() }
    }

    pub(super) fn misaligned(resources: Vec<String>) -> Self {
        Self { resources, ..Self::new(Reason::TopologyAffinity, MISALIGNED.to_owned()) }
    }

    pub(super) fn unexpected(what: impl fmt::Display) -> Self {
        let message = format!("Allocate failed due to {what}, which is unexpected");
        Self::new(Reason::UnexpectedAdmission, message)
    }

    pub(super) fn empty_shared_pool(message: String) -> Self {
        Self::new(Reason::EmptyPodSharedPool, message)
    }

    pub(super) fn not_whole_cores(count: u64, threads: u64) -> Self {
        let message =
            format!("SMT Alignment Error: requested {count} cpus not multiple cpus per core = {threads}");
        Self { resources: vec!["cpu".to_owned()], ..Self::new(Reason::SmtAlignment, message) }
    }

    pub(super) fn too_few_cores(count: u64, threads: u64, available: u64) -> Self {
        let message = format!(
            "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested \
             CPUs = {count}, CPUs per core = {threads}"
        );
        Self { resources: vec!["cpu".to_owned()], ..Self::new(Reason::SmtAlignment, message) }
    }

    pub(super) fn in_container(mut self, container: &str) -> Self {
        if self.container.is_empty() {
            container.clone_into(&mut self.container);
        }
        self
    }

    pub(super) fn after(mut self, placed: Vec<Placement>) -> Self {
        self.placed = placed;
        self
    }

    pub(super) fn of_pod_level(mut self, pod_level: bool) -> Self {
        if pod_level && self.reason == Reason::TopologyAffinity {
            let which = match self.container.is_empty() {
                true => "pod with pod-level resources failed admission under pod-scope topology manager",
                false => {
                    "pod with pod-level resources failed admission with a container-level topology manager"
                }
            };
            self.message = format!("Pod Scope {which}");
        }
        self
    }
}
