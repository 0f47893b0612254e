//! A pod as reported by the API server or the kubelet, trimmed to a few hundred bytes.
//!
//! The podresources List reports what pods are allocated; this type reports their identity, phase and
//! requests.

pub(crate) mod raw;
pub(crate) mod texts;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::bytes::Bytes;

use crate::seen::Seen;

/// Namespace and name of a pod.
pub type PodName = (String, String);

/// Pods in a terminal phase.
pub type Terminal = Arc<BTreeSet<PodName>>;

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
    /// How far its shutdown has got.
    pub life: Life,
    /// Whether its specification makes it Guaranteed, computed as the kubelet does.
    pub guaranteed: bool,
    /// Whether its status reports the QoS class Guaranteed, which is what the scheduler uses. Falls back to
    /// `guaranteed` if the status has no class.
    pub said_guaranteed: bool,
    /// Whether its specification has pod-level CPU, memory or huge pages. Kubelets up to 1.36 then allocate
    /// no exclusive CPUs or memory to its containers, unless the feature gate `PodLevelResourceManagers` is
    /// on.
    pub pod_level: bool,
    /// Containers in the order of the specification, init containers first. Ephemeral containers are left
    /// out.
    pub containers: Box<[Container]>,
    /// The annotations that are [`Wanted`], sorted by key.
    pub annotations: Box<[(Box<str>, Annotation)]>,
    /// The serialized pod, if [`Wanted`].
    pub whole: Option<Box<Whole>>,
}

/// A pod in serialized form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whole {
    /// A `core/v1` Pod message, without an envelope.
    Protobuf(Bytes),
    /// The part of a `core/v1` Pod message that is too large to cache ([`outline`](crate::core_v1::outline)):
    /// the pod's identity and status. With it, the size of the whole message in bytes.
    Outline(Bytes, usize),
    /// The identity and status of an item of the kubelet's `/pods`. No other field is used.
    Json(Bytes),
}

/// The value of an annotation. Untrusted: written by the pod's creator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Annotation {
    /// The text, shared by all copies of the pod.
    Text(Arc<str>),
    /// The size in bytes of a text that was dropped: it exceeds [`Annotation::LONGEST`], or is among the
    /// longest of its pod or of the node's pods, whose texts exceed their maximum together.
    TooLong(usize),
}

impl Annotation {
    /// Maximum size in bytes of a cached text, and of all cached texts of one pod. A scheduler's annotation
    /// for a node full of devices takes a few KiB; a pod's creator may write 256 KiB
    /// (`TotalAnnotationSizeLimitB` of `k8s.io/apimachinery/pkg/api/validation`).
    pub const LONGEST: usize = 64 << 10;

    /// Wraps a text, dropping it if it is too long.
    #[must_use]
    pub fn of(text: &str) -> Self {
        match text.len() {
            bytes if bytes > Self::LONGEST => Self::TooLong(bytes),
            _ => Self::Text(text.into()),
        }
    }

    fn kept(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::TooLong(_) => 0,
        }
    }
}

/// Drops the longest of these annotations until the rest take at most `most` bytes. Returns how many bytes
/// they take then.
fn drop_longest<'a>(annotations: impl Iterator<Item = &'a mut Annotation>, most: usize) -> usize {
    let mut texts: Vec<&mut Annotation> = annotations.filter(|annotation| annotation.kept() > 0).collect();
    let mut bytes = texts.iter().map(|text| text.kept()).sum();
    if bytes > most {
        texts.sort_by_key(|text| Reverse(text.kept()));
        for longest in texts {
            if bytes <= most {
                break;
            }
            bytes -= longest.kept();
            *longest = Annotation::TooLong(longest.kept());
        }
    }
    bytes
}

/// The optional parts of a pod to cache: annotations by key, and the serialized pod. The rest is dropped when
/// a pod is parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    annotations: Arc<BTreeSet<Box<str>>>,
    whole: bool,
}

impl Wanted {
    /// Selects the annotations with these keys.
    #[must_use]
    pub fn of<K: Into<Box<str>>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self { annotations: Arc::new(keys.into_iter().map(Into::into).collect()), whole: false }
    }

    /// Also selects the serialized pod.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// Returns true if the serialized pod is selected.
    #[must_use]
    pub const fn wants_whole(&self) -> bool {
        self.whole
    }
}

