//! Reads Koordinator's Device object of the node. It changes when a card is installed or fails, so it is read
//! periodically, and at once if a response waits for it.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::info;

use super::Settings;
use super::annotations::{NodeDevices, PciDevices};
use super::metrics::Metrics;
use crate::cluster::{Cluster, ClusterError, KoordinatorDevices};
use crate::machine::HostRoots;
use crate::util::backoff::{back_off, jittered};
use crate::util::log_throttle::LogOnce;
use crate::util::task::Task;

/// Interval between two reads.
const PERIOD: Duration = Duration::from_secs(60);
/// Delay of the first retry after a failure; it doubles up to [`PERIOD`].
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// Minimum interval between reads that a response waits for.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Handle to the task that reads the devices; the task ends when it is dropped.
#[derive(Debug)]
pub(super) struct DevicePoller {
    /// Requests a read with this number or a higher one.
    requests: watch::Sender<u64>,
    reads: watch::Receiver<Reads>,
    _task: Task,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    started: u64,
    finished: u64,
    /// When the last finished read started.
    last_start: Option<Instant>,
    /// Whether the API server ever responded, even if only to forbid the read.
    has_response: bool,
}

impl DevicePoller {
    /// Waits for a read that starts after this call, whatever its result. It starts at once, but at most once
    /// per second.
    pub(super) async fn read_now(&self) {
        let next = self.reads.borrow().started + 1;
        self.requests.send_if_modified(|number| {
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

    /// Returns true if the API server ever responded, even if only to forbid the read. Until then even the
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

type ReadResult = Result<Option<KoordinatorDevices>, ClusterError>;

struct Poll {
    pci: Arc<PciDevices>,
    node: watch::Sender<NodeDevices>,
    /// The devices last reported.
    devices: Option<Arc<KoordinatorDevices>>,
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
        let ((requests, requested), (sender, reads)) = (watch::channel(0), watch::channel(Reads::default()));
        let task = Task::spawn(self.run(read, sender, requested));
        DevicePoller { requests, reads, _task: task }
    }

    async fn run<F: Future<Output = ReadResult>>(
        mut self,
        read: impl Fn() -> F,
        reads: watch::Sender<Reads>,
        mut requests: watch::Receiver<u64>,
    ) {
        let mut failures = 0;
        loop {
            let start = Instant::now();
            reads.send_modify(|reads| reads.started += 1);
            let result = read().await;
            let is_response = matches!(result, Ok(_) | Err(ClusterError::Forbidden(_)));
            let delay = match result {
                Ok(devices) => {
                    self.update(devices);
                    failures = 0;
                    jittered(PERIOD)
                }
                Err(error) => {
                    self.fail(&error);
                    back_off(&mut failures, FIRST_RETRY, PERIOD)
                }
            };
            reads.send_modify(|reads| {
                reads.finished = reads.started;
                reads.last_start = Some(start);
                reads.has_response |= is_response;
            });
            let finished = reads.borrow().finished;
            let requested = async {
                // An error means that the handle was dropped, which also ends this task.
                let _ = requests.wait_for(|number| *number > finished).await;
                sleep_until(start + MIN_INTERVAL).await;
            };
            tokio::select! {
                () = requested => {}
                () = sleep_until(start + delay) => {}
            }
        }
    }

    fn update(&mut self, devices: Option<KoordinatorDevices>) {
        let devices = devices.map(Arc::new);
        self.log.recovered("Koordinator's Device of this node can be read again");
        if devices == self.devices {
            return;
        }
        match &devices {
            Some(devices) => info!("Koordinator reports {} devices of this node", devices.devices.len()),
            None => info!("Koordinator no longer reports devices of this node"),
        }
        self.devices.clone_from(&devices);
        self.node.send_replace(NodeDevices::new(devices, Arc::clone(&self.pci)));
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

#[cfg(test)]
mod tests;
