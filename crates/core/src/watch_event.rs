//! The events of a list and watch, and the cache that they fill.

mod reflector;

pub use reflector::{ObjectMap, Reflector};

/// An event of a list and watch of many objects: kube-runtime's `watcher::Event`, and `Resumed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent<T> {
    /// A list begins: at the start, and whenever events may have been missed.
    Init,
    /// One object of the list.
    InitApply(T),
    /// The list is complete.
    InitDone,
    /// An object was added or changed.
    Apply(T),
    /// An object was deleted. Only its identifying fields need be set.
    Delete(T),
    /// The watch works again after a failure, and no event was missed.
    Resumed,
}

impl<T> WatchEvent<T> {
    /// Returns the events of a complete list.
    pub fn list(objects: impl IntoIterator<Item = T>) -> impl Iterator<Item = Self> {
        std::iter::once(Self::Init).chain(objects.into_iter().map(Self::InitApply)).chain([Self::InitDone])
    }

    /// Converts the object of the event.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> WatchEvent<U> {
        match self {
            Self::Init => WatchEvent::Init,
            Self::InitApply(object) => WatchEvent::InitApply(convert(object)),
            Self::InitDone => WatchEvent::InitDone,
            Self::Apply(object) => WatchEvent::Apply(convert(object)),
            Self::Delete(object) => WatchEvent::Delete(convert(object)),
            Self::Resumed => WatchEvent::Resumed,
        }
    }

    /// Returns the object of the event.
    pub const fn object(&self) -> Option<&T> {
        match self {
            Self::InitApply(object) | Self::Apply(object) | Self::Delete(object) => Some(object),
            Self::Init | Self::InitDone | Self::Resumed => None,
        }
    }

    /// Returns the object of the event, to change it.
    pub const fn object_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::InitApply(object) | Self::Apply(object) | Self::Delete(object) => Some(object),
            Self::Init | Self::InitDone | Self::Resumed => None,
        }
    }

    /// Returns true if the event shows that the source works. The start of a list does not: the list may
    /// still fail.
    #[must_use]
    pub const fn confirms_health(&self) -> bool {
        matches!(self, Self::InitDone | Self::Apply(_) | Self::Delete(_) | Self::Resumed)
    }
}
