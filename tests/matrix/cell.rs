//! What one walk is run on, and what it came to: the same for real and for simulated kubelets.

use std::fmt;

/// On what a cell runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// A real kubelet on a described machine.
    Real,
    /// A simulated one.
    Sim,
}

/// One row of the table before it is run.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) half: Half,
    /// A file of `tests/machines/`.
    pub(crate) machine: String,
    /// The kubelet's minor version: `1.33`.
    pub(crate) version: String,
    /// `None`: as the machine's description has them.
    pub(crate) policies: Option<Policies>,
}

/// The kubelet's policies, in its own words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policies {
    pub(crate) cpu: &'static str,
    pub(crate) memory: &'static str,
    pub(crate) topology: &'static str,
    pub(crate) scope: &'static str,
    /// An option of the CPU Manager's policy that is on.
    pub(crate) option: Option<&'static str>,
    /// CPUs are reserved by number, not by id: the kubelet chooses which.
    pub(crate) numeric: bool,
    /// Feature gates for which pods with resources of their own are resized in place.
    pub(crate) exclusive_resize: bool,
}

/// What a walk came to.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    /// Pods started.
    pub(crate) pods: usize,
    /// Steps taken.
    pub(crate) steps: usize,
    /// Steps after which the published object did not say what the oracle says, and how it differed.
    pub(crate) differences: Vec<String>,
    /// Why there was no walk, where that is known to be so: the kubelet's own words.
    pub(crate) refused: Option<String>,
    /// Why the walk ended before its time.
    pub(crate) broken: Option<String>,
}

impl Outcome {
    /// No walk so far.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, pods: 0, steps: 0, differences: Vec::new(), refused: None, broken: None }
    }

    /// Nothing is wrong, unless that the kubelet cannot live on such a machine.
    pub(crate) fn is_good(&self) -> bool {
        self.differences.is_empty() && self.broken.is_none()
    }
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Real => "real",
            Self::Sim => "sim",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { half, machine, version, policies } = self;
        write!(f, "{half} {machine} {version} ")?;
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
        let Self { seed, pods, steps, differences, refused, broken } = self;
        if let Some(refused) = refused {
            return write!(f, "the kubelet refuses: {refused}");
        }
        write!(f, "{steps} steps, {pods} pods, {} differences, seed {seed}", differences.len())?;
        broken.as_ref().map_or(Ok(()), |why| write!(f, "; broken off: {why}"))
    }
}
