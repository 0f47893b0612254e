//! Reads the node's ResourceSlices and the claims that its pods name, in the background.
//!
//! Slices are watched. A claim is read when a pod names it for the first time, and again when another pod does: its
//! allocation cannot change while a pod uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use crate::claims::{
    Claim, ClaimPods, DeviceKey, Inventory, NamedClaims, NodeClaims, claims_of, known_claims, named_claims,
};
use crate::cluster::{
    Cluster, ClusterError, DraVersion, ListWatchEvent, ListWatchStream, StartupDenials, WatchedSlice,
};
use crate::kubelet::PodUsage;
use crate::pod::Pod;
use crate::util::backoff::{NextAttempt, jittered};
use crate::util::task::Task;

/// How often it is checked whether an API server without dynamic resource allocation has it, after an upgrade; and how
/// long what was read counts once it no longer has it. During an upgrade another API server may respond.
const RECHECK: Duration = Duration::from_secs(3600);
/// Delay after the first failed request for a claim, and the maximum.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// The maximum for a claim that does not exist, is not allocated, or has a response that cannot be used.
const UNUSABLE_LIMIT: Duration = Duration::from_secs(300);
/// The most claims that are read at the same time: each may have megabytes.
const CONCURRENT: usize = 2;
/// The most claims that are named in errors.
const MOST_ERRORS: usize = 4;

/// What was read so far.
#[derive(Clone, Debug, Default)]
struct Read {
    /// Whether the API server has dynamic resource allocation; `None` while that is not known.
    is_served: Option<bool>,
    /// By name; `None` before the first list.
    slices: Option<BTreeMap<String, WatchedSlice>>,
    /// The number of changes of the slices.
    revision: u64,
    /// Claims that were read for these pods.
    claims: BTreeMap<String, (ClaimPods, Answer)>,
    /// Why the slices cannot be read at the moment.
    slices_error: Option<String>,
    /// Why a claim cannot be read at the moment.
    claim_error: Option<String>,
}

impl Read {
    fn errors(&self) -> impl Iterator<Item = String> {
        let slices = self.slices_error.iter().map(|error| format!("cannot read ResourceSlices: {error}"));
        let claims = self.claim_error.iter().map(|error| format!("cannot read ResourceClaims: {error}"));
        let unusable = self.claims.iter().filter_map(|(name, (_, answer))| match answer {
            Answer::Unusable(error) => Some(format!("cannot read the ResourceClaim {name}: {error}")),
            _ => None,
        });
        slices.chain(claims).chain(unusable.take(MOST_ERRORS))
    }
}

/// How the API server answered a request for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Claim(Claim),
    NoSuchClaim,
    /// What is wrong with the response: it is too large or malformed.
    Unusable(String),
}

/// When a claim is requested again for these pods.
#[derive(Debug)]
struct Retry {
    pods: ClaimPods,
    next: NextAttempt,
    /// Why there was no answer.
    error: Option<String>,
}

/// Reads claims in the background.
#[derive(Debug)]
pub(in crate::agent) struct ClaimReader {
    named: watch::Sender<Arc<NamedClaims>>,
    read: watch::Receiver<Arc<Read>>,
    inventory: Arc<Inventory>,
    /// The changes of the slices and the devices in use that it includes.
    includes: (u64, BTreeSet<DeviceKey>),
    /// Whether the claims of all pods that the List showed at the start were read.
    has_started: bool,
    /// When a pool was last found to be lost.
    lost_at: Option<Instant>,
    start: Instant,
    _task: Task,
}

impl ClaimReader {
    /// Starts to read the slices of this node.
    pub(in crate::agent) fn start(cluster: Cluster, node: String) -> Self {
        let (named, names) = watch::channel(Arc::default());
        let (sender, read) = watch::channel(Arc::default());
        let task = Reading {
            cluster,
            node,
            names,
            read: sender,
            next: NextAttempt::new(Instant::now()),
            retries: BTreeMap::new(),
            denials: StartupDenials::default(),
            not_served_since: None,
        };
        Self {
            named,
            read,
            inventory: Arc::default(),
            includes: Default::default(),
            has_started: false,
            lost_at: None,
            start: Instant::now(),
            _task: Task::spawn(task.run()),
        }
    }

