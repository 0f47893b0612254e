//! Deletes the objects of removed Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::Work;
use crate::cluster::{ClusterError, Mark, Regarding};
use crate::controller::garbage::{Held, Pass, Refusals, Verdict};
use crate::controller::notices::Reason;
use crate::controller::said::Said;

/// How long the first pass waits for the Nodes before it reports them as unknown. It waits less if they
/// cannot be listed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum age of a response that a Node does not exist.
const FRESH: Duration = Duration::from_secs(2);
/// How often such a response is requested in a row.
const ASKED_AGAIN: usize = 3;

/// What was logged of garbage collection.
#[derive(Default)]
struct Told {
    calls: Said,
    refused: Said,
    held: Option<String>,
    /// Whether an Event was posted about it.
    posted: bool,
    /// Objects that would have been deleted.
    dry: BTreeSet<String>,
}

/// The outcome of a deletion.
enum Fate {
    /// The object is gone, or would be.
    Done,
    /// It has a Node after all.
    HasNode,
    /// It is not known yet whether a scheduler reads it as a Node's.
    Unknown,
}

impl Work<'_> {
    /// Makes a pass over all objects at the start and at each interval, and one over the objects of the Nodes
    /// that have been gone for the grace period.
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

    /// Waits until the Nodes were listed once or could not be, at most for `patience`.
    pub(super) async fn wait_for_nodes(&self, patience: Duration) {
        let until = Instant::now() + patience;
        while !self.known().nodes.is_settled() && Instant::now() < until {
            tokio::select! {
                () = self.nodes_changed.notified() => {}
                () = sleep(Duration::from_secs(1)) => {}
            }
        }
    }

    async fn look(&self, told: &mut Told) -> Result<(), ClusterError> {
        let now = Instant::now();
        let nodes = self.known().nodes.trusted(now).map(BTreeMap::len);
        let Some(nodes) = nodes else {
            self.known().garbage.failed(now);
            self.hold(&Held::NodesUnknown, told).await;
            return Ok(());
        };
        let named = self.known().garbage.named(nodes, now);
        let pass = match named {
            Some(names) => self.look_at(names).await?,
            None => self.look_at_all().await?,
        };
        self.ask_of_others(&pass).await?;
        let over_all = pass.is_over_all();
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
        match over_all {
            true => self.metrics.looked_for_garbage(orphans),
            false => self.metrics.figures(|figures| figures.orphans = u64::try_from(orphans).ok()),
        }
        match verdict {
            Verdict::Held(held) => self.hold(&held, told).await,
            Verdict::Delete(marks) => {
                self.release(told);
                self.delete(marks, told).await?;
            }
        }
        Ok(())
    }

    async fn look_at_all(&self) -> Result<Pass, ClusterError> {
        let mut pass = Pass::default();
        let mut pages = self.cluster.marks();
        while let Some(marks) = pages.next().await? {
            self.enter(&mut pass, marks);
        }
        Ok(pass)
    }

    async fn look_at(&self, names: Vec<Box<str>>) -> Result<Pass, ClusterError> {
        let mut marks = Vec::new();
        for name in &names {
            marks.extend(self.cluster.mark(name).await?);
        }
        let mut pass = Pass::over(names);
        self.enter(&mut pass, marks);
        Ok(pass)
    }

    fn enter(&self, pass: &mut Pass, marks: Vec<Mark>) {
        let known = self.known();
        // If the cache has become stale, that is handled at the end of the pass.
        let nodes = known.nodes.trusted(Instant::now());
        for mark in marks {
            let has_node = nodes.is_none_or(|nodes| nodes.contains_key(mark.name.as_str()));
            pass.look(mark, has_node);
        }
    }

    /// Reads other writers' objects without a Node, which may be anything: only those that a scheduler reads
    /// as a Node's are garbage.
    async fn ask_of_others(&self, pass: &Pass) -> Result<(), ClusterError> {
        let unasked = self.known().garbage.unasked(pass);
        for mark in unasked {
            match self.cluster.is_of_numa(&mark.name).await {
                Ok(of_numa) => self.known().garbage.asked(&mark, of_numa),
                Err(error) if error.concerns_all() => return Err(error),
                // It is read again in the next pass, and not deleted until then.
                Err(error) => {
                    self.metrics.call_failed(&error);
                    debug!("{}: {error}", mark.name);
                }
            }
        }
        Ok(())
    }

    async fn hold(&self, held: &Held, told: &mut Told) {
        self.metrics.held_back(true);
        let sentence = format!("no object is deleted: {held}");
        // Compare the kind of reason only: its numbers change.
        let kind = format!("{:?}", std::mem::discriminant(held));
        if told.held.as_ref() == Some(&kind) {
            debug!("{sentence}");
        } else {
            warn!("{sentence}");
            (told.held, told.posted) = (Some(kind), false);
        }
        if !told.posted {
            told.posted = self.notices.post(Reason::GarbageHeldBack, Regarding::Objects, &sentence).await;
        }
    }

    fn release(&self, told: &mut Told) {
        self.metrics.held_back(false);
        if told.held.take().is_some() {
            info!("nothing holds deletion back any longer");
        }
    }

    /// Deletes objects one by one, checking each again. Those that fail are retried later.
    async fn delete(&self, marks: Vec<Mark>, told: &mut Told) -> Result<(), ClusterError> {
        let count = marks.len();
        if self.settings.dry_run {
            told.dry.retain(|name| marks.iter().any(|mark| mark.name == *name));
        }
        let outcome = self.delete_each(marks, told).await;
        let left = self.known().garbage.orphans();
        self.metrics.figures(|figures| figures.orphans = u64::try_from(left).ok());
        if self.settings.dry_run {
            // The object still exists in the next pass.
            self.known().garbage.gave_up();
        }
        if count > 0 {
            debug!("{count} objects were due, {left} are left");
        }
        outcome
    }

    /// An error about one object is recorded and the next one follows; an error that concerns all ends the
    /// pass.
    async fn delete_each(&self, marks: Vec<Mark>, told: &mut Told) -> Result<(), ClusterError> {
        let mut refusals = Refusals::default();
        let mut outcome = Ok(());
        for mark in marks {
            let fate = self.delete_one(&mark, told).await;
            match fate {
                Ok(Fate::Done) => {}
                Ok(Fate::HasNode) => self.known().garbage.node_came(&mark.name),
                Ok(Fate::Unknown) => self.known().garbage.gave_up(),
                // It was written meanwhile: its writer still exists.
                Err(error) if error.is_conflict() => {
                    self.metrics.delete_failed(&error);
                    debug!("{} stays for now: {error}", mark.name);
                    self.known().garbage.gave_up();
                }
                Err(error) => {
                    self.metrics.delete_failed(&error);
                    self.known().garbage.refused(&mark.name);
                    if error.concerns_all() {
                        outcome = Err(error);
                        break;
                    }
                    debug!("{} stays: {error}", mark.name);
                    if refusals.add(&mark.name, error.to_string()) {
                        break;
                    }
                    continue;
                }
            }
            refusals.broken();
        }
        match refusals.sentence() {
            Some(sentence) => told.refused.trouble(&sentence),
            None if outcome.is_ok() => told.refused.well("no object is refused to be deleted any longer"),
            None => {}
        }
        outcome
    }

    /// Returns true if the API server reports that the Node does not exist. A late response is requested
    /// again, since this process may have been suspended.
    async fn has_no_node_now(&self, name: &str) -> Result<bool, ClusterError> {
        for _ in 0..ASKED_AGAIN {
            let asked = Instant::now();
            if !self.cluster.has_no_node(name).await? {
                return Ok(false);
            }
            if asked.elapsed() < FRESH {
                return Ok(true);
            }
        }
        debug!("{name} stays for now: what the API server says of its Node comes too late");
        Ok(false)
    }

    async fn delete_one(&self, mark: &Mark, told: &mut Told) -> Result<Fate, ClusterError> {
        let name = mark.name.as_str();
        if self.known().garbage.is_of_numa(mark) != Some(true) {
            return Ok(Fate::Unknown);
        }
        let is_back = self.known().nodes.trusted(Instant::now()).is_none_or(|nodes| nodes.contains_key(name));
        if is_back || !self.has_no_node_now(name).await? {
            debug!("{name} stays: its Node is there");
            return Ok(Fate::HasNode);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::cluster::Seen;
    use crate::controller::fake::{self, Parts};
    use crate::controller::work::KnownNode;

    fn node(name: &str) -> (Box<str>, KnownNode) {
        (name.into(), KnownNode { uid: "u".into(), covered: false, ready: true })
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_goes_causes_no_list_of_all_objects() {
        let (calls, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let parts = Parts::new(fake::cluster(move |call| {
            calls.send(call.clone()).unwrap();
            let (method, path) = call.split_once(' ').unwrap();
            let (kind, name) = path.rsplit_once('/').unwrap();
            let object = |name: &str| {
                let managed = json!([{"manager": "numacast", "fieldsV1": {"f:zones": {}}}]);
                json!({"metadata": {
                    "name": name, "uid": name, "resourceVersion": "1", "managedFields": managed,
                }})
            };
            let details = json!({"name": name, "kind": kind.rsplit_once('/').unwrap().1});
            let nothing = json!({"status": "Failure", "code": 404, "reason": "NotFound", "details": details});
            let answer = match (method, name.split('?').next().unwrap()) {
                ("GET", "nodes") => (200, json!({"metadata": {}, "items": [{}]})),
                ("GET", "noderesourcetopologies") => {
                    let items = ["a", "b", "c"].map(object);
                    (200, json!({"metadata": {}, "items": items}))
                }
                ("GET", "b") if kind.ends_with("noderesourcetopologies") => (200, object("b")),
                ("DELETE", _) => (200, json!({"status": "Success"})),
                // The Nodes, and the object that the Node owned.
                _ => (404, nothing),
            };
            async move { answer }
        }));
        let work = parts.work();
        {
            let mut known = work.known();
            known.nodes.take(Seen::Listing);
            for name in ["a", "b", "c"] {
                known.nodes.take(Seen::Listed(node(name)));
            }
            known.nodes.take(Seen::Complete);
        }
        let grace = work.settings.garbage.grace;
        assert!(tokio::time::timeout(grace, work.collect_garbage()).await.is_err());
        let lists = |calls: &[String]| calls.iter().filter(|call| call.contains("limit=250")).count();
        let mut first = Vec::new();
        heard.recv_many(&mut first, 100).await;
        assert_eq!((first.len(), lists(&first)), (1, 1), "the start: {first:?}");
        {
            let mut known = work.known();
            for name in ["a", "b"] {
                known.nodes.take(Seen::Gone(node(name)));
                known.garbage.node_went(name.into(), Instant::now());
            }
        }
        // Until just before the interval.
        let interval = work.settings.garbage.interval;
        assert!(tokio::time::timeout(interval - grace * 2, work.collect_garbage()).await.is_err());
        let mut then = Vec::new();
        heard.recv_many(&mut then, 100).await;
        assert_eq!(lists(&then), 0, "{then:?}");
        let deleted: Vec<_> = then.iter().filter(|call| call.starts_with("DELETE")).collect();
        assert!(matches!(&*deleted, [call] if call.contains("noderesourcetopologies/b")), "{then:?}");
        assert!(then.iter().any(|call| call.starts_with("GET") && call.contains("/nodes/b")), "{then:?}");
        assert!(tokio::time::timeout(grace * 2, work.collect_garbage()).await.is_err());
        let mut last = Vec::new();
        heard.recv_many(&mut last, 100).await;
        assert_eq!(lists(&last), 1, "the interval: {last:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_word_that_a_node_is_gone_is_asked_for_again() {
        let asked = AtomicUsize::new(0);
        let parts = Parts::new(fake::cluster(move |_| {
            // The response is slow, and meanwhile the Node registers.
            let (slow, no) = (FRESH * 2, asked.fetch_add(1, Ordering::Relaxed) == 0);
            async move {
                if !no {
                    return (200, json!({"metadata": {"name": "a"}}));
                }
                sleep(slow).await;
                let details = json!({"name": "a", "kind": "nodes"});
                (404, json!({"status": "Failure", "code": 404, "reason": "NotFound", "details": details}))
            }
        }));
        assert!(!parts.work().has_no_node_now("a").await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn garbage_that_is_held_back_is_told_of_however_many_nodes_are_silent() {
        let parts = Parts::new(fake::cluster(|_| async { (201, json!({"metadata": {"name": "e"}})) }));
        let work = parts.work();
        let node = Regarding::Node { name: "a", uid: "u" };
        while work.notices.post(Reason::AgentSilent, node, "").await {}
        let (held, mut told) = (Held::NoNodes { objects: 3 }, Told::default());
        work.hold(&held, &mut told).await;
        assert!(told.posted);
        // An Event suppressed by the rate limit is posted later.
        while work.notices.post(Reason::GarbageHeldBack, Regarding::Objects, "").await {}
        work.hold(&Held::NodesUnknown, &mut told).await;
        assert!(!told.posted);
        tokio::time::advance(Duration::from_secs(60)).await;
        work.hold(&Held::NodesUnknown, &mut told).await;
        assert!(told.posted);
    }
}
