//! The node's pods as last reported, and what is served of them. Pure except for waking watchers: no I/O, no
//! clock.
//!
//! `Pods` is served from the sources of full pods (the kubelet's Pods API and the API server), and keeps
//! serving the last known pods while none of them works. `PodInfo` is served from the same pods, or from the
//! kubelet's `/pods` while that is the only source that works.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::bytes::Bytes;
use tokio::time::Instant;

use super::board::{Board, Listing, Shared, lock};
use super::info::{Info, pod_tombstone};
use super::records::{Content, Limit, Record, TooLarge};
use super::watchers::Tally;
use crate::core_v1::{BUDGET, outline};
use crate::pod::{Pod, PodEvent, Whole};

/// The budget of full pods. `PodInfo` is served from the outline of those that are left out.
const PODS: Limit = Limit { bytes: BUDGET, outline };
/// The budget of `PodInfo`, where a pod usually takes some 300 bytes. It is the default message limit of gRPC
/// clients.
const INFOS: Limit = Limit { bytes: BUDGET / 4, outline: |_| Bytes::new() };

/// What `PodInfo` is served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    /// The pods of `Pods`.
    Pods,
    /// The kubelet's `/pods`.
    Page,
}

/// The pods of both services.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) pods: Shared,
    pub(super) infos: Shared,
    shown: Shown,
    /// Whether the current source of full pods has completed a list. Until then its single events do not make
    /// up all pods.
    leads: bool,
    /// The lists being received: of full pods, and of `/pods`.
    pods_listing: Option<Listing>,
    page_listing: Option<Listing>,
}

/// A pod that cannot be served, and why.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pod is left out, {namespace}/{name}: {reason}")]
pub(super) struct LeftOut {
    namespace: String,
    name: String,
    reason: String,
}

impl Store {
    pub(super) fn new(pods: Arc<dyn Tally>, infos: Arc<dyn Tally>) -> Self {
        let shared = |limit, tally| Arc::new(std::sync::Mutex::new(Board::new(limit, tally)));
        let (pods, infos) = (shared(PODS, pods), shared(INFOS, infos));
        Self { pods, infos, shown: Shown::Nothing, leads: true, pods_listing: None, page_listing: None }
    }

    /// Handles an event of a source of full pods, received at this time.
    ///
    /// # Errors
    /// If the event's pod is invalid. It is not served; all others are.
    pub(super) fn take(&mut self, event: PodEvent, at: Instant) -> Result<(), LeftOut> {
        match event {
            PodEvent::Listing => self.pods_listing = Some(Listing::new(PODS)),
            PodEvent::Listed(pod) => return self.list(&pod),
            PodEvent::Complete => {
                let Some(listing) = self.pods_listing.take() else { return Ok(()) };
                lock(&self.pods).replace(listing, at);
                self.show_pods(at, None);
            }
            PodEvent::Is(pod) => return self.put(&pod, at),
            PodEvent::Gone(pod) => {
                if let Some(listing) = &mut self.pods_listing {
                    listing.remove(&pod.uid);
                }
                lock(&self.pods).remove(&pod.uid, at);
                match self.shown {
                    Shown::Pods if self.is_plain(&pod.uid) => lock(&self.infos).remove(&pod.uid, at),
                    Shown::Pods => self.show_pods(at, None),
                    Shown::Page | Shown::Nothing => self.leave_page(at),
                }
            }
            PodEvent::Again => self.leave_page(at),
        }
        Ok(())
    }

    /// Sets whether the current source of full pods has completed a list.
    pub(super) fn lead(&mut self, leads: bool) {
        self.leads = leads;
    }

