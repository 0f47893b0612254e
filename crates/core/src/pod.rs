//! A pod as reported by the API server or the kubelet, trimmed to a few hundred bytes.
//!
//! The podresources List reports what pods are allocated; this type reports their identity, phase and
//! requests.

mod annotation;
pub(crate) mod api;
mod container;
mod convert;

use std::collections::BTreeSet;
use std::sync::Arc;

use prost::bytes::Bytes;

use crate::watch_event::WatchEvent;

pub use annotation::{Annotation, MAX_ANNOTATION_BYTES, PodMap, drop_longest_annotations};
pub use container::{Container, ContainerKind};

/// Namespace and name of a pod.
pub type PodName = (String, String);

/// Names of pods that have terminated.
pub type TerminatedPodNames = Arc<BTreeSet<PodName>>;

/// One pod of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Distinguishes the pod from an earlier one of the same name. A static pod's mirror pod has a UID of its
    /// own.
    pub uid: String,
    /// The phase reported in its status.
    pub phase: Phase,
    /// Whether it was deleted (has a deletion timestamp). It may still be running.
    pub deleted: bool,
    /// How far its termination has progressed.
    pub termination: Termination,
    /// Whether its specification makes it Guaranteed, computed as the kubelet does.
    pub guaranteed: bool,
    /// Whether its status reports the QoS class Guaranteed, which is what the scheduler and the kubelet's managers
    /// use. Falls back to `guaranteed` if the status has no class.
    pub qos_guaranteed: bool,
    /// Its pod-level requests, if its specification has pod-level CPU, memory or huge pages. The kubelet then
    /// allocates no exclusive CPUs or memory to its containers, unless the feature gate
    /// `PodLevelResourceManagers` is on.
    pub pod_level: Option<Box<Container>>,
    /// Its ResourceClaims, if it has any.
    pub claims: Option<Box<ClaimNames>>,
    /// Containers in the order of the specification, init containers first. Ephemeral containers are left
    /// out.
    pub containers: Box<[Container]>,
    /// The annotations that are [`Wanted`], sorted by key.
    pub annotations: Box<[(Box<str>, Annotation)]>,
    /// The serialized pod, if [`Wanted`].
    pub raw: Option<Box<RawPod>>,
}

/// Names of ResourceClaims, sorted; those of templates once they are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimNames(pub Box<[Box<str>]>);

/// A pod in serialized form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawPod {
    /// A `core/v1` Pod message, without an envelope.
    Protobuf(Bytes),
    /// For a `core/v1` Pod message that is too large to cache: its identity and status
    /// ([`outline`](crate::core_v1::outline)), and the size of the whole message in bytes.
    Outline(Bytes, usize),
    /// The identity and status of an item of the kubelet's `/pods`. No other field is used.
    Json(Bytes),
}

/// The optional parts of a pod to cache: annotations by key, and the serialized pod. The rest is dropped when
/// a pod is parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    annotations: Arc<BTreeSet<Box<str>>>,
    raw: bool,
}

impl Wanted {
    /// Selects the annotations with these keys.
    #[must_use]
    pub fn of<K: Into<Box<str>>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self { annotations: Arc::new(keys.into_iter().map(Into::into).collect()), raw: false }
    }

    /// Selects what either selects.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let annotations = self.annotations.iter().chain(other.annotations.iter()).cloned().collect();
        Self { annotations: Arc::new(annotations), raw: self.raw || other.raw }
    }

    /// Also selects the serialized pod.
    #[must_use]
    pub fn with_raw(self) -> Self {
        Self { raw: true, ..self }
    }

    /// Returns true if the serialized pod is selected.
    #[must_use]
    pub const fn has_raw(&self) -> bool {
        self.raw
    }
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Bound, perhaps admitted; not every container has started.
    #[default]
    Pending,
    /// Running.
    Running,
    /// All its containers terminated successfully.
    Succeeded,
    /// At least one container failed, or the kubelet rejected the pod.
    Failed,
    /// The node is unreachable, or the phase is not one known here.
    Unknown,
}

