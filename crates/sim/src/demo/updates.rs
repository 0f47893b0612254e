//! Watches the object and the pods over HTTP, and the agent's errors. All that the demo shows comes from
//! here.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use numacast_core::nrt::NodeResourceTopology;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;

use crate::node::ZONES;

/// Delay after a watch ended or failed.
const RETRY: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) enum Update {
    /// The object in the API server, and when the watch reported it.
    Object {
        object: Box<NodeResourceTopology>,
        at: Instant,
    },
    /// A pod and the zones in which it is allocated resources; `None` if it was deleted or has none.
    Pod {
        name: String,
        zones: Option<String>,
    },
    Error(Option<String>),
}

pub(super) fn start(
    client: &Client,
    node: &str,
    errors: BoxStream<'static, Option<String>>,
    updates: &Sender<Update>,
) -> JoinSet<()> {
    let object = WatchParams::default().fields(&format!("metadata.name={node}"));
    let object_update = |object: NodeResourceTopology, _: bool| Update::Object {
        object: Box::new(object),
        at: Instant::now(),
    };
    let pod_update = |pod: Pod, is_deleted: bool| {
        let zones = pod.annotations().get(ZONES).filter(|_| !is_deleted).cloned();
        Update::Pod { name: pod.name_any(), zones }
    };
    let mut watches = JoinSet::new();
    watches.spawn(watch(Api::all(client.clone()), object, object_update, updates.clone()));
    watches.spawn(watch(Api::all(client.clone()), WatchParams::default(), pod_update, updates.clone()));
    watches.spawn(send_errors(errors, updates.clone()));
    watches
}

/// Sends an update for each event of a watch, whose object is deleted if the second argument is true.
async fn watch<K: Clone + Debug + DeserializeOwned>(
    api: Api<K>,
    params: WatchParams,
    update: impl Fn(K, bool) -> Update,
    updates: Sender<Update>,
) {
    loop {
        if let Ok(events) = api.watch(&params, "0").await {
            let mut events = std::pin::pin!(events);
            while let Some(Ok(event)) = events.next().await {
                let update = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => update(object, false),
                    WatchEvent::Deleted(object) => update(object, true),
                    WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
                };
                if updates.send(update).await.is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn send_errors(mut errors: BoxStream<'static, Option<String>>, updates: Sender<Update>) {
    while let Some(error) = errors.next().await {
        if updates.send(Update::Error(error)).await.is_err() {
            return;
        }
    }
}
