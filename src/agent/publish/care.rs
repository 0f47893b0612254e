//! Detects what other writers do to the object, and reacts to it.

use std::collections::VecDeque;
use std::time::Duration;

use kube::api::ObjectMeta;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::drift::{Author, Leftovers, differing};
use super::rivals::{ConflictPolicy, Rivals, Verdict};
use super::{RETRY_LIMIT, Task};
use crate::agent::notices::Reason;
use crate::agent::object::object;
use crate::agent::standing::Standing;
use crate::cluster::ClusterError;
use crate::nrt::{Form, NodeResourceTopology};
use crate::telemetry::metrics::WriteReason;
use crate::util::backoff::jittered;

/// How long garbage collection may take to delete the object of a Node that was recreated. A shorter refresh
/// interval takes precedence.
const GARBAGE: Duration = Duration::from_secs(300);
/// How long the API server may reject the object before an Event is posted.
const REFUSED: Duration = Duration::from_secs(60);
/// How many times a deleted object is recreated at once...
const DELETIONS: usize = 3;
/// ...within this time.
const DELETIONS_WITHIN: Duration = Duration::from_secs(600);

/// State of conflicts with other field managers.
#[derive(Debug)]
pub(super) struct Care {
    rivals: Rivals,
    /// The form in which we write the object.
    form: Form,
    /// UID and generation of the object when it was last seen to be as we want it.
    agreed: Option<(String, i64)>,
    /// Times of recent deletions of the object.
    deletions: VecDeque<Instant>,
    /// Since when the object has been owned by a Node that is gone, and whether that was reported.
    stale: Option<(Instant, bool)>,
    /// Whether we are forbidden to change the object's owner references.
    owners_forbidden: bool,
    /// The last error of the watch that was logged.
    unwatched: Option<String>,
    /// Since when the API server has been rejecting our writes.
    pub(super) refused_since: Option<Instant>,
}

impl Care {
    pub(super) fn new(mode: ConflictPolicy, form: Form) -> Self {
        Self {
            rivals: Rivals::new(mode),
            form,
            agreed: None,
            deletions: VecDeque::new(),
            stale: None,
            owners_forbidden: false,
            unwatched: None,
            refused_since: None,
        }
    }

    /// Returns true if this failure has lasted long enough that an operator should know.
    pub(super) fn is_refused_for_long(&mut self, error: &ClusterError, now: Instant) -> bool {
        if !error.needs_a_person() {
            self.refused_since = None;
            return false;
        }
        now.duration_since(*self.refused_since.get_or_insert(now)) >= REFUSED
    }

    /// Returns true if the object with this metadata is as we want it.
    pub(super) fn agrees_with(&self, metadata: &ObjectMeta) -> bool {
        self.agreed.is_some() && self.agreed == identity(metadata)
    }

    /// Returns when to report that the owner is stale, if it is.
    pub(super) fn stale_due(&self, refresh: Duration) -> Option<Instant> {
        self.stale.map(|(since, _)| since + GARBAGE.min(refresh))
    }

    /// Returns what others left and we may remove.
    fn left(&self, metadata: &ObjectMeta) -> Leftovers {
        let left = Leftovers::of(metadata, self.form);
        if self.owners_forbidden { left.without_owner() } else { left }
    }
}

fn identity(metadata: &ObjectMeta) -> Option<(String, i64)> {
    metadata.uid.clone().zip(metadata.generation)
}

impl Task {
    /// Examines the live object at startup: one of another writer is taken over with the first write.
    pub(super) fn consider(&mut self, standing: &Standing) {
        let Some(object) = standing.object() else { return };
        if self.writer.owner_seems_stale() {
            self.care.stale = Some((Instant::now(), false));
        }
        let Some(author) = Author::of_content(&object.metadata) else { return };
        let sentence =
            format!("{author} wrote the NodeResourceTopology {} before; it is taken over", self.node);
        self.care.rivals.judge(&author, true, Instant::now());
        self.first = Some(WriteReason::Takeover);
        info!("{sentence}");
        self.notices.post(Reason::ObjectTakenOver, sentence);
    }

