//! Problems with the content of annotations.

use crate::pod::PodName;

/// The kind of a problem, also for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The annotation is larger than the maximum that is kept.
    TooLong,
    /// The text, or a part of it, is malformed.
    Malformed,
    /// A device has neither an id nor a minor number that the Device object has.
    NoId,
    /// An id that no device can have.
    BadId,
    /// According to its Device object, the node has no such device.
    UnknownId,
    /// The pod has more ids than are merged.
    TooMany,
    /// The pod has no container that could be given the device.
    NoContainer,
    /// Another pod has the whole of the same device.
    ClaimedTwice,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::TooLong,
        Self::Malformed,
        Self::NoId,
        Self::BadId,
        Self::UnknownId,
        Self::TooMany,
        Self::NoContainer,
        Self::ClaimedTwice,
    ];

    /// Whether reading the node's devices again could help.
    #[must_use]
    pub const fn is_about_devices(self) -> bool {
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
            Self::ClaimedTwice => "claimed_twice",
        }
    }
}

/// A problem with one pod's annotations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Namespace and name.
    pub pod: PodName,
    /// The kind of the problem.
    pub kind: Kind,
    /// Number of ids that are missing from the responses because of it.
    pub ids: usize,
    /// A message: what, where, and with which consequence.
    pub sentence: String,
}

/// The problems of one pod: at most one of each kind, described by the first of its kind.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<(Kind, Seen)>);

#[derive(Debug)]
struct Seen {
    times: usize,
    ids: usize,
    what: String,
}

impl Problems {
    /// Adds a problem because of which this number of ids is left out. The text follows the name of the pod.
    pub(super) fn add(&mut self, kind: Kind, ids: usize, what: impl FnOnce() -> String) {
        match self.0.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, seen)) => {
                seen.times += 1;
                seen.ids += ids;
            }
            None => self.0.push((kind, Seen { times: 1, ids, what: what() })),
        }
    }

    /// Returns all problems, as those of this pod.
    pub(super) fn of(self, pod: &PodName) -> impl Iterator<Item = Problem> {
        self.0.into_iter().map(move |(kind, Seen { times, ids, what })| {
            let more = match times {
                1 => String::new(),
                2 => " (and once more)".to_owned(),
                times => format!(" (and {} times more)", times - 1),
            };
            let sentence = format!("pod {}/{}: {what}{more}", pod.0, pod.1);
            Problem { pod: pod.clone(), kind, ids, sentence }
        })
    }
}
