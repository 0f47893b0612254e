//! Watches the object and the pods over HTTP, and the agent's status. All that the demo shows comes from
//! here.

use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinHandle;

use crate::agent::Agent;
use crate::nrt::NodeResourceTopology;
use crate::sim::node::ZONES;

/// Delay after a watch ended or failed.
const PAUSE: Duration = Duration::from_millis(200);

/// An update of what the demo shows.
#[derive(Debug)]
pub(super) enum News {
    /// The object in the API server, and when the watch reported it.
    Topology { object: Box<NodeResourceTopology>, at: Instant },
    /// A pod and the zones in which it is allocated resources; `None` if it was deleted or has none.
    Pod { name: String, zones: Option<String> },
    /// The agent's current problem, if any.
    Trouble(Option<String>),
}

/// Starts the watches.
pub(super) fn start(client: &Client, node: &str, agent: &Agent, news: &Sender<News>) -> Vec<JoinHandle<()>> {
    vec![
        tokio::spawn(topology(client.clone(), node.to_owned(), news.clone())),
        tokio::spawn(pods(client.clone(), news.clone())),
        tokio::spawn(trouble(agent, news.clone())),
    ]
}

async fn topology(client: Client, node: String, news: Sender<News>) {
    let api = Api::<NodeResourceTopology>::all(client);
    let params = WatchParams::default().fields(&format!("metadata.name={node}"));
    loop {
        if let Ok(events) = api.watch(&params, "0").await {
            let mut events = std::pin::pin!(upserts(events));
            while let Some((object, _)) = events.next().await {
                let told = News::Topology { object: Box::new(object), at: Instant::now() };
                if news.send(told).await.is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn pods(client: Client, news: Sender<News>) {
    let api = Api::<Pod>::all(client);
    loop {
        if let Ok(events) = api.watch(&WatchParams::default(), "0").await {
            let mut events = std::pin::pin!(upserts(events));
            while let Some((pod, gone)) = events.next().await {
                let zones = pod.annotations().get(ZONES).filter(|_| !gone).cloned();
                if news.send(News::Pod { name: pod.name_any(), zones }).await.is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns the objects of a watch, each with whether it was deleted, until the watch ends or fails.
fn upserts<K>(
    events: impl Stream<Item = Result<WatchEvent<K>, kube::Error>>,
) -> impl Stream<Item = (K, bool)> {
    events.take_while(|event| std::future::ready(event.is_ok())).filter_map(async |event| {
        match event.ok()? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => Some((object, false)),
            WatchEvent::Deleted(object) => Some((object, true)),
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => None,
        }
    })
}

fn trouble(agent: &Agent, news: Sender<News>) -> impl Future<Output = ()> + use<> {
    let (mut status, mut published) = (agent.status(), agent.published());
    async move {
        loop {
            let trouble = status.borrow_and_update().trouble.clone();
            let trouble = trouble.or_else(|| published.borrow_and_update().trouble.clone());
            if news.send(News::Trouble(trouble)).await.is_err() {
                return;
            }
            let changed = tokio::select! {
                changed = status.changed() => changed,
                changed = published.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }
}
