//! Follows what Koordinator reports of the node's devices. It changes when a card is put in or breaks: a look now and then
//! does, and one more as soon as an annotation names what nobody knows.

use std::future::Future;
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

    /// Was it looked once, with whatever result?
    #[must_use]
    pub fn has_looked(&self) -> bool {
        *self.0.looked.borrow()
    }

    /// Did a look begin after this?
    #[must_use]
    pub fn looked_since(&self, _: Instant) -> bool {
        true
    }

    /// Waits for a look that begins now.
    pub async fn look_now(&self) {}

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
    let looking = Looking { pci, node, devices: None, metrics: metrics.clone(), complaint: None };
    let name = settings.node.clone();
    let read = move || {
        let (cluster, name) = (cluster.clone(), name.clone());
        async move { cluster.devices_of(&name).await }
    };
    let task = tokio::spawn(looking.run(read, looked, Arc::clone(&prompt)));
    (nodes, Some(Follower(Arc::new(Task { prompt, looked: look, task }))))
}

/// What was read, or why it could not be.
type Read = Result<Option<Devices>, ClusterError>;

struct Looking {
    pci: Arc<Pci>,
    node: watch::Sender<Node>,
    /// What was reported last.
    devices: Option<Arc<Devices>>,
    metrics: Metrics,
    /// What was wrong last time.
    complaint: Option<String>,
}

impl Looking {
    async fn run<F: Future<Output = Read>>(
        mut self,
        read: impl Fn() -> F,
        looked: watch::Sender<bool>,
        prompt: Arc<Notify>,
    ) {
        let mut in_vain = 0;
        loop {
            let start = Instant::now();
            let outcome = self.digest(read().await);
            looked.send_replace(true);
            if outcome == Outcome::Changed {
                in_vain = 0;
            }
            let asked_for = match outcome {
                Outcome::Failed => true,
                _ => timeout_at(start + jittered(PERIOD), prompt.notified()).await.is_ok(),
            };
            // Twice as long each time, however often somebody asks.
            if asked_for {
                sleep_until(start + back_off(&mut in_vain, SOON, PERIOD)).await;
            }
        }
    }

    fn digest(&mut self, read: Read) -> Outcome {
        let devices = match read {
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::cluster::Device;
    use crate::telemetry::proxy::Health;

    /// Who is asked, and when that was.
    struct Asked {
        answer: Mutex<Read>,
        at: Mutex<Vec<Duration>>,
    }

    impl Asked {
        fn times(&self) -> Vec<u64> {
            self.at.lock().unwrap().iter().map(Duration::as_secs).collect()
        }
    }

    /// A follower of what `Asked` says, on the paused clock.
    fn follower(answer: Read) -> (Arc<Asked>, watch::Receiver<Node>, Follower) {
        let asked = Arc::new(Asked { answer: Mutex::new(answer), at: Mutex::default() });
        let (node, nodes) = watch::channel(Node::default());
        let metrics = Metrics::new(Arc::new(Health::new(true)));
        let looking = Looking { pci: Arc::default(), node, devices: None, metrics, complaint: None };
        let (start, whom, prompt) = (Instant::now(), Arc::clone(&asked), Arc::new(Notify::new()));
        let read = move || {
            whom.at.lock().unwrap().push(start.elapsed());
            let answer = whom.answer.lock().unwrap().clone();
            async move { answer }
        };
        let (looked, look) = watch::channel(false);
        let task = tokio::spawn(looking.run(read, looked, Arc::clone(&prompt)));
        (asked, nodes, Follower(Arc::new(Task { prompt, looked: look, task })))
    }

    fn one() -> Option<Devices> {
        let device = Device { kind: "gpu".into(), id: "GPU-a".into(), ..Device::default() };
        Some(Devices { devices: [device].into(), ..Devices::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_looked_now_and_then_and_sooner_when_somebody_asks() {
        let (asked, mut nodes, follower) = follower(Ok(None));
        follower.first_look().await;
        assert_eq!(asked.times(), [0]);
        assert!(!nodes.borrow().is_reported());
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert_eq!(asked.times(), [0], "a minute, give or take a tenth");
        *asked.answer.lock().unwrap() = Ok(one());
        nodes.changed().await.unwrap();
        assert!(nodes.borrow_and_update().is_reported());
        let times = asked.times();
        assert!(times.len() == 2 && (54..=66).contains(&times[1]), "{times:?}");
        // Asked for at once: a few seconds after the last look. Nothing has changed, so it takes ever longer.
        for _ in 0..500 {
            follower.prompt();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let gaps: Vec<u64> = asked.times().windows(2).skip(1).map(|pair| pair[1] - pair[0]).collect();
        assert!(
            (4..=6).contains(&gaps[0]) && (9..=12).contains(&gaps[1]) && (18..=23).contains(&gaps[2]),
            "{gaps:?}"
        );
        assert!(gaps[4..].iter().all(|gap| (53..=67).contains(gap)), "{gaps:?}");
        assert!(!nodes.has_changed().unwrap(), "nobody is told the same twice");
        let before = asked.times().len();
        drop(follower);
        tokio::time::sleep(Duration::from_secs(500)).await;
        assert!(asked.times().len() == before, "nobody looks for nobody");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_reported_last_stays_while_nobody_answers() {
        let (asked, mut nodes, follower) = follower(Err(ClusterError::Forbidden("no".into())));
        follower.first_look().await;
        assert!(!nodes.borrow().is_reported());
        *asked.answer.lock().unwrap() = Ok(one());
        nodes.changed().await.unwrap();
        assert_eq!(asked.times().len(), 2);
        assert!((4..=6).contains(&asked.times()[1]), "soon after a failure");
        *asked.answer.lock().unwrap() = Err(ClusterError::Forbidden("no".into()));
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert!(nodes.borrow_and_update().is_reported());
        *asked.answer.lock().unwrap() = Ok(None);
        nodes.changed().await.unwrap();
        assert!(!nodes.borrow().is_reported(), "Koordinator is gone");
    }
}
