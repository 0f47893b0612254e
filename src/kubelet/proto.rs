//! The wire types, generated from `proto/`: the messages, which `numacast-core` has, and the services.

/// The podresources API, v1.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod v1 {
    pub use numacast_core::kubelet::proto::v1::*;
    tonic::include_proto!("podresources/v1");
}

/// The podresources API, v1alpha1: devices only.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod v1alpha1 {
    pub use numacast_core::kubelet::proto::v1alpha1::*;
    tonic::include_proto!("podresources/v1alpha1");
}

/// The Pods API.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod pods {
    pub use numacast_core::kubelet::proto::pods::*;
    tonic::include_proto!("pods/v1alpha1");
}
