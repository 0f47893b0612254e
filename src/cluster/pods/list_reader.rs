//! Reads a list of pods as it arrives.

use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::{Instant, timeout_at};

use super::list_decoder::PodListDecoder;
use crate::cluster::protobuf::{CONTENT, DecodeError};
use crate::cluster::{Cluster, ClusterError};
use crate::core_v1::read_pod;
use crate::pod::{Pod, Wanted};

/// A list response that is being read.
pub(in crate::cluster) struct ListReader {
    body: Body,
    decoder: PodListDecoder,
    what: &'static str,
    timeout: Duration,
    deadline: Instant,
}

/// An item of a list.
pub(in crate::cluster) enum ListItem<T = Pod> {
    /// A pod, or why it cannot be decoded.
    Pod(Result<T, String>),
    /// The end of the list, with its version.
    End(String),
}

impl ListReader {
    /// Starts a list at this path, all of which must arrive within `timeout`. `what` names it in messages.
    pub(in crate::cluster) async fn start(
        cluster: &Cluster,
        path: String,
        what: &'static str,
        timeout: Duration,
    ) -> Result<Self, ClusterError> {
        let deadline = Instant::now() + timeout;
        let response = cluster.within(timeout, what, cluster.get_as(path, CONTENT)).await;
        let body = response.map_err(|failure| failure.explain(what))?;
        Ok(Self { body, decoder: PodListDecoder::default(), what, timeout, deadline })
    }

    /// Returns the next item.
    pub(super) async fn next(
        &mut self,
        cluster: &Cluster,
        wanted: &Wanted,
    ) -> Result<ListItem, ClusterError> {
        self.next_as(cluster, |bytes| read_pod(bytes, wanted)).await
    }

    /// Returns the next item; `read` decodes pods.
    pub(in crate::cluster) async fn next_as<T>(
        &mut self,
        cluster: &Cluster,
        read: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<ListItem<T>, ClusterError> {
        let not_understood = |error: DecodeError| cluster.not_understood(self.what, error.to_string());
        loop {
            if let Some(pod) = self.decoder.take().map_err(not_understood)? {
                return Ok(ListItem::Pod(read(pod)));
            }
            let late = || ClusterError::Deadline { what: self.what.to_owned(), after: self.timeout };
            match timeout_at(self.deadline, self.body.frame()).await.map_err(|_| late())? {
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        self.decoder.push(&piece);
                    }
                }
                Some(Err(error)) => return Err(cluster.explain(self.what, &error)),
                None => {
                    let version = std::mem::take(&mut self.decoder).finish().map_err(not_understood)?;
                    return Ok(ListItem::End(version));
                }
            }
        }
    }
}