    /// Handles an event of the object: finds out whether it is still as we want it, and if not, who changed
    /// it.
    pub(super) async fn look(&mut self, metadata: ObjectMeta) {
        self.care.unwatched = None;
        // A pending write overwrites it anyway.
        if self.pending.is_some() || self.writer.knows(&metadata) {
            return;
        }
        if self.care.agrees_with(&metadata) && !self.care.left(&metadata).any() {
            self.writer.saw(metadata);
            return;
        }
        // A rival may write often and is left alone, so do not read the object each time.
        let author = Author::of_content(&metadata);
        if let Some(rival) = author.filter(|author| self.care.rivals.is_left(author, Instant::now())) {
            // Annotations and labels, such as the controller's nudge, do not raise the generation: the rival
            // did not write.
            let rewritten = self.writer.own().and_then(identity) != identity(&metadata);
            self.writer.saw(metadata);
            if rewritten {
                self.decide(&rival, &["the content"], true);
            }
            return;
        }
        match self.writer.read().await {
            Ok(Standing::Object(object)) => drop(self.compare(&object, true)),
            Ok(Standing::Missing) => self.gone(None),
            Ok(Standing::Unreadable | Standing::Unknown) => {
                let fields = ["zones", "attributes"];
                let author = Author::of(&metadata, &fields);
                self.writer.saw(metadata);
                self.decide(&author, &fields, true);
            }
            Err(error) => self.look_later(&error),
        }
    }

    /// Reads the object after a long time without events: it may have been changed, or the Node may be gone.
    pub(super) async fn look_again(&mut self) {
        self.refresh_at = Instant::now() + jittered(self.refresh);
        let before = self.writer.version().to_owned();
        match self.writer.read().await {
            Ok(Standing::Object(object)) => {
                self.recovered();
                let fresh = object.metadata.resource_version.as_deref() != Some(&before);
                if self.compare(&object, fresh) {
                    self.pending = Some(WriteReason::Refresh);
                }
            }
            Ok(Standing::Missing) => self.gone(None),
            Ok(Standing::Unreadable | Standing::Unknown) => self.pending = Some(WriteReason::Refresh),
            Err(error) => return self.look_later(&error),
        }
        self.check_owner().await;
    }

    fn look_later(&mut self, error: &ClusterError) {
        self.fail(error);
        if let Some(at) = self.pace.not_before {
            self.refresh_at = self.refresh_at.min(at);
        }
    }

    /// Returns true if the object is as we want it. If not, reacts to the difference.
    fn compare(&mut self, live: &NodeResourceTopology, fresh: bool) -> bool {
        // A newer topology is about to be written: a difference from it is not another writer's change.
        if self.offers.has_changed().unwrap_or(true) {
            return false;
        }
        let Some(wanted) = self.offers.borrow().as_ref().map(|newest| object(&self.node, None, newest))
        else {
            return false;
        };
        let wanted = self.care.form.comes_back(wanted);
        let mut fields = differing(live, &wanted.spec);
        let left = self.care.left(&live.metadata).fields();
        fields.extend(left.into_iter().filter(|field| !fields.contains(field)).collect::<Vec<_>>());
        if fields.is_empty() {
            self.care.agreed = identity(&live.metadata);
            self.metrics.agreed();
            self.tell_rivals();
            return true;
        }
        let author = Author::of(&live.metadata, &fields);
        self.decide(&author, &fields, fresh);
        false
    }

    /// Reacts to a change of `fields` by `author`.
    fn decide(&mut self, author: &Author, fields: &[&str], fresh: bool) {
        let now = Instant::now();
        self.care.agreed = None;
        if fresh {
            self.metrics.foreign_write(author.is_person());
        }
        match self.care.rivals.judge(author, fresh, now) {
            Verdict::TakeOver => {
                let sentence = format!(
                    "{author} changed {} of the NodeResourceTopology {}; it is written over",
                    fields.join(", "),
                    self.node
                );
                info!("{sentence}");
                self.notices.post(Reason::ObjectTakenOver, sentence);
                let program = matches!(author, Author::Manager(_));
                self.pending = Some(if program { WriteReason::Takeover } else { WriteReason::Repair });
            }
            Verdict::Answer(wait) => {
                self.pending = Some(WriteReason::Repair);
                self.pace.not_before = Some(now + wait);
            }
            Verdict::Leave => {}
        }
        self.tell_rivals();
    }

