//! Reads a consistent snapshot of the node.

mod types;

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use prost::bytes::Bytes;
use tokio::time::Instant;

use super::Settings;
use super::kubelet_config::ConfigReader;
use crate::cluster::Cluster;
use crate::kubelet::{
    Ask, Asker, ClientError, Connection, Flight, ManagerState, PodUsage, StatePaths, StateReader, Upstream,
    Usage, allocatable_of, usage_of,
};
use crate::machine::{self, HostRoots, MachineError};
use crate::pod::{Pod, PodName, Terminal};
use crate::pod_source::PodSource;
use crate::telemetry::metrics::Metrics;
use crate::topology;

pub use types::{Inventory, Scan};

/// How many times a scan is attempted while the kubelet restarts in the middle of it.
const ATTEMPTS: usize = 3;

/// How much of the node to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// One List.
    #[default]
    Usage,
    /// Also what the kubelet can allocate.
    Allocatable,
    /// Also the hardware and the kubelet's configuration.
    Everything,
}

/// Why a scan failed.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The kubelet could not be read.
    #[error(transparent)]
    Kubelet(#[from] ClientError),
    /// The hardware could not be read at all.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A response without CPUs and memory would make all of them look free.
    #[error(
        "the kubelet serves only podresources v1alpha1, which tells of devices but not of CPUs and memory \
         (numacast needs kubelet 1.23 or later)"
    )]
    DevicesOnly,
    /// Without the annotated devices, those in use would look free.
    #[error(
        "the devices in the pods' annotations are not known yet (`proxy.zones`): the pods, or the node's Koordinator \
         Device, have not been read since the start"
    )]
    AnnotationsUnknown,
    /// The responses of a scan never came from a single kubelet.
    #[error("the kubelet restarted during each of {ATTEMPTS} attempts to read it")]
    Restless,
}

/// Reads the node repeatedly.
#[derive(Debug)]
pub struct Scanner {
    kubelet: Upstream,
    merge: Merge,
    host: HostRoots,
    /// What still has to be read. A failed scan does not reset it.
    due: Depth,
    inventory: Option<(Connection, Arc<Inventory>)>,
    config: ConfigReader,
    /// Device resources in the inventory.
    offered: BTreeSet<String>,
    /// Device resources in use that even a fresh inventory lacked.
    absent: BTreeSet<String>,
    books: StateReader,
    terminal: Terminal,
    pods: PodSource,
    calls: u32,
    metrics: Option<Arc<Metrics>>,
}

/// Transforms a response before it is parsed; `None` while it is unknown what has to be merged.
pub type MergeAnswer = Arc<dyn Fn(&Bytes) -> Option<Bytes> + Send + Sync>;

/// What is merged into the kubelet's responses before they are parsed.
#[derive(Clone, Default)]
pub struct Merge {
    /// Into responses to `List`.
    pub list: Option<MergeAnswer>,
    /// Into responses to `GetAllocatableResources`.
    pub allocatable: Option<MergeAnswer>,
}

impl fmt::Debug for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (list, allocatable) = (self.list.is_some(), self.allocatable.is_some());
        f.debug_struct("Merge").field("list", &list).field("allocatable", &allocatable).finish()
    }
}

