//! Where the agent learns about the node's pods, and its cache of them (DESIGN section 6). The source is the
//! API server, the kubelet's Pods API, or its `/pods`. The kubelet's List reports what pods are allocated;
//! the source reports which pods exist.

mod following;
mod kubelet_port;
mod metrics;
mod relay;
mod tellers;

pub use following::{LINGER, PodSource, PodView};
pub use kubelet_port::KubeletPort;
pub use metrics::PodSourceMetrics;
pub use relay::Relay;
pub use tellers::{PodTeller, PodTellers, Telling};
