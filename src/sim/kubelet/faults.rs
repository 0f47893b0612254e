//! What a kubelet does wrong, on demand.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tonic::Code;

/// One method of the podresources API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// `List`, of either version.
    List,
    /// `GetAllocatableResources`.
    Allocatable,
    /// `Get`.
    Get,
}

/// What happens to one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This gRPC status instead of an answer.
    Status(Code, String),
    /// The true answer, but late.
    Delay(Duration),
    /// An answer padded to at least this many bytes.
    Oversize(usize),
    /// An answer without anything in it.
    Empty,
    /// A List of at most this many pods.
    Partial(usize),
    /// No answer ever.
    Hang,
}

/// How old the kubelet is, as far as its podresources API goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Age {
    /// v1 with all three methods, v1alpha1; the List names active pods only (1.34 and later).
    #[default]
    Current,
    /// As before, but pods that have ended stay in the List, and `Get` is switched off (1.23 to 1.33).
    Before134,
    /// No `GetAllocatableResources` (1.20).
    Before121,
    /// Only v1alpha1 (before 1.20).
    OnlyV1alpha1,
}

/// The faults that wait for their call.
#[derive(Debug, Default)]
pub(super) struct Faults(BTreeMap<Call, VecDeque<Fault>>);

impl Faults {
    pub(super) fn push(&mut self, call: Call, times: usize, fault: &Fault) {
        self.0.entry(call).or_default().extend(std::iter::repeat_n(fault.clone(), times));
    }

    pub(super) fn take(&mut self, call: Call) -> Option<Fault> {
        self.0.get_mut(&call)?.pop_front()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
