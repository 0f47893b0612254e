//! The pod fingerprint that the scheduler plugin checks, and when to withhold it.
//!
//! The scheduler plugin trusts an object only if its fingerprint matches that of the pods the plugin itself
//! counts on the node (upstream: scheduler-plugins, `cache/overreserve.go`). So we publish a matching
//! fingerprint only while the zones account for every pod bound to the node; otherwise it is *withheld*: the
//! object has a value that matches no set of pods.
//!
//! Consumers that read the object for each pod and trust it at once are served by reservations: what bound
//! pods will be allocated is subtracted from the zones until the zones account for it.
//!
//! Pure: no I/O and no clock. Times are durations since an arbitrary fixed instant, the same for all calls.

mod exclusive;
mod filter;
mod fingerprint;
mod gate;
mod init_containers;
mod list_index;
mod placement;
mod publishable;
mod requirements;
mod reservation;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::topology::Zone;

pub use exclusive::{is_counted_container, is_exclusive};
pub use filter::filter;
pub use fingerprint::{Fingerprint, FingerprintMethod, PodFingerprint, pod_hash};
pub use gate::{Decision, FingerprintGate, GateInput, GateSettings, Verdict, WithholdReason};
pub use init_containers::NodeContext;
pub use placement::Placement;
pub use publishable::Publishable;
pub use requirements::Requirements;
pub use reservation::{Reservation, totals};

/// Which pods the fingerprint covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FingerprintView {
    /// The pods that the plugin counts; their source is the API server.
    #[default]
    Scheduler,
    /// The pods in the kubelet's List, as with other publishers.
    Kubelet,
    /// No fingerprint at all.
    None,
}

/// Which pods the plugin's informer caches (`cache.informerMode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Informer {
    /// All pods that are not Pending, including terminated ones.
    #[default]
    Dedicated,
    /// Only Running pods.
    Shared,
}

/// Which rule the plugin applies to pods with exclusive resources, by release of scheduler-plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PluginRelease {
    /// Tags up to v0.34.7, and v0.35.4-devel: every resource with a domain counts, and so do regular init
    /// containers.
    #[serde(rename = "v0.34")]
    V0_34,
    /// v0.35.7 and later (upstream #978 and #984): only resources that some zone lists count, and regular
    /// init containers do not.
    #[default]
    #[serde(rename = "v0.35")]
    V0_35,
}

fn lists(zones: &[Zone], resource: &str) -> bool {
    zones.iter().any(|zone| zone.resources.contains_key(resource))
}