    /// Returns true once everything was read that the first scan needs.
    pub(in crate::agent) fn has_started(&self) -> bool {
        self.has_started
    }

    /// Returns true if a request has failed since the start.
    pub(in crate::agent) fn has_failed(&self) -> bool {
        let read = self.read.borrow();
        read.slices_error.is_some() || read.claim_error.is_some()
    }

    /// Returns what cannot be read at the moment, one sentence each.
    pub(in crate::agent) fn errors(&self) -> impl Iterator<Item = String> + use<> {
        let errors: Vec<String> = self.read.borrow().errors().collect();
        errors.into_iter()
    }

    /// Waits until something that was read has changed, or a pool that is gone stops counting.
    pub(in crate::agent) async fn changed(&mut self) {
        let loss = self.inventory.next_loss().map(|loss| self.start + loss);
        // Each once, although the inventory does not change before the kubelet responds.
        let loss = loss.filter(|at| Some(*at) != self.lost_at);
        tokio::select! {
            Ok(()) = self.read.changed() => {}
            () = sleep_until(loss.unwrap_or(self.start)), if loss.is_some() => self.lost_at = loss,
            else => std::future::pending().await,
        }
    }

    /// Returns what is known of the claims of these pods: those of the List, and those of the pod source. `None` if the
    /// API server has no dynamic resource allocation.
    ///
    /// # Errors
    /// Why the slices, or the claims of pods that the first List shows, were not read yet: claimed resources would look
    /// available.
    pub(in crate::agent) fn claims<'a, 'b>(
        &mut self,
        listed: impl Iterator<Item = &'a PodUsage>,
        pods: impl Iterator<Item = &'b Pod>,
    ) -> Result<Option<NodeClaims>, String> {
        let listed = claims_of(listed);
        let named = named_claims(&listed, pods);
        self.named.send_if_modified(|before| {
            let is_other = **before != named;
            if is_other {
                *before = Arc::new(named.clone());
            }
            is_other
        });
        let read = Arc::clone(&self.read.borrow_and_update());
        if read.is_served == Some(false) {
            return Ok(None);
        }
        let error = || {
            let error = read.slices_error.clone().or_else(|| read.claim_error.clone());
            error.unwrap_or_else(|| "the API server has not responded yet".to_owned())
        };
        let slices = read.slices.as_ref().ok_or_else(error)?;
        if !self.has_started && listed.keys().any(|name| !read.claims.contains_key(name)) {
            return Err(error());
        }
        self.has_started = true;
        let of_api = |name: &str| match &read.claims.get(name)?.1 {
            Answer::Claim(claim) => Some(Some(claim)),
            Answer::NoSuchClaim => Some(None),
            Answer::Unusable(_) => None,
        };
        let claims = known_claims(named, &listed, of_api);
        let devices = claims.values().flat_map(|of| &of.claim.devices);
        let in_use: BTreeSet<DeviceKey> = devices.map(DeviceKey::from).collect();
        self.update_inventory(slices, (read.revision, in_use));
        Ok(Some(NodeClaims { inventory: Arc::clone(&self.inventory), claims, ..NodeClaims::default() }))
    }

    /// Updates the inventory, unless nothing has changed: it may have thousands of devices.
    fn update_inventory(&mut self, slices: &BTreeMap<String, WatchedSlice>, of: (u64, BTreeSet<DeviceKey>)) {
        let now = self.start.elapsed();
        if self.includes != of || self.inventory.next_loss().is_some_and(|loss| loss <= now) {
            Arc::make_mut(&mut self.inventory).update(slices.values().map(|of| &of.slice), &of.1, now);
            self.includes = of;
        }
    }
}

/// The task behind a [`ClaimReader`].
struct Reading {
    cluster: Cluster,
    node: String,
    names: watch::Receiver<Arc<NamedClaims>>,
    read: watch::Sender<Arc<Read>>,
    /// When anything may be requested, after a failure that affects every request.
    next: NextAttempt,
    retries: BTreeMap<String, Retry>,
    denials: StartupDenials,
    not_served_since: Option<Instant>,
}

