//! The served Pods API over simulated sources, with faults that real ones do not produce on demand. Time is
//! virtual.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::uri::PathAndQuery;
use numacast::cluster::Cluster;
use numacast::core_v1::proto as core;
use numacast::grpc::Socket;
use numacast::kubelet::proto::pods::pods_client::PodsClient;
use numacast::kubelet::proto::pods::{
    EventType, GetPodRequest, ListPodsRequest, WatchPodsEvent, WatchPodsRequest,
};
use numacast::pod_source::{KubeletPort, PodSourceKind, PodSources};
use numacast::pods_api::proto::v1alpha1::pod_info_client::PodInfoClient;
use numacast::pods_api::proto::v1alpha1::{
    EventType as InfoType, GetPodConditionsRequest, ListPodConditionsRequest, WatchPodConditionsEvent,
    WatchPodConditionsRequest,
};
use numacast::pods_api::{PodsApi, Settings};
use numacast::sim::api_server::{ApiServer, PODS};
use numacast::sim::pods_api::SimPodsApi;
use numacast::telemetry::health::Probes;
use numacast::telemetry::registry::Registry;
use prost::Message;
use prost::bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::support::at_one_moment;

const NODE: &str = "worker";

/// The Pods API server under test, and its sources.
struct Served {
    dir: TempDir,
    metrics: Registry,
    health: Arc<dyn Probes>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Served {
    async fn start(order: &[PodSourceKind], api_server: &ApiServer, page: Option<&Page>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = Socket { path: dir.path().join("ours/pods-api.sock"), mode: 0o755, group: None };
        let settings = Settings { socket, order: order.to_vec() };
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
                std::fs::write(&file, page.kubeconfig(&api_server.url())).unwrap();
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
    fn kubelets(&self) -> PathBuf {
        self.dir.path().join("pods-api.sock")
    }

    async fn channel(&self) -> Channel {
        let path = self.dir.path().join("ours/pods-api.sock");
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
        // Go's window size.
        endpoint.initial_stream_window_size(65_535).connect().await.unwrap()
    }

    async fn pods(&self) -> PodsClient<Channel> {
        PodsClient::new(self.channel().await).max_decoding_message_size(32 << 20)
    }

    async fn infos(&self) -> PodInfoClient<Channel> {
        PodInfoClient::new(self.channel().await)
    }

    /// Returns the UIDs of all pods, once List succeeds.
    async fn listed(&self) -> Vec<String> {
        let mut client = self.pods().await;
        loop {
            match client.list_pods(ListPodsRequest {}).await {
                Ok(list) => return list.into_inner().pods.iter().map(uid).collect(),
                Err(status) => assert_eq!(status.code(), Code::FailedPrecondition, "{status}"),
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    async fn watch(&self) -> Watching {
        let mut client = self.pods().await;
        let events = client.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
        let mut watching = Watching { events, known: BTreeMap::new() };
        loop {
            match watching.hears().await {
                (EventType::Added, _) => {}
                (EventType::InitialSyncComplete, uid) => {
                    assert_eq!(uid, "");
                    return watching;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn shows(&self, sample: &str) -> bool {
        self.metrics.encode().contains(sample)
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.task.await.unwrap();
    }
}

/// A watching client and the state it has built from the events.
struct Watching {
    events: Streaming<WatchPodsEvent>,
    known: BTreeMap<String, Bytes>,
}

impl Watching {
    /// Returns the next event. Asserts that no event repeats the known state.
    async fn hears(&mut self) -> (EventType, String) {
        let event = self.events.message().await.unwrap().unwrap();
        let uid = uid(&event.pod);
        let before = match event.r#type() {
            EventType::Added | EventType::Modified => self.known.insert(uid.clone(), event.pod.clone()),
            EventType::Deleted => Some(self.known.remove(&uid).unwrap()),
            _ => None,
        };
        assert_ne!(before.as_ref(), Some(&event.pod), "it knew that");
        (event.r#type(), uid)
    }

    /// Asserts that no event arrives for a minute.
    async fn hears_nothing(&mut self) {
        let heard = timeout(Duration::from_secs(60), self.events.message()).await;
        assert!(heard.is_err(), "{heard:?}");
    }
}

fn uid(pod: &Bytes) -> String {
    core::Pod::decode(pod.clone()).unwrap().metadata.map(|metadata| metadata.uid).unwrap_or_default()
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

fn object(name: &str, uid: &str, phase: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"nodeName": NODE, "containers": []},
        "status": {"phase": phase},
    })
}

/// The kubelet's `/pods` endpoint over TLS.
struct Page {
    ca: CertifiedIssuer<'static, KeyPair>,
    port: u16,
    items: Arc<Mutex<Vec<Value>>>,
}

impl Page {
    async fn start() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &ca).unwrap();
        let cert = CertificateDer::from_pem_slice(cert.pem().as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let items = Arc::<Mutex<Vec<Value>>>::default();
        let told = Arc::clone(&items);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, told) = (acceptor.clone(), Arc::clone(&told));
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut request = vec![0; 4096];
                    while stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                        let body = json!({"kind": "PodList", "items": &*told.lock().unwrap()}).to_string();
                        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                        let _ = stream.write_all((head + &body).as_bytes()).await;
                    }
                });
            }
        });
        Self { ca, port, items }
    }

    fn set(&self, items: Vec<Value>) {
        *self.items.lock().unwrap() = items;
    }

    fn kubeconfig(&self, api_server: &str) -> String {
        let file = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {
                "server": api_server, "certificate-authority-data": base64(self.ca.pem().as_bytes()),
            }}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "users": [{"name": "a", "user": {"token": "secret"}}],
        });
        file.to_string()
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let number =
            chunk.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let known = digit <= chunk.len();
            let digit = DIGITS[(number >> (18 - 6 * digit) & 63) as usize];
            out.push(if known { char::from(digit) } else { '=' });
        }
    }
    out
}