    /// Reports the rivals when they change.
    fn tell_rivals(&mut self) {
        let rivals: Vec<String> = self.care.rivals.active(Instant::now()).map(ToString::to_string).collect();
        let rival = (!rivals.is_empty()).then(|| rivals.join(" and "));
        if let Some(names) = &rival {
            let sentence = format!(
                "{names} keeps rewriting the NodeResourceTopology {}: two publishers of one object mislead the \
                 scheduler; stop one of them",
                self.node
            );
            if self.report.borrow().rival != rival {
                warn!("{sentence}");
            }
            self.notices.post(Reason::RivalPublisher, sentence);
        }
        self.report.send_if_modified(|report| {
            let other = report.rival != rival;
            report.rival = rival;
            other
        });
    }

    /// Handles the deletion of the object: it is recreated, unless another object was deleted.
    pub(super) fn gone(&mut self, was: Option<&ObjectMeta>) {
        let other = |own: &ObjectMeta| was.is_some_and(|was| was.uid != own.uid);
        if self.writer.own().is_some_and(other) {
            return;
        }
        self.writer.lost();
        self.care.agreed = None;
        self.care.stale = None;
        if self.offers.borrow().is_none() {
            return;
        }
        info!("the NodeResourceTopology {} was deleted; it is made again", self.node);
        self.pending.get_or_insert(WriteReason::Repair);
        let now = Instant::now();
        self.care.deletions.retain(|at| now.duration_since(*at) < DELETIONS_WITHIN);
        self.care.deletions.push_back(now);
        if self.care.deletions.len() > DELETIONS {
            self.pace.not_before = Some(now + jittered(RETRY_LIMIT));
        }
    }

    /// Removes, after a write, what others left and an apply does not remove.
    pub(super) async fn clean(&mut self) {
        let Some(metadata) = self.writer.own() else { return };
        let left = self.care.left(metadata);
        // A rival would put it back.
        let fought = self.care.rivals.active(Instant::now()).next().is_some();
        if left.any() && !fought {
            self.remove(left).await;
        }
        self.care.agreed = self.writer.own().and_then(identity);
    }

    async fn remove(&mut self, left: Leftovers) {
        let mut result = self.writer.clean(left).await;
        if left.has_owner() && result.as_ref().is_err_and(ClusterError::is_forbidden) {
            let reason = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let sentence = format!(
                "the NodeResourceTopology {} stays owned by a Namespace, since its owners may not be changed \
                 ({reason}); delete the object and it is made again",
                self.node
            );
            warn!("{sentence}");
            self.notices.post(Reason::StaleOwner, sentence);
            self.care.owners_forbidden = true;
            let rest = left.without_owner();
            result = if rest.any() { self.writer.clean(rest).await } else { Ok(()) };
        }
        match result {
            Ok(()) => {
                info!("removed what others left in the NodeResourceTopology: {}", left.fields().join(", "))
            }
            // The write that caused the conflict is handled by itself.
            Err(error) if error.is_conflict() => debug!("{error}"),
            Err(error) => warn!("what others left in the NodeResourceTopology stays: {error}"),
        }
    }

    /// Checks whether the Node was recreated: garbage collection should delete the object then.
    async fn check_owner(&mut self) {
        let now = Instant::now();
        match self.writer.owner_is_stale().await {
            Ok(true) => {}
            Ok(false) => {
                self.care.stale = None;
                return;
            }
            Err(error) => {
                debug!("{error}");
                return;
            }
        }
        let patience = GARBAGE.min(self.refresh);
        let (since, said) = self.care.stale.unwrap_or((now, false));
        let due = now.duration_since(since) >= patience;
        self.care.stale = Some((since, said || due));
        if !due {
            self.refresh_at = self.refresh_at.min(since + patience);
            return;
        }
        let sentence = format!(
            "the NodeResourceTopology {0} belongs to an earlier Node {0} and garbage collection does not take it; \
             delete it and it is made again",
            self.node
        );
        if !said {
            warn!("{sentence}");
        }
        self.notices.post(Reason::StaleOwner, sentence);
    }

    /// Logs once why the object cannot be watched.
    pub(super) fn cannot_watch(&mut self, error: &ClusterError) {
        let sentence = error.to_string();
        if self.care.unwatched.as_ref() != Some(&sentence) {
            warn!("{sentence}; what others do to the object is seen at the next refresh");
            self.care.unwatched = Some(sentence);
        }
    }
}
