//! The wire types, generated from `proto/`.

/// The podresources API, v1.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod v1 {
    tonic::include_proto!("podresources/v1");
}

/// The podresources API, v1alpha1: devices only.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod v1alpha1 {
    tonic::include_proto!("podresources/v1alpha1");
}

/// The Pods API.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod pods {
    tonic::include_proto!("pods/v1alpha1");
}
