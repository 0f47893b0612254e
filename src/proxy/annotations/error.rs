//! Errors in the content of annotations.

use crate::pod::PodName;

/// The kind of an error, also for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The annotation was dropped: it is too long, or among the longest of its pod or node.
    TooLong,
    /// The text, or a part of it, cannot be parsed.
    Malformed,
    /// A device has neither an id nor a minor number that the Device object has.
    NoId,
    /// An id that no device can have.
    BadId,
    /// According to its Device object, the node has no such device.
    UnknownId,
    /// The pod has more ids than are merged.
    TooMany,
    /// The pod has no container for the device.
    NoContainer,
    /// Another pod has the whole of the same device.
    AllocatedTwice,
}

impl ErrorKind {
    /// Returns true if reading the node's devices again could help.
    #[must_use]
    pub const fn concerns_devices(self) -> bool {
        matches!(self, Self::NoId | Self::UnknownId)
    }

    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::NoId => "no_id",
            Self::BadId => "bad_id",
            Self::UnknownId => "unknown_id",
            Self::TooMany => "too_many",
            Self::NoContainer => "no_container",
            Self::AllocatedTwice => "allocated_twice",
        }
    }
}

/// An error in one pod's annotations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnotationError {
    /// Namespace and name.
    pub pod: PodName,
    /// The kind of the error.
    pub kind: ErrorKind,
    /// A message: what, where, and with which consequence.
    pub message: String,
}

#[derive(Debug, Default)]
pub(super) struct PodErrors(Vec<(ErrorKind, Occurrences)>);

#[derive(Debug)]
struct Occurrences {
    count: usize,
    first: String,
}

impl PodErrors {
    /// Adds an error. The text follows the name of the pod.
    pub(super) fn add(&mut self, kind: ErrorKind, text: impl FnOnce() -> String) {
        match self.0.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, known)) => known.count += 1,
            None => self.0.push((kind, Occurrences { count: 1, first: text() })),
        }
    }

    pub(super) fn add_malformed(&mut self, annotation: &str, reason: &str) {
        self.add(ErrorKind::Malformed, || format!("annotation `{annotation}` cannot be parsed: {reason}"));
    }

    pub(super) fn of(self, pod: &PodName) -> impl Iterator<Item = AnnotationError> {
        self.0.into_iter().map(move |(kind, Occurrences { count, first })| {
            let more = match count {
                1 => String::new(),
                2 => " (and once more)".to_owned(),
                count => format!(" (and {} times more)", count - 1),
            };
            let message = format!("pod {}/{}: {first}{more}", pod.0, pod.1);
            AnnotationError { pod: pod.clone(), kind, message }
        })
    }
}
