//! What is wrong with what annotations say.

use crate::pod::PodName;

/// What is wrong, in a word for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The annotation is larger than what is kept of one.
    TooLong,
    /// The text is not what it should be, as a whole or in a part.
    Malformed,
    /// A device has neither an id nor a number that the Device knows.
    NoId,
    /// An id that no device can have.
    BadId,
    /// The node has no such device, as its Device says.
    UnknownId,
    /// The pod has more ids than are put into answers.
    TooMany,
    /// The pod has no container that it could be given to.
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

    /// Would another look at the node's devices tell more?
    #[must_use]
    pub const fn is_about_devices(self) -> bool {
        matches!(self, Self::NoId | Self::UnknownId)
    }

    /// Its name.
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

/// What is wrong with what one pod's annotations say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Namespace and name.
    pub pod: PodName,
    /// What, in a word.
    pub kind: Kind,
    /// So many ids are not in the answers because of it.
    pub ids: usize,
    /// What, where, and what it leads to.
    pub sentence: String,
}

/// The problems of one pod: one of each kind at most, with the first of its kind in words.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<(Kind, Seen)>);

#[derive(Debug)]
struct Seen {
    times: usize,
    ids: usize,
    what: String,
}

impl Problems {
    /// One more, because of which so many ids are left out. The words follow the name of the pod.
    pub(super) fn add(&mut self, kind: Kind, ids: usize, what: impl FnOnce() -> String) {
        match self.0.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, seen)) => {
                seen.times += 1;
                seen.ids += ids;
            }
            None => self.0.push((kind, Seen { times: 1, ids, what: what() })),
        }
    }

    /// All of them, of this pod.
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
