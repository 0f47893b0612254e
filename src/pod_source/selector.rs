//! The pod sources, and which of them is used: the first that works.

mod trial;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, pending};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{debug, info, warn};

use super::kind::PodSourceKind;
use super::kubelet_port::KubeletPort;
use super::queue::{Item, Queue};
use super::shared_informer::{Events, SharedInformer};
use crate::cluster::Cluster;
use crate::kubelet::{self, Refresh};
use crate::pod::{PodEvent, Wanted};
use crate::util::backoff::back_off;
use trial::{TRIAL_TIMEOUT, Trial};

/// How long the selected source may fail before all are tried again.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(60);

const NO_CREDENTIALS: &str = "there are no credentials for the API server: set --kubeconfig";

/// The sources to use, and how to reach them.
#[derive(Clone, Debug, Default)]
pub struct PodSources {
    /// The sources, in order of preference.
    pub order: Vec<PodSourceKind>,
    /// The socket of the Pods API.
    pub socket: PathBuf,
    /// The deadline of a call to the kubelet.
    pub timeout: Duration,
    /// How often `/pods` is read.
    pub interval: Duration,
    /// The address of `/pods`.
    pub port: KubeletPort,
    /// The optional parts of a pod to keep.
    pub wanted: Wanted,
    /// Shares the sources with others in this process, if set.
    pub informer: Option<SharedInformer>,
    /// Requests reads of `/pods`, if set and there is no informer.
    pub refresh: Option<Arc<Refresh>>,
}

/// Selects a source and yields its events.
pub struct SourceSelector {
    sources: PodSources,
    node: String,
    cluster: Option<Cluster>,
    index: usize,
    events: Events,
    /// Whether the current source has listed all pods. If so, it stays.
    is_selected: bool,
    /// Until when it must have listed them, unless it is selected.
    deadline: Instant,
    /// Since when it has been failing, if it is selected.
    failing_since: Option<Instant>,
    /// Why the other sources of this round do not work.
    errors: Vec<String>,
    failures: u32,
    not_before: Instant,
    /// Notified to read `/pods` ahead of its time. It has no effect on the other sources.
    pub(super) refresh: Arc<Refresh>,
    /// The trial of a source that is preferred to the selected one and may work by now.
    trial: Trial,
    /// Events that the current source sent before it was switched to.
    backlog: Queue,
}

impl SourceSelector {
    /// Opens the first source for the pods of `node`. There must be at least one; without a cluster only the
    /// kubelet's Pods API works.
    #[must_use]
    pub fn new(sources: PodSources, node: String, cluster: Option<Cluster>) -> Self {
        let now = Instant::now();
        let shared = sources.informer.as_ref().map(|informer| &informer.refresh);
        let refresh = shared.or(sources.refresh.as_ref()).cloned().unwrap_or_default();
        let mut selector = Self {
            sources,
            node,
            cluster,
            index: 0,
            events: pending().boxed(),
            is_selected: false,
            deadline: now,
            failing_since: None,
            errors: Vec::new(),
            failures: 0,
            not_before: now,
            refresh,
            trial: Trial::later(),
            backlog: Queue::new([], None, false),
        };
        selector.try_source(0);
        selector
    }

    /// Returns the current source.
    #[must_use]
    pub fn source(&self) -> PodSourceKind {
        self.sources.order.get(self.index).copied().unwrap_or(PodSourceKind::ApiServer)
    }

