//! The pods of one node, from a watch on the API server, trimmed to what the agent needs.

use std::borrow::Cow;

use futures::{Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Resource};
use serde::Deserialize;

use super::{Cluster, chain};
use crate::pod::raw::RawPod;
use crate::pod::{Pod, PodEvent};

/// A node's pods are listed in pages of so many: a page is held as text for a moment, at some 10 KiB a pod.
const PAGE: u32 = 32;

/// For how long a watch is asked for; the next one goes on where it ended. Load balancers drop flows that are silent for
/// some minutes, and nothing but this tells that a watch is dead.
const WATCH_SECONDS: u32 = 60;

impl Cluster {
    /// Follows the pods of `node`. An error is one sentence, and the watch goes on after a back-off.
    pub fn pods_of(&self, node: &str) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static {
        let pods: Api<Trimmed> = Api::all(self.client.clone());
        let config = Config::default().fields(&format!("spec.nodeName={node}"));
        let config = config.page_size(PAGE).timeout(WATCH_SECONDS);
        watcher(pods, config).default_backoff().map(|event| match event {
            Ok(event) => Ok(translate(event)),
            Err(error) => Err(format!("cannot watch the node's pods: {}", chain(&error))),
        })
    }
}

fn translate(event: Event<Trimmed>) -> PodEvent {
    match event {
        Event::Init => PodEvent::Listing,
        Event::InitApply(pod) => PodEvent::Listed(pod.pod),
        Event::InitDone => PodEvent::Complete,
        Event::Apply(pod) => PodEvent::Is(pod.pod),
        Event::Delete(pod) => PodEvent::Gone(pod.pod),
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

/// A Pod to whoever asks for it.
impl Resource for Trimmed {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
