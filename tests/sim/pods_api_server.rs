//! The Pods API server with simulated sources and faults that real ones do not produce on demand. Time is
//! virtual.

mod environment;
mod pods_endpoint;

use std::time::Duration;

use http::uri::PathAndQuery;
use numacast::core_v1::proto as core;
use numacast::kubelet::proto::pods::{EventType, GetPodRequest, ListPodsRequest, WatchPodsRequest};
use numacast::pod_source::PodSourceKind;
use numacast::pods_api::proto::v1alpha1::pod_info_client::PodInfoClient;
use numacast::pods_api::proto::v1alpha1::{
    EventType as InfoType, GetPodConditionsRequest, ListPodConditionsRequest, WatchPodConditionsEvent,
    WatchPodConditionsRequest,
};
use numacast_sim::api_server::{ApiServer, PODS};
use numacast_sim::pods_api::SimPodsApi;
use prost::Message;
use prost::bytes::Bytes;
use serde_json::json;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use self::environment::{Environment, object};
use self::pods_endpoint::PodsEndpoint;
use crate::support::{pod, with_frozen_clock};

fn code_and_message(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

#[tokio::test(start_paused = true)]
async fn pods_are_served_and_watched_until_the_server_stops() {
    let api_server = ApiServer::start_in_process(0);
    let env = Environment::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let (mut pods, mut infos) = (env.pods().await, env.infos().await);
    let initializing = (Code::FailedPrecondition, "Kubelet is initializing");
    assert_eq!(code_and_message(&pods.list_pods(ListPodsRequest {}).await.unwrap_err()), initializing);
    assert_eq!(code_and_message(&pods.get_pod(GetPodRequest::default()).await.unwrap_err()), initializing);
    assert_eq!(code_and_message(&pods.watch_pods(WatchPodsRequest {}).await.unwrap_err()), initializing);
    let list = infos.list_pod_conditions(ListPodConditionsRequest {}).await;
    assert_eq!(code_and_message(&list.unwrap_err()), initializing);
    assert!(!env.health.ready().is_empty());

    let kubelet = SimPodsApi::start(env.kubelets_socket()).unwrap();
    for (name, uid) in [("c", "3"), ("a", "2"), ("b", "1")] {
        kubelet.set(&pod(name, uid, "Running"));
    }
    assert_eq!(env.list().await, ["1", "2", "3"], "by UID");
    let got = pods.get_pod(GetPodRequest { pod_uid: "2".into() }).await.unwrap().into_inner().pod;
    assert_eq!(got, pod("a", "2", "Running").encode_to_vec(), "the same bytes");
    for (uid, text) in [("4", "pod with UID 4 not found"), ("", "pod with UID  not found")] {
        let status = pods.get_pod(GetPodRequest { pod_uid: uid.into() }).await.unwrap_err();
        assert_eq!(code_and_message(&status), (Code::NotFound, text));
        let request = GetPodConditionsRequest { pod_uid: uid.into() };
        let status = infos.get_pod_conditions(request).await.unwrap_err();
        assert_eq!(code_and_message(&status), (Code::NotFound, text));
    }

    let mut watch = env.watch().await;
    assert_eq!(watch.pods.keys().collect::<Vec<_>>(), ["1", "2", "3"]);
    kubelet.set(&pod("a", "2", "Failed"));
    assert_eq!(watch.next().await, (EventType::Modified, "2".to_owned()));
    kubelet.remove(&pod("b", "1", "Running"));
    assert_eq!(watch.next().await, (EventType::Deleted, "1".to_owned()));
    kubelet.set(&pod("b", "4", "Pending"));
    assert_eq!(watch.next().await, (EventType::Added, "4".to_owned()));
    watch.expect_no_event().await;
    let list = infos.list_pod_conditions(ListPodConditionsRequest {}).await.unwrap().into_inner().pods;
    let shown: Vec<_> = list.iter().map(|pod| (&*pod.pod_uid, &*pod.pod_name, &*pod.phase)).collect();
    assert_eq!(shown, [("2", "a", "Failed"), ("3", "c", "Running"), ("4", "b", "Pending")]);

    sleep(Duration::from_secs(10)).await;
    assert_eq!(env.health.ready(), Vec::<String>::new());
    for sample in [
        r#"numacast_pods_api_watchers{server_api_version="v1alpha1"} 1"#,
        r#"numacast_pods_api_pods{server_api_version="v1alpha1",state="served"} 3"#,
        r#"numacast_pod_source_up{component="pods_api",source="pods_api"} 1"#,
        r#"numacast_pod_requests_total{method="get",server_api_version="v1alpha1",status_code="NotFound"} 2"#,
    ] {
        assert!(env.has_metric(sample), "{sample}");
    }
    let stopped = tokio::spawn(env.stop());
    let status = watch.events.message().await.unwrap_err();
    assert_eq!(code_and_message(&status), (Code::Unavailable, "numacast stops serving pods: connect again"));
    stopped.await.unwrap();
}

/// Sends any message to any method, and returns the error.
async fn send_raw(channel: &Channel, path: &'static str, message: &'static [u8]) -> Status {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<Raw, Raw>::default();
    let request = Request::new(Raw(Bytes::from_static(message)));
    let response = client.server_streaming(request, PathAndQuery::from_static(path), codec).await;
    match response {
        Err(status) => status,
        Ok(response) => response.into_inner().message().await.unwrap_err(),
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
async fn invalid_requests_get_the_kubelets_codes() {
    let api_server = ApiServer::start_in_process(0);
    let env = Environment::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let kubelet = SimPodsApi::start(env.kubelets_socket()).unwrap();
    kubelet.set(&pod("a", "1", "Running"));
    env.list().await;
    let channel = env.channel().await;
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
        let status = send_raw(&channel, path, b"\x0a\xff").await;
        assert_eq!(status.code(), code, "{path}: {status}");
        assert!(status.message().starts_with(text), "{path}: {status}");
    }
    // A UID that is not valid UTF-8.
    let status = send_raw(&channel, "/v1alpha1.Pods/GetPod", b"\x0a\x01\xff").await;
    assert_eq!(status.code(), Code::Internal, "{status}");
    // Filters, which the documentation of the kubelet's API describes and no kubelet implements, have no
    // effect.
    let status = send_raw(&channel, "/v1alpha1.Pods/GetPod", b"\x0a\x01\x39\x7a\x01x").await;
    assert_eq!(code_and_message(&status), (Code::NotFound, "pod with UID 9 not found"));
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lists_are_rate_limited_and_watches_are_not() {
    let api_server = ApiServer::start_in_process(0);
    let env = Environment::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let kubelet = SimPodsApi::start(env.kubelets_socket()).unwrap();
    kubelet.set(&pod("a", "1", "Running"));
    env.list().await;
    sleep(Duration::from_secs(1)).await;
    let mut client = env.pods().await;
    let started = Instant::now();
    let (mut accepted, mut rejected) = (0, 0);
    for _ in 0..50 {
        match client.list_pods(ListPodsRequest {}).await {
            Ok(_) => accepted += 1,
            Err(status) => {
                assert_eq!(code_and_message(&status), (Code::ResourceExhausted, "rejected by rate limit"));
                rejected += 1;
            }
        }
    }
    // The tokens refilled meanwhile, on a clock that advances only when all tasks wait.
    let refilled = started.elapsed().as_millis() / 10 + 1;
    assert!(accepted >= 10 && accepted <= 10 + refilled && rejected > 0, "{accepted}, {refilled} refilled");
    for _ in 0..50 {
        client.watch_pods(WatchPodsRequest {}).await.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    client.list_pods(ListPodsRequest {}).await.unwrap();
    let limited = r#"numacast_grpc_limits_exceeded_total{component="pods_api",reason="rate_limit"}"#;
    assert!(env.has_metric(&format!("{limited} {rejected}")));
    assert!(!env.has_metric(r#"status_code="ResourceExhausted""#), "the kubelet does not count them");
    env.stop().await;
}

/// Returns a pod of about the usual size, 8 kB.
fn large(version: usize) -> core::Pod {
    let mut pod = pod("large", "1", "Running");
    let metadata = pod.metadata.get_or_insert_default();
    metadata.annotations.insert("x".to_owned(), format!("{version:08}").repeat(1000).into());
    pod
}

#[tokio::test(start_paused = true)]
async fn only_the_watch_of_a_client_that_does_not_read_is_ended() {
    let api_server = ApiServer::start_in_process(0);
    let env = Environment::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let kubelet = SimPodsApi::start(env.kubelets_socket()).unwrap();
    kubelet.set(&large(0));
    env.list().await;
    let (mut slow, mut quick) = (env.watch().await, env.watch().await);
    // The stream has what fits into the client's window, plus a hundred buffered events.
    for version in 1..=100 {
        kubelet.set(&large(version));
        assert_eq!(quick.next().await.0, EventType::Modified);
    }
    assert!(env.has_metric("numacast_pod_watch_events_dropped_total 0"));
    for version in 101..=300 {
        kubelet.set(&large(version));
        assert_eq!(quick.next().await.0, EventType::Modified);
    }
    assert!(env.has_metric("numacast_pod_watch_events_dropped_total 1"));
    // It is disconnected at once although it does not read and has received part of a message: by an HTTP/2
    // reset.
    sleep(Duration::from_millis(100)).await;
    assert!(env.has_metric(r#"numacast_pods_api_watchers{server_api_version="v1alpha1"} 1"#));
    let mut events = 0;
    let status = loop {
        match slow.events.message().await {
            Ok(event) => events += usize::from(event.is_some()),
            Err(status) => break status,
        }
    };
    assert!(status.code() == Code::ResourceExhausted && events < 200, "{events}: {status}");
    let ended = r#"method="watch",server_api_version="v1alpha1",status_code="ResourceExhausted""#;
    assert!(env.has_metric(&format!("numacast_pod_requests_total{{{ended}}} 1")));
    quick.expect_no_event().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_may_pause_for_a_while() {
    let api_server = ApiServer::start_in_process(0);
    let env = Environment::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let kubelet = SimPodsApi::start(env.kubelets_socket()).unwrap();
    kubelet.set(&large(0));
    env.list().await;
    let (mut slow, mut quick) = (env.watch().await, env.watch().await);
    for version in 1..=50 {
        kubelet.set(&large(version));
        assert_eq!(quick.next().await.0, EventType::Modified);
    }
    sleep(Duration::from_secs(45)).await;
    for _ in 1..=50 {
        assert_eq!(slow.next().await.0, EventType::Modified);
    }
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_kubelet_restart_only_changes_are_sent() {
    let api_server = ApiServer::start_in_process(0);
    let env = Environment::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let mut kubelet = SimPodsApi::start(env.kubelets_socket()).unwrap();
    for (name, uid) in [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")] {
        kubelet.set(&pod(name, uid, "Running"));
    }
    env.list().await;
    let mut watch = env.watch().await;
    kubelet.stop();
    let down = r#"numacast_pod_source_up{component="pods_api",source="pods_api"} 0"#;
    // The broken connection is detected in real time.
    with_frozen_clock(async {
        while !env.has_metric(down) {
            yield_now().await;
        }
    })
    .await;
    watch.expect_no_event().await;
    assert!(env.has_metric(down));
    assert_eq!(env.list().await, ["1", "2", "3", "4", "5"], "the last known state");
    // `b` changes, `c` is deleted, `d` is replaced by another pod of the same name, and `f` is added.
    kubelet.set_silently(&pod("b", "2", "Failed"));
    kubelet.remove_silently(&pod("c", "3", "Running"));
    kubelet.remove_silently(&pod("d", "4", "Running"));
    kubelet.set_silently(&pod("d", "0", "Running"));
    kubelet.set_silently(&pod("f", "6", "Pending"));
    kubelet.restart().unwrap();
    let mut events = Vec::new();
    while events.len() < 5 {
        events.push(watch.next().await);
    }
    events.sort_by(|(_, a), (_, b)| a.cmp(b));
    let expected = [
        (EventType::Added, "0"),
        (EventType::Modified, "2"),
        (EventType::Deleted, "3"),
        (EventType::Deleted, "4"),
        (EventType::Added, "6"),
    ];
    assert_eq!(events, expected.map(|(kind, uid)| (kind, uid.to_owned())));
    watch.expect_no_event().await;
    assert!(env.has_metric(r#"numacast_pod_source_up{component="pods_api",source="pods_api"} 1"#));
    // A broken connection causes no event either.
    kubelet.cut_connections();
    watch.expect_no_event().await;
    kubelet.end_watches();
    watch.expect_no_event().await;
    assert_eq!(watch.pods.len(), 5);
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_api_server_is_the_source_while_the_kubelet_has_no_pods_api() {
    let api_server = ApiServer::start_in_process(0);
    let order = [PodSourceKind::PodsApi, PodSourceKind::ApiServer];
    let env = Environment::start(&order, &api_server, None).await;
    // Old kubelets have no Pods API. A static pod appears as its mirror pod in the API server.
    let mut mirror = object("etcd-worker", "1", "Running");
    mirror["metadata"]["annotations"] =
        json!({"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"});
    api_server.put(&PODS, mirror).unwrap();
    api_server.put(&PODS, object("a", "2", "Running")).unwrap();
    assert_eq!(env.list().await, ["1", "2"]);
    let mut pods = env.pods().await;
    for uid in ["1", "hash"] {
        pods.get_pod(GetPodRequest { pod_uid: uid.into() }).await.unwrap();
    }
    let mut infos = env.infos().await;
    let list = infos.list_pod_conditions(ListPodConditionsRequest {}).await.unwrap().into_inner().pods;
    let shown: Vec<_> = list.iter().map(|pod| (&*pod.pod_uid, &*pod.phase, pod.r#static)).collect();
    assert_eq!(shown, [("2", "Running", false), ("hash", "Running", true)]);
    let mut watch = env.watch().await;
    let mut conditions = infos.watch_pod_conditions(WatchPodConditionsRequest {}).await.unwrap().into_inner();
    for expected in [InfoType::Added, InfoType::Added, InfoType::InitialSyncComplete] {
        assert_eq!(conditions.message().await.unwrap().unwrap().r#type(), expected);
    }
    api_server.put(&PODS, object("b", "3", "Pending")).unwrap();
    assert_eq!(watch.next().await, (EventType::Added, "3".to_owned()));
    let event: WatchPodConditionsEvent = conditions.message().await.unwrap().unwrap();
    let kind = event.r#type();
    assert_eq!((kind, &*event.pod.unwrap().phase), (InfoType::Added, "Pending"));
    // The API server is down for a while; afterwards the changes made meanwhile are sent.
    api_server.stop();
    watch.expect_no_event().await;
    assert_eq!(env.list().await, ["1", "2", "3"], "the last known state");

    // The kubelet was upgraded: it reports the static pod itself, and becomes the source.
    let kubelet = SimPodsApi::start(env.kubelets_socket()).unwrap();
    let mut etcd = pod("etcd-worker", "hash", "Running");
    let metadata = etcd.metadata.get_or_insert_default();
    metadata.annotations.insert("kubernetes.io/config.source".to_owned(), "file".into());
    kubelet.set(&etcd);
    kubelet.set(&pod("a", "2", "Running"));
    kubelet.set(&pod("b", "3", "Pending"));
    assert_eq!(watch.next().await, (EventType::Deleted, "1".to_owned()));
    for (kind, uid) in [(EventType::Modified, "2"), (EventType::Modified, "3"), (EventType::Added, "hash")] {
        assert_eq!(watch.next().await, (kind, uid.to_owned()), "its bytes differ");
    }
    let event = timeout(Duration::from_secs(60), conditions.message()).await;
    assert!(event.is_err(), "nothing that PodInfo has changed: {event:?}");
    assert_eq!(env.list().await, ["2", "3", "hash"]);
    for sample in [r#"source="pods_api"} 1"#, r#"source="api_server"} 0"#] {
        let sample = format!(r#"numacast_pod_source_up{{component="pods_api",{sample}"#);
        assert!(env.has_metric(&sample), "{sample}");
    }
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn with_the_pods_endpoint_as_the_only_source_only_podinfo_is_served() {
    let api_server = ApiServer::start_in_process(0);
    let page = PodsEndpoint::start().await;
    page.set(vec![object("b", "2", "Running"), object("a", "1", "Running")]);
    let env = Environment::start(&[PodSourceKind::Kubelet], &api_server, Some(&page)).await;
    let mut infos = env.infos().await;
    let mut list = infos.list_pod_conditions(ListPodConditionsRequest {}).await;
    let start = Instant::now();
    while let Err(status) = &list {
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        // `/pods` is read over TCP in real time, in which the paused clock may advance by minutes.
        assert!(start.elapsed() < Duration::from_secs(3600), "the pods cannot be listed: {status}");
        sleep(Duration::from_secs(1)).await;
        list = infos.list_pod_conditions(ListPodConditionsRequest {}).await;
    }
    let pods = list.unwrap().into_inner().pods;
    assert_eq!(pods.iter().map(|pod| &*pod.pod_uid).collect::<Vec<_>>(), ["1", "2"]);
    let mut conditions = infos.watch_pod_conditions(WatchPodConditionsRequest {}).await.unwrap().into_inner();
    for expected in [InfoType::Added, InfoType::Added, InfoType::InitialSyncComplete] {
        assert_eq!(conditions.message().await.unwrap().unwrap().r#type(), expected);
    }
    page.set(vec![object("b", "2", "Succeeded"), object("a", "1", "Running")]);
    let event = conditions.message().await.unwrap().unwrap();
    assert_eq!((event.r#type(), &*event.pod.unwrap().phase), (InfoType::Modified, "Succeeded"));
    let status = env.pods().await.list_pods(ListPodsRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("podinfo.v1alpha1.PodInfo"), "{status}");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(env.health.ready(), Vec::<String>::new());
    env.stop().await;
}

/// In real time, since `/pods` is read over TCP.
#[tokio::test]
async fn podinfo_from_the_pods_endpoint_is_never_older_than_its_request() {
    let api_server = ApiServer::start_in_process(0);
    let page = PodsEndpoint::start().await;
    page.set(vec![object("a", "1", "Pending")]);
    let env = Environment::start(&[PodSourceKind::Kubelet], &api_server, Some(&page)).await;
    let mut infos = env.infos().await;
    while let Err(status) = infos.list_pod_conditions(ListPodConditionsRequest {}).await {
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        sleep(Duration::from_millis(50)).await;
    }
    for phase in ["Running", "Unknown", "Succeeded", "Running", "Failed"] {
        page.set(vec![object("a", "1", phase)]);
        let list = infos.list_pod_conditions(ListPodConditionsRequest {}).await.unwrap().into_inner();
        assert_eq!(list.pods[0].phase, phase);
        page.set(vec![object("a", "1", "Pending")]);
        let request = GetPodConditionsRequest { pod_uid: "1".to_owned() };
        let got = infos.get_pod_conditions(request).await.unwrap().into_inner();
        assert_eq!(got.pod.unwrap().phase, "Pending");
    }
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_socket_of_podinfo_serves_nothing_else() {
    let api_server = ApiServer::start_in_process(0);
    let env = Environment::start(&[PodSourceKind::PodsApi], &api_server, None).await;
    let kubelet = SimPodsApi::start(env.kubelets_socket()).unwrap();
    kubelet.set(&pod("a", "1", "Running"));
    assert_eq!(env.list().await, ["1"]);
    let channel = env.info_channel().await;
    for path in [
        "/v1alpha1.Pods/ListPods",
        "/v1alpha1.Pods/GetPod",
        "/v1alpha1.Pods/WatchPods",
        "/v1alpha1.Pods/",
        "/v1.PodResourcesLister/List",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ] {
        let status = send_raw(&channel, path, b"\x0a\x011").await;
        assert_eq!(status.code(), Code::Unimplemented, "{path}: {status}");
        assert!(status.message().starts_with("unknown service "), "{path}: {status}");
    }
    let mut infos = PodInfoClient::new(channel);
    let list = infos.list_pod_conditions(ListPodConditionsRequest {}).await.unwrap().into_inner();
    assert_eq!(list.pods.iter().map(|pod| &*pod.pod_name).collect::<Vec<_>>(), ["a"]);
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_pods_endpoint_is_a_fallback_for_podinfo_only() {
    let api_server = ApiServer::start_in_process(0);
    let page = PodsEndpoint::start().await;
    let order = [PodSourceKind::PodsApi, PodSourceKind::Kubelet];
    let env = Environment::start(&order, &api_server, Some(&page)).await;
    let mut kubelet = SimPodsApi::start(env.kubelets_socket()).unwrap();
    kubelet.set(&pod("a", "1", "Running"));
    assert_eq!(env.list().await, ["1"]);
    let (mut watch, mut infos) = (env.watch().await, env.infos().await);
    let mut conditions = infos.watch_pod_conditions(WatchPodConditionsRequest {}).await.unwrap().into_inner();
    for expected in [InfoType::Added, InfoType::InitialSyncComplete] {
        assert_eq!(conditions.message().await.unwrap().unwrap().r#type(), expected);
    }
    kubelet.stop();
    page.set(vec![object("a", "1", "Failed")]);
    let event = conditions.message().await.unwrap().unwrap();
    assert_eq!((event.r#type(), &*event.pod.unwrap().phase), (InfoType::Modified, "Failed"));
    assert!(env.has_metric(r#"numacast_pod_source_up{component="pods_api",source="kubelet"} 1"#));
    watch.expect_no_event().await;
    let pods = env.pods().await.list_pods(ListPodsRequest {}).await.unwrap().into_inner().pods;
    assert_eq!(pods, [pod("a", "1", "Running").encode_to_vec()], "the last known state");
    // The kubelet's own API is back with newer state.
    kubelet.set_silently(&pod("a", "1", "Succeeded"));
    kubelet.restart().unwrap();
    assert_eq!(watch.next().await, (EventType::Modified, "1".to_owned()));
    let event = conditions.message().await.unwrap().unwrap();
    assert_eq!((event.r#type(), &*event.pod.unwrap().phase), (InfoType::Modified, "Succeeded"));
    assert!(env.has_metric(r#"numacast_pod_source_up{component="pods_api",source="kubelet"} 0"#));
    let event = timeout(Duration::from_secs(60), conditions.message()).await;
    assert!(event.is_err(), "/pods is not read any more: {event:?}");
    env.stop().await;
}
