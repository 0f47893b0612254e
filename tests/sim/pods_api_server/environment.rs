//! The Pods API server with its sources, and its clients.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use numacast::cluster::Cluster;
use numacast::core_v1::proto as core;
use numacast::grpc::Socket;
use numacast::kubelet::proto::pods::pods_client::PodsClient;
use numacast::kubelet::proto::pods::{EventType, ListPodsRequest, WatchPodsEvent, WatchPodsRequest};
use numacast::pod_source::{KubeletPort, PodSourceKind, PodSources};
use numacast::pods_api::proto::v1alpha1::pod_info_client::PodInfoClient;
use numacast::pods_api::{PodsApi, Settings};
use numacast::telemetry::health::Probes;
use numacast::telemetry::registry::Registry;
use numacast_sim::api_server::ApiServer;
use prost::Message;
use prost::bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};

use super::pods_endpoint::PodsEndpoint;
use crate::support::eventually;

const NODE: &str = "worker";

/// The Pods API server, and a directory for the sockets.
pub(super) struct Environment {
    dir: TempDir,
    metrics: Registry,
    pub(super) health: Arc<dyn Probes>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Environment {
    /// Starts the server with these sources. `/pods` is that of `page`, if set.
    pub(super) async fn start(
        order: &[PodSourceKind],
        api_server: &ApiServer,
        page: Option<&PodsEndpoint>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = Socket { path: dir.path().join("ours/pods-api.sock"), mode: 0o755, group: None };
        let info_socket = Socket { path: dir.path().join("info/pod-info.sock"), ..socket.clone() };
        let settings = Settings { socket, info_socket: Some(info_socket), order: order.to_vec() };
        let deadline = Duration::from_secs(10);
        let mut sources = PodSources {
            socket: dir.path().join("pods-api.sock"),
            timeout: deadline,
            interval: Duration::from_secs(5),
            ..PodSources::default()
        };
        let cluster = match page {
            Some(page) => {
                sources.port = KubeletPort {
                    node: NODE.to_owned(),
                    address: Some(format!("127.0.0.1:{}", page.port).parse().unwrap()),
                    timeout: deadline,
                    ..KubeletPort::default()
                };
                let file = dir.path().join("kubeconfig");
                std::fs::write(&file, page.kubeconfig(&api_server.url(), dir.path())).unwrap();
                Cluster::new(Some(&file), deadline).await.unwrap()
            }
            None => Cluster::with_client(api_server.client().unwrap(), api_server.url(), deadline),
        };
        let mut metrics = Registry::default();
        let api = PodsApi::new(settings, sources, NODE.to_owned(), Some(cluster), &mut metrics);
        let (server, health) = (api.start().unwrap(), api.health());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(api.run(Some(server), async {
            let _ = stopped.await;
        }));
        Self { dir, metrics, health, stop: Some(stop), task }
    }

    /// Path of the kubelet's own Pods API socket.
    pub(super) fn kubelets_socket(&self) -> PathBuf {
        self.dir.path().join("pods-api.sock")
    }

    pub(super) async fn channel(&self) -> Channel {
        self.connect("ours/pods-api.sock").await
    }

    /// Returns a connection to PodInfo's own socket.
    pub(super) async fn info_channel(&self) -> Channel {
        eventually("the socket is served", async || {
            self.dir.path().join("info/pod-info.sock").exists().then_some(())
        })
        .await;
        self.connect("info/pod-info.sock").await
    }

    async fn connect(&self, socket: &str) -> Channel {
        let path = self.dir.path().join(socket);
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
        // Go's window size.
        endpoint.initial_stream_window_size(65_535).connect().await.unwrap()
    }

    pub(super) async fn pods(&self) -> PodsClient<Channel> {
        PodsClient::new(self.channel().await).max_decoding_message_size(32 << 20)
    }

    pub(super) async fn infos(&self) -> PodInfoClient<Channel> {
        PodInfoClient::new(self.channel().await)
    }

    /// Lists until it succeeds, and returns the UIDs of all pods.
    pub(super) async fn list(&self) -> Vec<String> {
        let mut client = self.pods().await;
        let list = eventually("the pods can be listed", async || {
            match client.list_pods(ListPodsRequest {}).await {
                Ok(list) => return Some(list),
                Err(status) => assert_eq!(status.code(), Code::FailedPrecondition, "{status}"),
            }
            // Within the rate limit.
            sleep(Duration::from_secs(1)).await;
            None
        });
        list.await.into_inner().pods.iter().map(uid).collect()
    }

    /// Starts a watch, and reads its initial list.
    pub(super) async fn watch(&self) -> Watch {
        let mut client = self.pods().await;
        let events = client.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
        let mut watch = Watch { events, pods: BTreeMap::new() };
        loop {
            match watch.next().await {
                (EventType::Added, _) => {}
                (EventType::InitialSyncComplete, uid) => {
                    assert_eq!(uid, "");
                    return watch;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns true if the metrics contain this sample.
    pub(super) fn has_metric(&self, sample: &str) -> bool {
        self.metrics.encode().contains(sample)
    }

    pub(super) async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.task.await.unwrap();
    }
}

/// A watch, and the pods according to its events.
pub(super) struct Watch {
    pub(super) events: Streaming<WatchPodsEvent>,
    /// By UID.
    pub(super) pods: BTreeMap<String, Bytes>,
}

impl Watch {
    /// Returns the next event. Asserts that it changes something.
    pub(super) async fn next(&mut self) -> (EventType, String) {
        let event = self.events.message().await.unwrap().unwrap();
        let uid = uid(&event.pod);
        let before = match event.r#type() {
            EventType::Added | EventType::Modified => self.pods.insert(uid.clone(), event.pod.clone()),
            EventType::Deleted => Some(self.pods.remove(&uid).unwrap()),
            _ => None,
        };
        assert_ne!(before.as_ref(), Some(&event.pod), "nothing changed");
        (event.r#type(), uid)
    }

    /// Asserts that no event arrives for a minute.
    pub(super) async fn expect_no_event(&mut self) {
        let event = timeout(Duration::from_secs(60), self.events.message()).await;
        assert!(event.is_err(), "{event:?}");
    }
}

pub(super) fn uid(pod: &Bytes) -> String {
    core::Pod::decode(pod.clone()).unwrap().metadata.map(|metadata| metadata.uid).unwrap_or_default()
}

pub(super) fn object(name: &str, uid: &str, phase: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"nodeName": NODE, "containers": []},
        "status": {"phase": phase},
    })
}
