//! Compares the object with the wanted one, after events and at each refresh, and reacts to other writers.

use kube::api::ObjectMeta;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::competing_managers::Reaction;
use super::drift::{Leftovers, differing_fields};
use super::field_manager::FieldManager;
use super::object::object;
use super::ownership::identity;
use super::retry_timer::RETRY_LIMIT;
use super::task::PublishTask;
use crate::agent::live_object::LiveObject;
use crate::agent::metrics::WriteReason;
use crate::agent::report::Reason;
use crate::cluster::ClusterError;
use crate::nrt::{NodeResourceTopology, Zone};
use crate::publishers::Publisher;
use crate::util::backoff::jittered;

/// Maximum number of competing writers in a message: an Event has room for 1 kB.
const MAX_NAMED: usize = 3;

impl PublishTask {
    /// Examines the live object at startup: one of another writer is taken over with the first write.
    pub(super) fn examine(&mut self, live_object: &LiveObject) {
        let Some(object) = live_object.object() else { return };
        let now = Instant::now();
        if self.writer.owner_seems_stale() {
            self.ownership.stale_owner = Some((now, false));
        }
        let Some(author) = FieldManager::of_content(&object.metadata) else { return };
        self.recognise(&author, &object.metadata, &object.spec.zones);
        self.ownership.competing.react(&author, true, now);
        self.first = Some(WriteReason::Takeover);
        let node = &self.writer.node;
        let note = format!("{author} wrote the NodeResourceTopology {node} before; it is taken over");
        info!("{note}");
        self.events.post(Reason::ObjectTakenOver, note);
    }

    /// Handles an event of the object: finds out whether it is still as we want it, and if not, who changed
    /// it.
    pub(super) async fn object_changed(&mut self, metadata: ObjectMeta) {
        self.watch_error.reset();
        // A pending write overwrites it anyway.
        if self.pending.is_some() || self.writer.is_known(&metadata) {
            return;
        }
        if self.ownership.is_up_to_date(&metadata) && !self.ownership.leftovers(&metadata).any() {
            self.writer.metadata = Some(metadata);
            return;
        }
        // A competitor may write often and is left alone, so do not read the object each time.
        let author = FieldManager::of_content(&metadata);
        let now = Instant::now();
        let competitor = author.filter(|author| self.ownership.competing.is_left(author, now));
        if let Some(competitor) = competitor {
            // Annotations and labels, such as the controller's nudge, do not raise the generation: the
            // competitor did not write.
            let is_rewritten = self.writer.metadata.as_ref().and_then(identity) != identity(&metadata);
            self.writer.metadata = Some(metadata);
            if is_rewritten {
                self.react(&competitor, &["the content"], true);
            }
            return;
        }
        match self.writer.read().await {
            Ok(LiveObject::Object(object)) => {
                // A competitor would put them back.
                let is_contested = self.ownership.competing.active(Instant::now()).next().is_some();
                if self.compare(&object, true) && !is_contested {
                    self.remove_leftovers().await;
                }
            }
            Ok(LiveObject::Missing) => self.object_deleted(None),
            Ok(LiveObject::Unreadable | LiveObject::Unknown) => {
                let fields = ["zones", "attributes"];
                let author = FieldManager::of(&metadata, &fields);
                self.recognise(&author, &metadata, &[]);
                self.writer.metadata = Some(metadata);
                self.react(&author, &fields, true);
            }
            Err(error) => self.refresh_later(&error),
        }
    }

    /// Reads the object after a long time without events: it may have been changed, or the Node may be gone.
    pub(super) async fn refresh(&mut self) {
        self.refresh_at = Instant::now() + jittered(self.refresh_interval);
        let version = self.writer.version().to_owned();
        match self.writer.read().await {
            Ok(LiveObject::Object(object)) => {
                self.recovered();
                let is_fresh = object.metadata.resource_version.as_deref() != Some(&version);
                if self.compare(&object, is_fresh) {
                    self.pending = Some(WriteReason::Refresh);
                }
            }
            Ok(LiveObject::Missing) => self.object_deleted(None),
            Ok(LiveObject::Unreadable | LiveObject::Unknown) => self.pending = Some(WriteReason::Refresh),
            Err(error) => return self.refresh_later(&error),
        }
        self.check_owner().await;
    }