/// The response to a request for a claim: its name, its pods at that time, and the result.
type Response = (String, ClaimPods, Result<Option<Claim>, ClusterError>);

impl Reading {
    async fn run(mut self) {
        loop {
            match self.cluster.dra_version().await {
                Ok(Some(version)) => {
                    self.not_served_since = None;
                    self.follow(version).await;
                    info!("the API server no longer has this version of resource.k8s.io");
                    sleep(jittered(RETRY_LIMIT)).await;
                }
                Ok(None) => self.not_served().await,
                Err(error) => {
                    self.slices_failed(&error);
                    self.delay_all(&error);
                    sleep_until(self.next.at()).await;
                }
            }
        }
    }

    /// Waits until the API server may have dynamic resource allocation again.
    async fn not_served(&mut self) {
        let since = *self.not_served_since.get_or_insert_with(Instant::now);
        let was_served = self.read.borrow().is_served == Some(true) && since.elapsed() < RECHECK;
        if !was_served && self.read.borrow().is_served != Some(false) {
            self.change(|read| {
                *read = Read { is_served: Some(false), revision: read.revision + 1, ..Read::default() };
            });
        }
        let has_claims = !self.names.borrow_and_update().is_empty();
        let delay = if was_served || has_claims { RETRY_LIMIT } else { RECHECK };
        tokio::select! {
            () = sleep(jittered(delay)) => {}
            Ok(()) = self.names.changed(), if !has_claims => {}
        }
    }

    /// Follows slices and claims until the API server no longer has this version.
    async fn follow(&mut self, version: DraVersion) {
        let mut slices: ListWatchStream<WatchedSlice> = self.cluster.watch_slices(version, &self.node);
        let (mut requests, mut requested) = (FuturesUnordered::new(), BTreeSet::new());
        loop {
            let (due, next) = self.due(&requested, CONCURRENT - requested.len());
            for (name, pods) in due {
                requested.insert(name.clone());
                requests.push(request(self.cluster.clone(), version, name, pods));
            }
            tokio::select! {
                event = slices.next() => match event {
                    Some(Ok(event)) => self.apply(event),
                    Some(Err(error)) if error.is_missing_api() => return,
                    Some(Err(error)) => self.slices_failed(&error),
                    None => return,
                },
                Some(response) = requests.next() => {
                    requested.remove(&response.0);
                    if response.2.as_ref().is_err_and(ClusterError::is_missing_api) {
                        return;
                    }
                    self.received(response);
                }
                Ok(()) = self.names.changed() => {}
                () = sleep_until(next.unwrap_or(self.next.at())), if next.is_some() => {}
            }
        }
    }

    /// Records why slices cannot be read. At the start the scan fails with it.
    fn slices_failed(&self, error: &ClusterError) {
        let error = Some(error.to_string());
        if self.read.borrow().slices_error != error {
            self.change(|read| read.slices_error = error);
        }
    }

    fn apply(&mut self, event: ListWatchEvent<WatchedSlice>) {
        self.next.succeeded();
        if matches!(event, ListWatchEvent::Resumed) {
            self.change(|read| read.slices_error = None);
            return;
        }
        let mut has_room = true;
        self.change(|read| {
            read.slices_error = None;
            read.revision += 1;
            let slices = read.slices.get_or_insert_default();
            match event {
                ListWatchEvent::Listed(all) => {
                    read.is_served = Some(true);
                    *slices = all.into_iter().map(|of| (of.slice.name.clone(), of)).collect();
                }
                ListWatchEvent::Applied(of) => {
                    slices.remove(&of.slice.name);
                    let weight: usize = slices.values().map(WatchedSlice::weight).sum();
                    match weight + of.weight() <= WatchedSlice::MAX_WEIGHT {
                        true => _ = slices.insert(of.slice.name.clone(), of),
                        false => has_room = false,
                    }
                }
                ListWatchEvent::Deleted(of) => _ = slices.remove(&of.slice.name),
                ListWatchEvent::Resumed => {}
            }
        });
        if !has_room {
            warn!(
                "the node's ResourceSlices have too many devices; one of the slices is ignored until the next list"
            );
        }
    }

