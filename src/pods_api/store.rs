//! The node's pods as last reported, and what is served of them. Pure except for waking watchers: no I/O, no
//! clock.
//!
//! `Pods` is served from the sources of full pods (the kubelet's Pods API and the API server), and keeps
//! serving the last known pods while none of them works. `PodInfo` is served from the same pods, or from the
//! kubelet's `/pods` while that is the only source that works.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use prost::Message;
use prost::bytes::Bytes;
use tokio::time::Instant;

use super::entries::{Content, Entry, Limit, TooLarge};
use super::pod_info::{PodInfo, pod_tombstone};
use super::watch_cache::{IncomingList, SharedCache, WatchCache, lock};
use super::watchers::WatcherObserver;
use crate::core_v1::{MAX_RAW_BYTES, outline};
use crate::pod::{Pod, PodEvent, RawPod};

/// The budget of full pods. `PodInfo` is served from the outline of those that are omitted.
const PODS: Limit = Limit { bytes: MAX_RAW_BYTES, outline };
/// The budget of `PodInfo`, where a pod usually takes some 300 bytes. It is the default message limit of gRPC
/// clients.
const INFOS: Limit = Limit { bytes: MAX_RAW_BYTES / 4, outline: |_| Bytes::new() };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InfoSource {
    None,
    /// The pods of `Pods`.
    Pods,
    /// The kubelet's `/pods`.
    Kubelet,
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) pods: SharedCache,
    pub(super) infos: SharedCache,
    info_source: InfoSource,
    /// Whether the current source of full pods has completed a list. Until then its events do not cover all
    /// pods.
    pub(super) is_source_synced: bool,
    /// The lists being received: of full pods, and of `/pods`.
    pods_list: Option<IncomingList>,
    pub(super) kubelet_list: Option<IncomingList>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {namespace}/{name} is not served: {reason}")]
pub(super) struct InvalidPod {
    namespace: String,
    name: String,
    reason: String,
}

impl Store {
    pub(super) fn new(pods: Arc<dyn WatcherObserver>, infos: Arc<dyn WatcherObserver>) -> Self {
        let shared = |limit, observer| Arc::new(Mutex::new(WatchCache::new(limit, observer)));
        Self {
            pods: shared(PODS, pods),
            infos: shared(INFOS, infos),
            info_source: InfoSource::None,
            is_source_synced: true,
            pods_list: None,
            kubelet_list: None,
        }
    }

    /// Handles an event of a source of full pods, received at this time.
    ///
    /// # Errors
    /// If the event's pod is invalid. It is not served; all others are.
    pub(super) fn apply(&mut self, event: PodEvent, at: Instant) -> Result<(), InvalidPod> {
        match event {
            PodEvent::Init => self.pods_list = Some(IncomingList::new(PODS)),
            PodEvent::InitApply(pod) => return self.list(&pod),
            PodEvent::InitDone => {
                let Some(list) = self.pods_list.take() else { return Ok(()) };
                lock(&self.pods).replace(list, at);
                self.serve_info_of_pods(at, None);
            }
            PodEvent::Apply(pod) => return self.put(&pod, at),
            PodEvent::Delete(pod) => {
                if let Some(list) = &mut self.pods_list {
                    list.remove(&pod.uid);
                }
                lock(&self.pods).remove(&pod.uid, at);
                match self.info_source {
                    InfoSource::Pods if self.is_plain(&pod.uid) => lock(&self.infos).remove(&pod.uid, at),
                    InfoSource::Pods => self.serve_info_of_pods(at, None),
                    InfoSource::Kubelet | InfoSource::None => self.leave_kubelet(at),
                }
            }
            PodEvent::Resumed => self.leave_kubelet(at),
        }
        Ok(())
    }

