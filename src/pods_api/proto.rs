//! The wire types of PodInfo, generated from `proto/podinfo`, for clients. The server does not use them: it
//! encodes the messages field by field (`info`).

/// A `google.protobuf.Timestamp`; `metav1.Time` has the same wire format.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds within the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// The service and its messages.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod v1alpha1 {
    tonic::include_proto!("podinfo/podinfo.v1alpha1");
}
