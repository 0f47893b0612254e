//! What a watch of a node's pods tells, and when.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

/// One event.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) name: String,
    pub(crate) phase: String,
    pub(crate) reason: String,
    pub(crate) gone: bool,
}

/// A watch in a task of its own.
pub(crate) struct Events {
    seen: UnboundedReceiver<Seen>,
    watching: JoinHandle<()>,
}

impl Events {
    /// Watches the pods of one node.
    pub(crate) async fn watch(client: &Client, node: &str) -> Result<Self> {
        Self::start(client, &format!("spec.nodeName={node}")).await
    }

    /// Watches all pods.
    pub(crate) async fn watch_all(client: &Client) -> Result<Self> {
        Self::start(client, "").await
    }

    async fn start(client: &Client, fields: &str) -> Result<Self> {
        let api = Api::<Pod>::all(client.clone());
        let now = api.list(&ListParams::default().fields(fields)).await?;
        let from = now.metadata.resource_version.context("a list without a version")?;
        let (tell, seen) = unbounded_channel();
        let watching = tokio::spawn(follow(api, fields.to_owned(), from, tell));
        Ok(Self { seen, watching })
    }

    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> Result<Seen> {
        let next = tokio::time::timeout(Duration::from_secs(90), self.seen.recv()).await;
        next.context("nothing happens")?.context("the watch has ended")
    }

    /// The next event that has come already.
    pub(crate) fn waiting(&mut self) -> Option<Seen> {
        self.seen.try_recv().ok()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Goes on where a watch ended, for as long as somebody listens.
async fn follow(api: Api<Pod>, fields: String, mut version: String, tell: UnboundedSender<Seen>) {
    let only = WatchParams::default().fields(&fields);
    while !tell.is_closed() {
        if let Ok(stream) = api.watch(&only, &version).await {
            let mut stream = std::pin::pin!(stream);
            while let Some(Ok(event)) = stream.next().await {
                let (pod, gone) = match event {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                    WatchEvent::Deleted(pod) => (pod, true),
                    WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
                };
                version = pod.resource_version().unwrap_or(version);
                let _ = tell.send(seen(&pod, gone));
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn seen(pod: &Pod, gone: bool) -> Seen {
    let status = pod.status.clone().unwrap_or_default();
    Seen {
        at: Instant::now(),
        name: pod.name_any(),
        phase: status.phase.unwrap_or_default(),
        reason: status.reason.unwrap_or_default(),
        gone,
    }
}
