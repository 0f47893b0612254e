//! The scheduler's contract: what the object says of the pods that its zones account for.
//!
//! The scheduler plugin believes an object when the fingerprint in it is that of the pods that the plugin itself counts
//! on the node (nrt.md 5). So ours agrees only while the zones account for every pod that is bound to the node, and is
//! *held* otherwise: it carries a value that no set of pods has.
//!
//! Who reads the object for each pod and believes it at once is served by reservations: what pods that are bound will have
//! is taken from the zones until they account for it.
//!
//! Pure: no I/O and no clock. Moments are durations since any fixed one, the same for all calls.

mod accounted;
mod contract;
mod exclusive;
mod placed;
mod reserved;
mod unlisted;

pub use accounted::Requirements;
pub use contract::{Contract, Reading, Stance, Terms, Verdict};
pub use exclusive::{is_exclusive, is_exclusive_container};
pub use reserved::{Reservation, allowed, reserve, totals};
pub use unlisted::Unlisted;

/// Whose pods the fingerprint stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The pods that the plugin counts, from its own source, the API server.
    #[default]
    Scheduler,
    /// The pods of the kubelet's List, as other publishers have it.
    Kubelet,
    /// No fingerprint at all.
    None,
}

/// Which pods the plugin's informer has (`cache.informerMode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Informer {
    /// All that are not Pending, those that have ended too.
    #[default]
    Dedicated,
    /// Those that are Running.
    Shared,
}

/// Which rule the plugin has for pods with exclusive resources, by the release of scheduler-plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PluginRelease {
    /// Tags up to v0.34.7, and v0.35.4-devel: every resource with a domain, and ordinary init containers count.
    V0_34,
    /// v0.35.7 and later (upstream #978 and #984): only resources that some zone lists count, and no ordinary init container.
    #[default]
    V0_35,
}