fn said(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

#[tokio::test(start_paused = true)]
async fn a_start_an_update_a_deletion_and_the_end() {
    let api_server = ApiServer::start_on_any_port(0).await.unwrap();
    let served = Served::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let (mut pods, mut infos) = (served.pods().await, served.infos().await);
    let initializing = (Code::FailedPrecondition, "Kubelet is initializing");
    assert_eq!(said(&pods.list_pods(ListPodsRequest {}).await.unwrap_err()), initializing);
    assert_eq!(said(&pods.get_pod(GetPodRequest::default()).await.unwrap_err()), initializing);
    assert_eq!(said(&pods.watch_pods(WatchPodsRequest {}).await.unwrap_err()), initializing);
    let list = infos.list_pod_conditions(ListPodConditionsRequest {}).await;
    assert_eq!(said(&list.unwrap_err()), initializing);
    assert!(!served.health.ready().is_empty());

    let kubelet = SimPodsApi::start(served.kubelets()).unwrap();
    for (name, uid) in [("c", "3"), ("a", "2"), ("b", "1")] {
        kubelet.set(&pod(name, uid, "Running"));
    }
    assert_eq!(served.listed().await, ["1", "2", "3"], "by UID");
    let got = pods.get_pod(GetPodRequest { pod_uid: "2".into() }).await.unwrap().into_inner().pod;
    assert_eq!(got, pod("a", "2", "Running").encode_to_vec(), "as it came");
    for (uid, text) in [("4", "pod with UID 4 not found"), ("", "pod with UID  not found")] {
        let status = pods.get_pod(GetPodRequest { pod_uid: uid.into() }).await.unwrap_err();
        assert_eq!(said(&status), (Code::NotFound, text));
        let request = GetPodConditionsRequest { pod_uid: uid.into() };
        let status = infos.get_pod_conditions(request).await.unwrap_err();
        assert_eq!(said(&status), (Code::NotFound, text));
    }

    let mut watching = served.watch().await;
    assert_eq!(watching.known.keys().collect::<Vec<_>>(), ["1", "2", "3"]);
    kubelet.set(&pod("a", "2", "Failed"));
    assert_eq!(watching.hears().await, (EventType::Modified, "2".to_owned()));
    kubelet.remove(&pod("b", "1", "Running"));
    assert_eq!(watching.hears().await, (EventType::Deleted, "1".to_owned()));
    kubelet.set(&pod("b", "4", "Pending"));
    assert_eq!(watching.hears().await, (EventType::Added, "4".to_owned()));
    watching.hears_nothing().await;
    let list = infos.list_pod_conditions(ListPodConditionsRequest {}).await.unwrap().into_inner().pods;
    let shown: Vec<_> = list.iter().map(|pod| (&*pod.pod_uid, &*pod.pod_name, &*pod.phase)).collect();
    assert_eq!(shown, [("2", "a", "Failed"), ("3", "c", "Running"), ("4", "b", "Pending")]);

    sleep(Duration::from_secs(10)).await;
    assert_eq!(served.health.ready(), Vec::<String>::new());
    for sample in [
        r#"numacast_pods_api_watchers{server_api_version="v1alpha1"} 1"#,
        r#"numacast_pods_api_pods{server_api_version="v1alpha1",state="served"} 3"#,
        r#"numacast_pod_source_up{component="pods_api",source="pods_api"} 1"#,
        r#"numacast_pod_requests_total{method="get",server_api_version="v1alpha1",status_code="NotFound"} 2"#,
    ] {
        assert!(served.shows(sample), "{sample}");
    }
    let ending = tokio::spawn(served.stop());
    let status = watching.events.message().await.unwrap_err();
    assert_eq!(said(&status), (Code::Unavailable, "numacast stops serving pods: connect again"));
    ending.await.unwrap();
}

/// Sends any message to any method.
async fn ask(channel: &Channel, path: &'static str, message: &'static [u8]) -> Status {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<Raw, Raw>::default();
    let request = Request::new(Raw(Bytes::from_static(message)));
    let answer = client.server_streaming(request, PathAndQuery::from_static(path), codec).await;
    match answer {
        Err(status) => status,
        Ok(answer) => answer.into_inner().message().await.unwrap_err(),
    }
}

/// A message as raw bytes.
#[derive(Debug, Default)]
struct Raw(Bytes);

impl Message for Raw {
    fn encode_raw(&self, out: &mut impl prost::bytes::BufMut) {
        out.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: prost::encoding::WireType,
        buf: &mut impl prost::bytes::Buf,
        context: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        prost::encoding::skip_field(wire_type, tag, buf, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {}
}

#[tokio::test(start_paused = true)]
async fn bad_requests_get_the_documented_codes() {
    let api_server = ApiServer::start_on_any_port(0).await.unwrap();
    let served = Served::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let kubelet = SimPodsApi::start(served.kubelets()).unwrap();
    kubelet.set(&pod("a", "1", "Running"));
    served.listed().await;
    let channel = served.channel().await;
    for (path, code, text) in [
        ("/v1alpha1.Pods/Delete", Code::Unimplemented, "unknown method Delete for service v1alpha1.Pods"),
        (
            "/podinfo.v1alpha1.PodInfo/ListPods",
            Code::Unimplemented,
            "unknown method ListPods for service podinfo.v1alpha1.PodInfo",
        ),
        ("/v1.PodResourcesLister/List", Code::Unimplemented, "unknown service v1.PodResourcesLister"),
        ("/v1alpha1.Pods/ListPods", Code::Internal, "grpc: error unmarshalling request: "),
        ("/v1alpha1.Pods/GetPod", Code::Internal, "grpc: error unmarshalling request: "),
        ("/v1alpha1.Pods/WatchPods", Code::Internal, "grpc: failed to unmarshal the received message: "),
        ("/podinfo.v1alpha1.PodInfo/GetPodConditions", Code::Internal, "grpc: error unmarshalling request: "),
    ] {
        let status = ask(&channel, path, b"\x0a\xff").await;
        assert_eq!(status.code(), code, "{path}: {status}");
        assert!(status.message().starts_with(text), "{path}: {status}");
    }
    // A UID that is not valid UTF-8.
    let status = ask(&channel, "/v1alpha1.Pods/GetPod", b"\x0a\x01\xff").await;
    assert_eq!(status.code(), Code::Internal, "{status}");
    // Filters, which the documentation of the kubelet's API describes and no kubelet implements, have no
    // effect.
    let status = ask(&channel, "/v1alpha1.Pods/GetPod", b"\x0a\x01\x39\x7a\x01x").await;
    assert_eq!(said(&status), (Code::NotFound, "pod with UID 9 not found"));
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_lists_too_often_is_rejected_and_may_watch() {
    let api_server = ApiServer::start_on_any_port(0).await.unwrap();
    let served = Served::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let kubelet = SimPodsApi::start(served.kubelets()).unwrap();
    kubelet.set(&pod("a", "1", "Running"));
    served.listed().await;
    sleep(Duration::from_secs(1)).await;
    let mut client = served.pods().await;
    let started = Instant::now();
    let (mut answered, mut rejected) = (0, 0);
    for _ in 0..50 {
        match client.list_pods(ListPodsRequest {}).await {
            Ok(_) => answered += 1,
            Err(status) => {
                assert_eq!(said(&status), (Code::ResourceExhausted, "rejected by rate limit"));
                rejected += 1;
            }
        }
    }
    // The tokens refilled meanwhile, on a clock that advances only when all tasks wait.
    let earned = started.elapsed().as_millis() / 10 + 1;
    assert!(answered >= 10 && answered <= 10 + earned && rejected > 0, "{answered}, earned {earned}");
    for _ in 0..50 {
        client.watch_pods(WatchPodsRequest {}).await.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    client.list_pods(ListPodsRequest {}).await.unwrap();
    let limited = r#"numacast_grpc_limits_exceeded_total{component="pods_api",reason="rate_limit"}"#;
    assert!(served.shows(&format!("{limited} {rejected}")));
    assert!(!served.shows(r#"status_code="ResourceExhausted""#), "the kubelet does not count them");
    served.stop().await;
}

/// Returns a pod of about the usual size.
fn fat(version: usize) -> core::Pod {
    let mut fat = pod("fat", "1", "Running");
    let metadata = fat.metadata.get_or_insert_default();
    metadata.annotations.insert("x".to_owned(), format!("{version:08}").repeat(1000).into());
    fat
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_does_not_read_is_cut_off_alone() {
    let api_server = ApiServer::start_on_any_port(0).await.unwrap();
    let served = Served::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let kubelet = SimPodsApi::start(served.kubelets()).unwrap();
    kubelet.set(&fat(0));
    served.listed().await;
    let (mut slow, mut quick) = (served.watch().await, served.watch().await);
    // The stream has what fits into the client's window, plus a hundred buffered events.
    for version in 1..=100 {
        kubelet.set(&fat(version));
        assert_eq!(quick.hears().await.0, EventType::Modified);
    }
    assert!(served.shows("numacast_pod_watch_events_dropped_total 0"));
    for version in 101..=300 {
        kubelet.set(&fat(version));
        assert_eq!(quick.hears().await.0, EventType::Modified);
    }
    assert!(served.shows("numacast_pod_watch_events_dropped_total 1"));
    // It is disconnected at once although it does not read and has received part of a message: by an HTTP/2
    // reset.
    sleep(Duration::from_millis(100)).await;
    assert!(served.shows(r#"numacast_pods_api_watchers{server_api_version="v1alpha1"} 1"#));
    let mut heard = 0;
    let status = loop {
        match slow.events.message().await {
            Ok(event) => heard += usize::from(event.is_some()),
            Err(status) => break status,
        }
    };
    assert!(status.code() == Code::ResourceExhausted && heard < 200, "{heard}: {status}");
    assert!(served.shows(r#"watch_total{server_api_version="v1alpha1",status_code="ResourceExhausted"} 1"#));
    quick.hears_nothing().await;
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_works_on_an_event_for_a_while_is_not_cut_off() {
    let api_server = ApiServer::start_on_any_port(0).await.unwrap();
    let served = Served::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let kubelet = SimPodsApi::start(served.kubelets()).unwrap();
    kubelet.set(&fat(0));
    served.listed().await;
    let (mut slow, mut quick) = (served.watch().await, served.watch().await);
    for version in 1..=50 {
        kubelet.set(&fat(version));
        assert_eq!(quick.hears().await.0, EventType::Modified);
    }
    sleep(Duration::from_secs(45)).await;
    for _ in 1..=50 {
        assert_eq!(slow.hears().await.0, EventType::Modified);
    }
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_was_away_tells_what_differs_once() {
    let api_server = ApiServer::start_on_any_port(0).await.unwrap();
    let served = Served::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let mut kubelet = SimPodsApi::start(served.kubelets()).unwrap();
    for (name, uid) in [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")] {
        kubelet.set(&pod(name, uid, "Running"));
    }
    served.listed().await;
    let mut watching = served.watch().await;
    kubelet.stop();
    let down = r#"numacast_pod_source_up{component="pods_api",source="pods_api"} 0"#;
    // The broken connection is detected in real time.
    at_one_moment(async {
        while !served.shows(down) {
            yield_now().await;
        }
    })
    .await;
    watching.hears_nothing().await;
    assert!(served.shows(down));
    assert_eq!(served.listed().await, ["1", "2", "3", "4", "5"], "the last known state");
    // `b` changes, `c` is deleted, `d` is replaced by another pod of the same name, and `f` is added.
    kubelet.set_silently(&pod("b", "2", "Failed"));
    kubelet.remove_silently(&pod("c", "3", "Running"));
    kubelet.remove_silently(&pod("d", "4", "Running"));
    kubelet.set_silently(&pod("d", "0", "Running"));
    kubelet.set_silently(&pod("f", "6", "Pending"));
    kubelet.restart().unwrap();
    let mut heard = Vec::new();
    while heard.len() < 5 {
        heard.push(watching.hears().await);
    }
    heard.sort_by(|(_, a), (_, b)| a.cmp(b));
    let expected = [
        (EventType::Added, "0"),
        (EventType::Modified, "2"),
        (EventType::Deleted, "3"),
        (EventType::Deleted, "4"),
        (EventType::Added, "6"),
    ];
    assert_eq!(heard, expected.map(|(kind, uid)| (kind, uid.to_owned())));
    watching.hears_nothing().await;
    assert!(served.shows(r#"numacast_pod_source_up{component="pods_api",source="pods_api"} 1"#));
    // A broken connection causes no event either.
    kubelet.cut_connections();
    watching.hears_nothing().await;
    kubelet.end_watches();
    watching.hears_nothing().await;
    assert_eq!(watching.known.len(), 5);
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_api_server_takes_over_and_the_kubelet_takes_it_back() {
    let api_server = ApiServer::start_on_any_port(0).await.unwrap();
    let order = [PodSourceKind::PodsApi, PodSourceKind::ApiServer];
    let served = Served::start(&order, &api_server, None).await;
    // Old kubelets have no Pods API. A static pod appears as its mirror pod in the API server.
    let mut mirror = object("etcd-worker", "1", "Running");
    mirror["metadata"]["annotations"] =
        json!({"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"});
    api_server.put(&PODS, mirror).unwrap();
    api_server.put(&PODS, object("a", "2", "Running")).unwrap();
    assert_eq!(served.listed().await, ["1", "2"]);
    let mut pods = served.pods().await;
    for uid in ["1", "hash"] {
        pods.get_pod(GetPodRequest { pod_uid: uid.into() }).await.unwrap();
    }
    let mut infos = served.infos().await;
    let list = infos.list_pod_conditions(ListPodConditionsRequest {}).await.unwrap().into_inner().pods;
    let shown: Vec<_> = list.iter().map(|pod| (&*pod.pod_uid, &*pod.phase, pod.r#static)).collect();
    assert_eq!(shown, [("2", "Running", false), ("hash", "Running", true)]);
    let mut watching = served.watch().await;
    let mut conditions = infos.watch_pod_conditions(WatchPodConditionsRequest {}).await.unwrap().into_inner();
    for expected in [InfoType::Added, InfoType::Added, InfoType::InitialSyncComplete] {
        assert_eq!(conditions.message().await.unwrap().unwrap().r#type(), expected);
    }
    api_server.put(&PODS, object("b", "3", "Pending")).unwrap();
    assert_eq!(watching.hears().await, (EventType::Added, "3".to_owned()));
    let event: WatchPodConditionsEvent = conditions.message().await.unwrap().unwrap();
    let kind = event.r#type();
    assert_eq!((kind, &*event.pod.unwrap().phase), (InfoType::Added, "Pending"));
    // The API server is down for a while; afterwards the changes made meanwhile are sent.
    api_server.stop();
    watching.hears_nothing().await;
    assert_eq!(served.listed().await, ["1", "2", "3"], "the last known state");

    // The kubelet was upgraded: it reports the static pod itself, and becomes the source.
    let kubelet = SimPodsApi::start(served.kubelets()).unwrap();
    let mut etcd = pod("etcd-worker", "hash", "Running");
    let metadata = etcd.metadata.get_or_insert_default();
    metadata.annotations.insert("kubernetes.io/config.source".to_owned(), "file".into());
    kubelet.set(&etcd);
    kubelet.set(&pod("a", "2", "Running"));
    kubelet.set(&pod("b", "3", "Pending"));
    assert_eq!(watching.hears().await, (EventType::Deleted, "1".to_owned()));
    for (kind, uid) in [(EventType::Modified, "2"), (EventType::Modified, "3"), (EventType::Added, "hash")] {
        assert_eq!(watching.hears().await, (kind, uid.to_owned()), "its bytes are others");
    }
    let heard = timeout(Duration::from_secs(60), conditions.message()).await;
    assert!(heard.is_err(), "nothing that PodInfo shows is another: {heard:?}");
    assert_eq!(served.listed().await, ["2", "3", "hash"]);
    for sample in [r#"source="pods_api"} 1"#, r#"source="api_server"} 0"#] {
        let sample = format!(r#"numacast_pod_source_up{{component="pods_api",{sample}"#);
        assert!(served.shows(&sample), "{sample}");
    }
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn where_only_the_kubelets_page_tells_podinfo_is_served_alone() {
    let api_server = ApiServer::start_on_any_port(0).await.unwrap();
    let page = Page::start().await;
    page.set(vec![object("b", "2", "Running"), object("a", "1", "Running")]);
    let served = Served::start(&[PodSourceKind::Kubelet], &api_server, Some(&page)).await;
    let mut infos = served.infos().await;
    let mut list = infos.list_pod_conditions(ListPodConditionsRequest {}).await;
    while let Err(status) = &list {
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        sleep(Duration::from_secs(1)).await;
        list = infos.list_pod_conditions(ListPodConditionsRequest {}).await;
    }
    let pods = list.unwrap().into_inner().pods;
    assert_eq!(pods.iter().map(|pod| &*pod.pod_uid).collect::<Vec<_>>(), ["1", "2"]);
    let mut watch = infos.watch_pod_conditions(WatchPodConditionsRequest {}).await.unwrap().into_inner();
    for expected in [InfoType::Added, InfoType::Added, InfoType::InitialSyncComplete] {
        assert_eq!(watch.message().await.unwrap().unwrap().r#type(), expected);
    }
    page.set(vec![object("b", "2", "Succeeded"), object("a", "1", "Running")]);
    let event = watch.message().await.unwrap().unwrap();
    assert_eq!((event.r#type(), &*event.pod.unwrap().phase), (InfoType::Modified, "Succeeded"));
    let status = served.pods().await.list_pods(ListPodsRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("podinfo.v1alpha1.PodInfo"), "{status}");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(served.health.ready(), Vec::<String>::new());
    served.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_kubelets_page_stands_in_for_podinfo_and_never_for_pods() {
    let api_server = ApiServer::start_on_any_port(0).await.unwrap();
    let page = Page::start().await;
    let order = [PodSourceKind::PodsApi, PodSourceKind::Kubelet];
    let served = Served::start(&order, &api_server, Some(&page)).await;
    let mut kubelet = SimPodsApi::start(served.kubelets()).unwrap();
    kubelet.set(&pod("a", "1", "Running"));
    assert_eq!(served.listed().await, ["1"]);
    let (mut watching, mut infos) = (served.watch().await, served.infos().await);
    let mut watch = infos.watch_pod_conditions(WatchPodConditionsRequest {}).await.unwrap().into_inner();
    for expected in [InfoType::Added, InfoType::InitialSyncComplete] {
        assert_eq!(watch.message().await.unwrap().unwrap().r#type(), expected);
    }
    kubelet.stop();
    page.set(vec![object("a", "1", "Failed")]);
    let event = watch.message().await.unwrap().unwrap();
    assert_eq!((event.r#type(), &*event.pod.unwrap().phase), (InfoType::Modified, "Failed"));
    assert!(served.shows(r#"numacast_pod_source_up{component="pods_api",source="kubelet"} 1"#));
    watching.hears_nothing().await;
    let pods = served.pods().await.list_pods(ListPodsRequest {}).await.unwrap().into_inner().pods;
    assert_eq!(pods, [pod("a", "1", "Running").encode_to_vec()], "as it was told last");
    // The kubelet's own API is back with newer state.
    kubelet.set_silently(&pod("a", "1", "Succeeded"));
    kubelet.restart().unwrap();
    assert_eq!(watching.hears().await, (EventType::Modified, "1".to_owned()));
    let event = watch.message().await.unwrap().unwrap();
    assert_eq!((event.r#type(), &*event.pod.unwrap().phase), (InfoType::Modified, "Succeeded"));
    assert!(served.shows(r#"numacast_pod_source_up{component="pods_api",source="kubelet"} 0"#));
    let heard = timeout(Duration::from_secs(60), watch.message()).await;
    assert!(heard.is_err(), "/pods is not read any more: {heard:?}");
    served.stop().await;
}
