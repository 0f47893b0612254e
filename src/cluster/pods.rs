//! The pods of one node, from a watch on the API server, trimmed to what the agent needs.

use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use serde::Deserialize;

use super::slim::reads_as;
use super::{Cluster, ClusterError, chain};
use crate::pod::raw::RawPod;
use crate::pod::{Pod, PodEvent, PodName, Wanted};
use crate::seen::Seen;

/// A node's pods are listed in pages of so many: a page is held as text for a moment, at some 10 KiB a pod.
const PAGE: u32 = 32;

/// For how long a watch is asked for; the next one goes on where it ended. Load balancers drop flows that are silent for
/// some minutes, and nothing but this tells that a watch is dead.
const WATCH_SECONDS: u32 = 60;

impl Cluster {
    /// Follows the pods of `node`, with the annotations that are wanted. An error is one sentence, and the watch goes on
    /// after a back-off.
    pub fn pods_of(
        &self,
        node: &str,
        wanted: Wanted,
    ) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static {
        let pods: Api<Trimmed> = Api::all(self.client.clone());
        let config = Config::default().fields(&format!("spec.nodeName={node}"));
        let config = config.page_size(PAGE).timeout(WATCH_SECONDS);
        watcher(pods, config).default_backoff().map(move |event| match event {
            Ok(event) => Ok(Seen::from(event).map(|trimmed: Trimmed| trimmed.pod.keeping(&wanted))),
            Err(error) => Err(format!("cannot watch the node's pods: {}", chain(&error))),
        })
    }
}

impl Cluster {
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
        // The same for every pod: it stands in sentences that are told once.
        let what = "list one pod of the node";
        let pods: Api<Trimmed> = Api::namespaced(self.client.clone(), namespace);
        let one = ListParams::default().fields(&format!("metadata.name={name},spec.nodeName={node}"));
        let listed = self.in_time(what, pods.list(&one)).await.map_err(|failure| failure.explain(what))?;
        Ok(listed.items.into_iter().next().map(|trimmed| trimmed.pod.keeping(wanted)))
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
