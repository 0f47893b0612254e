//! Who tells about the node's pods, and what they told last (DESIGN section 6): the API server, the kubelet's Pods API,
//! or its `/pods`. The kubelet's List says what pods hold; this says which pods there are.

mod following;
mod kubelet_port;
mod relay;
mod tellers;

pub use following::{LINGER, PodSource, PodView, Tally};
pub use kubelet_port::KubeletPort;
pub use relay::Relay;
pub use tellers::{PodTeller, PodTellers, Telling};