    /// Handles an event of the kubelet's `/pods`.
    ///
    /// # Errors
    /// See [`Store::apply`].
    pub(super) fn apply_kubelet(&mut self, event: PodEvent, at: Instant) -> Result<(), InvalidPod> {
        match event {
            PodEvent::Init => self.kubelet_list = Some(IncomingList::new(INFOS)),
            PodEvent::InitApply(pod) => {
                let info = PodInfo::of(&pod).map_err(|reason| InvalidPod::new(&pod, reason))?;
                if let Some(list) = &mut self.kubelet_list {
                    match lock(&self.infos).serves(&info.uid, &info.encode_to_vec()) {
                        true => list.put_unchanged(&info.uid),
                        false => list.put(&info.uid, entry(&info, &pod)),
                    }
                }
            }
            PodEvent::InitDone => {
                let Some(list) = self.kubelet_list.take() else { return Ok(()) };
                lock(&self.infos).replace(list, at);
                self.info_source = InfoSource::Kubelet;
            }
            PodEvent::Apply(pod) if self.info_source == InfoSource::Kubelet => {
                let info = PodInfo::of(&pod).map_err(|reason| InvalidPod::new(&pod, reason))?;
                lock(&self.infos).put(&info.uid, entry(&info, &pod), at);
            }
            PodEvent::Delete(pod) if self.info_source == InfoSource::Kubelet => {
                self.remove_info(&pod.uid, at);
            }
            PodEvent::Apply(_) | PodEvent::Delete(_) | PodEvent::Resumed => {}
        }
        Ok(())
    }

    pub(super) fn serves_kubelet_pods(&self) -> bool {
        self.info_source == InfoSource::Kubelet
    }

    pub(super) fn take_newly_omitted(&self) -> Vec<TooLarge> {
        let mut omitted = lock(&self.pods).entries.take_newly_omitted();
        omitted.extend(lock(&self.infos).entries.take_newly_omitted());
        omitted
    }

    /// Returns true if a pod that is omitted would fit, and no list is being received that may contain it.
    pub(super) fn has_room(&self) -> bool {
        self.pods_list.is_none() && lock(&self.pods).entries.has_room()
    }

    fn list(&mut self, pod: &Pod) -> Result<(), InvalidPod> {
        let (content, info) = parse(pod)?;
        let same = matches!(&content, Content::Served(bytes) if lock(&self.pods).serves(&pod.uid, bytes));
        let list = self.pods_list.get_or_insert_with(|| IncomingList::new(PODS));
        match same {
            true => list.put_unchanged(&pod.uid),
            false => list.put(&pod.uid, pod_entry(pod, content, &info)),
        }
        Ok(())
    }

    fn put(&mut self, pod: &Pod, at: Instant) -> Result<(), InvalidPod> {
        let (content, info) = parse(pod)?;
        lock(&self.pods).put(&pod.uid, pod_entry(pod, content, &info), at);
        if let Some(list) = &mut self.pods_list {
            list.put_unchanged(&pod.uid);
        }
        match self.info_source {
            InfoSource::Pods if info.uid == pod.uid && self.is_plain(&pod.uid) => {
                lock(&self.infos).put(&info.uid, entry(&info, pod), at);
            }
            InfoSource::Pods => self.serve_info_of_pods(at, Some(&pod.uid)),
            InfoSource::Kubelet | InfoSource::None => self.leave_kubelet(at),
        }
        Ok(())
    }

    /// Returns true if the UID neither has an alias nor is one, so that no mirror pod is involved.
    fn is_plain(&self, uid: &str) -> bool {
        let infos = lock(&self.infos);
        infos.alias(uid).is_none() && infos.uid_of(uid).is_none()
    }

    /// Serves `PodInfo` from full pods again once their source works.
    fn leave_kubelet(&mut self, at: Instant) {
        if self.info_source == InfoSource::Kubelet && self.is_source_synced && lock(&self.pods).is_synced {
            self.serve_info_of_pods(at, None);
        }
    }

