//! Reads a consistent snapshot of the node.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::claim_files::ClaimFiles;
use super::claims::ClaimReader;
use super::kubelet::{KubeletReader, Merge};
use super::kubelet_config::ConfigReader;
use super::scan::{ATTEMPTS, ConfigConfidence, ConfigStatus, Depth, Inventory, Scan, ScanError};
use crate::agent::metrics::Metrics;
use crate::agent::settings::Settings;
use crate::claims::NodeClaims;
use crate::cluster::Cluster;
use crate::kubelet::{
    CheckpointPaths, CheckpointReader, Checkpoints, KubeletInstance, PodUsage, SharedResponse, Usage,
};
use crate::machine::{self, HostRoots};
use crate::pod::{Pod, PodName, TerminatedPodNames};
use crate::pod_source::PodCache;
use crate::topology;

/// How long the first scan waits for ResourceSlices and ResourceClaims.
const CLAIMS_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the node repeatedly. What changes slowly is read again only if it may have changed.
pub struct NodeReader {
    pub(in crate::agent) kubelet: KubeletReader,
    pub(in crate::agent) config: ConfigReader,
    pub(in crate::agent) checkpoints: CheckpointReader,
    /// `None` with `dra.source: off`, or without a cluster.
    pub(in crate::agent) claims: Option<ClaimReader>,
    claim_files: ClaimFiles,
    host: HostRoots,
    pods: PodCache,
    /// What still has to be read. A failed scan does not reset it.
    due: Depth,
    inventory: Option<(KubeletInstance, Arc<Inventory>)>,
    offered: BTreeSet<String>,
    /// Device resources in use that even a fresh inventory lacked.
    absent: BTreeSet<String>,
}

impl NodeReader {
    /// Returns a reader that has read nothing yet, on the current Tokio runtime. The credentials of `cluster`
    /// serve to request the kubelet's configuration.
    #[must_use]
    pub fn new(settings: &Settings, cluster: Option<Cluster>) -> Self {
        Self::of_agent(settings, PodCache::none(), cluster, None)
    }

    /// As [`NodeReader::new`]; looks up the UIDs in checkpoints in `pods`, and counts requests.
    pub(in crate::agent) fn of_agent(
        settings: &Settings,
        pods: PodCache,
        cluster: Option<Cluster>,
        metrics: Option<Arc<Metrics>>,
    ) -> Self {
        let (socket, timeout) = (settings.socket.clone(), settings.kubelet_timeout);
        let checkpoints = CheckpointPaths::new(&settings.kubelet_dir, &settings.device_plugins);
        let claims = cluster.clone().filter(|_| settings.reads_claims);
        let claims = claims.map(|cluster| ClaimReader::start(cluster, settings.node.clone()));
        Self {
            claims,
            claim_files: ClaimFiles::new(settings.host.clone(), settings.cdi.clone()),
            kubelet: KubeletReader::new(socket, timeout, metrics),
            config: ConfigReader::new(settings.kubelet_config.clone(), cluster),
            checkpoints: CheckpointReader::new(checkpoints),
            host: settings.host.clone(),
            pods,
            due: Depth::Everything,
            inventory: None,
            offered: BTreeSet::new(),
            absent: BTreeSet::new(),
        }
    }

    /// Merges this into the kubelet's responses from now on.
    pub fn merge_with(&mut self, merge: Merge) {
        self.kubelet.merge = merge;
    }

    /// Scans the node: one List; more if `depth` requires it, the kubelet restarted, or the List contains
    /// device resources that the inventory lacks. `terminated` are pods that kubelets before 1.34 still list.
    ///
    /// # Errors
    /// When the kubelet or the hardware cannot be read. What a failed scan had to read is due again
    /// at the next.
    pub async fn scan(&mut self, depth: Depth, terminated: &TerminatedPodNames) -> Result<Scan, ScanError> {
        self.due = self.due.max(depth);
        let mut may_wait = true;
        for _ in 0..ATTEMPTS {
            let (usage, response) = self.kubelet.list().await?;
            let instance = response.instance;
            let known = self.inventory.as_ref().filter(|(from, _)| *from == instance);
            let known = known.map(|(_, inventory)| Arc::clone(inventory));
            if known.is_none() {
                self.due = Depth::Everything;
            } else if self.due == Depth::Usage && self.uncovered(&usage) != self.absent {
                self.due = Depth::Allocatable;
            }
            let from = match self.due {
                Depth::Usage => instance,
                Depth::Allocatable | Depth::Everything => {
                    self.read_inventory(known, instance, &usage).await?
                }
            };
            if from != instance {
                continue;
            }
            // Only once: pods that start meanwhile may have other claims.
            let waits = std::mem::take(&mut may_wait);
            if !waits || !self.waited_for_claims(&usage, terminated, CLAIMS_TIMEOUT).await {
                return self.complete(usage, &response, terminated);
            }
        }
        Err(ScanError::Restarting)
    }

