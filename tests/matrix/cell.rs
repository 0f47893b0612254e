//! The parameters and the outcome of one walk, for real and for simulated kubelets.

use std::fmt;

/// What a cell runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KubeletKind {
    /// A real kubelet on a described machine.
    Real,
    /// A simulated kubelet.
    Sim,
}

/// The parameters of one row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) kind: KubeletKind,
    /// Name of a file of `tests/machines/`.
    pub(crate) machine: String,
    /// The kubelet's minor version: `1.33`.
    pub(crate) version: String,
    /// The kubelet's policies; `None` for those of the machine's description.
    pub(crate) policies: Option<Policies>,
}

/// The kubelet's policies, as spelled in its configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policies {
    pub(crate) cpu: &'static str,
    pub(crate) memory: &'static str,
    pub(crate) topology: &'static str,
    pub(crate) scope: &'static str,
    /// An enabled option of the CPU Manager's policy.
    pub(crate) option: Option<&'static str>,
    /// CPUs are reserved by number instead of ID, so the kubelet chooses them.
    pub(crate) numeric: bool,
    /// Enables the feature gates for in-place resizes of pods with exclusive resources.
    pub(crate) exclusive_resize: bool,
}

/// The outcome of a walk.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    /// Pods started.
    pub(crate) pods: usize,
    /// Steps taken.
    pub(crate) steps: usize,
    /// Differences between the published object and the oracle, one entry per step.
    pub(crate) differences: Vec<String>,
    /// The kubelet's error, if it is known not to start on this machine, or rejects its own checkpoint.
    pub(crate) kubelet_error: Option<String>,
    /// The error that aborted the walk.
    pub(crate) aborted: Option<String>,
}

impl Outcome {
    /// Creates an outcome without steps.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, pods: 0, steps: 0, differences: Vec::new(), kubelet_error: None, aborted: None }
    }

    /// Returns true if nothing failed. A kubelet known not to start is no failure.
    pub(crate) fn is_good(&self) -> bool {
        self.differences.is_empty() && self.aborted.is_none()
    }
}

impl fmt::Display for KubeletKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Real => "real",
            Self::Sim => "sim",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, machine, version, policies } = self;
        write!(f, "{kind} {machine} {version} ")?;
        match policies {
            Some(policies) => policies.fmt(f),
            None => f.write_str("as described"),
        }
    }
}

impl fmt::Display for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, memory, topology, scope, option, numeric, exclusive_resize } = self;
        write!(f, "{cpu} {memory} {topology} {scope}")?;
        option.map_or(Ok(()), |option| write!(f, " {option}"))?;
        f.write_str(if *numeric { " numeric" } else { "" })?;
        f.write_str(if *exclusive_resize { " resize" } else { "" })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, pods, steps, differences, kubelet_error, aborted } = self;
        write!(f, "{steps} steps, {pods} pods, {} differences, seed {seed}", differences.len())?;
        if let Some(kubelet_error) = kubelet_error {
            write!(f, "; the kubelet does not start: {kubelet_error}")?;
        }
        aborted.as_ref().map_or(Ok(()), |error| write!(f, "; aborted: {error}"))
    }
}
