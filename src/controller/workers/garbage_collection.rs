use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::Workers;
use crate::cluster::{ClusterError, NrtMeta, Regarding};
use crate::controller::events::Reason;
use crate::controller::garbage_collection::{Decision, Doubt, Pass};
use crate::controller::names::first_names;
use crate::util::log_throttle::{LastLogged, LogOnce};

/// How long the first pass waits for the Nodes before it reports them as unknown. It waits less if they
/// cannot be listed.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum age of a response that a Node does not exist.
const MAX_AGE: Duration = Duration::from_secs(2);
/// How often such a response is requested in a row.
const ATTEMPTS: usize = 3;
/// This many consecutive failed deletions end a pass: they are unlikely to be about single objects.
const MAX_FAILURES_IN_A_ROW: usize = 10;

#[derive(Default)]
struct Reported {
    requests: LogOnce,
    deletions: LogOnce,
    doubt: LastLogged<Discriminant<Doubt>>,
    /// Whether an Event was posted about it.
    is_posted: bool,
    /// Objects that would have been deleted.
    dry_run: BTreeSet<String>,
}

enum Outcome {
    /// The object is gone, or would be.
    Deleted,
    /// It has a Node after all.
    HasNode,
    /// It is not known yet whether a scheduler reads it as a Node's.
    Unclassified,
}

