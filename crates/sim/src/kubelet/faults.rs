//! Faults of a kubelet, injected on demand.

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
    /// This gRPC status instead of a response.
    Status(Code, String),
    /// A correct response, delayed: the state is read after the delay.
    Delay(Duration),
    /// A response padded to at least this many bytes.
    Oversize(usize),
    /// An empty response.
    Empty,
    /// A List of at most this many pods, the oldest.
    Partial(usize),
    /// No response ever.
    Hang,
    /// A delayed response: the state is read before the delay, so it may be stale.
    Stale(Duration),
    /// A gRPC frame of these bytes, without trailers.
    Bytes(Vec<u8>),
    /// A successful response whose message is these bytes.
    Message(Vec<u8>),
    /// Half of the correct response; then all connections are closed.
    CutShort,
}

/// The message with which the rate limiter rejects a call.
pub(super) const RATE_LIMITED: &str = "rejected by rate limit";

impl Fault {
    /// The error of a call that the rate limiter rejects.
    #[must_use]
    pub fn rate_limited() -> Self {
        Self::Status(Code::ResourceExhausted, RATE_LIMITED.into())
    }

    /// Returns true if the response is written as raw bytes, not as a message.
    pub(super) fn is_raw(&self) -> bool {
        matches!(self, Self::Bytes(_) | Self::Message(_) | Self::CutShort)
    }
}

/// A recorded response of the kubelet, correct or not. Calls without a response are not recorded.
#[derive(Clone, Debug)]
pub struct RecordedResponse {
    /// The method: `List` (v1) or `GetAllocatableResources`.
    pub call: Call,
    /// When the kubelet read its state.
    pub at: Instant,
    /// Whether the kubelet knew its pods.
    pub pods_known: bool,
    /// Whether its managers were initialized.
    pub managers_ready: bool,
    /// The fault in the response. In a List, `None` also for `Empty` or `Partial` if no allocated pod was
    /// omitted.
    pub fault: Option<Fault>,
    /// The state that the response reported, without the pods that it omitted.
    pub model: Model,
}

/// The queued faults by method.
#[derive(Debug, Default)]
pub(super) struct Faults(BTreeMap<Call, VecDeque<Fault>>);

impl Faults {
    pub(super) fn push(&mut self, call: Call, times: usize, fault: &Fault) {
        self.0.entry(call).or_default().extend(std::iter::repeat_n(fault.clone(), times));
    }

    pub(super) fn take(&mut self, call: Call) -> Option<Fault> {
        self.0.get_mut(&call)?.pop_front()
    }

    /// Takes the next fault of a method if it is a raw one, which the gRPC service cannot produce.
    pub(super) fn take_raw(&mut self, call: Call) -> Option<Fault> {
        let queue = self.0.get_mut(&call)?;
        queue.front()?.is_raw().then(|| queue.pop_front())?
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
