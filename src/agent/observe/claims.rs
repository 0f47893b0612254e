//! Reads the node's ResourceSlices and the claims that its pods name, in the background.
//!
//! Slices are watched. A claim is read once when a pod names it for the first time, since its allocation cannot change
//! while a pod uses it, and again when another pod does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::claims::{
    Claim, DeviceKey, Inventory, NamedClaims, NodeClaims, Slice, claims_of, known_claims, named_claims,
};
use crate::cluster::{Cluster, ClusterError, DraVersion, ListWatchEvent, ListWatchStream, WatchedSlice};
use crate::kubelet::PodUsage;
use crate::pod::Pod;
use crate::util::backoff::back_off;
use crate::util::log_throttle::LogOnce;
use crate::util::task::Task;

/// How often it is checked whether an API server without dynamic resource allocation has it, after an upgrade.
const RECHECK: Duration = Duration::from_secs(3600);
/// Delay after the first failed request for a claim, and the maximum.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// The most claims that are read at the same time.
const CONCURRENT: usize = 4;

/// The most slices that are kept: each has at most 128 devices, and no machine has as many CPUs.
const MAX_SLICES: usize = 1024;

/// What was read so far.
#[derive(Clone, Debug, Default)]
struct Read {
    /// Whether the API server has dynamic resource allocation; `None` while that is not known.
    is_served: Option<bool>,
    /// By name; `None` before the first list.
    slices: Option<BTreeMap<String, Slice>>,
    /// The number of changes of the slices.
    revision: u64,
    /// Claims that were read for these pods. `None`: there is no such claim.
    claims: BTreeMap<String, (BTreeSet<String>, Option<Claim>)>,
    /// Why the last request failed, until everything was read once.
    error: Option<String>,
}

/// Reads claims in the background.
#[derive(Debug)]
pub(in crate::agent) struct ClaimReader {
    named: watch::Sender<NamedClaims>,
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
        let (named, names) = watch::channel(NamedClaims::new());
        let (sender, read) = watch::channel(Arc::default());
        let task = Reading {
            cluster,
            node,
            names,
            read: sender,
            failures: 0,
            not_before: Instant::now(),
            slices_log: LogOnce::default(),
            claims_log: LogOnce::default(),
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
        self.read.borrow().error.is_some()
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
            let is_other = *before != named;
            if is_other {
                before.clone_from(&named);
            }
            is_other
        });
        let read = Arc::clone(&self.read.borrow_and_update());
        if read.is_served == Some(false) {
            return Ok(None);
        }
        let error =
            || read.error.clone().unwrap_or_else(|| "the API server has not responded yet".to_owned());
        let slices = read.slices.as_ref().ok_or_else(error)?;
        if !self.has_started && listed.keys().any(|name| !read.claims.contains_key(name)) {
            return Err(error());
        }
        self.has_started = true;
        let of_api = |name: &str| read.claims.get(name).map(|(_, claim)| claim.as_ref());
        let claims = known_claims(named, &listed, of_api);
        let devices = claims.values().flat_map(|of| &of.claim.devices);
        let in_use: BTreeSet<DeviceKey> = devices.map(DeviceKey::from).collect();
        self.update_inventory(slices, (read.revision, in_use));
        Ok(Some(NodeClaims { inventory: Arc::clone(&self.inventory), claims, ..NodeClaims::default() }))
    }

    /// Updates the inventory, unless nothing has changed: it may have thousands of devices.
    fn update_inventory(&mut self, slices: &BTreeMap<String, Slice>, of: (u64, BTreeSet<DeviceKey>)) {
        let now = self.start.elapsed();
        if self.includes != of || self.inventory.next_loss().is_some_and(|loss| loss <= now) {
            Arc::make_mut(&mut self.inventory).update(slices.values(), &of.1, now);
            self.includes = of;
        }
    }
}

/// The task behind a [`ClaimReader`].
struct Reading {
    cluster: Cluster,
    node: String,
    names: watch::Receiver<NamedClaims>,
    read: watch::Sender<Arc<Read>>,
    failures: u32,
    /// When the next claims may be requested.
    not_before: Instant,
    slices_log: LogOnce,
    claims_log: LogOnce,
}

impl Reading {
    async fn run(mut self) {
        loop {
            match self.cluster.dra_version().await {
                Ok(Some(version)) => {
                    self.follow(version).await;
                    tokio::time::sleep(RETRY_LIMIT).await;
                }
                Ok(None) => {
                    self.change(|read| {
                        *read =
                            Read { is_served: Some(false), revision: read.revision + 1, ..Read::default() };
                    });
                    tokio::time::sleep(RECHECK).await;
                }
                Err(error) => {
                    self.failed(&error);
                    tokio::time::sleep(back_off(&mut self.failures, RETRY, RETRY_LIMIT)).await;
                }
            }
        }
    }

