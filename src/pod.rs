//! A pod as those tell it who know pods (the API server, the kubelet), trimmed to a few hundred bytes.
//!
//! The kubelet's List says what pods hold; this says what they are, how far they are and what they asked for.

pub(crate) mod raw;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::bytes::Bytes;

use crate::seen::Seen;

/// Namespace and name of a pod.
pub type PodName = (String, String);

/// Pods that have ended.
pub type Terminal = Arc<BTreeSet<PodName>>;

/// One pod of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What tells it from an earlier pod of the same name. The copy of a static pod has one of its own.
    pub uid: String,
    /// How far it is, in the API's words.
    pub phase: Phase,
    /// It was deleted, though it may still run.
    pub deleted: bool,
    /// How far it is on its way out.
    pub life: Life,
    /// Its specification makes it Guaranteed, as the kubelet counts.
    pub guaranteed: bool,
    /// Its status says Guaranteed, which the scheduler believes; where the status says nothing, as `guaranteed`.
    pub said_guaranteed: bool,
    /// Its specification has CPU, memory or huge pages of the pod as a whole. Kubelets up to 1.36 then give no container
    /// CPUs or memory of its own, unless the gate `PodLevelResourceManagers` is on.
    pub pod_level: bool,
    /// Containers in the order of the specification: those that run before the others first. None is ephemeral.
    pub containers: Box<[Container]>,
    /// Annotations that somebody wants, sorted by key.
    pub annotations: Box<[(Box<str>, Annotation)]>,
    /// All of it, where somebody wants that.
    pub whole: Option<Box<Whole>>,
}

/// A pod as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whole {
    /// A `core/v1` Pod message, without an envelope.
    Protobuf(Bytes),
    /// Of such a message that is too large to be kept beside others, what tells who the pod is and how far it is
    /// ([`outline`](crate::core_v1::outline)), and how many bytes the message has.
    Outline(Bytes, usize),
    /// Of an item of the kubelet's `/pods`, likewise: who the pod is and how far it is. The rest serves nobody.
    Json(Bytes),
}

/// The value of an annotation. It is whatever whoever made the pod wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Annotation {
    /// The text, shared by all who keep the pod.
    Text(Arc<str>),
    /// A text of so many bytes, which are more than anybody reads: [`Annotation::LONGEST`].
    TooLong(usize),
}

impl Annotation {
    /// The longest text that is kept, in bytes, and the most of all texts of one pod. What a scheduler writes for a node full of
    /// devices takes a few KiB; whoever makes a pod may write 256 KiB (`TotalAnnotationSizeLimitB` of
    /// `k8s.io/apimachinery/pkg/api/validation`).
    pub const LONGEST: usize = 64 << 10;

    /// What is kept of a text.
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

/// Keeps of all annotations of a pod no more than [`Annotation::LONGEST`]: the longest go.
fn keep_short(annotations: &mut [(Box<str>, Annotation)]) {
    let mut bytes: usize = annotations.iter().map(|(_, annotation)| annotation.kept()).sum();
    while bytes > Annotation::LONGEST {
        let Some((_, longest)) = annotations.iter_mut().max_by_key(|(_, annotation)| annotation.kept())
        else {
            return;
        };
        bytes -= longest.kept();
        *longest = Annotation::TooLong(longest.kept());
    }
}

/// What somebody wants of a pod besides what everybody does: annotations by their keys, and all of it as it came. The rest
/// is dropped when a pod is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    annotations: Arc<BTreeSet<Box<str>>>,
    whole: bool,
}

impl Wanted {
    /// The annotations with these keys.
    #[must_use]
    pub fn of<K: Into<Box<str>>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self { annotations: Arc::new(keys.into_iter().map(Into::into).collect()), whole: false }
    }

    /// And the pod as it came.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// Is the pod wanted as it came?
    #[must_use]
    pub const fn wants_whole(&self) -> bool {
        self.whole
    }
}

/// What one container asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: Box<str>,
    /// When it runs.
    pub kind: ContainerKind,
    /// CPU in thousandths. A multiple of 1000 where the kubelet gives whole CPUs. As all amounts here it is what Kubernetes
    /// makes of it: rounded up, and nearly always 0 where it does not fit 64 bits.
    pub cpu_milli: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// Other resources that it names, sorted: bytes of `hugepages-*`, none of them zero; a count of anything with a domain,
    /// which may be zero. `ephemeral-storage` and `storage` are left out.
    pub others: Box<[(Box<str>, u64)]>,
}

impl Container {
    /// Those of [`Container::others`] that it asks some of.
    pub fn wanted(&self) -> impl Iterator<Item = (&str, u64)> {
        self.others.iter().map(|(name, amount)| (&**name, *amount)).filter(|(_, amount)| *amount > 0)
    }

    /// So many containers of a pod are kept apart, and so many other resources of each. A pod of 1.5 MB has room for some
    /// twenty thousand of either, each of which would take more memory here than there.
    pub(crate) const MOST: usize = 256;
    const MOST_OTHERS: usize = 64;

    /// Containers of one pod, of which those that are too many count as one that asks for what they do together.
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

    /// What it asks for besides. What runs for longer counts.
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

    /// Sorted resources, of which those that are too many go: those that it asks none of first.
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
    /// For as long as the pod.
    #[default]
    App,
    /// It starts before the others and stays: an init container that is restarted.
    Sidecar,
    /// To its end, before the others start.
    Init,
}

/// How far a pod is, in the API's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Bound, perhaps admitted; not every container has started.
    #[default]
    Pending,
    /// Running.
    Running,
    /// All its containers ended well.
    Succeeded,
    /// Some did not, or the kubelet refused it.
    Failed,
    /// The kubelet is not heard from, or it is a word that we do not know.
    Unknown,
}

impl Phase {
    /// Will no container of the pod run again?
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// How far a pod is on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    /// It runs, or will.
    #[default]
    Living,
    /// It was deleted, and no container of it runs any more: the kubelet is about to let its resources go.
    Leaving,
    /// It is `Succeeded` or `Failed`: no container of it will ever run again.
    Ended,
}

/// What a source of pods tells. Of a pod that is gone only namespace, name and uid need be true.
pub type PodEvent = Seen<Pod>;

impl Pod {
    /// Reads a pod from the JSON in which the API server and the kubelet have it.
    ///
    /// # Errors
    /// What is wrong with it. A pod without a name or a namespace is an error as well: nobody could tell it from others.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let raw: raw::RawPod = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        Self::from(raw).identified()
    }

    /// The pod, if it says who it is.
    pub(crate) fn identified(self) -> Result<Self, String> {
        match self.name.is_empty() || self.namespace.is_empty() {
            true => Err("it has no name or no namespace".to_owned()),
            false => Ok(self),
        }
    }

    /// Without what nobody wants.
    #[must_use]
    pub(crate) fn keeping(mut self, wanted: &Wanted) -> Self {
        if !self.annotations.is_empty() {
            let keys = &wanted.annotations;
            let annotations = std::mem::take(&mut self.annotations).into_vec();
            self.annotations = annotations.into_iter().filter(|(key, _)| keys.contains(key)).collect();
            keep_short(&mut self.annotations);
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
