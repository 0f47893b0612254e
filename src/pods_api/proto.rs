//! The wire types of PodInfo, generated from `proto/podinfo`, for clients. The server has types of its own
//! (`pod_info`), which keep unknown fields of conditions.

/// A `google.protobuf.Timestamp`; `metav1.Time` has the same wire format. Read from text as in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, serde::Deserialize)]
#[serde(from = "jiff::Timestamp")]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds within the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl From<jiff::Timestamp> for Timestamp {
    fn from(time: jiff::Timestamp) -> Self {
        Self { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
    }
}

/// The service and its messages.
#[allow(missing_docs, clippy::all, unreachable_pub)] // generated code
pub mod v1alpha1 {
    tonic::include_proto!("podinfo/podinfo.v1alpha1");
}
