//! Every version of the node's object, as stored in etcd: none is missed, even if the API server fails.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{AsyncBufReadExt, StreamExt};
use k8s_openapi::ByteString;
use kube::Client;
use serde_json::{Value, json};
use tonic::codegen::http::Request;

use super::nrt::{Zones, zones_of};
use super::wait::until;

/// One version of the object, or its deletion.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// etcd's revision, equal to the object's `resourceVersion`.
    pub(crate) revision: u64,
    /// `None`: the object was deleted.
    pub(crate) zones: Option<Zones>,
}

/// What a watch of etcd has received.
struct Seen {
    versions: Vec<Version>,
    /// The last error of the watch.
    error: Option<anyhow::Error>,
}

/// Watches etcd and records every version.
pub(crate) struct History {
    seen: Arc<Mutex<Seen>>,
    etcd: Client,
    key: String,
    watching: tokio::task::JoinHandle<()>,
}

impl History {
    /// Starts recording; the object's current version is the first.
    pub(crate) async fn start(etcd_url: &str, node: &str) -> Result<Self> {
        let etcd = Client::try_from(kube::Config::new(etcd_url.parse()?))?;
        let key = format!("/registry/topology.node.k8s.io/noderesourcetopologies/{node}");
        let first = newest(&etcd, &key).await?.context("there is no object yet")?;
        let from = first.revision + 1;
        let seen = Arc::new(Mutex::new(Seen { versions: vec![first], error: None }));
        let watching = tokio::spawn(watch(etcd.clone(), key.clone(), from, Arc::clone(&seen)));
        Ok(Self { seen, etcd, key, watching })
    }

    /// Returns the number of versions so far, including the current one.
    pub(crate) async fn mark(&self) -> Result<usize> {
        self.catch_up().await?;
        Ok(lock(&self.seen).versions.len())
    }

    /// Returns every version since a mark.
    pub(crate) async fn since(&self, mark: usize) -> Result<Vec<Version>> {
        self.catch_up().await?;
        Ok(lock(&self.seen).versions[mark..].to_vec())
    }

    async fn catch_up(&self) -> Result<()> {
        until("every version was seen", async || {
            let newest = newest(&self.etcd, &self.key).await?.map(|version| version.revision);
            let seen = lock(&self.seen);
            let last = seen.versions.last().context("nothing was seen")?;
            let known = last.zones.as_ref().map(|_| last.revision);
            ensure!(
                known == newest,
                "the newest version is {newest:?}, and {known:?} was seen; the watch's last error: {:?}",
                seen.error
            );
            Ok(())
        })
        .await
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Encodes a key: etcd's gateway uses base64 for keys and values.
fn base64(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}

fn post(path: &str, body: &Value) -> Result<Request<Vec<u8>>> {
    Ok(Request::post(path).header("content-type", "application/json").body(serde_json::to_vec(body)?)?)
}

/// Returns the object's current version.
async fn newest(etcd: &Client, key: &str) -> Result<Option<Version>> {
    let text = etcd.request_text(post("/v3/kv/range", &json!({ "key": base64(key) }))?).await?;
    let response: Value = serde_json::from_str(&text)?;
    response["kvs"].get(0).map(|entry| version(entry, false)).transpose()
}

fn version(entry: &Value, deleted: bool) -> Result<Version> {
    let revision = entry["mod_revision"].as_str().context("an entry without a revision")?.parse()?;
    if deleted {
        return Ok(Version { revision, zones: None });
    }
    let ByteString(bytes) = serde_json::from_value(entry["value"].clone())?;
    let object: Value = serde_json::from_slice(&bytes)?;
    Ok(Version { revision, zones: Some(zones_of(&object)?) })
}

/// Watches until aborted; a watch that ends is resumed.
async fn watch(etcd: Client, key: String, mut from: u64, seen: Arc<Mutex<Seen>>) {
    loop {
        // `catch_up` shows the error if the watch does not catch up.
        if let Err(error) = watch_once(&etcd, &key, &mut from, &seen).await {
            lock(&seen).error = Some(error);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn watch_once(etcd: &Client, key: &str, from: &mut u64, seen: &Mutex<Seen>) -> Result<()> {
    let create = json!({ "create_request": { "key": base64(key), "start_revision": from.to_string() } });
    let stream = etcd.request_stream(post("/v3/watch", &create)?).await?;
    let mut lines = std::pin::pin!(stream.lines());
    while let Some(line) = lines.next().await {
        let response: Value = serde_json::from_str(&line?)?;
        for event in response["result"]["events"].as_array().into_iter().flatten() {
            let version = version(&event["kv"], event["type"] == "DELETE")?;
            *from = version.revision + 1;
            lock(seen).versions.push(version);
        }
    }
    Ok(())
}