    /// Serves `PodInfo` from the pods of `Pods`; `newest` is the pod that just changed.
    fn serve_info_of_pods(&mut self, at: Instant, newest: Option<&str>) {
        let mut list = IncomingList::new(INFOS);
        let (pods, mut infos) = (lock(&self.pods), lock(&self.infos));
        // Pods that cannot be parsed were not accepted.
        let info = |(uid, content)| Some((uid, PodInfo::of_protobuf(content).ok()?));
        let all: Vec<(&str, PodInfo)> = pods.entries.contents().filter_map(info).collect();
        let owners = owners(&all, &infos, newest);
        for (uid, mut info) in all.iter().map(|(uid, info)| (*uid, info.clone())) {
            if info.uid != uid
                && let Some((owner, name)) = owners.get(&*info.uid)
                && *owner != uid
            {
                // An older mirror of the same static pod is about to be deleted. A pod of another name only
                // claims to be the mirror, and keeps its own UID.
                if *name == (&*info.namespace, &*info.name) {
                    continue;
                }
                info.uid = uid.to_owned();
            }
            let alias = (info.uid != uid).then_some(uid);
            let same = infos.serves(&info.uid, &info.encode_to_vec()) && infos.alias(&info.uid) == alias;
            match same {
                true => list.put_unchanged(&info.uid),
                false => list.put(&info.uid, info_entry(&info, alias)),
            }
        }
        infos.replace(list, at);
        self.info_source = InfoSource::Pods;
    }

    /// Removes a pod of `/pods`, by its UID or its alias.
    fn remove_info(&self, uid: &str, at: Instant) {
        let mut infos = lock(&self.infos);
        infos.remove(uid, at);
        if let Some(uid) = infos.uid_of(uid).map(str::to_owned) {
            infos.remove(&uid, at);
        }
    }
}

type Name<'a> = (&'a str, &'a str);

/// Returns which pod is served under each UID that several pods may claim. A pod whose own UID it is comes
/// first, since any user can create a pod that claims to be a mirror. Then comes the mirror served before,
/// unless the newest pod has the same name.
fn owners<'a>(
    all: &'a [(&'a str, PodInfo)],
    infos: &WatchCache,
    newest: Option<&str>,
) -> BTreeMap<&'a str, (&'a str, Name<'a>)> {
    let mut owners: BTreeMap<&str, (&str, Name<'_>)> = BTreeMap::new();
    let name = |info: &'a PodInfo| (&*info.namespace, &*info.name);
    for (uid, info) in all.iter().filter(|(uid, info)| info.uid != *uid) {
        let takes = match owners.get(&*info.uid) {
            None => true,
            // The newest pod replaces one of the same name.
            Some((before, owner)) if *owner == name(info) && newest == Some(before) => false,
            Some((_, owner)) if *owner == name(info) && newest == Some(uid) => true,
            Some(_) => infos.alias(&info.uid) == Some(uid),
        };
        if takes {
            owners.insert(&info.uid, (uid, name(info)));
        }
    }
    let own = all.iter().filter(|(uid, info)| info.uid == *uid);
    owners.extend(own.map(|(uid, info)| (*uid, (*uid, name(info)))));
    owners
}

impl InvalidPod {
    fn new(pod: &Pod, reason: impl ToString) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), reason: reason.to_string() }
    }
}

/// Returns a pod's message as received, or its outline, and what `PodInfo` has of it.
fn parse(pod: &Pod) -> Result<(Content, PodInfo), InvalidPod> {
    let (content, bytes) = match pod.raw.as_deref() {
        _ if pod.uid.is_empty() => return Err(InvalidPod::new(pod, "it has no UID")),
        Some(RawPod::Protobuf(bytes)) => (Content::Served(bytes.clone()), bytes),
        Some(RawPod::Outline(outline, bytes)) => (Content::Outline(outline.clone(), *bytes), outline),
        Some(RawPod::Json(_)) | None => {
            return Err(InvalidPod::new(pod, "it is not encoded as protocol buffers"));
        }
    };
    let info = PodInfo::of_protobuf(bytes).map_err(|error| InvalidPod::new(pod, error))?;
    Ok((content, info))
}

fn pod_entry(pod: &Pod, content: Content, info: &PodInfo) -> Entry {
    let alias = (info.uid != pod.uid).then_some(&*info.uid);
    Entry::new(content, pod_tombstone(pod), alias, (&pod.namespace, &pod.name))
}

fn entry(info: &PodInfo, pod: &Pod) -> Entry {
    info_entry(info, (info.uid != pod.uid).then_some(&*pod.uid))
}

fn info_entry(info: &PodInfo, alias: Option<&str>) -> Entry {
    let content = Content::Served(info.encode_to_vec().into());
    Entry::new(content, info.tombstone(), alias, (&info.namespace, &info.name))
}
