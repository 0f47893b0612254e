//! The proxy's devices from annotations, also while its pod source is down.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use numacast::agent::{Depth, Merge, MergeResponse, NodeReader, ScanError};
use numacast::cluster::Cluster;
use numacast::config::Config;
use numacast::kubelet::{Caller, Request, SharedClient, decode_list};
use numacast::proxy::{Proxy, Settings};
use numacast::telemetry::health::Probes;
use numacast::telemetry::registry::Registry;
use numacast_sim::api_server::{ApiServer, Fault, PODS, Rule};
use numacast_sim::kubelet::PodSpec;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Code;

use crate::support::{Node, eventually, sample};

const GPUS: &str = "scheduling.koordinator.sh/device-allocated";

/// A proxy between a simulated kubelet and a client.
struct Environment {
    node: Node,
    server: ApiServer,
    metrics: Registry,
    health: Arc<dyn Probes>,
    socket: PathBuf,
    /// An agent's reader that counts the annotated devices.
    reader: NodeReader,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Environment {
    async fn start(change: impl FnOnce(&mut Settings)) -> Self {
        let server = ApiServer::start_in_process(0);
        server.add_node("worker").unwrap();
        Self::with_server(server, change)
    }

    fn with_server(server: ApiServer, change: impl FnOnce(&mut Settings)) -> Self {
        let node = Node::start();
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
    async fn synced(self) -> Self {
        eventually("the proxy is ready", async || self.health.ready().is_empty().then_some(())).await;
        self
    }

    /// Returns the devices of each pod in the proxy's response.
    async fn send(&self, request: Request) -> Result<Vec<String>, (Code, String)> {
        let (socket, timeout) = (self.socket.clone(), Duration::from_secs(10));
        let client = SharedClient::start(socket, timeout, Arc::new(|_, _, _| {}));
        let response = client
            .request(request, Caller::Agent)
            .await
            .map_err(|error| (error.status.code(), error.status.message().to_owned()))?;
        let mut all = Vec::new();
        for pod in decode_list(response.bytes.clone()).unwrap().pods {
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
        self.send(Request::List).await
    }

    /// Adds a pod to the API server and starts it on the node.
    async fn start_pod(&self, name: &str, annotation: Option<&str>) {
        self.server.put(&PODS, object(name, annotation)).unwrap();
        self.node.kubelet.start_pod(PodSpec::new(name)).await.unwrap();
    }

    fn sample(&self, name: &str) -> String {
        let text = self.metrics.encode();
        sample(&text, name).unwrap_or_else(|| panic!("{name} is not in {text}")).to_owned()
    }

    async fn stop(self) {
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

/// Ends the proxy's watch of pods, and makes new ones hang.
async fn stop_watch(env: &Environment) {
    env.server.inject(Rule { verb: Some("watch"), resource: Some("pods"), times: None, fault: Fault::Hang });
    env.server.cut_connections();
    eventually("pods are not watched", async || (env.server.watchers(&PODS) == 0).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_scan_fails_while_the_annotated_devices_are_unknown() {
    let server = ApiServer::start_in_process(0);
    server.add_node("worker").unwrap();
    let get = Rule { verb: Some("get"), resource: Some("devices"), times: None, fault: Fault::Status(500) };
    server.inject(get);
    let mut env = Environment::with_server(server, |_| {});
    env.start_pod("a", Some(&gpu("GPU-1"))).await;
    for depth in [Depth::Everything, Depth::Usage] {
        let scan = env.reader.scan(depth, &Arc::default()).await;
        let fails = matches!(scan, Err(ScanError::AnnotationsUnknown));
        assert!(fails, "GPU-1 would be reported as available: {scan:?}");
    }
    env.server.clear_faults();
    let mut env = env.synced().await;
    let scan = eventually("the Device is read", async || {
        match env.reader.scan(Depth::Usage, &Arc::default()).await {
            // The proxy is ready before the Device is read again.
            Err(ScanError::AnnotationsUnknown) => None,
            scan => Some(scan.unwrap()),
        }
    })
    .await;
    let containers = scan.usage.pods.iter().flat_map(|pod| &pod.containers);
    assert!(
        containers.flat_map(|container| &container.devices).any(|group| group.ids.contains(&"GPU-1".into()))
    );
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn responses_contain_annotated_devices() {
    let env = Environment::start(|_| {}).await.synced().await;
    env.start_pod("a", Some(&gpu("GPU-1"))).await;
    env.start_pod("b", None).await;
    let with_plugin = PodSpec::new("c").devices("example.com/nic", 1);
    env.server.put(&PODS, object("c", Some(&gpu("GPU-2")))).unwrap();
    env.node.kubelet.start_pod(with_plugin).await.unwrap();
    let all = env.list().await.unwrap();
    let expected =
        ["a/main nvidia.com/gpu GPU-1", "c/main example.com/nic nic-0", "c/main nvidia.com/gpu GPU-2"];
    assert_eq!(all, expected);
    let get = |name: &str| Request::Get { namespace: "default".to_owned(), name: name.to_owned() };
    assert_eq!(env.send(get("a")).await.unwrap(), ["a/main nvidia.com/gpu GPU-1"]);
    assert_eq!(env.send(get("c")).await.unwrap(), all[1..]);
    assert!(env.send(get("b")).await.unwrap().is_empty());
    let missing = env.send(get("x")).await.unwrap_err();
    assert_eq!(missing, (Code::Unknown, "pod x in namespace default not found".to_owned()));
    assert_eq!(env.sample(r#"numacast_proxy_annotated_devices{state="merged"}"#), "2");
    // A terminated pod has no devices although its annotation remains.
    let mut terminated = object("a", Some(&gpu("GPU-1")));
    terminated["status"]["phase"] = "Succeeded".into();
    env.server.put(&PODS, terminated).unwrap();
    let two = async || (env.list().await.unwrap().len() == 2).then_some(());
    eventually("the terminated pod has no devices", two).await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_pod_is_looked_up() {
    let env = Environment::start(|settings| settings.wait = Duration::from_secs(3600)).await.synced().await;
    stop_watch(&env).await;
    env.start_pod("late", Some(&gpu("GPU-7"))).await;
    assert_eq!(env.list().await.unwrap(), ["late/main nvidia.com/gpu GPU-7"]);
    // A pod that the API server does not have is not waited for.
    env.node.kubelet.start_pod(PodSpec::new("static")).await.unwrap();
    assert_eq!(env.list().await.unwrap(), ["late/main nvidia.com/gpu GPU-7"]);
    assert_eq!(env.sample("numacast_proxy_unknown_pods"), "0");
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_terminated_pod_is_looked_up_only_while_it_is_being_deleted() {
    let server = ApiServer::start_in_process(0);
    server.add_node("worker").unwrap();
    for (name, phase) in [("done", "Succeeded"), ("rejected", "Failed"), ("deleting", "Failed")] {
        let mut terminated = object(name, Some(&gpu("GPU-1")));
        terminated["status"]["phase"] = phase.into();
        if name == "deleting" {
            terminated["metadata"]["deletionTimestamp"] = "2026-11-21T14:00:00Z".into();
        }
        server.put(&PODS, terminated).unwrap();
    }
    let long_wait = |settings: &mut Settings| settings.wait = Duration::from_secs(3600);
    let env = Environment::with_server(server, long_wait).synced().await;
    // Kubelets before 1.34 list terminated pods.
    for name in ["done", "rejected", "deleting"] {
        env.node.kubelet.start_pod(PodSpec::new(name)).await.unwrap();
    }
    assert!(env.list().await.unwrap().is_empty());
    let requests = env.server.requests(&PODS).into_iter();
    let queries: Vec<String> = requests.map(|request| request.query).collect();
    let times = |name: &str| queries.iter().filter(|query| query.contains(&format!("name%3D{name}"))).count();
    assert_eq!(["done", "rejected", "deleting"].map(times), [0, 0, 1], "{queries:?}");
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_looked_up_is_waited_for_once() {
    for fail_closed in [false, true] {
        let settings = |settings: &mut Settings| {
            settings.wait = Duration::from_millis(200);
            settings.fail_closed = fail_closed;
        };
        let env = Environment::start(settings).await.synced().await;
        env.start_pod("known", Some(&gpu("GPU-1"))).await;
        assert_eq!(env.list().await.unwrap(), ["known/main nvidia.com/gpu GPU-1"]);
        stop_watch(&env).await;
        let hang = Rule { verb: Some("list"), resource: Some("pods"), times: None, fault: Fault::Hang };
        env.server.inject(hang);
        env.start_pod("late", Some(&gpu("GPU-7"))).await;
        let response = env.list().await;
        match fail_closed {
            false => assert_eq!(response.unwrap(), ["known/main nvidia.com/gpu GPU-1"]),
            true => {
                let (code, text) = response.unwrap_err();
                assert_eq!(code, Code::Unavailable);
                assert!(text.contains("the kubelet lists 1 unknown pods"), "{text}");
                // A request for a known pod is served.
                let known = Request::Get { namespace: "default".to_owned(), name: "known".to_owned() };
                assert_eq!(env.send(known).await.unwrap(), ["known/main nvidia.com/gpu GPU-1"]);
            }
        }
        assert_eq!(env.sample("numacast_proxy_unknown_pods"), "1");
        env.server.clear_faults();
        env.server.cut_connections();
        let both = ["known/main nvidia.com/gpu GPU-1", "late/main nvidia.com/gpu GPU-7"];
        let has_both = async || env.list().await.ok().filter(|all| *all == both);
        eventually("both pods have their devices", has_both).await;
        env.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_known_annotations_are_used_for_a_limited_time() {
    const HOUR: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(200);
    for (fail_closed, last_known) in [(false, HOUR), (true, HOUR), (false, SHORT), (true, SHORT)] {
        let settings = |settings: &mut Settings| {
            settings.last_known = last_known;
            settings.fail_closed = fail_closed;
        };
        let env = Environment::start(settings).await.synced().await;
        env.start_pod("a", Some(&gpu("GPU-1"))).await;
        assert_eq!(env.list().await.unwrap().len(), 1);
        assert_eq!(env.sample("numacast_proxy_annotations_unavailable"), "0");
        env.server.stop();
        if last_known == HOUR {
            assert_eq!(env.list().await.unwrap().len(), 1, "the last known annotations");
            env.stop().await;
            continue;
        }
        eventually("the last known annotations are no longer used", async || {
            match env.list().await {
                Ok(all) if all.is_empty() && !fail_closed => return Some(()),
                Err((Code::Unavailable, text)) if fail_closed && text.contains("for too long") => {
                    return Some(());
                }
                Ok(all) => assert_eq!(all.len(), 1),
                Err(error) => panic!("{error:?}"),
            }
            None
        })
        .await;
        assert_eq!(env.sample("numacast_proxy_annotations_unavailable"), "1");
        env.server.resume();
        let has_devices = async || env.list().await.ok().filter(|all| !all.is_empty());
        eventually("the pod has its device", has_devices).await;
        assert_eq!(env.sample("numacast_proxy_annotations_unavailable"), "0");
        env.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn before_the_first_sync_responses_are_passed_through_or_rejected() {
    for fail_closed in [false, true] {
        let server = ApiServer::start_in_process(0);
        server.add_node("worker").unwrap();
        server.set_denied("list", "pods", true);
        let env = Environment::with_server(server, |settings| {
            settings.wait = Duration::from_millis(50);
            settings.fail_closed = fail_closed;
        });
        env.start_pod("a", Some(&gpu("GPU-1"))).await;
        match env.list().await {
            Ok(all) => assert!(all.is_empty() && !fail_closed, "{all:?}"),
            Err((code, text)) => {
                assert!(fail_closed && code == Code::Unavailable && text.contains("yet"), "{code:?} {text}");
            }
        }
        assert_eq!(env.sample("numacast_proxy_annotations_unavailable"), "1");
        assert!(!env.health.ready().is_empty());
        env.server.set_denied("list", "pods", false);
        let has_devices = async || env.list().await.ok().filter(|all| !all.is_empty());
        eventually("the pod has its device", has_devices).await;
        env.stop().await;
    }
}