    /// Returns at most this many claims to request now, and when the next one is due: claims whose allocation was not
    /// read for all of their pods. Forgets the others that no pod names.
    fn due(
        &mut self,
        requested: &BTreeSet<String>,
        most: usize,
    ) -> (Vec<(String, ClaimPods)>, Option<Instant>) {
        let named = Arc::clone(&self.names.borrow_and_update());
        self.retries.retain(|name, _| named.contains_key(name));
        self.report_claim_error();
        if self.read.borrow().claims.keys().any(|name| !named.contains_key(name)) {
            self.change(|read| read.claims.retain(|name, _| named.contains_key(name)));
        }
        let read = Arc::clone(&self.read.borrow());
        let (mut due, mut next, now) = (Vec::new(), None, Instant::now());
        for (name, pods) in &*named {
            if requested.contains(name) || read.claims.get(name).is_some_and(|of| is_complete(of, pods)) {
                continue;
            }
            let retry = self.retries.get(name).filter(|retry| pods.are_among(&retry.pods));
            let at = retry.map_or(now, |retry| retry.next.at()).max(self.next.at());
            match at > now {
                true => next = next.into_iter().chain([at]).min(),
                false if due.len() < most => due.push((name.clone(), pods.clone())),
                // As soon as another one has been received.
                false => {}
            }
        }
        (due, next)
    }

    fn received(&mut self, (name, pods, result): Response) {
        let (answer, limit) = match result {
            Ok(Some(claim)) => (Ok(Answer::Claim(claim)), UNUSABLE_LIMIT),
            Ok(None) => (Ok(Answer::NoSuchClaim), UNUSABLE_LIMIT),
            Err(error) if error.is_about_object() => {
                (Ok(Answer::Unusable(error.to_string())), UNUSABLE_LIMIT)
            }
            Err(error) => (Err(error), RETRY_LIMIT),
        };
        match &answer {
            Err(error) if error.affects_every_call() => self.delay_all(error),
            Err(_) => self.next.succeeded(),
            Ok(_) => {
                self.next.succeeded();
                self.denials.reset();
            }
        }
        if matches!(&answer, Ok(Answer::Claim(claim)) if claim.is_allocated) {
            self.retries.remove(&name);
        } else {
            let error = answer.as_ref().err().filter(|error| !self.denials.include(error));
            let error = error.map(ToString::to_string);
            let before = self.retries.remove(&name).filter(|before| pods.are_among(&before.pods));
            let mut next = before.map_or_else(|| NextAttempt::new(Instant::now()), |before| before.next);
            next.failed(RETRY, RETRY, limit);
            self.retries.insert(name.clone(), Retry { pods: pods.clone(), next, error });
        }
        if let Ok(answer) = answer {
            let new = (pods, answer);
            if self.read.borrow().claims.get(&name) != Some(&new) {
                self.change(|read| _ = read.claims.insert(name, new));
            }
        }
        self.report_claim_error();
    }

    /// Backs off after a failure that every other request would share. The API server may ask for a longer delay.
    fn delay_all(&mut self, error: &ClusterError) {
        let min = error.retry_after().unwrap_or_default().max(RETRY);
        self.next.failed(min, RETRY, RETRY_LIMIT);
    }

    /// Records why a claim cannot be read. At the start the scan fails with it.
    fn report_claim_error(&self) {
        let error = self.retries.values().find_map(|retry| retry.error.clone());
        if self.read.borrow().claim_error != error {
            self.change(|read| read.claim_error = error);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Read)) {
        self.read.send_modify(|read| change(Arc::make_mut(read)));
    }
}

/// Returns true if the claim's allocation was read for all of these pods.
fn is_complete((known, answer): &(ClaimPods, Answer), pods: &ClaimPods) -> bool {
    pods.are_among(known) && matches!(answer, Answer::Claim(claim) if claim.is_allocated)
}

async fn request(cluster: Cluster, version: DraVersion, name: String, pods: ClaimPods) -> Response {
    let (namespace, claim) = name.split_once('/').unwrap_or_default();
    let result = cluster.claim(version, namespace, claim).await;
    (name, pods, result)
}