impl Phase {
    /// Returns true if no container of the pod will run again.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// How far a pod's termination has progressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Termination {
    /// It is running or will run.
    #[default]
    Live,
    /// It was deleted and none of its containers is running: the kubelet is about to release its resources.
    Stopped,
    /// It is `Succeeded` or `Failed`: none of its containers will run again.
    Terminated,
}

/// An event of a pod source. For a deleted pod only namespace, name and UID need be set.
pub type PodEvent = WatchEvent<Pod>;

impl Pod {
    /// Returns the names of its ResourceClaims.
    pub fn claim_names(&self) -> impl Iterator<Item = &str> {
        self.claims.iter().flat_map(|claims| &claims.0).map(|name| &**name)
    }

    /// Parses a pod from the JSON of the API server or the kubelet.
    ///
    /// # Errors
    /// If the JSON is invalid, or the pod has no name or namespace.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let pod: api::ApiPod = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        Self::from(pod).identified()
    }

    pub(crate) fn identified(self) -> Result<Self, String> {
        match self.name.is_empty() || self.namespace.is_empty() {
            true => Err("it has no name or no namespace".to_owned()),
            false => Ok(self),
        }
    }

    /// Drops everything that is not wanted, and the annotations of a terminated pod, which has no devices any
    /// more.
    #[must_use]
    pub fn keeping(mut self, wanted: &Wanted) -> Self {
        if self.termination == Termination::Terminated {
            self.annotations = Box::default();
        }
        if !self.annotations.is_empty() {
            let annotations = std::mem::take(&mut self.annotations).into_vec().into_iter();
            self.annotations = annotations.filter(|(key, _)| wanted.annotations.contains(key)).collect();
            annotation::drop_longest(&mut self.annotations, Annotation::MAX_BYTES);
        }
        if !wanted.raw {
            self.raw = None;
        }
        self
    }

    /// Its namespace and name.
    #[must_use]
    pub fn full_name(&self) -> PodName {
        (self.namespace.clone(), self.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unwanted_parts_are_dropped() {
        let raw = || Some(Box::new(RawPod::Json(Bytes::from_static(b"{}"))));
        let annotations = || ["a", "b"].map(|key| (key.into(), Annotation::of(key))).into();
        let pod = || Pod { annotations: annotations(), raw: raw(), ..Pod::default() };
        let wanted = Wanted::of(["b"]);
        assert!(!wanted.has_raw() && wanted.clone().with_raw().has_raw());
        let read = pod().keeping(&wanted);
        assert_eq!((read.annotations.len(), &*read.annotations[0].0, read.raw), (1, "b", None));
        let read = pod().keeping(&wanted.with_raw());
        assert_eq!((read.annotations.len(), read.raw), (1, raw()));
        assert!(Wanted::default().with_raw().annotations.is_empty());
    }

    #[test]
    fn annotations_of_a_terminated_pod_are_dropped() {
        for (termination, kept) in
            [(Termination::Live, 1), (Termination::Stopped, 1), (Termination::Terminated, 0)]
        {
            let annotations = [("a".into(), Annotation::of("text"))].into();
            let pod = Pod { termination, annotations, ..Pod::default() };
            assert_eq!(pod.keeping(&Wanted::of(["a"])).annotations.len(), kept, "{termination:?}");
        }
    }

    #[test]
    fn a_pod_needs_a_name_and_a_namespace() {
        let read = |name: &str, namespace: &str| {
            let metadata = json!({"name": name, "namespace": namespace, "uid": "u"});
            let pod = json!({"metadata": metadata, "spec": {"containers": []}});
            Pod::from_json(pod.to_string().as_bytes()).map(|pod| pod.full_name())
        };
        assert_eq!(read("a", "ns"), Ok(("ns".into(), "a".into())));
        assert!(read("", "ns").is_err() && read("a", "").is_err() && read("", "").is_err());
    }
}
