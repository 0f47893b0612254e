//! The events of a list and watch.

/// An event of a watch over many objects: a list of all of them, then changes; the list again whenever events
/// may have been missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    /// A new list begins.
    Listing,
    /// One object of the list.
    Listed(T),
    /// The list is complete.
    Complete,
    /// An object was added or changed.
    Is(T),
    /// An object was deleted. Only its identifying fields need be set.
    Gone(T),
    /// The watch works again after a failure, and no event was missed.
    Again,
}

impl<T> Seen<T> {
    /// Converts the object of the event.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Seen<U> {
        match self {
            Self::Listing => Seen::Listing,
            Self::Listed(object) => Seen::Listed(change(object)),
            Self::Complete => Seen::Complete,
            Self::Is(object) => Seen::Is(change(object)),
            Self::Gone(object) => Seen::Gone(change(object)),
            Self::Again => Seen::Again,
        }
    }

    /// Returns the object of the event.
    pub const fn object(&self) -> Option<&T> {
        match self {
            Self::Listed(object) | Self::Is(object) | Self::Gone(object) => Some(object),
            Self::Listing | Self::Complete | Self::Again => None,
        }
    }

    /// Returns the object of the event, to change it.
    pub const fn object_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::Listed(object) | Self::Is(object) | Self::Gone(object) => Some(object),
            Self::Listing | Self::Complete | Self::Again => None,
        }
    }

    /// Returns true if the event proves that the watch works. The start of a list is no proof: the list may
    /// still fail.
    #[must_use]
    pub const fn is_proof(&self) -> bool {
        matches!(self, Self::Complete | Self::Is(_) | Self::Gone(_) | Self::Again)
    }
}
