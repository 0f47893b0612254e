//! Tracks what Koordinator reports of the node's devices. It changes when a card is installed or fails, so it
//! is read periodically, sooner if an annotation names an unknown device, and at once if a response waits for
//! it.

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
use crate::cluster::{Cluster, ClusterError, Devices};
use crate::machine::HostRoots;
use crate::telemetry::proxy::Metrics;
use crate::util::backoff::{back_off, jittered};

/// Interval between two reads.
const PERIOD: Duration = Duration::from_secs(60);
/// Delay of a read that was requested, or of a retry after a failure; it doubles each time there was nothing
/// new.
const SOON: Duration = Duration::from_secs(5);
/// Maximum delay of a read that was requested.
const LATE: Duration = Duration::from_secs(30);
/// Minimum interval between reads that a response waits for.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Handle to the task that tracks the devices; the task ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Follower(Arc<Task>);

#[derive(Debug)]
struct Task {
    asked: Arc<Asked>,
    looks: watch::Receiver<Looks>,
    task: JoinHandle<()>,
}

/// What the handles request from the task.
#[derive(Debug)]
struct Asked {
    /// A read soon.
    prompt: Notify,
    /// A read with this number or a higher one, at once.
    at_once: watch::Sender<u64>,
}

/// The reads so far, whatever their result.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    begun: u64,
    ended: u64,
    /// When the last completed read started.
    since: Option<Instant>,
    /// Whether the API server ever responded, if only that reading is forbidden.
    answered: bool,
}

