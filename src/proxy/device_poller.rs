//! Reads Koordinator's Device object of the node. It changes when a card is installed or fails, so it is read
//! periodically, sooner if an annotation names an unknown device, and at once if a response waits for it.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::info;

use super::Settings;
use super::annotations::{NodeDevices, PciDevices};
use super::metrics::Metrics;
use crate::cluster::{Cluster, ClusterError, Devices};
use crate::machine::HostRoots;
use crate::util::backoff::{back_off, jittered};
use crate::util::log_throttle::LogOnce;
use crate::util::task::Task;

/// Interval between two reads.
const PERIOD: Duration = Duration::from_secs(60);
/// Delay of a read that was requested, or of a retry after a failure; it doubles each time there was nothing
/// new.
const FIRST_DELAY: Duration = Duration::from_secs(5);
/// Maximum delay of a read that was requested.
const MAX_DELAY: Duration = Duration::from_secs(30);
/// Minimum interval between reads that a response waits for.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Handle to the task that reads the devices; the task ends when it is dropped.
#[derive(Debug)]
pub(super) struct DevicePoller {
    requests: Arc<Requests>,
    reads: watch::Receiver<Reads>,
    _task: Task,
}

#[derive(Debug, Default)]
struct Requests {
    /// A read soon.
    soon: Notify,
    /// A read with this number or a higher one, at once.
    now: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    started: u64,
    finished: u64,
    /// When the last finished read started.
    last_start: Option<Instant>,
    /// Whether the API server ever responded, if only that reading is forbidden.
    has_response: bool,
}

impl DevicePoller {
    pub(super) fn read_soon(&self) {
        self.requests.soon.notify_one();
    }

    /// Waits for a read that starts after this call, whatever its result. It starts at once, but at most once
    /// per second.
    pub(super) async fn read_now(&self) {
        let next = self.reads.borrow().started + 1;
        self.requests.now.send_if_modified(|number| {
            let is_later = *number < next;
            *number = next.max(*number);
            is_later
        });
        self.wait_for(|reads| reads.finished >= next).await;
    }

    /// Returns true if a read that started at `then` or later has finished. What it did not find does not
    /// exist or cannot be read, so another read would find no more.
    pub(super) fn has_read_since(&self, then: Instant) -> bool {
        self.reads.borrow().last_start.is_some_and(|start| start >= then)
    }

    /// Returns true if the API server ever responded, if only that reading is forbidden. Until then even the
    /// resource names may be different.
    pub(super) fn has_response(&self) -> bool {
        self.reads.borrow().has_response
    }

    pub(super) async fn first_read(&self) {
        self.wait_for(|reads| reads.finished > 0).await;
    }

    async fn wait_for(&self, is_enough: impl Fn(&Reads) -> bool) {
        // An error means that the task has ended and there will be no more reads.
        let _ = self.reads.clone().wait_for(is_enough).await;
    }
}

/// Returns the node's devices, and the handle to the task that reads them. There is no task without a cluster
/// or if the devices are not needed.
pub(super) fn start(
    settings: &Settings,
    cluster: Option<Cluster>,
    metrics: &Metrics,
) -> (watch::Receiver<NodeDevices>, Option<DevicePoller>) {
    let pci = PciDevices::new(HostRoots { sys: settings.sys.clone(), proc: PathBuf::new() });
    let poll = Poll::new(Arc::new(pci), metrics.clone());
    let node = poll.node.subscribe();
    let Some(cluster) = cluster.filter(|_| settings.reads_devices) else { return (node, None) };
    let name = settings.node.clone();
    let read = move || {
        let (cluster, name) = (cluster.clone(), name.clone());
        async move { cluster.devices_of(&name).await }
    };
    (node, Some(poll.spawn(read)))
}

type ReadResult = Result<Option<Devices>, ClusterError>;

struct Poll {
    pci: Arc<PciDevices>,
    node: watch::Sender<NodeDevices>,
    /// The devices last reported.
    devices: Option<Arc<Devices>>,
    metrics: Metrics,
    log: LogOnce,
}

