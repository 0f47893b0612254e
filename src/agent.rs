//! triggers -> scan -> account -> publish.
//!
//! One scan is one `List`, with the slower moving inventory (hardware, allocatable, kubelet configuration) read
//! when it may have changed. Zones come from that one List and go out in one write. A scan that failed, or that
//! the kubelet cannot answer truly yet, publishes nothing: the last good object stays.

mod bucket;
mod changes;
mod object;
mod publish;
mod recording;
mod scan;
mod settle;
mod triggers;

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use crate::cluster::{Cluster, ClusterError};
use crate::config::Config;
use crate::machine::HostRoots;
use crate::nrt::NodeResourceTopology;
use crate::topology::{self, Topology};

pub use object::object;
pub use publish::Published;
pub use recording::{Answer, Recording, RecordingError};
pub use scan::{Inventory, Scan, ScanError, Scanner};

use bucket::Bucket;
use publish::Publisher;
use settle::{Settling, Verdict};
use triggers::{Trigger, Triggers};

/// List calls: a tenth of what the kubelet allows all its clients together (DESIGN section 10).
const LISTS_PER_SECOND: f64 = 10.0;
/// A pod's admission may cost a few Lists at once.
const LIST_BURST: f64 = 4.0;

/// The kubelet writes up to four state files for one pod. A burst has ended when nothing came for this long.
const QUIET: Duration = Duration::from_millis(2);
/// A burst that does not end is cut here.
const FOLD: Duration = Duration::from_millis(10);

/// How soon to look again after a scan failed or the kubelet was not ready.
const RETRY: Duration = Duration::from_millis(100);
/// The longest wait between two failed scans.
const RETRY_LIMIT: Duration = Duration::from_secs(5);

/// How long a device resource that nobody offers any more stays listed with 0: the kubelet itself waits five
/// minutes for a device plugin to come back.
const DEVICE_MEMORY: Duration = Duration::from_secs(600);

/// What the agent needs to know, paths resolved.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name in the cluster.
    pub node: String,
    /// Stand for `/sys` and `/proc`.
    pub host: HostRoots,
    /// The kubelet's root directory.
    pub kubelet_dir: PathBuf,
    /// The podresources socket.
    pub socket: PathBuf,
    /// The kubelet's configuration file.
    pub kubelet_config: PathBuf,
    /// The deadline of one call to the kubelet.
    pub kubelet_timeout: Duration,
    /// How often to look when nothing seems to happen.
    pub poll: Duration,
    /// How long the last good object may stay after a kubelet restart.
    pub settle: Duration,
    /// How often the object is applied again although nothing changed.
    pub refresh: Duration,
    /// Make the Node own the object.
    pub owner_reference: bool,
    /// Emit empty zones for missing NUMA ids.
    pub fillers: bool,
}

impl Settings {
    /// The agent's part of a resolved configuration.
    #[must_use]
    pub fn from_config(config: &Config) -> Self {
        let config = config.clone().resolved();
        Self {
            node: config.node_name,
            host: HostRoots {
                sys: config.host.sys.unwrap_or_default(),
                proc: config.host.proc.unwrap_or_default(),
            },
            kubelet_dir: config.kubelet.dir.unwrap_or_default(),
            socket: config.kubelet.socket.unwrap_or_default(),
            kubelet_config: config.kubelet.config_file.unwrap_or_default(),
            kubelet_timeout: config.kubelet.timeout.get(),
            poll: config.scan.poll.get(),
            settle: config.scan.settle.get(),
            refresh: config.publish.refresh.get(),
            owner_reference: config.publish.owner_reference,
            fillers: config.zones.fillers,
        }
    }
}

/// Why a single pass ended without an object in the cluster.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// The node could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The object could not be written.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// What a person following the agent may want to know.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Scans that gave an account.
    pub scans: u64,
    /// The sentence of the last failure, until a scan succeeds.
    pub trouble: Option<String>,
}

/// Scans, publishes and returns the object: one pass.
///
/// # Errors
/// The first thing that went wrong.
pub async fn once(settings: &Settings, cluster: &Cluster) -> Result<NodeResourceTopology, OnceError> {
    let mut scanner = Scanner::new(settings);
    let scan = scan_when_ready(&mut scanner, settings).await?;
    let topology = account(&scan, &BTreeSet::new(), settings.fillers);
    for problem in &scan.inventory.problems {
        warn!("{problem}");
    }
    let owner = match settings.owner_reference {
        true => Some(cluster.node_uid(&settings.node).await?),
        false => None,
    };
    let object = object(&settings.node, owner.as_deref(), &topology);
    cluster.apply(&object).await?;
    Ok(object)
}

/// A kubelet that has just started cannot answer truly for a moment.
async fn scan_when_ready(scanner: &mut Scanner, settings: &Settings) -> Result<Scan, ScanError> {
    let mut settling = Settling::new(settings.settle);
    loop {
        let scan = scanner.scan(false).await?;
        let Verdict::Wait(reason) = settling.judge(&scan, Instant::now()) else { return Ok(scan) };
        debug!("{reason}; looking again");
        scanner.forget_inventory();
        sleep(RETRY).await;
    }
}