impl Scanner {
    /// Returns a scanner that has read nothing yet. It runs on the Tokio runtime that it is created on.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            kubelet: Upstream::start(settings.socket.clone(), settings.kubelet_timeout, Arc::new(())),
            merge: Merge::default(),
            host: settings.host.clone(),
            due: Depth::Everything,
            inventory: None,
            config: ConfigReader::new(settings.kubelet_config.clone()),
            offered: BTreeSet::new(),
            absent: BTreeSet::new(),
            books: StateReader::new(StatePaths::new(&settings.kubelet_dir, &settings.device_plugins)),
            terminal: Terminal::default(),
            pods: PodSource::none(),
            calls: 0,
            metrics: None,
        }
    }

    /// Calls the kubelet through a shared connection from now on.
    pub fn share(&mut self, kubelet: Upstream) {
        self.kubelet = kubelet;
    }

    /// Merges this into the kubelet's responses from now on.
    pub fn merge_with(&mut self, merge: Merge) {
        self.merge = merge;
    }

    /// Looks up pods' UIDs in `pods` from now on.
    pub(super) fn identify_by(&mut self, pods: PodSource) {
        self.pods = pods;
    }

    /// Counts calls in the metrics from now on.
    pub(super) fn report_to(&mut self, metrics: Arc<Metrics>) {
        self.metrics = Some(metrics);
    }

    /// Enables asking the kubelet for its configuration.
    pub(super) fn ask_through(&mut self, cluster: Cluster) {
        self.config.ask_through(cluster);
    }

    /// Returns true if the kubelet runs with the known configuration, as far as can be determined.
    pub(super) fn is_config_certain(&self) -> bool {
        self.config.is_certain()
    }

    /// Waits for the kubelet's response to a request for its configuration; never completes without one.
    /// The next scan of everything uses it.
    pub(super) async fn configured(&mut self) {
        self.config.answered().await;
    }

    /// Returns true if the kubelet is being asked for its configuration.
    pub(super) fn is_asking_for_config(&self) -> bool {
        self.config.is_asking()
    }

    /// Returns why the kubelet's configuration is unknown, if there is a reason.
    pub(super) fn config_problem(&self) -> Option<&str> {
        self.config.problem()
    }

    /// Records a call that started at `start`.
    fn called<T>(&self, ask: &Ask, start: Instant, answer: &Result<T, ClientError>) {
        if let Some(metrics) = &self.metrics {
            metrics.called(ask.method(), start.elapsed(), answer.as_ref().err());
        }
    }

    /// Calls the kubelet.
    async fn ask(&mut self, ask: Ask) -> Result<Arc<Flight>, ClientError> {
        self.kubelet.ask(ask, Asker::Agent).await.map_err(|refusal| refusal.error)
    }

    /// Sets which pods have terminated: kubelets before 1.34 still list them.
    pub fn set_terminal(&mut self, terminal: Terminal) {
        self.terminal = terminal;
    }

    /// Returns how often the kubelet was called since this was last called.
    pub(super) fn take_calls(&mut self) -> u32 {
        std::mem::take(&mut self.calls)
    }

    /// Scans the node: one List; more if `depth` requires it, the kubelet restarted, or the List contains
    /// device resources that the inventory lacks.
    ///
    /// # Errors
    /// When the kubelet or the hardware cannot be read. Nothing of a failed scan is kept.
    pub async fn scan(&mut self, depth: Depth) -> Result<Scan, ScanError> {
        self.due = self.due.max(depth);
        for _ in 0..ATTEMPTS {
            let (usage, flight) = self.list().await?;
            let connection = flight.connection;
            let known = self.inventory.as_ref().filter(|(from, _)| *from == connection);
            let known = known.map(|(_, inventory)| Arc::clone(inventory));
            if known.is_none() {
                self.due = Depth::Everything;
            } else if self.due == Depth::Usage && self.uncovered(&usage) != self.absent {
                self.due = Depth::Allocatable;
            }
            let from = match self.due {
                Depth::Usage => connection,
                Depth::Allocatable | Depth::Everything => self.read_inventory(known, &usage).await?,
            };
            if from == connection {
                return self.complete(usage, &flight);
            }
        }
        Err(ScanError::Restless)
    }

    async fn list(&mut self) -> Result<(Usage, Arc<Flight>), ScanError> {
        self.calls += 1;
        let start = Instant::now();
        let mut answer = self.ask(Ask::List).await;
        let is_old = matches!(answer, Err(ClientError::Unsupported { .. }));
        if is_old {
            answer = self.ask(Ask::ListV1alpha1).await;
        }
        let told = answer.and_then(|flight| match is_old {
            true => Ok((None, flight)),
            false => Ok((merged(self.merge.list.as_ref(), &flight).map(usage_of).transpose()?, flight)),
        });
        self.called(&Ask::List, start, &told);
        match told? {
            _ if is_old => Err(ScanError::DevicesOnly),
            (Some(usage), flight) => Ok((usage, flight)),
            (None, _) => Err(ScanError::AnnotationsUnknown),
        }
    }

    fn complete(&mut self, usage: Usage, from: &Flight) -> Result<Scan, ScanError> {
        self.due = Depth::Usage;
        let inventory = self.inventory.as_ref().map(|(_, inventory)| Arc::clone(inventory));
        let inventory = inventory.ok_or(ScanError::Restless)?;
        let state = self.read_books(&usage);
        let state_problems = self.books.problems().to_vec();
        let files_tell = self.books.has_cpus();
        let terminal = Arc::clone(&self.terminal);
        let usage = Arc::new(usage);
        Ok(Scan {
            usage,
            inventory,
            state,
            state_problems,
            files_tell,
            terminal,
            connection: from.connection,
            socket_age: from.socket_age(),
        })
    }

    /// Reads the managers' checkpoints and records which pods the UIDs in them belong to. An entry stays
    /// after its pod has left the List: only if its pod was matched before is it known that the resources are
    /// released.
    fn read_books(&mut self, usage: &Usage) -> Option<Arc<ManagerState>> {
        let state = self.books.read()?;
        if !state.is_named() {
            let active = topology::active_pods(usage, &self.terminal);
            let names = self.pods.with(|told| told_names(active, told.into_iter().flatten(), state));
            name(state, names);
        }
        if !state.is_named() {
            let certain = topology::links(topology::active_pods(usage, &self.terminal), state).certain;
            let names = certain.into_iter().filter(|(uid, _)| !state.names.contains_key(*uid));
            let names = names.map(|(uid, pod)| (uid.to_owned(), pod.full_name())).collect();
            name(state, names);
        }
        Some(Arc::clone(state))
    }

    /// Reads what is due; the rest comes from `known`. Returns the connection that was read from.
    async fn read_inventory(
        &mut self,
        known: Option<Arc<Inventory>>,
        usage: &Usage,
    ) -> Result<Connection, ScanError> {
        self.calls += 1;
        let start = Instant::now();
        let answer = self.ask(Ask::Allocatable).await.and_then(|flight| {
            let merged = merged(self.merge.allocatable.as_ref(), &flight);
            Ok((merged.map(allocatable_of).transpose()?, flight))
        });
        self.called(&Ask::Allocatable, start, &answer);
        let (allocatable, flight) = answer?;
        let allocatable = allocatable.ok_or(ScanError::AnnotationsUnknown)?;
        let connection = flight.connection;
        let inventory = match known.filter(|_| self.due < Depth::Everything) {
            Some(known) => Inventory {
                machine: Arc::clone(&known.machine),
                allocatable,
                config: known.config.clone(),
                problems: known.problems.clone(),
            },
            None => {
                let machine = machine::read(&self.host)?;
                let mut problems: Vec<String> = machine.problems.iter().map(ToString::to_string).collect();
                problems.extend(self.config.read(connection, flight.socket_made(), Instant::now()));
                if let Some(metrics) = &self.metrics {
                    metrics.health().out_of_reach(self.config.out_of_reach());
                }
                let config = self.config.config().cloned();
                Inventory { machine: Arc::new(machine), allocatable, config, problems }
            }
        };
        self.offered = inventory.allocatable.devices.iter().map(|group| group.resource.clone()).collect();
        self.inventory = Some((connection, Arc::new(inventory)));
        self.absent = self.uncovered(usage);
        Ok(connection)
    }

    /// Returns the device resources in use that the inventory lacks.
    fn uncovered(&self, usage: &Usage) -> BTreeSet<String> {
        let containers = usage.pods.iter().flat_map(|pod| &pod.containers);
        let groups = containers.flat_map(|container| &container.devices);
        let uncovered = groups.filter(|group| !self.offered.contains(&group.resource));
        uncovered.map(|group| group.resource.clone()).collect()
    }
}

