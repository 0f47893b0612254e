//! Follows what Koordinator reports of the node's devices. It changes when a card is put in or breaks: a look now and then
//! does, and one more as soon as an annotation names what nobody knows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{info, warn};

use super::Settings;
use super::merge::{Node, Pci};
use crate::backoff::{back_off, jittered};
use crate::cluster::{Cluster, ClusterError, Devices};
use crate::machine::HostRoots;
use crate::telemetry::proxy::Metrics;

/// How often to look.
const PERIOD: Duration = Duration::from_secs(60);
/// How soon to look again when somebody asks for it, or after a failure; the longer, the more often it was in vain.
const SOON: Duration = Duration::from_secs(5);

/// Who follows them, in a task that ends when the last of these is dropped.
#[derive(Clone, Debug)]
pub struct Follower(Arc<Task>);

#[derive(Debug)]
struct Task {
    prompt: Arc<Notify>,
    looked: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    /// Asks for a look soon: an annotation names a device that the node is not known to have.
    pub fn prompt(&self) {
        self.0.prompt.notify_one();
    }

    /// Waits until it was looked once, with whatever result. Before, even the names of the resources may be others.
    pub async fn first_look(&self) {
        // An error means that the task is gone, and there will be no look.
        let _ = self.0.looked.clone().wait_for(|looked| *looked).await;
    }
}

/// What is known of the node's devices, and who follows what is reported of them: nobody where nobody can be asked, or
/// nobody wants to know.
#[must_use]
pub fn follow(
    settings: &Settings,
    cluster: Option<Cluster>,
    metrics: &Metrics,
) -> (watch::Receiver<Node>, Option<Follower>) {
    let pci = Arc::new(Pci::new(HostRoots { sys: settings.sys.clone(), proc: PathBuf::new() }));
    let (node, nodes) = watch::channel(Node::new(None, Arc::clone(&pci)));
    let Some(cluster) = cluster.filter(|_| settings.reads_devices) else { return (nodes, None) };
    let prompt = Arc::new(Notify::new());
    let (looked, look) = watch::channel(false);
    let (name, metrics, prompted) = (settings.node.clone(), metrics.clone(), Arc::clone(&prompt));
    let looking = Looking { cluster, name, pci, node, devices: None, metrics, complaint: None };
    let task = tokio::spawn(looking.run(looked, prompted));
    (nodes, Some(Follower(Arc::new(Task { prompt, looked: look, task }))))
}

struct Looking {
    cluster: Cluster,
    name: String,
    pci: Arc<Pci>,
    node: watch::Sender<Node>,
    /// What was reported last.
    devices: Option<Arc<Devices>>,
    metrics: Metrics,
    /// What was wrong last time.
    complaint: Option<String>,
}

impl Looking {
    async fn run(mut self, looked: watch::Sender<bool>, prompt: Arc<Notify>) {
        let mut in_vain = 0;
        loop {
            let start = Instant::now();
            let outcome = self.look().await;
            looked.send_replace(true);
            match outcome {
                Outcome::Changed => in_vain = 0,
                // Twice as long each time, however often somebody asks.
                Outcome::Failed => sleep_until(Instant::now() + back_off(&mut in_vain, SOON, PERIOD)).await,
                Outcome::Same => {}
            }
            if outcome == Outcome::Failed {
                continue;
            }
            if timeout_at(start + jittered(PERIOD), prompt.notified()).await.is_ok() {
                sleep_until(start + back_off(&mut in_vain, SOON, PERIOD)).await;
            }
        }
    }

    async fn look(&mut self) -> Outcome {
        let devices = match self.cluster.devices_of(&self.name).await {
            Ok(devices) => devices.map(Arc::new),
            Err(error) => {
                self.fail(&error);
                return Outcome::Failed;
            }
        };
        if self.complaint.take().is_some() {
            info!("what Koordinator reports of the node's devices can be read again");
        }
        if devices == self.devices {
            return Outcome::Same;
        }
        match &devices {
            Some(devices) => info!("Koordinator reports {} devices of the node", devices.devices.len()),
            None => info!("Koordinator no longer reports the node's devices"),
        }
        self.devices.clone_from(&devices);
        self.node.send_replace(Node::new(devices, Arc::clone(&self.pci)));
        Outcome::Changed
    }

    /// What was reported last stays.
    fn fail(&mut self, error: &ClusterError) {
        self.metrics.device_error(error.kind());
        let sentence = error.to_string();
        if self.complaint.as_ref() != Some(&sentence) {
            let consequence = match self.devices {
                Some(_) => "what it reported before is believed meanwhile",
                None => "ids in annotations are not checked meanwhile, and accelerators count as NVIDIA's",
            };
            warn!("what Koordinator reports of the node's devices cannot be read: {sentence}; {consequence}");
            self.complaint = Some(sentence);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Changed,
    Same,
    Failed,
}