impl Asked {
    fn new() -> Arc<Self> {
        Arc::new(Self { prompt: Notify::new(), at_once: watch::Sender::new(0) })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    /// Requests a read soon: an annotation names a device that the node is not known to have.
    pub fn prompt(&self) {
        self.0.asked.prompt.notify_one();
    }

    /// Waits for a read that starts after this call, whatever its result. It starts at once, but at most once
    /// per second.
    pub async fn look_now(&self) {
        let next = self.0.looks.borrow().begun + 1;
        self.0.asked.at_once.send_if_modified(|number| {
            let is_later = *number < next;
            *number = next.max(*number);
            is_later
        });
        self.looked(|looks| looks.ended >= next).await;
    }

    /// Whether a read that started at `then` or later has completed. What it did not find does not exist or
    /// cannot be read, so another read would find no more.
    #[must_use]
    pub fn looked_since(&self, then: Instant) -> bool {
        self.0.looks.borrow().since.is_some_and(|since| since >= then)
    }

    /// Whether the API server ever responded, if only that reading is forbidden. Until then even the resource
    /// names may be different.
    #[must_use]
    pub fn was_answered(&self) -> bool {
        self.0.looks.borrow().answered
    }

    /// Waits for the first read, whatever its result. Until then even the resource names may be different.
    pub async fn first_look(&self) {
        self.looked(|looks| looks.ended > 0).await;
    }

    async fn looked(&self, is_enough: impl Fn(&Looks) -> bool) {
        // An error means that the task has ended and there will be no more reads.
        let _ = self.0.looks.clone().wait_for(is_enough).await;
    }
}

/// Returns the node's devices, and the handle to the task that tracks them. There is no task without a
/// cluster or if the devices are not needed.
#[must_use]
pub fn follow(
    settings: &Settings,
    cluster: Option<Cluster>,
    metrics: &Metrics,
) -> (watch::Receiver<Node>, Option<Follower>) {
    let pci = Arc::new(Pci::new(HostRoots { sys: settings.sys.clone(), proc: PathBuf::new() }));
    let (node, nodes) = watch::channel(Node::new(None, Arc::clone(&pci)));
    let Some(cluster) = cluster.filter(|_| settings.reads_devices) else { return (nodes, None) };
    let asked = Asked::new();
    let (told, looks) = watch::channel(Looks::default());
    let looking = Looking { pci, node, devices: None, metrics: metrics.clone(), complaint: None };
    let name = settings.node.clone();
    let read = move || {
        let (cluster, name) = (cluster.clone(), name.clone());
        async move { cluster.devices_of(&name).await }
    };
    let task = tokio::spawn(looking.run(read, told, Arc::clone(&asked)));
    (nodes, Some(Follower(Arc::new(Task { asked, looks, task }))))
}

/// What was read, or why reading failed.
type Read = Result<Option<Devices>, ClusterError>;

struct Looking {
    pci: Arc<Pci>,
    node: watch::Sender<Node>,
    /// The devices last reported.
    devices: Option<Arc<Devices>>,
    metrics: Metrics,
    /// The last error, if the last read failed.
    complaint: Option<String>,
}

impl Looking {
    async fn run<F: Future<Output = Read>>(
        mut self,
        read: impl Fn() -> F,
        looks: watch::Sender<Looks>,
        asked: Arc<Asked>,
    ) {
        let mut at_once = asked.at_once.subscribe();
        let mut waits = Waits::default();
        loop {
            let start = Instant::now();
            looks.send_modify(|looks| looks.begun += 1);
            let answer = read().await;
            let answered = matches!(answer, Ok(_) | Err(ClusterError::Forbidden(_)));
            let outcome = self.digest(answer);
            looks.send_modify(|looks| {
                looks.ended = looks.begun;
                looks.since = Some(start);
                looks.answered |= answered;
            });
            let ended = looks.borrow().ended;
            let wanted = async {
                // An error would mean that there are no more handles.
                let _ = at_once.wait_for(|number| *number > ended).await;
                sleep_until(start + AT_ONCE).await;
            };
            tokio::select! {
                () = wanted => {}
                () = waits.after(outcome, start, &asked.prompt) => {}
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

    /// Records a failed read. The devices last reported stay in use.
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

/// Computes the wait before the next read.
#[derive(Default)]
struct Waits {
    /// Consecutive requested reads that found nothing new.
    in_vain: u32,
    /// Consecutive failures.
    failures: u32,
}

impl Waits {
    /// Waits until the next read is due after one that started at `start`, unless a response waits for it.
    async fn after(&mut self, outcome: Outcome, start: Instant, prompt: &Notify) {
        if outcome == Outcome::Failed {
            return sleep_until(start + back_off(&mut self.failures, SOON, PERIOD)).await;
        }
        self.failures = 0;
        if outcome == Outcome::Changed {
            self.in_vain = 0;
        }
        match timeout_at(start + jittered(PERIOD), prompt.notified()).await {
            // The delay doubles each time, however often a read is requested.
            Ok(()) => sleep_until(start + back_off(&mut self.in_vain, SOON, LATE)).await,
            // No read was requested for a full period.
            Err(_) => self.in_vain = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::cluster::Device;
    use crate::telemetry::proxy::Health;

    /// A fake API server, and when it was called.
    struct Told {
        answer: Mutex<Read>,
        /// How long a call takes.
        takes: Mutex<Duration>,
        at: Mutex<Vec<Duration>>,
    }

    impl Told {
        fn times(&self) -> Vec<u64> {
            self.at.lock().unwrap().iter().map(Duration::as_secs).collect()
        }
    }

    /// Starts a follower that reads from `Told`, on the paused clock.
    fn follower(answer: Read) -> (Arc<Told>, watch::Receiver<Node>, Follower) {
        let told =
            Arc::new(Told { answer: Mutex::new(answer), takes: Mutex::default(), at: Mutex::default() });
        let (node, nodes) = watch::channel(Node::default());
        let metrics = Metrics::new(Arc::new(Health::new(true)));
        let looking = Looking { pci: Arc::default(), node, devices: None, metrics, complaint: None };
        let (start, whom, asked) = (Instant::now(), Arc::clone(&told), Asked::new());
        let read = move || {
            whom.at.lock().unwrap().push(start.elapsed());
            let (answer, takes) = (whom.answer.lock().unwrap().clone(), *whom.takes.lock().unwrap());
            async move {
                tokio::time::sleep(takes).await;
                answer
            }
        };
        let (tells, looks) = watch::channel(Looks::default());
        let task = tokio::spawn(looking.run(read, tells, Arc::clone(&asked)));
        (told, nodes, Follower(Arc::new(Task { asked, looks, task })))
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
        // Requested reads: a few seconds after the last one. Nothing has changed, so the delay grows.
        for _ in 0..500 {
            follower.prompt();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let gaps: Vec<u64> = asked.times().windows(2).skip(1).map(|pair| pair[1] - pair[0]).collect();
        assert!(
            (4..=6).contains(&gaps[0]) && (9..=12).contains(&gaps[1]) && (18..=23).contains(&gaps[2]),
            "{gaps:?}"
        );
        assert!(gaps[3..].iter().all(|gap| (26..=34).contains(gap)), "{gaps:?}");
        assert!(!nodes.has_changed().unwrap(), "nobody is told the same twice");
        let before = asked.times().len();
        drop(follower);
        tokio::time::sleep(Duration::from_secs(500)).await;
        assert!(asked.times().len() == before, "nobody looks for nobody");
    }

    #[tokio::test(start_paused = true)]
    async fn vain_looks_and_failures_are_forgotten() {
        let (asked, _nodes, follower) = follower(Ok(None));
        follower.first_look().await;
        let soon = async || {
            let before = asked.times().len();
            follower.prompt();
            tokio::time::sleep(Duration::from_secs(7)).await;
            asked.times().len() - before
        };
        assert_eq!(soon().await, 1, "at once the first time");
        for _ in 0..500 {
            follower.prompt();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // Continue right after a read, so that the next one is not due for a while.
        let looked = asked.times().len();
        while asked.times().len() == looked {
            follower.prompt();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(soon().await, 0, "in vain too often");
        tokio::time::sleep(Duration::from_secs(200)).await;
        // Continue right after a read, so that the next one is not due anyway.
        follower.look_now().await;
        assert_eq!(soon().await, 1, "nobody had asked for long");
        // An hour of failures does not count as requested reads that found nothing new.
        *asked.answer.lock().unwrap() = Err(ClusterError::Forbidden("no".into()));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        *asked.answer.lock().unwrap() = Ok(None);
        tokio::time::sleep(Duration::from_secs(150)).await;
        follower.look_now().await;
        assert_eq!(soon().await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_look_gets_one_that_began_later() {
        let (asked, _nodes, follower) = follower(Ok(None));
        *asked.takes.lock().unwrap() = Duration::from_millis(700);
        // While the first read runs.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let then = Instant::now();
        assert!(!follower.looked_since(then));
        let both = futures::future::join(follower.look_now(), follower.look_now());
        futures::future::join(both, async {
            follower.first_look().await;
            assert_eq!(then.elapsed(), Duration::from_millis(600));
            assert!(!follower.looked_since(then), "that one began before");
        })
        .await;
        assert!(follower.looked_since(then));
        assert_eq!(
            then.elapsed(),
            Duration::from_millis(1600),
            "a second after the first began, and what it takes"
        );
        assert_eq!(asked.at.lock().unwrap().len(), 2, "one for all who wait");
        // However many callers come one after another, there is one read per second.
        for _ in 0..50 {
            follower.look_now().await;
        }
        let at = asked.at.lock().unwrap().clone();
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= AT_ONCE), "{at:?}");
        assert_eq!(at.len(), 52);
        // No caller waits any more: only the periodic reads remain.
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert_eq!(asked.at.lock().unwrap().len(), 52);
        follower.look_now().await;
        assert_eq!(asked.at.lock().unwrap().len(), 53);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_failed_was_one_but_no_answer() {
        let away = || Err(ClusterError::Unauthorized("no".into()));
        let (asked, _nodes, follower) = follower(away());
        assert!(!follower.was_answered() && !follower.looked_since(Instant::now()));
        let then = Instant::now();
        follower.look_now().await;
        assert!(follower.looked_since(then) && !follower.was_answered());
        *asked.answer.lock().unwrap() = Err(ClusterError::Forbidden("no".into()));
        follower.look_now().await;
        assert!(follower.was_answered(), "that we may not know is an answer");
        *asked.answer.lock().unwrap() = away();
        follower.look_now().await;
        assert!(follower.was_answered());
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