/// Returns UID and name for the checkpoint entries without a name whose pod `told` knows by UID. The List
/// must contain the pod too, with allocations, and no other entry may have its name: otherwise this may be
/// the next pod with that name, which the List does not show yet.
fn told_names<'a, 'b>(
    listed: impl Iterator<Item = &'a PodUsage>,
    told: impl Iterator<Item = &'b Pod>,
    state: &ManagerState,
) -> Vec<(String, PodName)> {
    let taken: HashSet<&PodName> = state.names.values().collect();
    let holders = listed.filter(|pod| pod.holds_anything()).map(PodUsage::full_name);
    let listed: HashSet<PodName> = holders.filter(|name| !taken.contains(name)).collect();
    let unnamed = |pod: &&Pod| state.pods.contains_key(&pod.uid) && !state.names.contains_key(&pod.uid);
    let names = told.filter(unnamed).map(|pod| (pod.uid.clone(), pod.full_name()));
    names.filter(|(_, name)| listed.contains(name)).collect()
}

/// Adds pod names to the checkpoints, which are copied only if there are any.
fn name(state: &mut Arc<ManagerState>, names: Vec<(String, PodName)>) {
    if !names.is_empty() {
        Arc::make_mut(state).names.extend(names);
    }
}

/// Returns the response to parse; `None` while it is unknown what has to be merged into it.
fn merged(merge: Option<&MergeAnswer>, flight: &Flight) -> Option<Bytes> {
    merge.map_or_else(|| Some(flight.bytes.clone()), |merge| merge(&flight.bytes))
}