impl Workers<'_> {
    /// Makes a pass over all objects at the start and at each interval, and one over the objects of the Nodes
    /// that have been gone for the grace period.
    pub(super) async fn collect_garbage(&self) {
        let mut reported = Reported::default();
        self.wait_for_nodes(FIRST_LIST_TIMEOUT).await;
        loop {
            let due = self.state().garbage.next_pass(Instant::now());
            tokio::select! {
                biased;
                () = self.nodes_changed.notified() => continue,
                () = sleep_until(due) => {}
            }
            match self.run_pass(&mut reported).await {
                Ok(()) => reported.requests.recovered("the objects can be read again"),
                Err(error) => {
                    self.metrics.request_failed(&error);
                    let message = format!("objects of deleted Nodes are not deleted: {error}");
                    reported.requests.warn(&message);
                    self.state().garbage.pass_failed(Instant::now());
                }
            }
        }
    }

    /// Waits until the Nodes were listed once or could not be, at most for `timeout`.
    pub(super) async fn wait_for_nodes(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        while !self.state().nodes.is_settled() && Instant::now() < until {
            tokio::select! {
                () = self.nodes_changed.notified() => {}
                () = sleep(Duration::from_secs(1)) => {}
            }
        }
    }

    /// Returns the number of Nodes, unless the cache is stale.
    fn node_count(&self, now: Instant) -> Option<usize> {
        self.state().nodes.trusted(now).map(BTreeMap::len)
    }

    async fn run_pass(&self, reported: &mut Reported) -> Result<(), ClusterError> {
        let now = Instant::now();
        let Some(nodes) = self.node_count(now) else {
            self.state().garbage.pass_failed(now);
            self.hold_back(&Doubt::NodesUnknown, reported).await;
            return Ok(());
        };
        let names = self.state().garbage.objects_to_read(nodes, now);
        let pass = match names {
            Some(names) => self.read_objects(names).await?,
            None => self.list_objects().await?,
        };
        self.classify(&pass).await?;
        let is_over_all = pass.names.is_none();
        let counted = if pass.orphans.is_empty() { None } else { Some(self.cluster.node_count().await?) };
        let now = Instant::now();
        let Some(nodes) = self.node_count(now) else {
            self.state().garbage.pass_failed(now);
            return Ok(());
        };
        let decision = self.state().garbage.conclude(pass, nodes, counted.unwrap_or(nodes as u64), now);
        let orphans = self.state().garbage.orphans();
        match is_over_all {
            true => self.metrics.garbage_pass(orphans),
            false => self.metrics.garbage.set(Some(orphans as u64)),
        }
        match decision {
            Decision::HoldBack(doubt) => self.hold_back(&doubt, reported).await,
            Decision::Delete(metas) => {
                self.metrics.held_back.set(0);
                if reported.doubt.reset() {
                    info!("deletion of objects resumes");
                }
                self.delete(metas, reported).await?;
            }
        }
        Ok(())
    }

    async fn list_objects(&self) -> Result<Pass, ClusterError> {
        let mut pass = Pass::default();
        let mut pages = self.cluster.topology_metas();
        while let Some(metas) = pages.next().await? {
            self.add(&mut pass, metas);
        }
        Ok(pass)
    }

    async fn read_objects(&self, names: Vec<Box<str>>) -> Result<Pass, ClusterError> {
        let mut metas = Vec::new();
        for name in &names {
            metas.extend(self.cluster.topology_meta(name).await?);
        }
        let mut pass = Pass { names: Some(names), ..Pass::default() };
        self.add(&mut pass, metas);
        Ok(pass)
    }

    fn add(&self, pass: &mut Pass, metas: Vec<NrtMeta>) {
        let state = self.state();
        // If the cache has become stale, that is handled at the end of the pass.
        let nodes = state.nodes.trusted(Instant::now());
        for meta in metas {
            let has_node = nodes.is_none_or(|nodes| nodes.contains_key(meta.name.as_str()));
            pass.add(meta, has_node);
        }
    }

    /// Reads other writers' objects without a Node, which may be anything: only those that a scheduler reads
    /// as a Node's are garbage.
    async fn classify(&self, pass: &Pass) -> Result<(), ClusterError> {
        let unclassified = self.state().garbage.unclassified(pass);
        for meta in unclassified {
            match self.cluster.topology_describes_node(&meta.name).await {
                Ok(describes_node) => self.state().garbage.classify(&meta, describes_node),
                Err(error) if error.affects_every_call() => return Err(error),
                // It is read again in the next pass, and not deleted until then.
                Err(error) => {
                    self.metrics.request_failed(&error);
                    debug!("{}: {error}", meta.name);
                }
            }
        }
        Ok(())
    }

    async fn hold_back(&self, doubt: &Doubt, reported: &mut Reported) {
        self.metrics.held_back.set(1);
        let message = format!("no object is deleted: {doubt}");
        // Compare the kind of doubt only: its numbers change.
        if reported.doubt.is_new(discriminant(doubt)) {
            warn!("{message}");
            reported.is_posted = false;
        } else {
            debug!("{message}");
        }
        if !reported.is_posted {
            reported.is_posted =
                self.events.post(Reason::GarbageHeldBack, Regarding::Objects, &message).await;
        }
    }

    /// Deletes objects one by one, checking each again. Those that fail are retried later.
    async fn delete(&self, metas: Vec<NrtMeta>, reported: &mut Reported) -> Result<(), ClusterError> {
        let due = metas.len();
        if self.settings.dry_run {
            reported.dry_run.retain(|name| metas.iter().any(|meta| meta.name == *name));
        }
        let outcome = self.delete_each(metas, reported).await;
        let left = self.state().garbage.orphans();
        self.metrics.garbage.set(Some(left as u64));
        if self.settings.dry_run && due > 0 {
            // The objects still exist in the next pass.
            self.state().garbage.retry_soon();
        }
        if due > 0 {
            debug!("{due} objects were due, {left} are left");
        }
        outcome
    }

    /// An error about one object is recorded and the next one follows; an error that affects every call ends
    /// the pass.
    async fn delete_each(&self, metas: Vec<NrtMeta>, reported: &mut Reported) -> Result<(), ClusterError> {
        let (mut failed, mut failures_in_a_row) = (Vec::new(), 0);
        let (mut first_error, mut result) = (None, Ok(()));
        for meta in metas {
            match self.delete_one(&meta, reported).await {
                Ok(Outcome::Deleted) => {}
                Ok(Outcome::HasNode) => self.state().garbage.node_exists(&meta.name),
                Ok(Outcome::Unclassified) => self.state().garbage.retry_soon(),
                // It was written meanwhile: its writer still exists.
                Err(error) if error.is_other_object_or_version() => {
                    self.metrics.errors.with(["delete", error.kind()]).inc();
                    debug!("{} is kept for now: {error}", meta.name);
                    self.state().garbage.retry_soon();
                }
                Err(error) => {
                    self.metrics.errors.with(["delete", error.kind()]).inc();
                    self.state().garbage.deletion_failed(&meta.name);
                    if error.affects_every_call() {
                        result = Err(error);
                        break;
                    }
                    debug!("{} cannot be deleted: {error}", meta.name);
                    failed.push(meta.name);
                    first_error.get_or_insert(error);
                    failures_in_a_row += 1;
                    if failures_in_a_row >= MAX_FAILURES_IN_A_ROW {
                        break;
                    }
                    continue;
                }
            }
            failures_in_a_row = 0;
        }
        match first_error {
            Some(error) => {
                let names = first_names(&failed);
                let message = format!("objects of deleted Nodes cannot be deleted ({names}): {error}");
                reported.deletions.warn(&message);
            }
            None if result.is_ok() => reported.deletions.recovered("all objects can be deleted again"),
            None => {}
        }
        result
    }

    async fn delete_one(&self, meta: &NrtMeta, reported: &mut Reported) -> Result<Outcome, ClusterError> {
        let name = meta.name.as_str();
        if self.state().garbage.describes_node(meta) != Some(true) {
            return Ok(Outcome::Unclassified);
        }
        let is_cached =
            self.state().nodes.trusted(Instant::now()).is_none_or(|nodes| nodes.contains_key(name));
        if is_cached || !self.is_node_gone(name).await? {
            debug!("{name} is kept: its Node exists");
            return Ok(Outcome::HasNode);
        }
        if self.settings.dry_run {
            if reported.dry_run.insert(name.to_owned()) {
                info!("dry run: the object {name} would be deleted, its Node is gone");
            }
            return Ok(Outcome::Deleted);
        }
        if self.cluster.delete_topology(meta).await? {
            info!("deleted the object {name}: its Node is gone");
            self.metrics.deleted.inc();
        }
        self.state().garbage.object_deleted(name, Instant::now());
        Ok(Outcome::Deleted)
    }

    /// Returns true if the API server reports that the Node does not exist. A late response is requested
    /// again, since this process may have been suspended.
    async fn is_node_gone(&self, name: &str) -> Result<bool, ClusterError> {
        for _ in 0..ATTEMPTS {
            let requested = Instant::now();
            if !self.cluster.has_no_node(name).await? {
                return Ok(false);
            }
            if requested.elapsed() < MAX_AGE {
                return Ok(true);
            }
        }
        debug!("{name} is kept for now: the API server responds too late about its Node");
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