    /// Follows slices and claims until the API server no longer has this version.
    async fn follow(&mut self, version: DraVersion) {
        let mut slices: ListWatchStream<WatchedSlice> = self.cluster.watch_slices(version, &self.node);
        loop {
            let missing = self.missing();
            tokio::select! {
                event = slices.next() => match event {
                    Some(Ok(event)) => {
                        self.slices_log.recovered("ResourceSlices are read again");
                        self.apply(event);
                    }
                    Some(Err(error)) if is_gone(&error) => return,
                    Some(Err(error)) => self.failed(&error),
                    None => return,
                },
                Ok(()) = self.names.changed() => {}
                () = sleep_until(self.not_before), if !missing.is_empty() => {
                    self.read_claims(version, missing).await;
                }
            }
        }
    }

    /// Logs an error with slices. At the start the scan fails with it.
    fn failed(&mut self, error: &ClusterError) {
        // Not in a condition, which would hold the lock.
        let is_known = self.read.borrow().slices.is_some();
        match is_known {
            true => self.slices_log.warn(&format!("cannot read ResourceSlices: {error}")),
            false => self.change(|read| read.error = Some(error.to_string())),
        }
    }

    fn apply(&self, event: ListWatchEvent<WatchedSlice>) {
        self.change(|read| {
            read.error = None;
            read.revision += 1;
            let slices = read.slices.get_or_insert_default();
            let before = slices.len();
            match event {
                ListWatchEvent::Listed(all) => {
                    read.is_served = Some(true);
                    *slices = all.into_iter().map(|of| (of.slice.name.clone(), of.slice)).collect();
                }
                ListWatchEvent::Applied(of) => _ = slices.insert(of.slice.name.clone(), of.slice),
                ListWatchEvent::Deleted(of) => _ = slices.remove(&of.slice.name),
            }
            if slices.len() > MAX_SLICES && before <= MAX_SLICES {
                warn!("the node has more than {MAX_SLICES} ResourceSlices; the others are ignored");
            }
            while slices.len() > MAX_SLICES {
                slices.pop_last();
            }
        });
    }

    /// Returns the claims to read: those that were not read for all of their pods. Forgets the others that no pod names.
    fn missing(&mut self) -> NamedClaims {
        let named = self.names.borrow_and_update().clone();
        if self.read.borrow().claims.keys().any(|name| !named.contains_key(name)) {
            self.change(|read| read.claims.retain(|name, _| named.contains_key(name)));
        }
        let read = self.read.borrow();
        let is_missing = |(name, pods): &(String, BTreeSet<String>)| {
            let is_read = |(known, claim): &(BTreeSet<String>, Option<Claim>)| {
                pods.is_subset(known) && claim.as_ref().is_none_or(|claim| claim.is_allocated)
            };
            !read.claims.get(name).is_some_and(is_read)
        };
        named.into_iter().filter(is_missing).collect()
    }

    async fn read_claims(&mut self, version: DraVersion, missing: NamedClaims) {
        let cluster = &self.cluster;
        let requests = missing.into_iter().map(|(name, pods)| async move {
            let (namespace, claim) = name.split_once('/').unwrap_or_default();
            let read = cluster.claim(version, namespace, claim).await;
            (name, pods, read)
        });
        let results: Vec<_> = futures::stream::iter(requests).buffer_unordered(CONCURRENT).collect().await;
        // A pod that was bound without a scheduler may have a claim that is not allocated yet.
        let mut is_incomplete = false;
        let mut changes = Vec::new();
        for (name, pods, result) in results {
            match result {
                Ok(claim) => {
                    is_incomplete |= claim.as_ref().is_some_and(|claim| !claim.is_allocated);
                    let read = (pods, claim);
                    let is_new = self.read.borrow().claims.get(&name) != Some(&read);
                    changes.extend(is_new.then_some((name, read)));
                }
                Err(error) => {
                    is_incomplete = true;
                    self.change(|read| read.error = Some(error.to_string()));
                    self.claims_log.warn(&format!("cannot read a ResourceClaim: {error}"));
                }
            }
        }
        if !changes.is_empty() {
            self.change(|read| read.claims.extend(changes));
        }
        match is_incomplete {
            true => self.not_before = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT),
            false => {
                self.failures = 0;
                self.claims_log.recovered("ResourceClaims are read again");
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Read)) {
        self.read.send_modify(|read| change(Arc::make_mut(read)));
    }
}

/// Returns true if the API server no longer has the version of the API.
fn is_gone(error: &ClusterError) -> bool {
    let is_gone = matches!(error, ClusterError::Rejected { code: 404, .. });
    if is_gone {
        info!("the API server no longer has this version of resource.k8s.io");
    }
    is_gone
}