    fn complete(
        &mut self,
        usage: Usage,
        response: &SharedResponse,
        terminated: &TerminatedPodNames,
    ) -> Result<Scan, ScanError> {
        self.due = Depth::Usage;
        let inventory = self.inventory.as_ref().map(|(_, inventory)| Arc::clone(inventory));
        let inventory = inventory.ok_or(ScanError::Restarting)?;
        let checkpoints = self.read_checkpoints(&usage, terminated);
        let config = self.config_status(&inventory);
        let claims = self.read_claims(&usage, terminated)?;
        Ok(Scan {
            claims: claims.map(Arc::new),
            claim_errors: self.claims.as_ref().into_iter().flat_map(ClaimReader::errors).collect(),
            usage: Arc::new(usage),
            inventory,
            checkpoints,
            checkpoint_errors: self.checkpoints.errors().to_vec(),
            has_cpu_checkpoint: self.checkpoints.has_cpu_checkpoint(),
            terminated: Arc::clone(terminated),
            instance: response.instance,
            socket_age: response.socket.age(),
            config,
        })
    }

    /// Waits at the start until the claims that pods name are read, or cannot be. Returns true if that took time, so
    /// that the List is outdated.
    async fn waited_for_claims(
        &mut self,
        usage: &Usage,
        terminated: &TerminatedPodNames,
        time: Duration,
    ) -> bool {
        let deadline = Instant::now() + time;
        let mut has_waited = false;
        while self.claims.as_ref().is_some_and(|reader| !reader.has_started() && !reader.has_failed())
            && self.read_claims(usage, terminated).is_err()
            && let Some(reader) = &mut self.claims
        {
            if timeout_at(deadline, reader.changed()).await.is_err() {
                return false;
            }
            has_waited = true;
        }
        has_waited
    }

    /// Returns what is known of the claims that pods name.
    fn read_claims(
        &mut self,
        usage: &Usage,
        terminated: &TerminatedPodNames,
    ) -> Result<Option<NodeClaims>, ScanError> {
        let Some(reader) = &mut self.claims else { return Ok(None) };
        let listed = topology::active_pods(usage, terminated);
        let read = self.pods.with(|pods| reader.claims(listed, pods.into_iter().flatten()));
        let mut read = read.map_err(ScanError::ClaimsUnknown)?;
        if let Some(read) = &mut read {
            self.claim_files.complete(read);
        }
        Ok(read)
    }

    /// Returns what is known of the claims that the List names, as soon as they are read.
    ///
    /// # Errors
    /// If they cannot be read, or not in time.
    pub(in crate::agent) async fn claims_in_time(
        &mut self,
        usage: &Usage,
        time: Duration,
    ) -> Result<Option<NodeClaims>, ScanError> {
        if self.claims.is_none() {
            return Err(ScanError::ClaimsUnknown("there is no cluster".to_owned()));
        }
        let terminated = TerminatedPodNames::default();
        self.waited_for_claims(usage, &terminated, time).await;
        self.read_claims(usage, &terminated)
    }

    fn config_status(&self, inventory: &Inventory) -> ConfigStatus {
        ConfigStatus {
            confidence: match inventory.config {
                None => ConfigConfidence::Unknown,
                Some(_) if self.config.is_certain() => ConfigConfidence::Certain,
                Some(_) => ConfigConfidence::Doubtful,
            },
            is_requested: self.config.is_requested(),
            error: self.config.error.clone(),
        }
    }

    /// Reads the managers' checkpoints and records which pods the UIDs in them belong to. An entry stays
    /// after its pod has left the List: only if its pod was matched before is it known that the resources are
    /// released.
    fn read_checkpoints(
        &mut self,
        usage: &Usage,
        terminated: &TerminatedPodNames,
    ) -> Option<Arc<Checkpoints>> {
        let checkpoints = self.checkpoints.read()?;
        if !checkpoints.has_all_names() {
            let active = topology::active_pods(usage, terminated);
            let names = self.pods.with(|pods| known_names(active, pods.into_iter().flatten(), checkpoints));
            add_names(checkpoints, names);
        }
        if !checkpoints.has_all_names() {
            let certain = topology::match_uids(topology::active_pods(usage, terminated), checkpoints).certain;
            let names = certain.into_iter().filter(|(uid, _)| !checkpoints.names.contains_key(*uid));
            let names = names.map(|(uid, pod)| (uid.to_owned(), pod.full_name())).collect();
            add_names(checkpoints, names);
        }
        Some(Arc::clone(checkpoints))
    }

