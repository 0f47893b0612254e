//! The Pods API that we serve, all of it over simulated sources: what real ones do not do on demand. Time is virtual.

use std::path::PathBuf;
use std::time::Duration;

use numacast::cluster::Cluster;
use numacast::grpc::Socket;
use numacast::kubelet::proto::core;
use numacast::kubelet::proto::pods::pods_client::PodsClient;
use numacast::kubelet::proto::pods::{EventType, ListPodsRequest, WatchPodsEvent, WatchPodsRequest};
use numacast::pod_source::{PodTeller, PodTellers};
use numacast::pods_api::{PodsApi, Settings};
use numacast::sim::api_server::ApiServer;
use numacast::sim::pods_api::SimPodsApi;
use prost::Message;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

/// What is served, over which sources.
struct Served {
    dir: TempDir,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Served {
    async fn start(order: &[PodTeller], api_server: &ApiServer) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = Socket { path: dir.path().join("ours/pods-api.sock"), mode: 0o755, group: None };
        let settings = Settings { socket, order: order.to_vec() };
        let tellers = PodTellers {
            socket: kubelets(&dir),
            timeout: Duration::from_secs(10),
            interval: Duration::from_secs(5),
            ..PodTellers::default()
        };
        let deadline = Duration::from_secs(10);
        let cluster = Cluster::with_client(api_server.client().unwrap(), api_server.url(), deadline);
        let api = PodsApi::new(settings, tellers, "worker".to_owned(), Some(cluster));
        let server = api.start().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(api.run(Some(server), async {
            let _ = stopped.await;
        }));
        Self { dir, stop: Some(stop), task }
    }

    async fn client(&self) -> PodsClient<Channel> {
        let path = self.dir.path().join("ours/pods-api.sock");
        let channel = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
        PodsClient::new(channel.connect().await.unwrap()).max_decoding_message_size(32 << 20)
    }
}

fn kubelets(dir: &TempDir) -> PathBuf {
    dir.path().join("pods-api.sock")
}

fn pod(name: &str, uid: &str, phase: &str) -> core::Pod {
    let metadata = core::ObjectMeta {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        uid: uid.to_owned(),
        ..core::ObjectMeta::default()
    };
    let status = core::PodStatus { phase: phase.to_owned(), ..core::PodStatus::default() };
    core::Pod { metadata: Some(metadata), spec: None, status: Some(status) }
}

fn said(event: &WatchPodsEvent) -> (EventType, String) {
    let pod = core::Pod::decode(event.pod.clone()).unwrap();
    (event.r#type(), pod.metadata.map(|metadata| metadata.uid).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn smoke() {
    let api_server = ApiServer::start_anywhere(0).await.unwrap();
    let served = Served::start(&[PodTeller::PodsApi], &api_server).await;
    let mut client = served.client().await;
    let status = client.list_pods(ListPodsRequest {}).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (tonic::Code::FailedPrecondition, "Kubelet is initializing")
    );
    let kubelet = SimPodsApi::start(kubelets(&served.dir)).unwrap();
    kubelet.set(&pod("b", "2", "Running"));
    kubelet.set(&pod("a", "1", "Running"));
    while client.list_pods(ListPodsRequest {}).await.is_err() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mut watch = client.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
    for expected in [(EventType::Added, "1"), (EventType::Added, "2"), (EventType::InitialSyncComplete, "")] {
        let (kind, uid) = said(&watch.message().await.unwrap().unwrap());
        assert_eq!((kind, &*uid), expected);
    }
    kubelet.set(&pod("a", "1", "Failed"));
    kubelet.remove(&pod("b", "2", "Running"));
    for expected in [(EventType::Modified, "1"), (EventType::Deleted, "2")] {
        let (kind, uid) = said(&watch.message().await.unwrap().unwrap());
        assert_eq!((kind, &*uid), expected);
    }
    served.stop.unwrap().send(()).unwrap();
    assert_eq!(watch.message().await.unwrap_err().code(), tonic::Code::Unavailable);
    served.task.await.unwrap();
}
