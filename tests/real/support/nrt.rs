//! `NodeResourceTopology` objects as the API server returns them, read without the agent's types.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::wait::until;

/// Zone -> resource -> figures.
pub(crate) type Zones = BTreeMap<String, BTreeMap<String, Figures>>;

/// The figures of one resource in a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) capacity: u64,
    pub(crate) allocatable: u64,
    pub(crate) available: u64,
}

/// One version of an object.
#[derive(Clone, Debug)]
pub(crate) struct ObjectVersion {
    pub(crate) version: String,
    pub(crate) zones: Zones,
    /// Everything but the metadata.
    pub(crate) content: Value,
}

/// Returns the node's current object.
pub(crate) async fn read(client: &Client, node: &str) -> Result<ObjectVersion> {
    ObjectVersion::of(&api(client).get(node).await?)
}

/// Returns an untyped API for the objects.
pub(crate) fn api(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("topology.node.k8s.io", "v1alpha2", "NodeResourceTopology");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies"))
}

impl ObjectVersion {
    pub(crate) fn of(object: &DynamicObject) -> Result<Self> {
        let version = object.resource_version().context("an object without a version")?;
        Ok(Self { version, zones: zones_of(&object.data)?, content: object.data.clone() })
    }
}

/// Returns the zones of an object.
pub(crate) fn zones_of(object: &Value) -> Result<Zones> {
    let mut zones = Zones::new();
    for zone in object["zones"].as_array().context("the object has no zones")? {
        ensure!(zone["type"] == "Node", "a zone of type {}", zone["type"]);
        let name = text(&zone["name"])?;
        ensure!(zones.insert(name.clone(), resources(zone)?).is_none(), "zone {name} is there twice");
    }
    Ok(zones)
}

fn resources(zone: &Value) -> Result<BTreeMap<String, Figures>> {
    let mut resources = BTreeMap::new();
    for resource in zone["resources"].as_array().into_iter().flatten() {
        let number = |key: &str| -> Result<u64> {
            let written = &resource[key];
            let plain = written.as_u64().or_else(|| written.as_str()?.parse().ok());
            plain.with_context(|| format!("{key} of {} is no plain number: {written}", resource["name"]))
        };
        let figures = Figures {
            capacity: number("capacity")?,
            allocatable: number("allocatable")?,
            available: number("available")?,
        };
        let name = text(&resource["name"])?;
        ensure!(resources.insert(name.clone(), figures).is_none(), "{name} is there twice");
    }
    Ok(resources)
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().with_context(|| format!("{value} is no text"))?.to_owned())
}

/// Observed versions in order; an error message for an invalid object.
type Record = Arc<Mutex<Vec<Result<ObjectVersion, String>>>>;

/// Watches the node's object and records every version.
pub(crate) struct Observer {
    seen: Record,
    client: Client,
    node: String,
    watching: tokio::task::JoinHandle<()>,
}

impl Observer {
    /// Starts the watch; the current object is the first version.
    pub(crate) async fn start(client: &Client, node: &str) -> Result<Self> {
        let first = read(client, node).await?;
        let version = first.version.clone();
        let seen = Record::new(Mutex::new(vec![Ok(first)]));
        let watching = tokio::spawn(watch(api(client), node.to_owned(), version, Arc::clone(&seen)));
        Ok(Self { seen, client: client.clone(), node: node.to_owned(), watching })
    }

    /// Returns every version up to the object's current one.
    pub(crate) async fn versions(&self) -> Result<Vec<ObjectVersion>> {
        until("the observer has seen the newest version", async || {
            let newest = read(&self.client, &self.node).await?.version;
            let record = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let seen = record.into_iter().collect::<Result<Vec<ObjectVersion>, String>>();
            let seen = seen.map_err(anyhow::Error::msg)?;
            ensure!(seen.last().is_some_and(|last| last.version == newest), "it has not");
            Ok(seen)
        })
        .await
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Watches until aborted; a watch that the server ends is resumed.
async fn watch(api: Api<DynamicObject>, node: String, mut version: String, seen: Record) {
    let only = WatchParams::default().fields(&format!("metadata.name={node}"));
    loop {
        let Ok(stream) = api.watch(&only, &version).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            let one = match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => ObjectVersion::of(&object),
                Ok(WatchEvent::Deleted(_)) => Err(anyhow::anyhow!("the object was deleted")),
                Ok(WatchEvent::Error(status)) => Err(anyhow::anyhow!("the watch failed: {}", status.message)),
                Ok(WatchEvent::Bookmark(_)) => continue,
                Err(_) => break,
            };
            if let Ok(one) = &one {
                version.clone_from(&one.version);
            }
            let one = one.map_err(|error| format!("{error:#}"));
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(one);
        }
    }
}