/// The requests of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: Box<str>,
    /// When it runs.
    pub kind: ContainerKind,
    /// CPU in millicores. A multiple of 1000 where the kubelet allocates whole CPUs. Like all amounts here it
    /// is computed as Kubernetes does: rounded up, and nearly always 0 if it does not fit in 64 bits.
    pub cpu_milli: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// Other requested resources, sorted by name: `hugepages-*` in bytes, without zeros; domain-qualified
    /// (extended) resources as counts, which may be zero. `ephemeral-storage` and `storage` are left out.
    pub others: Box<[(Box<str>, u64)]>,
}

impl Container {
    /// Returns the entries of [`Container::others`] with a nonzero request.
    pub fn wanted(&self) -> impl Iterator<Item = (&str, u64)> {
        self.others.iter().map(|(name, amount)| (&**name, *amount)).filter(|(_, amount)| *amount > 0)
    }

    /// Maximum number of containers kept per pod (and of other resources per container, below). A pod of 1.5
    /// MB has room for some twenty thousand of either, and each takes more memory here than in the message.
    pub(crate) const MOST: usize = 256;
    const MOST_OTHERS: usize = 64;

    /// Bounds the number of containers of one pod: the surplus is merged into the last one, with summed
    /// requests.
    pub(crate) fn bounded(containers: impl Iterator<Item = Self>) -> Box<[Self]> {
        let mut kept: Vec<Self> = Vec::new();
        for mut container in containers {
            container.others = Self::most_of(container.others.into());
            match kept.get_mut(Self::MOST - 1) {
                Some(last) => last.add(container),
                None => kept.push(container),
            }
        }
        kept.into()
    }

    /// Adds the requests of another container. The kind that runs longer wins.
    fn add(&mut self, more: Self) {
        if self.kind == ContainerKind::Init || more.kind == ContainerKind::App {
            self.kind = more.kind;
        }
        self.cpu_milli = self.cpu_milli.saturating_add(more.cpu_milli);
        self.memory = self.memory.saturating_add(more.memory);
        if !more.others.is_empty() {
            let mut others: BTreeMap<Box<str>, u64> = std::mem::take(&mut self.others).into_iter().collect();
            for (name, amount) in more.others {
                let known = others.entry(name).or_default();
                *known = known.saturating_add(amount);
            }
            self.others = Self::most_of(others.into_iter().collect());
        }
    }

    /// Truncates sorted resources to the maximum, dropping those with a zero request first.
    fn most_of(mut others: Vec<(Box<str>, u64)>) -> Box<[(Box<str>, u64)]> {
        if others.len() > Self::MOST_OTHERS {
            others.sort_by_key(|(_, amount)| *amount == 0);
            others.truncate(Self::MOST_OTHERS);
            others.sort();
        }
        others.into()
    }
}

/// When a container runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerKind {
    /// For the pod's whole life.
    #[default]
    App,
    /// A restartable init container: starts before the app containers and keeps running.
    Sidecar,
    /// An init container: runs to completion before the app containers start.
    Init,
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

/// How far a pod's shutdown has got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    /// It is running or will run.
    #[default]
    Living,
    /// It was deleted and none of its containers is running: the kubelet is about to release its resources.
    Leaving,
    /// It is `Succeeded` or `Failed`: none of its containers will run again.
    Ended,
}

/// An event of a pod source. For a deleted pod only namespace, name and UID need be set.
pub type PodEvent = Seen<Pod>;

impl Pod {
    /// Parses a pod from the JSON of the API server or the kubelet.
    ///
    /// # Errors
    /// If the JSON is invalid, or the pod has no name or namespace.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let raw: raw::RawPod = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        Self::from(raw).identified()
    }

    /// Returns the pod if it has a name and a namespace.
    pub(crate) fn identified(self) -> Result<Self, String> {
        match self.name.is_empty() || self.namespace.is_empty() {
            true => Err("it has no name or no namespace".to_owned()),
            false => Ok(self),
        }
    }

    /// Drops everything that is not wanted, and the annotations of a pod that has ended: it has no devices any
    /// more.
    #[must_use]
    pub(crate) fn keeping(mut self, wanted: &Wanted) -> Self {
        if self.life == Life::Ended {
            self.annotations = Box::default();
        }
        if !self.annotations.is_empty() {
            let keys = &wanted.annotations;
            let annotations = std::mem::take(&mut self.annotations).into_vec();
            self.annotations = annotations.into_iter().filter(|(key, _)| keys.contains(key)).collect();
            let annotations = self.annotations.iter_mut().map(|(_, annotation)| annotation);
            drop_longest(annotations, Annotation::LONGEST);
        }
        if !wanted.whole {
            self.whole = None;
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
mod tests;