    /// Handles an event of the kubelet's `/pods`.
    ///
    /// # Errors
    /// See [`Store::take`].
    pub(super) fn take_page(&mut self, event: PodEvent, at: Instant) -> Result<(), LeftOut> {
        match event {
            PodEvent::Listing => self.page_listing = Some(Listing::new(INFOS)),
            PodEvent::Listed(pod) => {
                let info = Info::of(&pod).map_err(|reason| LeftOut::new(&pod, reason))?;
                if let Some(listing) = &mut self.page_listing {
                    match lock(&self.infos).is(&info.uid, &info.encoded()) {
                        true => listing.keep(&info.uid),
                        false => listing.put(&info.uid, record(&info, &pod)),
                    }
                }
            }
            PodEvent::Complete => {
                let Some(listing) = self.page_listing.take() else { return Ok(()) };
                lock(&self.infos).replace(listing, at);
                self.shown = Shown::Page;
            }
            PodEvent::Is(pod) if self.shown == Shown::Page => {
                let info = Info::of(&pod).map_err(|reason| LeftOut::new(&pod, reason))?;
                lock(&self.infos).put(&info.uid, record(&info, &pod), at);
            }
            PodEvent::Gone(pod) if self.shown == Shown::Page => self.forget_info(&pod.uid, at),
            PodEvent::Is(_) | PodEvent::Gone(_) | PodEvent::Again => {}
        }
        Ok(())
    }

    /// Stops following the kubelet's `/pods`. Its pods stay until a source of full pods works.
    pub(super) fn close_page(&mut self) {
        self.page_listing = None;
    }

    /// Returns true if `PodInfo` is served from the kubelet's `/pods`.
    pub(super) fn shows_page(&self) -> bool {
        self.shown == Shown::Page
    }

    /// Returns the pods left out as too large that were not returned before.
    pub(super) fn newly_left_out(&self) -> Vec<TooLarge> {
        let mut left_out = lock(&self.pods).newly_left_out();
        left_out.extend(lock(&self.infos).newly_left_out());
        left_out
    }

    /// Returns true if a pod that is left out would fit, and no list is being received that may contain it.
    pub(super) fn has_room_again(&self) -> bool {
        self.pods_listing.is_none() && lock(&self.pods).records().has_room_again()
    }

    fn list(&mut self, pod: &Pod) -> Result<(), LeftOut> {
        let (content, info) = whole(pod)?;
        let same = matches!(&content, Content::Whole(bytes) if lock(&self.pods).is(&pod.uid, bytes));
        let listing = self.pods_listing.get_or_insert_with(|| Listing::new(PODS));
        match same {
            true => listing.keep(&pod.uid),
            false => listing.put(&pod.uid, pod_record(pod, content, &info)),
        }
        Ok(())
    }

    fn put(&mut self, pod: &Pod, at: Instant) -> Result<(), LeftOut> {
        let (content, info) = whole(pod)?;
        lock(&self.pods).put(&pod.uid, pod_record(pod, content, &info), at);
        if let Some(listing) = &mut self.pods_listing {
            listing.keep(&pod.uid);
        }
        match self.shown {
            Shown::Pods if info.uid == pod.uid && self.is_plain(&pod.uid) => {
                lock(&self.infos).put(&info.uid, record(&info, pod), at);
            }
            Shown::Pods => self.show_pods(at, Some(&pod.uid)),
            Shown::Page | Shown::Nothing => self.leave_page(at),
        }
        Ok(())
    }

    /// Returns true if the UID neither has an alias nor is one, so that no mirror pod is involved.
    fn is_plain(&self, uid: &str) -> bool {
        let infos = lock(&self.infos);
        infos.alias(uid).is_none() && infos.known_as(uid).is_none()
    }

    /// Serves `PodInfo` from full pods again once their source works.
    fn leave_page(&mut self, at: Instant) {
        if self.shown == Shown::Page && self.leads && lock(&self.pods).has_told() {
            self.show_pods(at, None);
        }
    }

