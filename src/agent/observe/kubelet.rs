//! Requests to the kubelet's podresources API.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::time::Instant;

use super::scan::ScanError;
use crate::agent::metrics::Metrics;
use crate::kubelet::{
    Allocatable, Caller, ClientError, Request, SharedClient, SharedResponse, Usage, decode_allocatable,
    decode_list,
};

/// Transforms a response before it is parsed; `None` while it is unknown what has to be merged.
pub type MergeResponse = Arc<dyn Fn(&Bytes) -> Option<Bytes> + Send + Sync>;

/// What is merged into the kubelet's responses before they are parsed.
#[derive(Clone, Default)]
pub struct Merge {
    /// Into responses to `List`.
    pub list: Option<MergeResponse>,
    /// Into responses to `GetAllocatableResources`.
    pub allocatable: Option<MergeResponse>,
}

pub(in crate::agent) struct KubeletReader {
    pub(in crate::agent) client: SharedClient,
    pub(super) merge: Merge,
    metrics: Option<Arc<Metrics>>,
    /// The number of requests; the agent resets it.
    pub(in crate::agent) requests: u32,
}

impl KubeletReader {
    pub(super) fn new(socket: PathBuf, timeout: Duration, metrics: Option<Arc<Metrics>>) -> Self {
        let client = SharedClient::start(socket, timeout, Arc::new(|_, _, _| {}));
        Self { client, merge: Merge::default(), metrics, requests: 0 }
    }

    /// Returns what pods are allocated.
    pub(in crate::agent) async fn list(&mut self) -> Result<(Usage, Arc<SharedResponse>), ScanError> {
        self.requests += 1;
        let start = Instant::now();
        let usage = self.request(Request::List).await.and_then(|response| {
            let merged = merged(self.merge.list.as_ref(), &response);
            Ok((merged.map(decode_list).transpose()?, response))
        });
        self.record(&Request::List, start, &usage);
        let (usage, response) = usage?;
        Ok((usage.ok_or(ScanError::AnnotationsUnknown)?, response))
    }

    pub(in crate::agent) async fn allocatable(
        &mut self,
    ) -> Result<(Allocatable, Arc<SharedResponse>), ScanError> {
        self.requests += 1;
        let start = Instant::now();
        let allocatable = self.request(Request::Allocatable).await.and_then(|response| {
            let merged = merged(self.merge.allocatable.as_ref(), &response);
            Ok((merged.map(decode_allocatable).transpose()?, response))
        });
        self.record(&Request::Allocatable, start, &allocatable);
        let (allocatable, response) = allocatable?;
        Ok((allocatable.ok_or(ScanError::AnnotationsUnknown)?, response))
    }

    async fn request(&mut self, request: Request) -> Result<Arc<SharedResponse>, ClientError> {
        self.client.request(request, Caller::Agent).await.map_err(|error| error.error)
    }

    fn record<T>(&self, request: &Request, start: Instant, response: &Result<T, ClientError>) {
        if let Some(metrics) = &self.metrics {
            metrics.kubelet.record(request.method(), start.elapsed(), response.as_ref().err());
        }
    }
}

/// Returns the response to parse; `None` while it is unknown what has to be merged into it.
fn merged(merge: Option<&MergeResponse>, response: &SharedResponse) -> Option<Bytes> {
    merge.map_or_else(|| Some(response.bytes.clone()), |merge| merge(&response.bytes))
}
