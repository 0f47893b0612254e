//! Devices from annotations, and the proxy's behaviour while its pod source is down.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use numacast::agent::{Depth, Merge, MergeResponse, NodeReader, ScanError};
use numacast::cluster::Cluster;
use numacast::config::Config;
use numacast::kubelet::{Request, Caller, SharedClient, decode_list};
use numacast::proxy::{Proxy, Settings};
use numacast::sim::api_server::{ApiServer, Fault, PODS, Rule};
use numacast::sim::kubelet::PodSpec;
use numacast::telemetry::health::Probes;
use numacast::telemetry::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Code;

use crate::support::SimNode;

const GPUS: &str = "scheduling.koordinator.sh/device-allocated";

/// A proxy between a simulated kubelet and a client.
struct Served {
    node: SimNode,
    server: ApiServer,
    metrics: Registry,
    health: Arc<dyn Probes>,
    socket: PathBuf,
    /// An agent's reader that counts the annotated devices.
    reader: NodeReader,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Served {
    async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let server = ApiServer::start_on_any_port(0).await.unwrap();
        server.add_node("worker").unwrap();
        Self::on(server, change)
    }

    fn on(server: ApiServer, change: impl FnOnce(&mut Settings)) -> Self {
        let node = SimNode::start();
        let mut config = Config { node_name: "worker".into(), ..Config::default() };
        config.host.root = node.root().to_owned();
        let (mut settings, sources) = (config.proxy_settings(), config.pod_sources());
        change(&mut settings);
        let cluster = Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(5));
        let mut metrics = Registry::default();
        let proxy = Proxy::with_pod_sources(settings, sources, cluster, &mut metrics);
        let (health, socket) = (proxy.health(), config.proxy_socket().path);
        let mut reader = NodeReader::new(&config.agent_settings(), None);
        reader.merge_with(Merge {
            list: proxy.list_merger().map(|merge| Arc::new(merge) as MergeResponse),
            allocatable: proxy.allocatable_merger().map(|merge| Arc::new(merge) as MergeResponse),
        });
        let started = proxy.start().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(proxy.run(Some(started), async { drop(stopped.await) }));
        Self { node, server, metrics, health, socket, reader, stop, task }
    }

    /// Waits until the pod source is synced.
    async fn known(self) -> Self {
        while !self.health.ready().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self
    }

    /// Returns the devices of each pod, as served to a client.
    async fn ask(&self, ask: Request) -> Result<Vec<String>, (Code, String)> {
        let client = SharedClient::start(self.socket.clone(), Duration::from_secs(10), Arc::new(()));
        let refused = |status: tonic::Status| (status.code(), status.message().to_owned());
        let answer = client.request(ask, Caller::Agent).await.map_err(|refusal| refused(refusal.status))?;
        let mut all = Vec::new();
        for pod in decode_list(answer.bytes.clone()).unwrap().pods {
            for container in pod.containers {
                let groups = container.devices.into_iter();
                let devices = groups
                    .flat_map(|group| group.ids.into_iter().map(move |id| (group.resource.clone(), id)));
                all.extend(
                    devices.map(|(resource, id)| format!("{}/{} {resource} {id}", pod.name, container.name)),
                );
            }
        }
        all.sort();
        Ok(all)
    }

    async fn list(&self) -> Result<Vec<String>, (Code, String)> {
        self.ask(Request::List).await
    }

    /// Adds a pod to the API server and starts it on the node.
    async fn run(&self, name: &str, annotation: Option<&str>) {
        self.server.put(&PODS, object(name, annotation)).unwrap();
        self.node.kubelet.start_pod(PodSpec::new(name)).await.unwrap();
    }

    fn figure(&self, sample: &str) -> String {
        let text = self.metrics.encode();
        let line = text.lines().find_map(|line| line.strip_prefix(sample));
        line.unwrap_or_else(|| panic!("{sample} is not in {text}")).trim().to_owned()
    }

    async fn end(self) {
        drop(self.stop);
        self.task.await.unwrap();
        assert!(self.socket.exists(), "the socket's file stays");
    }
}

fn object(name: &str, annotation: Option<&str>) -> Value {
    let mut object = PodSpec::new(name).object("worker", "Running");
    if let Some(text) = annotation {
        object["metadata"]["annotations"] = json!({ GPUS: text });
    }
    object
}

fn gpu(id: &str) -> String {
    json!({"gpu": [{"minor": 0, "id": id}]}).to_string()
}

