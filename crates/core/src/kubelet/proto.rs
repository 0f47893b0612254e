//! The messages, generated from `proto/`. numacast adds the services.

/// The podresources API, v1.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/podresources/v1.rs"));
}

/// The podresources API, v1alpha1: devices only.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod v1alpha1 {
    include!(concat!(env!("OUT_DIR"), "/podresources/v1alpha1.rs"));
}

/// The Pods API.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod pods {
    include!(concat!(env!("OUT_DIR"), "/pods/v1alpha1.rs"));
}
