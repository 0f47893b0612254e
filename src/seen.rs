//! What whoever follows objects is told.

/// What is seen of many objects: all of them one by one, then what changes; all of them again after something may have
/// been missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    /// All that were there are told of again.
    Listing,
    /// It is there.
    Listed(T),
    /// Those were all.
    Complete,
    /// It came, or changed.
    Is(T),
    /// It is gone; of what it was only what names it need be true.
    Gone(T),
    /// After a failure: whoever tells is heard again, and nothing was missed.
    Again,
}

impl<T> Seen<T> {
    /// The same of something else.
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

    /// Does it prove that the watch works? A list that has begun may fail as the one before did.
    #[must_use]
    pub const fn is_proof(&self) -> bool {
        matches!(self, Self::Complete | Self::Is(_) | Self::Gone(_) | Self::Again)
    }
}