    /// Returns the next event. Cancel-safe.
    ///
    /// # Errors
    /// One sentence; it continues after a backoff.
    pub async fn next(&mut self) -> Result<PodEvent, String> {
        loop {
            if let Some(item) = self.backlog.pop() {
                return item;
            }
            sleep_until(self.not_before).await;
            if self.is_selected || self.is_only_one() {
                tokio::select! {
                    item = self.events.next() => {
                        let item = item.unwrap_or_else(|| Err("the pod source has ended".to_owned()));
                        self.check_health(&item);
                        return item;
                    }
                    // Its events are kept back until it is switched to.
                    item = self.trial.next(), if self.index > 0 => self.continue_trial(item),
                }
                continue;
            }
            let error = match timeout_at(self.deadline, self.events.next()).await {
                Ok(Some(Ok(event))) => {
                    if event == PodEvent::InitDone {
                        self.select();
                    }
                    return Ok(event);
                }
                Ok(Some(Err(error))) => error,
                Ok(None) | Err(_) => {
                    format!("{} did not list the pods within {TRIAL_TIMEOUT:?}", self.source())
                }
            };
            debug!("{error}; trying the next pod source");
            self.errors.push(error);
            if self.index + 1 < self.sources.order.len() {
                self.try_source(self.index + 1);
                continue;
            }
            // None worked: the next round begins after a backoff.
            self.not_before = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
            self.try_source(0);
            self.deadline = self.not_before + TRIAL_TIMEOUT;
            return Err(format!("no pod source works: {}", std::mem::take(&mut self.errors).join("; ")));
        }
    }

    /// Processes an event of the trial. Once that source has listed all pods, it is switched to.
    fn continue_trial(&mut self, item: Option<Item>) {
        match item {
            None => self.trial = Trial::of(0, self.open(self.sources.order[0])),
            Some(Ok(event)) => {
                let is_complete = event == PodEvent::InitDone;
                self.trial.keep(event);
                if is_complete {
                    let trial = std::mem::replace(&mut self.trial, Trial::later());
                    (self.index, self.backlog) = (trial.index, trial.kept);
                    self.events = trial.events.unwrap_or_else(|| pending().boxed());
                    self.select();
                }
            }
            Some(Err(_)) => {
                let next = self.trial.index + 1;
                self.trial = match next < self.index {
                    true => Trial::of(next, self.open(self.sources.order[next])),
                    false => Trial::later(),
                };
            }
        }
    }

    fn is_only_one(&self) -> bool {
        self.sources.order.len() == 1
    }

    fn select(&mut self) {
        info!("the pod source is {}", self.source());
        self.is_selected = true;
        self.failures = 0;
        self.failing_since = None;
        self.errors.clear();
    }

    /// Deselects a source that has been failing for long.
    fn check_health(&mut self, item: &Item) {
        match item {
            Ok(event) if event.confirms_health() => self.failing_since = None,
            Ok(_) => {}
            Err(_) => {
                let since = *self.failing_since.get_or_insert_with(Instant::now);
                if since.elapsed() > FAILURE_TIMEOUT && !self.is_only_one() {
                    let source = self.source();
                    warn!("{source} has been failing for {FAILURE_TIMEOUT:?}; trying all pod sources again");
                    self.is_selected = false;
                    self.try_source(0);
                }
            }
        }
    }

    fn try_source(&mut self, index: usize) {
        self.index = index;
        self.events = self.open(self.source());
        self.deadline = Instant::now() + TRIAL_TIMEOUT;
        self.trial = Trial::later();
    }

    fn open(&self, kind: PodSourceKind) -> Events {
        let wanted = self.sources.wanted.clone();
        match &self.sources.informer {
            Some(informer) => informer.subscribe(kind, wanted, |wanted| self.open_own(kind, wanted)),
            None => self.open_own(kind, wanted),
        }
    }

    fn open_own(&self, kind: PodSourceKind, wanted: Wanted) -> Events {
        let PodSources { socket, timeout, interval, port, .. } = &self.sources;
        match (kind, &self.cluster) {
            (PodSourceKind::PodsApi, _) => kubelet::watch_pods(socket.clone(), *timeout, wanted).boxed(),
            (_, None) => stream::once(async { Err(NO_CREDENTIALS.to_owned()) }).chain(pending()).boxed(),
            (PodSourceKind::ApiServer, Some(cluster)) => cluster.watch_pods(&self.node, wanted).boxed(),
            (PodSourceKind::Kubelet, Some(cluster)) => {
                let (port, cluster) = (port.clone(), cluster.clone());
                let connect = move || {
                    let (port, cluster) = (port.clone(), cluster.clone());
                    async move { port.connect(&cluster).await }
                };
                kubelet::poll_pods(connect, *interval, wanted, Arc::clone(&self.refresh)).boxed()
            }
        }
    }
}

#[cfg(test)]
mod tests;