/// Draws up the account of a scan.
#[must_use]
pub fn account(scan: &Scan, known: &BTreeSet<String>, fillers: bool) -> Topology {
    topology::account(&topology::Inputs {
        machine: &scan.inventory.machine,
        allocatable: &scan.inventory.allocatable,
        usage: &scan.usage,
        config: scan.inventory.config.as_ref(),
        known,
        fillers,
    })
}

/// An agent that keeps one object true until it is told to stop.
pub struct Agent {
    settings: Settings,
    scanner: Scanner,
    settling: Settling,
    triggers: Triggers,
    bucket: Bucket,
    publisher: Publisher,
    /// Device resources seen, and when last.
    devices: std::collections::BTreeMap<String, Instant>,
    last: Option<Topology>,
    told: BTreeSet<String>,
    failures: u32,
    status: watch::Sender<Status>,
}

impl Agent {
    /// An agent for this node and cluster. It starts with [`Agent::run`].
    #[must_use]
    pub fn new(settings: Settings, cluster: Cluster) -> Self {
        let publisher =
            Publisher::start(settings.node.clone(), cluster, settings.refresh, settings.owner_reference);
        Self {
            scanner: Scanner::new(&settings),
            settling: Settling::new(settings.settle),
            triggers: Triggers::start(settings.kubelet_dir.clone(), &settings.socket),
            bucket: Bucket::new(LISTS_PER_SECOND, LIST_BURST, Instant::now()),
            publisher,
            devices: std::collections::BTreeMap::new(),
            last: None,
            told: BTreeSet::new(),
            failures: 0,
            status: watch::Sender::new(Status::default()),
            settings,
        }
    }

    /// Follows the agent's scans.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Follows the agent's writes.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Published> {
        self.publisher.published()
    }

    /// Turns the loop until `shutdown` completes, then gives a write in flight a moment to end.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut reasons = Trigger::START;
        loop {
            let next = tokio::select! {
                biased;
                () = &mut shutdown => break,
                next = self.turn(reasons) => next,
            };
            reasons = tokio::select! {
                biased;
                () = &mut shutdown => break,
                reasons = self.wait(next) => reasons,
            };
        }
        info!("stopping");
        self.publisher.stop().await;
    }

    /// One scan and what follows from it; returns when to look again at the latest.
    async fn turn(&mut self, reasons: Trigger) -> Instant {
        sleep(self.bucket.take(Instant::now())).await;
        match self.scanner.scan(reasons.inventory()).await {
            Ok(scan) => self.digest(&scan),
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// Waits for the next reason to look, and folds a burst of them into one.
    async fn wait(&mut self, next: Instant) -> Trigger {
        let mut reasons = tokio::select! {
            reasons = self.triggers.next() => reasons,
            () = sleep_until(next) => return Trigger::POLL,
        };
        let cut = Instant::now() + FOLD;
        loop {
            let quiet = (Instant::now() + QUIET).min(cut);
            tokio::select! {
                more = self.triggers.next() => reasons = reasons.and(more),
                () = sleep_until(quiet) => return reasons,
            }
        }
    }

    fn digest(&mut self, scan: &Scan) -> Instant {
        let now = Instant::now();
        if let Verdict::Wait(reason) = self.settling.judge(scan, now) {
            self.scanner.forget_inventory();
            return self.fail(&reason);
        }
        self.failures = 0;
        self.tell(scan.inventory.problems.iter().cloned());
        let known = self.remember_devices(scan, now);
        let topology = account(scan, &known, self.settings.fillers);
        self.tell(topology.findings.iter().map(ToString::to_string));
        if self.last.as_ref() != Some(&topology) {
            for line in changes::between(self.last.as_ref(), &topology) {
                info!("{line}");
            }
            self.publisher.offer(topology.clone());
            self.last = Some(topology);
        }
        self.status.send_modify(|status| {
            status.scans += 1;
            status.trouble = None;
        });
        now + jittered(self.settings.poll)
    }

    /// Keeps the last good object and says why, once.
    fn fail(&mut self, sentence: &str) -> Instant {
        self.tell([sentence.to_owned()]);
        self.status.send_modify(|status| status.trouble = Some(sentence.to_owned()));
        let wait = RETRY.saturating_mul(1 << self.failures.min(16)).min(RETRY_LIMIT);
        self.failures = self.failures.saturating_add(1);
        Instant::now() + jittered(wait)
    }

    /// Warns of everything that was not told in the turn before.
    fn tell(&mut self, sentences: impl IntoIterator<Item = String>) {
        for sentence in sentences {
            if !self.told.contains(&sentence) {
                warn!("{sentence}");
                // Bounded: a flood of different sentences starts over.
                if self.told.len() >= 256 {
                    self.told.clear();
                }
                self.told.insert(sentence);
            }
        }
    }

    fn remember_devices(&mut self, scan: &Scan, now: Instant) -> BTreeSet<String> {
        for group in scan.inventory.allocatable.devices.iter().filter(|group| !group.nodes.is_empty()) {
            match self.devices.get_mut(&group.resource) {
                Some(seen) => *seen = now,
                None => drop(self.devices.insert(group.resource.clone(), now)),
            }
        }
        self.devices.retain(|_, seen| now.duration_since(*seen) < DEVICE_MEMORY);
        self.devices.keys().cloned().collect()
    }
}

/// Give or take a tenth, so that a fleet does not move in step.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(0.9 + 0.2 * fastrand::f64())
}
