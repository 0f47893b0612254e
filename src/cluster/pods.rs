//! The pods of one node, from a watch on the API server, trimmed to what the agent needs.

use std::time::Duration;

use futures::stream::{BoxStream, unfold};
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Config, watcher};
use serde::Deserialize;
use tokio::time::{Instant, sleep_until, timeout};

use super::slim::reads_as;
use super::{Cluster, ClusterError, chain};
use crate::backoff::back_off;
use crate::pod::raw::RawPod;
use crate::pod::{Pod, PodEvent, PodName, Wanted};
use crate::seen::Seen;

/// A node's pods are listed in pages of so many: a page is held as text for a moment, at some 10 KiB a pod.
const PAGE: u32 = 32;

/// For how long a watch is asked for; the next one goes on where it ended. Load balancers drop flows that are silent for
/// some minutes, and nothing but this tells that a watch is dead.
const WATCH_SECONDS: u32 = 60;

/// How soon a watch that failed is asked for again...
const RETRY: Duration = Duration::from_millis(800);
/// ...and the longest wait between two failures.
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// A watch that was asked for again and has not failed after this may work.
const QUIET: Duration = Duration::from_secs(1);

impl Cluster {
    /// Follows the pods of `node`, with the annotations that are wanted. An error is one sentence, and the watch goes on
    /// after a back-off.
    pub fn pods_of(
        &self,
        node: &str,
        wanted: Wanted,
    ) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static {
        let pods: Api<Trimmed> = Api::all(self.client.clone());
        let config = Config::default().fields(&on(node));
        let config = config.page_size(PAGE).timeout(WATCH_SECONDS);
        let following = Following {
            cluster: self.clone(),
            node: node.to_owned(),
            wanted,
            events: watcher(pods, config).boxed(),
            complete: false,
            failures: 0,
            broken: false,
            not_before: Instant::now(),
        };
        unfold(following, |mut following| async { Some((following.next().await, following)) })
    }

    /// Does the API server answer when it is asked for pods of this node?
    async fn tells_pods(&self, node: &str) -> bool {
        let one = ListParams::default().fields(&on(node)).limit(1);
        self.one_pod(Api::all(self.client.clone()), one).await.is_ok()
    }

    /// The pod of this name on `node`, as it is now, with the annotations that are wanted; `None` if there is none. It is
    /// listed, since who may watch the node's pods may list them, and need not be allowed to get one.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn pod_of(
        &self,
        node: &str,
        (namespace, name): &PodName,
        wanted: &Wanted,
    ) -> Result<Option<Pod>, ClusterError> {
        let this = ListParams::default().fields(&format!("metadata.name={name},{}", on(node)));
        let found = self.one_pod(Api::namespaced(self.client.clone(), namespace), this).await?;
        Ok(found.map(|pod| pod.keeping(wanted)))
    }

    /// The first of the pods that are meant.
    async fn one_pod(&self, pods: Api<Trimmed>, which: ListParams) -> Result<Option<Pod>, ClusterError> {
        // The same for every pod: it stands in sentences that are told once.
        let what = "list one pod of the node";
        let listed = self.in_time(what, pods.list(&which)).await.map_err(|failure| failure.explain(what))?;
        Ok(listed.items.into_iter().next().map(|trimmed| trimmed.pod))
    }
}

/// The field selector for the pods of a node.
fn on(node: &str) -> String {
    format!("spec.nodeName={node}")
}

/// A watch, and what is known of it.
struct Following {
    cluster: Cluster,
    node: String,
    wanted: Wanted,
    events: BoxStream<'static, Result<watcher::Event<Trimmed>, watcher::Error>>,
    /// All pods were listed, so that a watch goes on where the last one ended.
    complete: bool,
    failures: u32,
    /// It failed, and has told nothing since.
    broken: bool,
    not_before: Instant,
}

impl Following {
    async fn next(&mut self) -> Result<PodEvent, String> {
        sleep_until(self.not_before).await;
        loop {
            let told = match self.broken && self.complete {
                false => self.events.next().await,
                // A watch that works again says nothing as long as nothing happens.
                true => match timeout(QUIET, self.events.next()).await {
                    Ok(told) => told,
                    Err(_) if self.cluster.tells_pods(&self.node).await => {
                        (self.broken, self.failures) = (false, 0);
                        return Ok(PodEvent::Again);
                    }
                    Err(_) => continue,
                },
            };
            return self.note(told);
        }
    }

    fn note(
        &mut self,
        told: Option<Result<watcher::Event<Trimmed>, watcher::Error>>,
    ) -> Result<PodEvent, String> {
        let error = match told {
            Some(Ok(event)) => {
                let event = Seen::from(event).map(|trimmed: Trimmed| trimmed.pod.keeping(&self.wanted));
                match event {
                    PodEvent::Listing => self.complete = false,
                    PodEvent::Complete => self.complete = true,
                    _ => {}
                }
                if event.is_proof() {
                    (self.broken, self.failures) = (false, 0);
                }
                return Ok(event);
            }
            Some(Err(error)) => chain(&error),
            None => "it has ended".to_owned(),
        };
        self.broken = true;
        self.not_before = Instant::now() + back_off(&mut self.failures, RETRY, RETRY_LIMIT);
        Err(format!("cannot watch the node's pods: {error}"))
    }
}

/// The parts of a Pod that are decoded at all, made a record as soon as they are read.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "RawPod")]
struct Trimmed {
    /// What the watch needs: name, namespace and version.
    metadata: ObjectMeta,
    pod: Pod,
}

impl From<RawPod> for Trimmed {
    fn from(mut raw: RawPod) -> Self {
        let resource_version = raw.metadata.resource_version.take();
        let pod = Pod::from(raw);
        let (namespace, name) = (Some(pod.namespace.clone()), Some(pod.name.clone()));
        Self { metadata: ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() }, pod }
    }
}

reads_as!(Trimmed, k8s_openapi::api::core::v1::Pod);