    /// Reads what is due; the rest comes from `known`, the inventory of the kubelet instance `of`, unless
    /// another kubelet responds. Returns the kubelet instance that was read from.
    async fn read_inventory(
        &mut self,
        known: Option<Arc<Inventory>>,
        of: KubeletInstance,
        usage: &Usage,
    ) -> Result<KubeletInstance, ScanError> {
        let (allocatable, response) = self.kubelet.allocatable().await?;
        let instance = response.instance;
        let inventory = match known.filter(|_| self.due < Depth::Everything && instance == of) {
            Some(known) => Inventory { allocatable, ..Inventory::clone(&known) },
            None => {
                let before = self.inventory.as_ref().map(|(_, inventory)| Arc::clone(&inventory.machine));
                let machine = machine::read_after(&self.host, &before.unwrap_or_default())?;
                let errors = self.config.read(instance, response.socket.created(), Instant::now());
                Inventory::new(machine, allocatable, self.config.config().cloned(), errors)
            }
        };
        self.offered = inventory.allocatable.devices.iter().map(|group| group.resource.clone()).collect();
        self.inventory = Some((instance, Arc::new(inventory)));
        self.absent = self.uncovered(usage);
        Ok(instance)
    }

    fn uncovered(&self, usage: &Usage) -> BTreeSet<String> {
        let containers = usage.pods.iter().flat_map(|pod| &pod.containers);
        let groups = containers.flat_map(|container| &container.devices);
        let uncovered = groups.filter(|group| !self.offered.contains(&group.resource));
        uncovered.map(|group| group.resource.clone()).collect()
    }
}

/// Returns UID and name for the checkpoint entries without a name whose pod is among `known`. The List must
/// contain the pod too, with allocations, and no other entry may have its name: otherwise this may be the
/// next pod with that name, which the List does not show yet.
fn known_names<'a, 'b>(
    listed: impl Iterator<Item = &'a PodUsage>,
    known: impl Iterator<Item = &'b Pod>,
    checkpoints: &Checkpoints,
) -> Vec<(String, PodName)> {
    let taken: HashSet<&PodName> = checkpoints.names.values().collect();
    let listed = listed.filter(|pod| pod.has_allocations()).map(PodUsage::full_name);
    let listed: HashSet<PodName> = listed.filter(|name| !taken.contains(name)).collect();
    let is_unnamed =
        |pod: &&Pod| checkpoints.pods.contains_key(&pod.uid) && !checkpoints.names.contains_key(&pod.uid);
    let names = known.filter(is_unnamed).map(|pod| (pod.uid.clone(), pod.full_name()));
    names.filter(|(_, name)| listed.contains(name)).collect()
}

/// Adds pod names to the checkpoints, which are copied only if there are any.
fn add_names(checkpoints: &mut Arc<Checkpoints>, names: Vec<(String, PodName)>) {
    if !names.is_empty() {
        Arc::make_mut(checkpoints).names.extend(names);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use numacast_sim::kubelet::{Options, SimKubelet};
    use numacast_sim::machine::MachineSpec;
    use prost::bytes::Bytes;

    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn the_configuration_of_a_kubelet_that_was_replaced_during_the_scan_is_not_used() {
        let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines/two-by-eight.yaml");
        let (machine, dir) = (MachineSpec::read(&machine).unwrap(), tempfile::tempdir().unwrap());
        machine.write_tree(dir.path()).unwrap();
        let root = dir.path().join("var/lib/kubelet");
        let options = Options { limited: false, ..Options::default() };
        let kubelet = SimKubelet::start(&machine, &root, options).unwrap();
        let mut config = Config { node_name: "worker".into(), ..Config::default() };
        config.host.root = dir.path().to_owned();
        let mut reader = NodeReader::new(&config.agent_settings(), None);
        let policy =
            |scan: Scan| scan.inventory.config.as_ref().map(|config| config.topology_manager_policy.clone());
        let before = reader.scan(Depth::Everything, &TerminatedPodNames::default()).await.unwrap();
        assert_eq!(policy(before).as_deref(), Some("best-effort"));
        // Another kubelet starts between the first List and GetAllocatableResources.
        let is_replaced = AtomicBool::new(false);
        let replace = move |list: &Bytes| {
            if !is_replaced.swap(true, Ordering::Relaxed) {
                std::fs::write(root.join("config.yaml"), "topologyManagerPolicy: restricted\n").unwrap();
                kubelet.listen_again().unwrap();
            }
            Some(list.clone())
        };
        reader.merge_with(Merge { list: Some(Arc::new(replace)), allocatable: None });
        let after = reader.scan(Depth::Allocatable, &TerminatedPodNames::default()).await.unwrap();
        assert_eq!(policy(after).as_deref(), Some("restricted"));
    }
}
