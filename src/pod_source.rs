//! Where the agent learns about the node's pods, and its cache of them. The source is the API server, the
//! kubelet's Pods API, or its `/pods`. The kubelet's List reports what pods are allocated; the source reports
//! which pods exist.

mod cache;
mod kind;
mod kubelet_port;
mod metrics;
mod queue;
#[cfg(test)]
mod samples;
mod selector;
mod shared_informer;

pub use cache::{PodCache, PodView, RELEASE_TIMEOUT};
pub use kind::PodSourceKind;
pub use kubelet_port::KubeletPort;
pub use metrics::PodSourceMetrics;
pub use selector::{PodSources, SourceSelector};
pub use shared_informer::SharedInformer;