    /// Serves `PodInfo` from the pods of `Pods`; `newest` is the pod that just changed.
    fn show_pods(&mut self, at: Instant, newest: Option<&str>) {
        let mut listing = Listing::new(INFOS);
        let (pods, mut infos) = (lock(&self.pods), lock(&self.infos));
        // Pods that cannot be parsed were not accepted.
        let all: Vec<(&str, Info)> = pods
            .records()
            .kept()
            .filter_map(|(uid, content)| Some((uid, Info::of_protobuf(content).ok()?)))
            .collect();
        let holders = holders(&all, &infos, newest);
        for (uid, mut info) in all.iter().map(|(uid, info)| (*uid, info.clone())) {
            if info.uid != uid
                && let Some((holder, name)) = holders.get(&*info.uid)
                && *holder != uid
            {
                // An older mirror of the same static pod is about to be deleted. A pod of another name only
                // claims to be the mirror, and keeps its own UID.
                if *name == (&*info.namespace, &*info.name) {
                    continue;
                }
                info.uid = uid.to_owned();
            }
            let alias = (info.uid != uid).then_some(uid);
            let same = infos.is(&info.uid, &info.encoded()) && infos.alias(&info.uid) == alias;
            match same {
                true => listing.keep(&info.uid),
                false => listing.put(&info.uid, info_record(&info, alias)),
            }
        }
        infos.replace(listing, at);
        self.shown = Shown::Pods;
    }

    /// Removes a pod of `/pods`, by its UID or its alias.
    fn forget_info(&self, uid: &str, at: Instant) {
        let mut infos = lock(&self.infos);
        infos.remove(uid, at);
        if let Some(uid) = infos.known_as(uid).map(str::to_owned) {
            infos.remove(&uid, at);
        }
    }
}

/// Namespace and name.
type Name<'a> = (&'a str, &'a str);

/// Returns which pod is shown under each UID that several pods may claim. A pod whose own UID it is comes
/// first, since any user can create a pod that claims to be a mirror. Then comes the mirror shown before,
/// unless the newest pod has the same name.
fn holders<'a>(
    all: &'a [(&'a str, Info)],
    infos: &Board,
    newest: Option<&str>,
) -> BTreeMap<&'a str, (&'a str, Name<'a>)> {
    let mut holders: BTreeMap<&str, (&str, Name<'_>)> = BTreeMap::new();
    let name = |info: &'a Info| (&*info.namespace, &*info.name);
    for (uid, info) in all.iter().filter(|(uid, info)| info.uid != *uid) {
        let takes = match holders.get(&*info.uid) {
            None => true,
            // The newest pod replaces one of the same name.
            Some((before, holder)) if *holder == name(info) && newest == Some(before) => false,
            Some((_, holder)) if *holder == name(info) && newest == Some(uid) => true,
            Some(_) => infos.alias(&info.uid) == Some(uid),
        };
        if takes {
            holders.insert(&info.uid, (uid, name(info)));
        }
    }
    let own = all.iter().filter(|(uid, info)| info.uid == *uid);
    holders.extend(own.map(|(uid, info)| (*uid, (*uid, name(info)))));
    holders
}

impl LeftOut {
    fn new(pod: &Pod, reason: impl ToString) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), reason: reason.to_string() }
    }
}

/// Returns a pod's message as received, or its outline, and its info.
fn whole(pod: &Pod) -> Result<(Content, Info), LeftOut> {
    let (content, bytes) = match pod.whole.as_deref() {
        _ if pod.uid.is_empty() => return Err(LeftOut::new(pod, "it has no UID")),
        Some(Whole::Protobuf(bytes)) => (Content::Whole(bytes.clone()), bytes),
        Some(Whole::Outline(outline, bytes)) => (Content::Outline(outline.clone(), *bytes), outline),
        Some(Whole::Json(_)) | None => {
            return Err(LeftOut::new(pod, "it did not come as protocol buffers"));
        }
    };
    let info = Info::of_protobuf(bytes).map_err(|error| LeftOut::new(pod, error))?;
    Ok((content, info))
}

fn pod_record(pod: &Pod, content: Content, info: &Info) -> Record {
    let alias = (info.uid != pod.uid).then_some(&*info.uid);
    Record::new(content, pod_tombstone(pod), alias, (&pod.namespace, &pod.name))
}

fn record(info: &Info, pod: &Pod) -> Record {
    info_record(info, (info.uid != pod.uid).then_some(&*pod.uid))
}

fn info_record(info: &Info, alias: Option<&str>) -> Record {
    let content = Content::Whole(info.encoded().into());
    Record::new(content, info.tombstone(), alias, (&info.namespace, &info.name))
}
