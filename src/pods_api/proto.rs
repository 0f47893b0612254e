//! The wire types of PodInfo, generated from `proto/podinfo`. What is served is not made of them but written record by record
//! (`info`); they are for clients.

/// A moment: `google.protobuf.Timestamp`, which `metav1.Time` is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// And so many nanoseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// The service and its messages.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod v1alpha1 {
    tonic::include_proto!("podinfo/podinfo.v1alpha1");
}