/// Cuts off the proxy's pod source from now on.
async fn silenced(served: &Served) {
    served.server.inject(Rule {
        verb: Some("watch"),
        resource: Some("pods"),
        times: None,
        fault: Fault::Hang,
    });
    served.server.cut_connections();
    while served.server.watchers(&PODS) > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_scan_fails_while_the_annotated_devices_are_unknown() {
    let server = ApiServer::start_on_any_port(0).await.unwrap();
    server.add_node("worker").unwrap();
    let get = Rule { verb: Some("get"), resource: Some("devices"), times: None, fault: Fault::Status(500) };
    server.inject(get);
    let mut served = Served::on(server, |_| {});
    served.run("a", Some(&gpu("GPU-1"))).await;
    for depth in [Depth::Everything, Depth::Usage] {
        let scan = served.reader.scan(depth, &Arc::default()).await;
        assert!(matches!(scan, Err(ScanError::AnnotationsUnknown)), "GPU-1 would look free: {scan:?}");
    }
    served.server.clear_faults();
    let mut served = served.known().await;
    let scan = loop {
        match served.reader.scan(Depth::Usage, &Arc::default()).await {
            // The proxy is ready before the Device is read again.
            Err(ScanError::AnnotationsUnknown) => tokio::time::sleep(Duration::from_millis(10)).await,
            scan => break scan.unwrap(),
        }
    };
    let containers = scan.usage.pods.iter().flat_map(|pod| &pod.containers);
    assert!(
        containers.flat_map(|container| &container.devices).any(|group| group.ids.contains(&"GPU-1".into()))
    );
    served.end().await;
}

#[tokio::test]
async fn a_client_is_told_of_devices_that_only_annotations_have() {
    let served = Served::with(|_| {}).await.known().await;
    served.run("a", Some(&gpu("GPU-1"))).await;
    served.run("b", None).await;
    let with_plugin = PodSpec::new("c").devices("example.com/nic", 1);
    served.server.put(&PODS, object("c", Some(&gpu("GPU-2")))).unwrap();
    served.node.kubelet.start_pod(with_plugin).await.unwrap();
    let all = served.list().await.unwrap();
    let expected =
        ["a/main nvidia.com/gpu GPU-1", "c/main example.com/nic nic-0", "c/main nvidia.com/gpu GPU-2"];
    assert_eq!(all, expected);
    let get = |name: &str| Request::Get { namespace: "default".to_owned(), name: name.to_owned() };
    assert_eq!(served.ask(get("a")).await.unwrap(), ["a/main nvidia.com/gpu GPU-1"]);
    assert_eq!(served.ask(get("c")).await.unwrap(), all[1..]);
    assert!(served.ask(get("b")).await.unwrap().is_empty());
    let nobody = served.ask(get("x")).await.unwrap_err();
    assert_eq!(nobody, (Code::Unknown, "pod x in namespace default not found".to_owned()));
    assert_eq!(served.figure(r#"numacast_proxy_annotated_devices{state="merged"}"#), "2");
    // An ended pod has no devices although its annotation remains.
    let mut ended = object("a", Some(&gpu("GPU-1")));
    ended["status"]["phase"] = "Succeeded".into();
    served.server.put(&PODS, ended).unwrap();
    while served.list().await.unwrap().len() > 2 {}
    served.end().await;
}

#[tokio::test]
async fn a_pod_that_the_watch_has_not_told_of_is_asked_for() {
    let served = Served::with(|settings| settings.wait = Duration::from_secs(3600)).await.known().await;
    silenced(&served).await;
    served.run("late", Some(&gpu("GPU-7"))).await;
    assert_eq!(served.list().await.unwrap(), ["late/main nvidia.com/gpu GPU-7"]);
    // A pod that the API server does not have is not waited for.
    served.node.kubelet.start_pod(PodSpec::new("static")).await.unwrap();
    assert_eq!(served.list().await.unwrap(), ["late/main nvidia.com/gpu GPU-7"]);
    assert_eq!(served.figure("numacast_proxy_unknown_pods"), "0");
    served.end().await;
}

#[tokio::test]
async fn one_that_has_ended_is_asked_for_only_if_it_is_being_deleted() {
    let server = ApiServer::start_on_any_port(0).await.unwrap();
    server.add_node("worker").unwrap();
    for (name, phase) in [("done", "Succeeded"), ("refused", "Failed"), ("leaving", "Failed")] {
        let mut ended = object(name, Some(&gpu("GPU-1")));
        ended["status"]["phase"] = phase.into();
        if name == "leaving" {
            ended["metadata"]["deletionTimestamp"] = "2026-11-21T14:00:00Z".into();
        }
        server.put(&PODS, ended).unwrap();
    }
    let served = Served::on(server, |settings| settings.wait = Duration::from_secs(3600)).known().await;
    // Kubelets before 1.34 list pods that have ended.
    for name in ["done", "refused", "leaving"] {
        served.node.kubelet.start_pod(PodSpec::new(name)).await.unwrap();
    }
    assert!(served.list().await.unwrap().is_empty());
    let asked: Vec<String> = served.server.requests(&PODS).into_iter().map(|asked| asked.query).collect();
    let times = |name: &str| asked.iter().filter(|query| query.contains(&format!("name%3D{name}"))).count();
    assert_eq!(["done", "refused", "leaving"].map(times), [0, 0, 1], "{asked:?}");
    served.end().await;
}

#[tokio::test]
async fn one_that_nobody_can_tell_of_is_waited_for_once_and_then_served_without_or_refused() {
    for fail_closed in [false, true] {
        let settings = |settings: &mut Settings| {
            settings.wait = Duration::from_millis(200);
            settings.fail_closed = fail_closed;
        };
        let served = Served::with(settings).await.known().await;
        served.run("known", Some(&gpu("GPU-1"))).await;
        assert_eq!(served.list().await.unwrap(), ["known/main nvidia.com/gpu GPU-1"]);
        silenced(&served).await;
        let hang = Rule { verb: Some("list"), resource: Some("pods"), times: None, fault: Fault::Hang };
        served.server.inject(hang);
        served.run("late", Some(&gpu("GPU-7"))).await;
        let answer = served.list().await;
        match fail_closed {
            false => assert_eq!(answer.unwrap(), ["known/main nvidia.com/gpu GPU-1"]),
            true => {
                let (code, text) = answer.unwrap_err();
                assert_eq!(code, Code::Unavailable);
                assert!(text.contains("the kubelet lists 1 unknown pods"), "{text}");
                // A request for a known pod is served.
                let known = Request::Get { namespace: "default".to_owned(), name: "known".to_owned() };
                assert_eq!(served.ask(known).await.unwrap(), ["known/main nvidia.com/gpu GPU-1"]);
            }
        }
        assert_eq!(served.figure("numacast_proxy_unknown_pods"), "1");
        served.server.clear_faults();
        served.server.cut_connections();
        let both = ["known/main nvidia.com/gpu GPU-1", "late/main nvidia.com/gpu GPU-7"];
        while served.list().await.ok().is_none_or(|all| all != both) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        served.end().await;
    }
}

#[tokio::test]
async fn what_was_told_last_is_believed_for_a_while_and_then_no_more() {
    for fail_closed in [false, true] {
        let settings = |settings: &mut Settings| {
            settings.last_known = Duration::from_secs(2);
            settings.fail_closed = fail_closed;
        };
        let served = Served::with(settings).await.known().await;
        served.run("a", Some(&gpu("GPU-1"))).await;
        assert_eq!(served.list().await.unwrap().len(), 1);
        assert_eq!(served.figure("numacast_proxy_passing_through"), "0");
        served.server.stop();
        assert_eq!(served.list().await.unwrap().len(), 1, "what was told last");
        loop {
            match served.list().await {
                Ok(all) if all.is_empty() && !fail_closed => break,
                Err((Code::Unavailable, text)) if fail_closed && text.contains("for too long") => break,
                Ok(all) => assert_eq!(all.len(), 1),
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(served.figure("numacast_proxy_passing_through"), "1");
        served.server.resume().await.unwrap();
        while served.list().await.ok().is_none_or(|all| all.is_empty()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(served.figure("numacast_proxy_passing_through"), "0");
        served.end().await;
    }
}

#[tokio::test]
async fn before_anybody_has_told_anything_answers_are_passed_through_or_refused() {
    for fail_closed in [false, true] {
        let server = ApiServer::start_on_any_port(0).await.unwrap();
        server.add_node("worker").unwrap();
        server.set_denied("list", "pods", true);
        let served = Served::on(server, |settings| {
            settings.wait = Duration::from_millis(50);
            settings.fail_closed = fail_closed;
        });
        served.run("a", Some(&gpu("GPU-1"))).await;
        match served.list().await {
            Ok(all) => assert!(all.is_empty() && !fail_closed, "{all:?}"),
            Err((code, text)) => {
                assert!(fail_closed && code == Code::Unavailable && text.contains("yet"), "{code:?} {text}");
            }
        }
        assert_eq!(served.figure("numacast_proxy_passing_through"), "1");
        assert!(!served.health.ready().is_empty());
        served.server.set_denied("list", "pods", false);
        while served.list().await.ok().is_none_or(|all| all.is_empty()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        served.end().await;
    }
}