    fn refresh_later(&mut self, error: &ClusterError) {
        self.fail(error);
        if let Some(at) = self.retry.not_before {
            self.refresh_at = self.refresh_at.min(at);
        }
    }

    /// Returns true if the object is as wanted, except for leftovers that could not be removed. If not, reacts
    /// to the difference, unless a newer state is about to be written.
    fn compare(&mut self, live: &NodeResourceTopology, is_fresh: bool) -> bool {
        // A newer state is about to be written: a difference from it is not another writer's change.
        if self.newest.has_changed().unwrap_or(true) {
            return false;
        }
        let wanted = self.newest.borrow().as_ref().map(|newest| object(&self.writer.node, None, newest));
        let Some(wanted) = wanted else { return false };
        let wanted = self.ownership.form.round_trip(wanted);
        let mut fields = differing_fields(live, &wanted.spec);
        // If the last removal failed, leftovers alone show no new write: the removal is tried again.
        if !fields.is_empty() || !self.ownership.has_removal_failed {
            let leftovers = self.ownership.leftovers(&live.metadata).fields();
            fields.extend(leftovers.into_iter().filter(|field| !fields.contains(field)).collect::<Vec<_>>());
        }
        if fields.is_empty() {
            self.ownership.up_to_date = identity(&live.metadata);
            self.metrics.is_as_wanted();
            self.report_competitors();
            return true;
        }
        let author = FieldManager::of(&live.metadata, &fields);
        self.recognise(&author, &live.metadata, &live.spec.zones);
        self.react(&author, &fields, is_fresh);
        false
    }

    /// Finds out which publisher wrote the object with this metadata and these zones.
    fn recognise(&mut self, author: &FieldManager, metadata: &ObjectMeta, zones: &[Zone]) {
        if let Some(publisher) = author.publisher(metadata, zones) {
            self.ownership.competing.recognise(author, publisher, Instant::now());
        }
    }

    fn react(&mut self, author: &FieldManager, fields: &[&str], is_fresh: bool) {
        let now = Instant::now();
        self.ownership.up_to_date = None;
        if is_fresh {
            let writer = match (author, self.ownership.competing.publisher(author)) {
                (FieldManager::Person(_) | FieldManager::Unknown, _) => "user",
                (FieldManager::SameName, _) => "numacast",
                (FieldManager::Program(_), Some(publisher)) => publisher.label,
                (FieldManager::Program(_), None) => "other",
            };
            self.metrics.foreign_writes.with([writer]).inc();
        }
        match self.ownership.competing.react(author, is_fresh, now) {
            Reaction::TakeOver => {
                let (fields, node) = (fields.join(", "), &self.writer.node);
                let what = format!("{fields} of the NodeResourceTopology {node}");
                let note = format!("{author} changed {what}; it is overwritten");
                info!("{note}");
                self.events.post(Reason::ObjectTakenOver, note);
                let is_program = matches!(author, FieldManager::Program(_));
                self.pending = Some(if is_program { WriteReason::Takeover } else { WriteReason::Repair });
            }
            Reaction::Overwrite(delay) => {
                self.pending = Some(WriteReason::Repair);
                self.retry.not_before = Some(now + delay);
            }
            Reaction::Leave => {}
        }
        self.report_competitors();
    }

    fn report_competitors(&mut self) {
        let competing = &self.ownership.competing;
        let active = competing.active(Instant::now()).map(|author| (author, competing.publisher(author)));
        let active: Vec<_> = active.take(MAX_NAMED).collect();
        let mut switches: Vec<String> =
            active.iter().map(|(author, publisher)| order(author, *publisher)).collect();
        // One publisher may write with two field managers.
        switches.sort();
        switches.dedup();
        let names: Vec<String> = active.iter().map(|(author, publisher)| named(author, *publisher)).collect();
        let competitor = (!names.is_empty()).then(|| names.join(" and "));
        if let Some(names) = &competitor {
            let note = format!(
                "{names} keeps rewriting the NodeResourceTopology {}: two publishers of one object mislead the \
                 scheduler; {}",
                self.writer.node,
                switches.join("; "),
            );
            if self.published.borrow().competitor != competitor {
                warn!("{note}");
            }
            self.events.post(Reason::CompetingPublisher, note);
        }
        self.published.send_if_modified(|published| {
            let is_other = published.competitor != competitor;
            published.competitor = competitor;
            is_other
        });
    }

