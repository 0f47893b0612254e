//! The status file: the pods of the fingerprint, for people. Users of resource-topology-exporter have the
//! same file, and compare the scheduler's log with it (upstream: podfingerprint, `Status`).

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tokio::sync::watch;

use crate::pod::PodName;
use crate::scheduler::{Decision, PodFingerprint, Verdict, WithholdReason};
use crate::util::log_throttle::LogOnce;

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
    /// Our addition: why the fingerprint is withheld.
    #[serde(skip_serializing_if = "Option::is_none")]
    withheld_reason: Option<WithholdReason>,
    /// Our addition: the pods that the fingerprint is withheld for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    withheld_for: Vec<Name<'a>>,
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
            let log = LogOnce::default();
            while content.changed().await.is_ok() {
                let text = content.borrow_and_update().clone();
                match replace(&path, &text).await {
                    Ok(()) => log.recovered(&format!("the status file {} is written again", path.display())),
                    Err(error) => {
                        log.warn(&format!("cannot write the status file {}: {error}", path.display()));
                    }
                }
            }
        });
        Self(newest)
    }

    /// Writes the object's fingerprint, the pods that it covers, and why and for which pods it is withheld.
    pub(super) fn write(
        &self,
        node: &str,
        fingerprint: PodFingerprint,
        mut pods: Vec<PodName>,
        verdict: &Verdict,
    ) {
        pods.sort();
        let withheld_reason = match verdict.decision {
            Decision::Withhold(reason) => Some(reason),
            Decision::Publish | Decision::Wait => None,
        };
        let status = Status {
            fingerprint_computed: fingerprint.value.to_string(),
            pods: names(&pods),
            node_name: node,
            withheld_reason,
            withheld_for: if withheld_reason.is_some() { names(&verdict.unaccounted) } else { Vec::new() },
        };
        self.0.send_replace(serde_json::to_string(&status).unwrap_or_default());
    }
}

fn names(pods: &[PodName]) -> Vec<Name<'_>> {
    pods.iter().map(|(namespace, name)| Name { namespace, name }).collect()
}

/// Replaces the file as a whole.
pub(in crate::agent) async fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    tokio::fs::write(&temporary, text).await?;
    tokio::fs::rename(&temporary, path).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{Fingerprint, FingerprintMethod, pod_hash};

    #[test]
    fn the_file_has_upstreams_format() {
        let fingerprint = |value| PodFingerprint { value, method: FingerprintMethod::All };
        let (sender, receiver) = watch::channel(String::new());
        let file = StatusFile(sender);
        let pod = |name: &str| ("ns1".to_owned(), name.to_owned());
        let of_pods = Fingerprint::of([pod_hash("ns1", "n1"), pod_hash("ns1", "n2")]);
        file.write("w", fingerprint(of_pods), vec![pod("n2"), pod("n1")], &Verdict::default());
        assert_eq!(
            *receiver.borrow(),
            "{\"fingerprintComputed\":\"pfp0v001a5a0bb7911344362\",\
             \"pods\":[{\"Namespace\":\"ns1\",\"Name\":\"n1\"},{\"Namespace\":\"ns1\",\"Name\":\"n2\"}],\
             \"nodeName\":\"w\"}"
        );
        let withheld = |reason, unaccounted| Verdict {
            decision: Decision::Withhold(reason),
            unaccounted,
            ..Verdict::default()
        };
        let verdict = withheld(WithholdReason::UnaccountedPods, vec![pod("n3")]);
        file.write("w", fingerprint(Fingerprint::WITHHELD), vec![], &verdict);
        assert_eq!(
            *receiver.borrow(),
            "{\"fingerprintComputed\":\"pfp0v0010000000000000000\",\"nodeName\":\"w\",\
             \"withheldReason\":\"UnaccountedPods\",\
             \"withheldFor\":[{\"Namespace\":\"ns1\",\"Name\":\"n3\"}]}"
        );
        let verdict = withheld(WithholdReason::PodsUnknown, Vec::new());
        file.write("w", fingerprint(Fingerprint::WITHHELD), vec![], &verdict);
        assert_eq!(
            *receiver.borrow(),
            "{\"fingerprintComputed\":\"pfp0v0010000000000000000\",\"nodeName\":\"w\",\
             \"withheldReason\":\"PodsUnknown\"}"
        );
    }
}
