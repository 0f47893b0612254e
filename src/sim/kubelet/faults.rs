//! What a kubelet does wrong, on demand.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use tonic::Code;

use super::model::Model;

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
    /// The answer as it was when the call came, but late: by then it may be old.
    Late(Duration),
    /// These bytes instead of an answer in gRPC's frame.
    Bytes(Vec<u8>),
    /// A good answer whose message is these bytes.
    Message(Vec<u8>),
    /// Half of the true answer; then the connection breaks, with all others.
    CutShort,
}

impl Fault {
    /// Is the answer no message at all?
    pub(super) fn is_raw(&self) -> bool {
        matches!(self, Self::Bytes(_) | Self::Message(_) | Self::CutShort)
    }
}

/// What the kubelet told at one moment, rightly or not. Calls that got no answer are not here.
#[derive(Clone, Debug)]
pub struct Told {
    /// The method: `List` (v1) or `GetAllocatableResources`.
    pub call: Call,
    /// When the kubelet looked at its state.
    pub at: Instant,
    /// Did it know its pods?
    pub pods_known: bool,
    /// Had its managers finished their start?
    pub managers_ready: bool,
    /// What was wrong with the answer.
    pub fault: Option<Fault>,
    /// The state that the answer told of: without the pods that it left out.
    pub model: Model,
}

/// How old the kubelet is: each variant behaves like the releases from that one to the next. What stands at a variant
/// came with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Age {
    /// Only v1alpha1 (before 1.20).
    OnlyV1alpha1,
    /// v1 with `List`, which names devices and exclusive CPUs.
    V1_20,
    /// `GetAllocatableResources`, behind a feature gate that is on here: no memory, and of the CPUs those that were free
    /// when the kubelet started.
    V1_21,
    /// `GetAllocatableResources` by default; memory in both; all CPUs that may be exclusive are allocatable.
    V1_23,
    /// The request limiter; `Get`, but switched off.
    V1_27,
    /// Sidecars are in the List.
    V1_29,
    /// The List names active pods only, no longer those that have ended; `Get` and `dynamic_resources`.
    #[default]
    V1_34,
    /// Shared devices in `dynamic_resources`.
    V1_35,
    /// Pod-level entries in the state files.
    V1_36,
    /// Pod-level CPUs and memory in the List, and in the state files only in `data`, JSON as text.
    V1_37,
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

    /// The next fault of a call, if it is one of those that no service can make.
    pub(super) fn take_raw(&mut self, call: Call) -> Option<Fault> {
        let waiting = self.0.get_mut(&call)?;
        waiting.front()?.is_raw().then(|| waiting.pop_front())?
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