    /// Handles the deletion of the object with this last metadata: it is created again, unless another object
    /// was deleted.
    pub(super) fn object_deleted(&mut self, last: Option<&ObjectMeta>) {
        let is_other = |known: &ObjectMeta| last.is_some_and(|last| last.uid != known.uid);
        if self.writer.metadata.as_ref().is_some_and(is_other) {
            return;
        }
        self.writer.deleted();
        self.ownership.up_to_date = None;
        self.ownership.stale_owner = None;
        if self.newest.borrow().is_none() {
            return;
        }
        info!("the NodeResourceTopology {} was deleted; it is created again", self.writer.node);
        self.pending.get_or_insert(WriteReason::Repair);
        let now = Instant::now();
        if self.ownership.deleted(now) {
            self.retry.not_before = Some(now + jittered(RETRY_LIMIT));
        }
    }

    /// Removes what others left and an apply does not remove.
    pub(super) async fn remove_leftovers(&mut self) {
        let Some(metadata) = &self.writer.metadata else { return };
        let leftovers = self.ownership.leftovers(metadata);
        self.ownership.has_removal_failed = leftovers.any() && !self.remove(leftovers).await;
        self.ownership.up_to_date = self.writer.metadata.as_ref().and_then(identity);
    }

    /// Returns true if nothing is left that may be removed.
    async fn remove(&mut self, mut leftovers: Leftovers) -> bool {
        let mut result = self.writer.remove(leftovers).await;
        if leftovers.owner && result.as_ref().is_err_and(ClusterError::is_forbidden) {
            let reason = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let note = format!(
                "the NodeResourceTopology {} stays owned by a Namespace, since its owners may not be changed \
                 ({reason}); delete the object and it is created again",
                self.writer.node
            );
            warn!("{note}");
            self.events.post(Reason::StaleOwner, note);
            self.ownership.is_owner_change_forbidden = true;
            leftovers = leftovers.without_owner();
            if !leftovers.any() {
                return true;
            }
            result = self.writer.remove(leftovers).await;
        }
        match &result {
            Ok(()) => {
                let fields = leftovers.fields().join(", ");
                info!("removed what others left in the NodeResourceTopology: {fields}");
            }
            // Somebody wrote the object meanwhile; the watch's event of that write follows.
            Err(error) if error.is_other_object_or_version() => debug!("{error}"),
            Err(error) => warn!("what others left in the NodeResourceTopology stays: {error}"),
        }
        result.is_ok()
    }

    /// Checks whether the Node was recreated: Kubernetes' garbage collector should delete the object then.
    async fn check_owner(&mut self) {
        let now = Instant::now();
        match self.writer.owner_is_stale().await {
            Ok(true) => {}
            Ok(false) => {
                self.ownership.stale_owner = None;
                return;
            }
            Err(error) => return debug!("{error}"),
        }
        match self.ownership.owner_is_stale(self.refresh_interval, now) {
            Err(due) => self.refresh_at = self.refresh_at.min(due),
            Ok(is_first) => {
                let node = &self.writer.node;
                let note = format!(
                    "the NodeResourceTopology {node} belongs to an earlier Node {node} and Kubernetes' garbage \
                     collector does not delete it; delete it and it is created again"
                );
                if is_first {
                    warn!("{note}");
                }
                self.events.post(Reason::StaleOwner, note);
            }
        }
    }

    pub(super) fn watch_failed(&mut self, error: &ClusterError) {
        if self.watch_error.is_new(error.to_string()) {
            warn!("{error}; changes of the object by others are found at the next refresh");
        }
    }
}

/// Returns the name of a writer, and that of the publisher if it is another one.
fn named(author: &FieldManager, publisher: Option<&Publisher>) -> String {
    match publisher.filter(|publisher| !author.to_string().contains(publisher.name)) {
        Some(publisher) => format!("{author} ({})", publisher.name),
        None => author.to_string(),
    }
}

/// Returns what ends the writes of a competitor.
fn order(author: &FieldManager, publisher: Option<&Publisher>) -> String {
    match (author, publisher) {
        (_, Some(publisher)) => publisher.switch.to_owned(),
        (FieldManager::SameName, None) => "remove one of the agents of this node".to_owned(),
        (_, None) => "stop one of them".to_owned(),
    }
}
