//! The kubelet's APIs, generated from `proto/`: the messages, which `numacast-core` has, and the services.

#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub(crate) mod v1 {
    pub use numacast_core::kubelet::proto::v1::*;
    tonic::include_proto!("podresources/v1");
}

#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub(crate) mod v1alpha1 {
    pub use numacast_core::kubelet::proto::v1alpha1::*;
    tonic::include_proto!("podresources/v1alpha1");
}

#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub(crate) mod pods {
    pub use numacast_core::kubelet::proto::pods::*;
    tonic::include_proto!("pods/v1alpha1");
}
