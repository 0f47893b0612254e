//! The identity of a kubelet process.

/// Identifies a kubelet process: another value means that the socket at the path was replaced, which happens
/// whenever the kubelet starts. Reconnecting to the same socket keeps the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubeletInstance(u64);

impl KubeletInstance {
    #[must_use]
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
