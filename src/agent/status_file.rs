//! The status file: the pods of the fingerprint, for people. Users of resource-topology-exporter have the
//! same file, and compare the scheduler's log with it (peers.md 3; upstream: podfingerprint, `Status`).

use std::path::PathBuf;

use serde::Serialize;
use tokio::sync::watch;
use tracing::warn;

use crate::pod::PodName;
use crate::topology::PodSet;

/// Handle to the task that writes the file. It writes only the newest content, never a queue.
#[derive(Debug)]
pub(super) struct StatusFile(watch::Sender<String>);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    fingerprint_computed: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pods: Vec<Name<'a>>,
    node_name: &'a str,
    /// Our addition: the pods that the object is held for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held_for: Vec<Name<'a>>,
}

/// Upstream's keys are capitalized.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Name<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl StatusFile {
    /// Starts the task; it ends when the handle is dropped.
    pub(super) fn start(path: PathBuf) -> Self {
        let (newest, mut content) = watch::channel(String::new());
        tokio::spawn(async move {
            let mut told = None;
            while content.changed().await.is_ok() {
                let text = content.borrow_and_update().clone();
                match replace(&path, &text).await {
                    Ok(()) => told = None,
                    Err(error) => {
                        let sentence = format!("cannot write the status file {}: {error}", path.display());
                        if told.as_ref() != Some(&sentence) {
                            warn!("{sentence}");
                            told = Some(sentence);
                        }
                    }
                }
            }
        });
        Self(newest)
    }

    /// Writes the object's fingerprint, the pods that it covers, and those that the object is held for.
    pub(super) fn write(&self, node: &str, set: PodSet, mut pods: Vec<PodName>, held_for: &[PodName]) {
        pods.sort();
        let status = Status {
            fingerprint_computed: set.fingerprint.to_string(),
            pods: names(&pods),
            node_name: node,
            held_for: if set.is_held() { names(held_for) } else { Vec::new() },
        };
        self.0.send_replace(serde_json::to_string(&status).unwrap_or_default());
    }
}

fn names(pods: &[PodName]) -> Vec<Name<'_>> {
    pods.iter().map(|(namespace, name)| Name { namespace, name }).collect()
}

/// Replaces the file atomically.
async fn replace(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    tokio::fs::write(&beside, text).await?;
    tokio::fs::rename(&beside, path).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Fingerprint, Method, pod_hash};

    #[test]
    fn it_reads_as_upstreams() {
        let set = |fingerprint| PodSet { fingerprint, method: Method::All };
        let (sender, receiver) = watch::channel(String::new());
        let file = StatusFile(sender);
        let pod = |name: &str| ("ns1".to_owned(), name.to_owned());
        file.write(
            "w",
            set(Fingerprint::of([pod_hash("ns1", "n1"), pod_hash("ns1", "n2")])),
            vec![pod("n2"), pod("n1")],
            &[],
        );
        assert_eq!(
            *receiver.borrow(),
            "{\"fingerprintComputed\":\"pfp0v001a5a0bb7911344362\",\
             \"pods\":[{\"Namespace\":\"ns1\",\"Name\":\"n1\"},{\"Namespace\":\"ns1\",\"Name\":\"n2\"}],\
             \"nodeName\":\"w\"}"
        );
        file.write("w", set(Fingerprint::HELD), vec![], &[pod("n3")]);
        assert_eq!(
            *receiver.borrow(),
            "{\"fingerprintComputed\":\"pfp0v0010000000000000000\",\"nodeName\":\"w\",\
             \"heldFor\":[{\"Namespace\":\"ns1\",\"Name\":\"n3\"}]}"
        );
    }
}
