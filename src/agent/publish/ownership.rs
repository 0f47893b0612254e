//! What other writers did to the object, and who owns it.

use std::collections::VecDeque;
use std::time::Duration;

use kube::api::ObjectMeta;
use tokio::time::Instant;

use super::competing_managers::{CompetingManagers, ConflictPolicy};
use super::drift::Leftovers;
use crate::cluster::ClusterError;
use crate::nrt::Form;

/// How long Kubernetes' garbage collector may take to delete the object of a Node that was recreated. A
/// shorter refresh interval takes precedence.
const GARBAGE_COLLECTION: Duration = Duration::from_secs(300);
/// How long the API server may reject the object before an Event is posted.
const REJECTED: Duration = Duration::from_secs(60);
/// How many times a deleted object is recreated at once, within [`DELETIONS_WITHIN`].
const DELETIONS: usize = 3;
/// The time in which deletions of the object are counted.
const DELETIONS_WITHIN: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct OwnershipState {
    pub(super) competing: CompetingManagers,
    pub(super) form: Form,
    /// UID and generation of the object when we last wrote it or read it as wanted.
    pub(super) up_to_date: Option<(String, i64)>,
    deletions: VecDeque<Instant>,
    /// Since when the object has been owned by a Node that is gone, and whether that was reported.
    pub(super) stale_owner: Option<(Instant, bool)>,
    pub(super) is_owner_change_forbidden: bool,
    /// Whether the last attempt to remove what others left failed.
    pub(super) has_removal_failed: bool,
    /// Since when the API server has been rejecting our writes.
    pub(super) rejected_since: Option<Instant>,
}

impl OwnershipState {
    pub(super) fn new(policy: ConflictPolicy, form: Form) -> Self {
        Self {
            competing: CompetingManagers::new(policy),
            form,
            up_to_date: None,
            deletions: VecDeque::new(),
            stale_owner: None,
            is_owner_change_forbidden: false,
            has_removal_failed: false,
            rejected_since: None,
        }
    }

    /// Records an error. Returns true if the API server has been rejecting our writes for so long that an
    /// operator should know.
    pub(super) fn is_rejected_for_long(&mut self, error: &ClusterError, now: Instant) -> bool {
        if !error.is_permanent() {
            self.rejected_since = None;
            return false;
        }
        now.duration_since(*self.rejected_since.get_or_insert(now)) >= REJECTED
    }

    pub(super) fn is_up_to_date(&self, metadata: &ObjectMeta) -> bool {
        self.up_to_date.is_some() && self.up_to_date == identity(metadata)
    }

    pub(super) fn leftovers(&self, metadata: &ObjectMeta) -> Leftovers {
        let leftovers = Leftovers::of(metadata, self.form);
        if self.is_owner_change_forbidden { leftovers.without_owner() } else { leftovers }
    }

    /// Records a deletion of the object. Returns true if it is deleted again and again.
    pub(super) fn deleted(&mut self, now: Instant) -> bool {
        self.deletions.retain(|at| now.duration_since(*at) < DELETIONS_WITHIN);
        self.deletions.push_back(now);
        self.deletions.len() > DELETIONS
    }

    /// Records that the owner is stale. Returns when to report that if it is too early, else whether it is
    /// the first report.
    pub(super) fn owner_is_stale(&mut self, refresh: Duration, now: Instant) -> Result<bool, Instant> {
        let (since, is_reported) = *self.stale_owner.get_or_insert((now, false));
        let due = since + GARBAGE_COLLECTION.min(refresh);
        if now < due {
            return Err(due);
        }
        self.stale_owner = Some((since, true));
        Ok(!is_reported)
    }

    /// Returns when to report that the owner is stale, if that is still to be done.
    pub(super) fn stale_owner_due(&self, refresh: Duration) -> Option<Instant> {
        let unreported = self.stale_owner.filter(|(_, is_reported)| !is_reported);
        unreported.map(|(since, _)| since + GARBAGE_COLLECTION.min(refresh))
    }
}

pub(super) fn identity(metadata: &ObjectMeta) -> Option<(String, i64)> {
    metadata.uid.clone().zip(metadata.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> OwnershipState {
        OwnershipState::new(ConflictPolicy::Report, Form::default())
    }

    #[test]
    fn only_a_lasting_rejection_needs_an_operator() {
        let rejected =
            |code| ClusterError::Rejected { what: "x".into(), code, message: "no".into(), retry_after: None };
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut state = state();
        let forbidden = ClusterError::Forbidden("no".into());
        assert!(!state.is_rejected_for_long(&forbidden, start));
        assert!(!state.is_rejected_for_long(&forbidden, after(59)));
        assert!(state.is_rejected_for_long(&rejected(422), after(60)));
        assert!(!state.is_rejected_for_long(&rejected(503), after(61)), "the server itself fails");
        assert!(!state.is_rejected_for_long(&forbidden, after(62)), "its time starts anew");
        state.rejected_since = None;
        assert!(!state.is_rejected_for_long(&forbidden, after(200)));
    }

    #[test]
    fn a_stale_owner_is_reported_once_after_garbage_collection_had_its_time() {
        let (refresh, start) = (Duration::from_secs(600), Instant::now());
        let due = start + GARBAGE_COLLECTION;
        let mut state = state();
        assert_eq!(state.stale_owner_due(refresh), None);
        assert_eq!(state.owner_is_stale(refresh, start), Err(due));
        assert_eq!(state.stale_owner_due(refresh), Some(due));
        assert_eq!(state.owner_is_stale(refresh, due), Ok(true));
        assert_eq!(state.stale_owner_due(refresh), None, "the refresh interval applies again");
        assert_eq!(state.owner_is_stale(refresh, due + refresh), Ok(false));
        state.stale_owner = None;
        let short = Duration::from_secs(10);
        assert_eq!(state.owner_is_stale(short, due), Err(due + short), "a shorter refresh takes precedence");
    }

    #[test]
    fn an_object_may_be_deleted_a_few_times() {
        let (mut state, start) = (state(), Instant::now());
        assert_eq!([(); 4].map(|()| state.deleted(start)), [false, false, false, true]);
        assert!(!state.deleted(start + DELETIONS_WITHIN));
    }
}