impl Poll {
    fn new(pci: Arc<PciDevices>, metrics: Metrics) -> Self {
        let node = watch::Sender::new(NodeDevices::new(None, Arc::clone(&pci)));
        Self { pci, node, devices: None, metrics, log: LogOnce::default() }
    }

    fn spawn<F: Future<Output = ReadResult> + Send + 'static>(
        self,
        read: impl Fn() -> F + Send + 'static,
    ) -> DevicePoller {
        let (requests, (sender, reads)) = (Arc::<Requests>::default(), watch::channel(Reads::default()));
        let task = Task::spawn(self.run(read, sender, Arc::clone(&requests)));
        DevicePoller { requests, reads, _task: task }
    }

    async fn run<F: Future<Output = ReadResult>>(
        mut self,
        read: impl Fn() -> F,
        reads: watch::Sender<Reads>,
        requests: Arc<Requests>,
    ) {
        let mut now = requests.now.subscribe();
        let mut schedule = Schedule::default();
        loop {
            let start = Instant::now();
            reads.send_modify(|reads| reads.started += 1);
            let result = read().await;
            let is_response = matches!(result, Ok(_) | Err(ClusterError::Forbidden(_)));
            let outcome = self.update(result);
            reads.send_modify(|reads| {
                reads.finished = reads.started;
                reads.last_start = Some(start);
                reads.has_response |= is_response;
            });
            let finished = reads.borrow().finished;
            let requested = async {
                // An error would mean that there are no more handles.
                let _ = now.wait_for(|number| *number > finished).await;
                sleep_until(start + MIN_INTERVAL).await;
            };
            tokio::select! {
                () = requested => {}
                () = schedule.wait(outcome, start, &requests.soon) => {}
            }
        }
    }

    fn update(&mut self, result: ReadResult) -> Outcome {
        let devices = match result {
            Ok(devices) => devices.map(Arc::new),
            Err(error) => {
                self.fail(&error);
                return Outcome::Failed;
            }
        };
        self.log.recovered("Koordinator's Device of this node can be read again");
        if devices == self.devices {
            return Outcome::Unchanged;
        }
        match &devices {
            Some(devices) => info!("Koordinator reports {} devices of this node", devices.devices.len()),
            None => info!("Koordinator no longer reports devices of this node"),
        }
        self.devices.clone_from(&devices);
        self.node.send_replace(NodeDevices::new(devices, Arc::clone(&self.pci)));
        Outcome::Changed
    }

    fn fail(&mut self, error: &ClusterError) {
        self.metrics.device_error(error.kind());
        let consequence = match self.devices {
            Some(_) => "the devices last reported stay in use",
            None => "ids in annotations are not checked meanwhile, and accelerators count as NVIDIA's",
        };
        self.log.warn(&format!("cannot read Koordinator's Device of this node: {error}; {consequence}"));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Changed,
    Unchanged,
    Failed,
}

#[derive(Default)]
struct Schedule {
    /// Consecutive requested reads that found nothing new.
    unchanged: u32,
    /// Consecutive failures.
    failures: u32,
}

impl Schedule {
    /// Waits until the next read is due after one that started at `start`, unless a response waits for it.
    async fn wait(&mut self, outcome: Outcome, start: Instant, soon: &Notify) {
        if outcome == Outcome::Failed {
            return sleep_until(start + back_off(&mut self.failures, FIRST_DELAY, PERIOD)).await;
        }
        self.failures = 0;
        if outcome == Outcome::Changed {
            self.unchanged = 0;
        }
        match timeout_at(start + jittered(PERIOD), soon.notified()).await {
            // The delay doubles each time, however often a read is requested.
            Ok(()) => sleep_until(start + back_off(&mut self.unchanged, FIRST_DELAY, MAX_DELAY)).await,
            // No read was requested for a full period.
            Err(_) => self.unchanged = 0,
        }
    }
}

#[cfg(test)]
mod tests;
