//! The cost of listing a node's pods for a real API server, by its own metrics: only this node's pods, from
//! its watch cache by the index on `spec.nodeName`, and nothing from etcd; also just after it has started.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod as Object;
use kube::Api;
use kube::api::PostParams;
use numacast::cluster::Cluster as ApiServer;
use numacast::pod::{PodEvent, Wanted};
use serde_json::Value;
use tokio::time::timeout;

use crate::support::{Cluster, Needs, Parts, pod, wait};

const NODE: &str = "node-0";
/// Number of nodes, and of pods on each.
const NODES: usize = 20;
const PODS: usize = 100;
/// Timeout of a request, and of waiting for an event.
const DEADLINE: Duration = Duration::from_secs(60);

/// The API server's cumulative cost of listing pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    /// Pods read from the watch cache.
    cached: u64,
    /// Those of them found by the index on the node's name.
    indexed: u64,
    /// Pods read from etcd.
    stored: u64,
}

impl Cost {
    async fn of(cluster: &Cluster) -> Result<Self> {
        let metrics = cluster.text_of("/metrics").await?;
        let mut cost = Self::default();
        for line in metrics.lines().filter(|line| line.contains("\"pods\"") || line.contains("=\"/pods\"")) {
            let value =
                || line.rsplit(' ').next().unwrap_or_default().parse::<f64>().map(|value| value as u64);
            let storage = line.starts_with("apiserver_storage_list_fetched_objects_total{");
            // 1.37 reports both under one name.
            if line.starts_with("apiserver_cache_list_fetched_objects_total{")
                || storage && line.contains("storage=\"watchcache\"")
            {
                cost.cached += value()?;
                cost.indexed += if line.contains("spec.nodeName") { value()? } else { 0 };
            } else if storage {
                cost.stored += value()?;
            }
        }
        Ok(cost)
    }

    fn since(self, before: Self) -> Self {
        Self {
            cached: self.cached - before.cached,
            indexed: self.indexed - before.indexed,
            stored: self.stored - before.stored,
        }
    }
}

/// Reads events to the end of a list and returns the number of its pods.
async fn listed(
    events: &mut (impl Stream<Item = Result<PodEvent, String>> + Unpin),
    errors: &mut Vec<String>,
) -> Result<usize> {
    let mut pods = 0;
    loop {
        match timeout(DEADLINE, events.next()).await?.context("it has ended")? {
            Ok(PodEvent::Init) => pods = 0,
            Ok(PodEvent::InitApply(_)) => pods += 1,
            Ok(PodEvent::InitDone) => return Ok(pods),
            Ok(PodEvent::Resumed) => {}
            Ok(event) => bail!("{event:?}"),
            Err(sentence) => errors.push(sentence),
        }
    }
}

#[tokio::test]
async fn the_list_of_a_node_costs_the_api_server_the_pods_of_the_node() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let mut cluster = Cluster::start(&parts).await?;
    let pods: Api<Object> = Api::namespaced(cluster.client(), "default");
    let specs = (0..NODES).flat_map(|node| (0..PODS).map(move |index| (node, index)));
    let made = specs.map(|(node, index)| {
        let pods = pods.clone();
        async move {
            let object = pod(&format!("pod-{node}-{index}")).bound_to(&format!("node-{node}"))?;
            pods.create(&PostParams::default(), &object).await?;
            anyhow::Ok(())
        }
    });
    stream::iter(made).buffer_unordered(16).try_collect::<()>().await?;

    // The initial list.
    let api_server = ApiServer::new(Some(&cluster.admin_kubeconfig()), DEADLINE).await?;
    let (mut events, mut errors) = (Box::pin(api_server.watch_pods(NODE, Wanted::default())), Vec::new());
    let before = Cost::of(&cluster).await?;
    ensure!(listed(&mut events, &mut errors).await? == PODS);
    let cost = Cost::of(&cluster).await?.since(before);
    let node = Cost { cached: PODS as u64, indexed: PODS as u64, stored: 0 };
    ensure!(cost == node && errors.is_empty(), "{cost:?} {errors:?}");
    ensure!(timeout(Duration::from_secs(2), events.next()).await.is_err(), "an event without a change");
    let cost = Cost::of(&cluster).await?.since(before);
    ensure!(cost == node, "with the watch: {cost:?}");

    // A single pod by name.
    let before = Cost::of(&cluster).await?;
    let name = ("default".to_owned(), "pod-0-7".to_owned());
    ensure!(api_server.get_pod(NODE, &name, &Wanted::default()).await?.is_some());
    let cost = Cost::of(&cluster).await?.since(before);
    ensure!(cost.cached + cost.stored <= 1, "{cost:?}");

    // The cost of a paged list, as a check of these metrics: it is served by etcd, or by the cache without
    // its index.
    let before = Cost::of(&cluster).await?;
    let mut next = String::new();
    loop {
        let page = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}&limit=32&continue={next}");
        let page: Value = serde_json::from_str(&cluster.text_of(&page).await?)?;
        match page["metadata"]["continue"].as_str() {
            Some(more) => more.clone_into(&mut next),
            None => break,
        }
    }
    let cost = Cost::of(&cluster).await?.since(before);
    ensure!(cost.cached + cost.stored > 10 * node.cached, "{cost:?}");

    // After a restart the cache is filled once. A watch from the last resourceVersion is rejected, and the
    // next list is not older than that version.
    pods.create(&PostParams::default(), &pod("newer").bound_to("node-1")?).await?;
    cluster.kill_api_server()?;
    cluster.restart_api_server().await?;
    ensure!(listed(&mut events, &mut errors).await? == PODS, "{errors:?}");
    let cost = wait::until("the cache is filled", async || {
        let cost = Cost::of(&cluster).await?;
        ensure!(cost.cached >= node.cached, "{cost:?}");
        Ok(cost)
    })
    .await?;
    let all = (NODES * PODS) as u64 + 1;
    // Filling the cache reads all pods from etcd, and the API server's own informer reads all from the cache.
    // 1.36 and 1.37 count neither.
    let own = [0, all];
    let right = cost.indexed == node.indexed
        && own.contains(&(cost.cached - cost.indexed))
        && own.contains(&cost.stored);
    ensure!(right, "{cost:?} {errors:?}");
    Ok(())
}
