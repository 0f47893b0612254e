//! The node's pods as they were told last, and what is served of them. Pure but for waking who watches: no I/O, no clock.
//!
//! Who tells of whole pods decides what `Pods` serves, now and for as long as nobody tells. `PodInfo` is served from the same
//! pods, or from the kubelet's `/pods` while that is all that tells.

use std::sync::Arc;

use prost::bytes::Bytes;
use tokio::time::Instant;

use super::Tally;
use super::board::{Board, Listing, Record, Shared, lock};
use super::info::{Info, pod_tombstone};
use crate::pod::{Pod, PodEvent, Whole};

/// From whom `PodInfo` has what it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    /// The pods that `Pods` serves.
    Pods,
    /// What the kubelet's `/pods` has.
    Page,
}

/// What is known and served.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) pods: Shared,
    pub(super) infos: Shared,
    shown: Shown,
    /// The list of whole pods that is coming in, and that of `/pods`.
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
        let shared = |tally| Arc::new(std::sync::Mutex::new(Board::new(tally)));
        let (pods, infos) = (shared(pods), shared(infos));
        Self { pods, infos, shown: Shown::Nothing, pods_listing: None, page_listing: None }
    }

    /// Whoever tells of whole pods tells this, at this moment.
    ///
    /// # Errors
    /// A pod that is not served for what is wrong with it; all others are.
    pub(super) fn take(&mut self, event: PodEvent, at: Instant) -> Result<(), LeftOut> {
        match event {
            PodEvent::Listing => self.pods_listing = Some(Listing::new()),
            PodEvent::Listed(pod) => return self.list(&pod),
            PodEvent::Complete => {
                let listing = self.pods_listing.take().unwrap_or_default();
                lock(&self.pods).replace(listing, at);
                self.show_pods(at);
            }
            PodEvent::Is(pod) => {
                let put = self.put(&pod, at);
                self.show_pod(&pod, at);
                return put;
            }
            PodEvent::Gone(pod) => {
                if let Some(listing) = &mut self.pods_listing {
                    listing.remove(&*pod.uid);
                }
                lock(&self.pods).remove(&pod.uid, at);
                match self.shown {
                    Shown::Pods => self.forget_info(&pod.uid, at),
                    Shown::Page => self.show_pods(at),
                    Shown::Nothing => {}
                }
            }
            PodEvent::Again => {
                if self.shown == Shown::Page {
                    self.show_pods(at);
                }
            }
        }
        Ok(())
    }

    /// The kubelet's `/pods` tells this.
    ///
    /// # Errors
    /// As [`Store::take`].
    pub(super) fn take_page(&mut self, event: PodEvent, at: Instant) -> Result<(), LeftOut> {
        match event {
            PodEvent::Listing => self.page_listing = Some(Listing::new()),
            PodEvent::Listed(pod) => {
                let info = Info::of(&pod).map_err(|reason| LeftOut::new(&pod, reason))?;
                let entry = staged(&lock(&self.infos), &info.uid, &info.encoded(), || record(&info, &pod));
                if let Some(listing) = &mut self.page_listing {
                    listing.insert(info.uid.into(), entry);
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

    /// The kubelet's `/pods` is asked no more. What it told stays until somebody tells of whole pods.
    pub(super) fn close_page(&mut self) {
        self.page_listing = None;
    }

    /// Is `PodInfo` served from the kubelet's `/pods`?
    pub(super) fn shows_page(&self) -> bool {
        self.shown == Shown::Page
    }

    fn list(&mut self, pod: &Pod) -> Result<(), LeftOut> {
        let content = whole(pod)?;
        let entry = staged(&lock(&self.pods), &pod.uid, content, || pod_record(pod, content));
        self.pods_listing.get_or_insert_default().insert((*pod.uid).into(), entry);
        Ok(())
    }

    fn put(&mut self, pod: &Pod, at: Instant) -> Result<(), LeftOut> {
        let content = whole(pod)?;
        lock(&self.pods).put(&pod.uid, pod_record(pod, content), at);
        if let Some(listing) = &mut self.pods_listing {
            listing.insert((*pod.uid).into(), None);
        }
        Ok(())
    }

    /// Shows a pod that was told of by itself.
    fn show_pod(&mut self, pod: &Pod, at: Instant) {
        match self.shown {
            Shown::Pods => {
                if let Ok(info) = Info::of(pod) {
                    lock(&self.infos).put(&info.uid, record(&info, pod), at);
                }
            }
            Shown::Page => self.show_pods(at),
            Shown::Nothing => {}
        }
    }

    /// Shows what `Pods` serves.
    fn show_pods(&mut self, at: Instant) {
        let mut listing = Listing::new();
        let (pods, mut infos) = (lock(&self.pods), lock(&self.infos));
        for (uid, content) in pods.contents() {
            // What cannot be read was not taken.
            let Ok(info) = Info::of_protobuf(content) else { continue };
            let alias = (info.uid != uid).then_some(uid);
            let entry = staged(&infos, &info.uid, &info.encoded(), || {
                Record::new(info.encoded().into(), info.tombstone(), alias)
            });
            listing.insert(info.uid.into(), entry);
        }
        infos.replace(listing, at);
        self.shown = Shown::Pods;
    }

    /// A pod with this UID is gone. Another mirror of the same static pod may be there already.
    fn forget_info(&self, uid: &str, at: Instant) {
        let mut infos = lock(&self.infos);
        if !infos.has_alias(uid) {
            infos.remove(uid, at);
        }
        if let Some(uid) = infos.known_as(uid).map(str::to_owned) {
            infos.remove(&uid, at);
        }
    }
}

impl LeftOut {
    fn new(pod: &Pod, reason: impl ToString) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), reason: reason.to_string() }
    }
}

/// What is to be kept of a pod of a list.
fn staged(board: &Board, uid: &str, content: &[u8], record: impl FnOnce() -> Record) -> Option<Record> {
    (!board.is(uid, content)).then(record)
}

/// The message of a pod, as it came.
fn whole(pod: &Pod) -> Result<&Bytes, LeftOut> {
    match pod.whole.as_deref() {
        _ if pod.uid.is_empty() => Err(LeftOut::new(pod, "it has no UID")),
        Some(Whole::Protobuf(bytes)) => Ok(bytes),
        Some(Whole::Json(_)) | None => Err(LeftOut::new(pod, "it did not come as protocol buffers")),
    }
}

fn pod_record(pod: &Pod, content: &Bytes) -> Record {
    let kubelets = Info::of_protobuf(content).map(|info| info.uid).ok();
    let alias = kubelets.as_deref().filter(|uid| *uid != pod.uid);
    Record::new(content.clone(), pod_tombstone(pod), alias)
}

fn record(info: &Info, pod: &Pod) -> Record {
    let alias = (info.uid != pod.uid).then_some(&*pod.uid);
    Record::new(info.encoded().into(), info.tombstone(), alias)
}
