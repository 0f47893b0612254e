//! The events of the simulation, and what its components receive.

use std::cmp::Ordering;

use super::super::cluster::{NodeId, Object, PodId, PodState};
use super::super::kubelet::List;
use super::super::time::Time;

/// The watchers of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watcher {
    Scheduler = 0,
    Plugin = 1,
    Exporter = 2,
    Kubelet = 3,
}

/// A delayed action of a kubelet, dropped after its restart.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KubeletTask {
    Admit,
    Start(PodId),
    ReportRunning(PodId),
    /// The containers have terminated.
    Stop(PodId),
    Report(PodId),
    Remove(PodId),
    /// Create the mirror pod of a static pod.
    Mirror(PodId),
    /// Load one more pod or, with `None`, finish loading.
    Load(Option<PodId>),
}

/// An input of the exporter.
#[derive(Clone, Debug)]
pub(crate) enum ExporterInput {
    /// Its process starts. It reads its initial state from the simulation.
    Started,
    /// It received the signal to stop, and may write once more.
    Stopping,
    /// One pod; `None` if it was removed.
    Pod(PodId, Option<PodState>),
    /// A relist: all pods of its node.
    Pods(Vec<(PodId, PodState)>),
    /// The pod watch is broken.
    WatchLost,
    /// A checkpoint of the kubelet changed.
    Checkpoint,
    /// The kubelet's socket is back.
    KubeletStarted,
    Listed(List),
    /// The write in progress is complete.
    Written,
    Timer(u32),
}

/// An event of the simulation.
#[derive(Clone, Debug)]
pub(super) enum Event {
    PodChanged {
        watcher: Watcher,
        epoch: u32,
        pod: PodId,
        state: Option<PodState>,
    },
    Relisted {
        node: NodeId,
        epoch: u32,
        pods: Vec<(PodId, PodState)>,
    },
    /// The scheduler's watch reports a write of an object.
    ObjectChanged,
    /// The plugin's watch reports changed attributes.
    AttributesChanged(NodeId, Box<Object>),
    Cycle,
    /// The cycle reads the objects.
    CycleReads(PodId),
    CycleEnds {
        pod: PodId,
        result: CycleResult,
    },
    Bind(PodId),
    PostBind(PodId),
    FlushBackoff,
    FlushUnschedulable,
    Tick,
    TickRead,
    TickFlush,
    Kubelet {
        node: NodeId,
        starts: u32,
        task: KubeletTask,
    },
    KubeletUp(NodeId),
    Checkpoint(NodeId),
    List {
        node: NodeId,
        epoch: u32,
    },
    Commit {
        node: NodeId,
        object: Box<Object>,
    },
    Exporter {
        node: NodeId,
        epoch: u32,
        input: Box<ExporterInput>,
    },
    Controller(ControllerInput),
    /// The controller's write arrives at the API server.
    Nudge,
    DriverTimer(u64),
}

/// The result of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CycleResult {
    Node(NodeId),
    /// Whether the plugin rejected the pod on some node; if not, no node has enough in total.
    None {
        by_plugin: bool,
    },
}

/// An input of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControllerInput {
    /// An exporter changed an object.
    ObjectChanged,
    /// The plugin rejects this pod.
    Pending(PodId),
    /// It no longer does, or the pod was bound or deleted.
    NotPending(PodId),
    /// Its write is complete.
    Nudged,
    Timer(u32),
}

/// An event in the order of its time, and of its creation at the same time.
pub(super) struct ScheduledEvent {
    pub(super) at: Time,
    pub(super) number: u64,
    pub(super) event: Event,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A notification for the driver of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverEvent {
    /// A timer of the driver.
    Timer(u64),
    Rejected(PodId),
    /// The pod's status is Running.
    Running(PodId),
    /// The pod's status is terminal.
    Terminated(PodId),
}
