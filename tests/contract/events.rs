//! Events of a watch of a node's pods, or of its object, with their times.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::support::nrt;

/// An event; `gone` means that the object was deleted.
#[derive(Debug)]
pub(crate) struct Event<K> {
    pub(crate) at: Instant,
    pub(crate) object: K,
    pub(crate) gone: bool,
}

/// A watch that runs in its own task.
pub(crate) struct Events<K> {
    seen: UnboundedReceiver<Result<Event<K>>>,
    watching: JoinHandle<()>,
}

impl Events<Pod> {
    /// Watches the pods of one node, or all pods.
    pub(crate) async fn of_pods(client: &Client, node: Option<&str>) -> Result<Self> {
        let fields = node.map(|node| format!("spec.nodeName={node}"));
        Self::start(Api::all(client.clone()), fields.unwrap_or_default()).await
    }
}

impl Events<DynamicObject> {
    /// Watches a node's object.
    pub(crate) async fn of_object(client: &Client, node: &str) -> Result<Self> {
        Self::start(nrt::api(client), format!("metadata.name={node}")).await
    }
}

impl<K> Events<K>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    async fn start(api: Api<K>, fields: String) -> Result<Self> {
        let now = api.list(&ListParams::default().fields(&fields)).await?;
        let from = now.metadata.resource_version.context("a list without a version")?;
        let (sender, seen) = unbounded_channel();
        let watching = tokio::spawn(follow(api, fields, from, sender));
        Ok(Self { seen, watching })
    }

    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> Result<Event<K>> {
        let next = tokio::time::timeout(Duration::from_secs(90), self.seen.recv()).await;
        next.context("no event within 90 s")?.context("the watch has ended")?
    }

    /// Returns an event that has already arrived, if any.
    pub(crate) fn waiting(&mut self) -> Result<Option<Event<K>>> {
        self.seen.try_recv().ok().transpose()
    }
}

impl<K> Drop for Events<K> {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Watches until the receiver is dropped or there is an error, which is the last event.
async fn follow<K>(api: Api<K>, fields: String, version: String, sender: UnboundedSender<Result<Event<K>>>)
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    if let Err(error) = watch(api, fields, version, &sender).await {
        let _ = sender.send(Err(error.context("the watch failed")));
    }
}

/// Watches until the receiver is dropped, resuming after each watch ends.
async fn watch<K>(
    api: Api<K>,
    fields: String,
    mut version: String,
    sender: &UnboundedSender<Result<Event<K>>>,
) -> Result<()>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let only = WatchParams::default().fields(&fields);
    while !sender.is_closed() {
        let mut stream = std::pin::pin!(api.watch(&only, &version).await?);
        while let Some(event) = stream.next().await {
            let (object, gone) = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(status) => bail!("{status:?}"),
            };
            version = object.resource_version().unwrap_or(version);
            let _ = sender.send(Ok(Event { at: Instant::now(), object, gone }));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Returns a pod's phase, or an empty string.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}
