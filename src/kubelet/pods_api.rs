//! The client of the Pods API (KEP-4188), which serves and watches all pods known to the kubelet.
//! Kubelets serve it from 1.36 on, numacast for all others; the client treats both alike.

mod client;
mod deletions;
mod error;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use futures::stream::{Stream, StreamExt};

use crate::core_v1::MAX_RAW_BYTES;
use crate::pod::{PodEvent, Wanted};

pub use client::PodsClient;
pub use error::{PodsError, PodsErrorKind};
pub use watch::PodsWatch;

/// Watches the pods of the kubelet whose Pods API is at `socket`. `deadline` limits everything but the wait
/// for events; `wanted` selects what is kept of each pod. An error is one sentence; the stream continues
/// after a backoff with a new list.
pub fn watch_pods(
    socket: PathBuf,
    deadline: Duration,
    wanted: Wanted,
) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static {
    let client = PodsClient { raw_limit: MAX_RAW_BYTES, ..PodsClient::new([socket], deadline) };
    client.verifying_lists().watch(wanted).stream().map(|event| event.map_err(|error| error.to_string()))
}
