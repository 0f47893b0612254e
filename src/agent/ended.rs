//! Which of the pods in the List have ended.
//!
//! Kubelets before 1.34 list pods that have ended, with the memory and devices that they gave back (kubelet.md 3.3).
//! Only the API server tells them from the others. For newer kubelets nothing is watched.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::scan::Terminal;
use super::{back_off, jittered};
use crate::cluster::Cluster;

/// The first kubelet whose List names active pods only.
const ACTIVE_PODS_ONLY: (u32, u32) = (1, 34);

/// How often the kubelet's version is looked at again: kubelets are upgraded in place.
const REREAD: Duration = Duration::from_secs(600);
/// How soon after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// The longest wait between two failures.
const RETRY_LIMIT: Duration = Duration::from_secs(60);

/// How long a set may be kept whose watch is broken: a pod may have returned under a name in it.
const STALE: Duration = Duration::from_secs(30);

/// The handle of the watching task.
#[derive(Debug)]
pub(super) struct EndedPods {
    newest: watch::Receiver<Terminal>,
    task: Option<JoinHandle<()>>,
}

impl EndedPods {
    /// Nothing is watched: nobody is ever said to have ended.
    pub(super) fn nobody() -> Self {
        let (_, newest) = watch::channel(Terminal::default());
        Self { newest, task: None }
    }

    /// Starts the task.
    pub(super) fn follow(node: String, cluster: Cluster) -> Self {
        let (news, newest) = watch::channel(Terminal::default());
        let task = Some(tokio::spawn(Follower { node, cluster, news, told: None }.run()));
        Self { newest, task }
    }

    /// The newest set.
    pub(super) fn now(&mut self) -> Terminal {
        self.newest.borrow_and_update().clone()
    }

    /// Waits for another set.
    pub(super) async fn changed(&mut self) {
        if self.newest.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for EndedPods {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Follower {
    node: String,
    cluster: Cluster,
    news: watch::Sender<Terminal>,
    /// The last sentence of trouble.
    told: Option<String>,
}

impl Follower {
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let wait = match self.cluster.kubelet_version(&self.node).await {
                // The publisher, which reads the same Node, says what is wrong with it.
                Err(_) => back_off(&mut failures, RETRY, RETRY_LIMIT),
                Ok(version) if lists_ended_pods(&version) => {
                    failures = 0;
                    info!("kubelet {version} lists pods that have ended: watching them in the API server");
                    self.follow().await;
                    Duration::ZERO
                }
                Ok(_) => {
                    failures = 0;
                    self.send(Terminal::default());
                    jittered(REREAD)
                }
            };
            sleep(wait).await;
        }
    }

    /// Follows the set until it is time to look at the version again.
    async fn follow(&mut self) {
        let until = Instant::now() + jittered(REREAD);
        let mut sets = std::pin::pin!(self.cluster.ended_pods(&self.node));
        let mut broken: Option<Instant> = None;
        while let Ok(Some(news)) = timeout(until.duration_since(Instant::now()), sets.next()).await {
            match news {
                Ok(set) => {
                    broken = None;
                    self.told = None;
                    self.send(Arc::new(set));
                }
                Err(sentence) => {
                    self.tell(sentence);
                    if broken.get_or_insert_with(Instant::now).elapsed() > STALE {
                        self.send(Terminal::default());
                    }
                }
            }
        }
    }

    fn send(&self, set: Terminal) {
        self.news.send_if_modified(|last| {
            let other = *last != set;
            *last = set;
            other
        });
    }

    fn tell(&mut self, sentence: String) {
        if self.told.as_ref() != Some(&sentence) {
            warn!("{sentence}; pods that have ended look as if they still held what the kubelet lists");
            self.told = Some(sentence);
        }
    }
}

/// Does a kubelet of this version (`v1.33.13`) list pods that have ended? One whose version makes no sense may.
fn lists_ended_pods(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < ACTIVE_PODS_ONLY,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_before_1_34_list_pods_that_have_ended() {
        for old in ["v1.33.13", "v1.23.0-eks-1", "1.9.0", "v0.1", "", "v1.x"] {
            assert!(lists_ended_pods(old), "{old}");
        }
        for new in ["v1.34.0", "v1.36.3+k3s1", "v2.0.0"] {
            assert!(!lists_ended_pods(new), "{new}");
        }
    }
}
