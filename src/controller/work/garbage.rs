//! Deletes the objects of Nodes that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::Work;
use crate::cluster::{ClusterError, Mark, Regarding};
use crate::controller::garbage::{Held, Pass, Verdict};
use crate::controller::notices::Reason;
use crate::controller::said::Said;

/// How long the first pass waits for the Nodes before it says that they are not known.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was said of garbage.
#[derive(Default)]
struct Told {
    calls: Said,
    held: Option<String>,
    /// What would have been deleted.
    dry: BTreeSet<String>,
}

/// What came of a deletion.
enum Fate {
    /// The object is gone, or would be.
    Done,
    /// It has a Node after all.
    HasNode,
    /// It is nothing that a scheduler reads as a Node's.
    NotOurs,
}

impl Work<'_> {
    /// Looks at all objects at the start, at each interval, and when a Node has been gone for long enough.
    pub(super) async fn collect_garbage(&self) {
        let mut told = Told::default();
        self.wait_for_nodes(PATIENCE).await;
        loop {
            let due = self.known().garbage.due(Instant::now());
            tokio::select! {
                biased;
                () = self.nodes_changed.notified() => continue,
                () = sleep_until(due) => {}
            }
            match self.look(&mut told).await {
                Ok(()) => told.calls.well("the objects can be looked at again"),
                Err(error) => {
                    self.metrics.call_failed(&error);
                    told.calls.trouble(&format!("objects of Nodes that are gone are not deleted: {error}"));
                    self.known().garbage.failed(Instant::now());
                }
            }
        }
    }

    /// Waits until the Nodes were listed once, or for so long.
    pub(super) async fn wait_for_nodes(&self, patience: Duration) {
        let until = Instant::now() + patience;
        while !self.known().nodes.is_complete() && Instant::now() < until {
            tokio::select! {
                () = self.nodes_changed.notified() => {}
                () = sleep(Duration::from_secs(1)) => {}
            }
        }
    }

    async fn look(&self, told: &mut Told) -> Result<(), ClusterError> {
        if self.known().nodes.trusted(Instant::now()).is_none() {
            self.known().garbage.failed(Instant::now());
            self.hold(&Held::NodesUnknown, told).await;
            return Ok(());
        }
        let mut pass = Pass::default();
        let mut pages = self.cluster.marks();
        while let Some(marks) = pages.next().await? {
            let known = self.known();
            // Doubts that come now are looked at below.
            let nodes = known.nodes.trusted(Instant::now());
            for mark in marks {
                let has_node = nodes.is_none_or(|nodes| nodes.contains_key(mark.name.as_str()));
                pass.look(mark, has_node);
            }
        }
        let counted = if pass.has_orphans() { Some(self.cluster.node_count().await?) } else { None };
        let now = Instant::now();
        let (verdict, orphans) = {
            let mut known = self.known();
            let nodes = known.nodes.trusted(now).map(BTreeMap::len);
            let Some(nodes) = nodes else {
                known.garbage.failed(now);
                return Ok(());
            };
            let counted = counted.unwrap_or(nodes as u64);
            let verdict = known.garbage.conclude(pass, nodes, counted, now);
            (verdict, known.garbage.orphans())
        };
        self.metrics.looked_for_garbage(orphans);
        match verdict {
            Verdict::Held(held) => self.hold(&held, told).await,
            Verdict::Delete(marks) => {
                self.release(told);
                self.delete(marks, told).await?;
            }
        }
        Ok(())
    }

    async fn hold(&self, held: &Held, told: &mut Told) {
        self.metrics.held_back(true);
        let sentence = format!("no object is deleted: {held}");
        // Figures change; the kind of reason does not.
        let kind = format!("{:?}", std::mem::discriminant(held));
        if told.held.as_ref() == Some(&kind) {
            return debug!("{sentence}");
        }
        warn!("{sentence}");
        told.held = Some(kind);
        self.notices.post(Reason::GarbageHeldBack, Regarding::Objects, &sentence).await;
    }

    fn release(&self, told: &mut Told) {
        self.metrics.held_back(false);
        if told.held.take().is_some() {
            info!("nothing holds deletion back any longer");
        }
    }

    /// One after the other, each looked at once more. What cannot be reached now is tried again later.
    async fn delete(&self, marks: Vec<Mark>, told: &mut Told) -> Result<(), ClusterError> {
        let count = marks.len();
        if self.settings.dry_run {
            told.dry.retain(|name| marks.iter().any(|mark| mark.name == *name));
        }
        for mark in marks {
            match self.delete_one(&mark, told).await {
                Ok(Fate::Done) => {}
                Ok(Fate::HasNode) => self.known().garbage.node_came(&mark.name),
                Ok(Fate::NotOurs) => self.known().garbage.spared(&mark),
                // Whoever wrote it lives.
                Err(error) if error.is_conflict() => {
                    self.metrics.delete_failed(&error);
                    debug!("{} stays for now: {error}", mark.name);
                    self.known().garbage.gave_up();
                }
                Err(error) => {
                    self.metrics.delete_failed(&error);
                    return Err(error);
                }
            }
        }
        let left = self.known().garbage.orphans();
        self.metrics.figures(|figures| figures.orphans = u64::try_from(left).ok());
        if self.settings.dry_run {
            // It is there the next time as well.
            self.known().garbage.gave_up();
        }
        if count > 0 {
            debug!("{count} objects were due, {left} are left");
        }
        Ok(())
    }

    async fn delete_one(&self, mark: &Mark, told: &mut Told) -> Result<Fate, ClusterError> {
        let name = mark.name.as_str();
        let is_back = self.known().nodes.trusted(Instant::now()).is_none_or(|nodes| nodes.contains_key(name));
        if is_back || !self.cluster.has_no_node(name).await? {
            debug!("{name} stays: its Node is there");
            return Ok(Fate::HasNode);
        }
        // What we wrote is a Node's; of others' objects only those that a scheduler reads as one are our business.
        if !mark.writers.ours && !self.cluster.is_of_numa(name).await? {
            debug!("{name} stays: none of its zones is a NUMA node");
            return Ok(Fate::NotOurs);
        }
        if self.settings.dry_run {
            if told.dry.insert(name.to_owned()) {
                info!("dry run: the object {name} would be deleted, its Node is gone");
            }
            return Ok(Fate::Done);
        }
        if self.cluster.delete_object(mark).await? {
            info!("deleted the object {name}: its Node is gone");
            self.metrics.deleted();
        }
        self.known().garbage.deleted(name, Instant::now());
        Ok(Fate::Done)
    }
}
