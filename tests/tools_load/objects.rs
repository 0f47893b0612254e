//! What is in the cluster.

use anyhow::Result;
use fastrand::Rng;
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use http::request::Builder;
use kube::Client;
use numacast::nrt::{FINGERPRINT, POLICY, SCOPE};
use numacast::scheduler::{Fingerprint, pod_hash};
use serde_json::{Value, json};

use crate::Options;

/// Nobody is there to say that a Node is ready.
pub(crate) const ARGUMENTS: [&str; 1] = ["--disable-admission-plugins=TaintNodesByCondition"];

/// Number of zones of each node.
pub(crate) const ZONES: u64 = 8;
/// CPUs of a zone, of which the first is reserved.
const CPUS: u64 = 16;
/// GiB of memory of a zone, besides huge pages.
const MEMORY: u64 = 64;
/// Huge pages of 1 GiB of a zone.
const HUGE_PAGES: u64 = 8;
/// Images on a node: their names are most of a Node's bytes.
const IMAGES: usize = 40;

const POLICIES: [&str; 4] = ["none", "best-effort", "restricted", "single-numa-node"];
const SCOPES: [&str; 2] = ["container", "pod"];
/// Nodes are in ten pools, by their label `pool`.
const POOLS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

/// Number of concurrent requests.
const AT_ONCE: usize = 32;
const NODE_NAME: &str = "NODE-NAME";
/// The namespace of the agents' pods, and of the others.
const NAMESPACES: [&str; 2] = ["numacast", "default"];

/// Creates everything.
pub(crate) async fn create(client: &Client, options: &Options) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACES[0]}});
    // The API server creates the other one when it starts, but perhaps later than this.
    crate::support::wait::until("the namespace default is there", async || {
        client.request_text(Request::get("/api/v1/namespaces/default").body(Vec::new())?).await?;
        Ok(())
    })
    .await?;
    post(client, "/api/v1/namespaces", &namespace).await?;
    let set = post(client, "/apis/apps/v1/namespaces/numacast/daemonsets", &agents()).await?;
    let set: Value = serde_json::from_str(&set)?;
    let uid = &set["metadata"]["uid"];
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "numacast", "uid": uid, "controller": true});
    let maker = Maker {
        client,
        owner,
        nodes: POOLS.iter().map(|pool| node(pool).to_string()).collect(),
        running: running().to_string(),
    };
    let each = async |number: usize| maker.node_and_pods(number, options.pods).await;
    stream::iter(0..options.nodes).map(each).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    for number in 0..options.pending {
        let cpus = [2, 4, 8, 12, 16, 24][number % 6];
        post(
            client,
            "/api/v1/namespaces/default/pods",
            &pod(&format!("waits-{number:05}"), "", cpus, number),
        )
        .await?;
    }
    Ok(())
}

async fn post(client: &Client, path: &str, object: &Value) -> Result<String> {
    send(client, Request::post(path), "application/json", object.to_string()).await
}

async fn send(client: &Client, request: Builder, content: &str, object: String) -> Result<String> {
    let request = request.header("content-type", content).body(object.into_bytes())?;
    Ok(client.request_text(request).await?)
}

/// Creates Nodes with what belongs to them.
struct Maker<'a> {
    client: &'a Client,
    /// The agents' DaemonSet.
    owner: Value,
    /// A Node of each pool, with [`NODE_NAME`] in place of its name.
    nodes: Vec<String>,
    running: String,
}

impl Maker<'_> {
    /// Creates a Node, its object and its pods.
    async fn node_and_pods(&self, number: usize, pods: usize) -> Result<()> {
        let Self { client, owner, nodes, running } = self;
        let name = format!("node-{number:05}");
        let pods: Vec<(&str, Value)> =
            (0..pods).map(|index| pod_of_node(&name, number, index, owner)).collect();
        let name_of = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let hashes = pods.iter().map(|(namespace, pod)| pod_hash(namespace, &name_of(pod)));
        let object = object(&name, number, &Fingerprint::of(hashes).to_string());
        let node = nodes[number % nodes.len()].replace(NODE_NAME, &name);
        send(client, Request::post("/api/v1/nodes"), "application/json", node).await?;
        let path = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies?fieldManager=numacast";
        post(client, path, &object).await?;
        for (namespace, pod) in &pods {
            let path = format!("/api/v1/namespaces/{namespace}/pods");
            post(client, &path, pod).await?;
            let request = Request::patch(format!("{path}/{}/status", name_of(pod)));
            send(client, request, "application/merge-patch+json", running.clone()).await?;
        }
        Ok(())
    }
}

fn node(pool: &str) -> Value {
    let name = NODE_NAME;
    let amounts = |reserved: u64| {
        json!({
            "cpu": (ZONES * (CPUS - reserved)).to_string(), "memory": format!("{}Gi", ZONES * (MEMORY - reserved)),
            "hugepages-1Gi": format!("{}Gi", ZONES * HUGE_PAGES), "hugepages-2Mi": "0", "nvidia.com/gpu": ZONES.to_string(),
            "ephemeral-storage": "1800Gi", "pods": "250",
        })
    };
    let images = (0..IMAGES).map(|image| {
        let digest = format!("{:064x}", u128::from(Rng::with_seed(image as u64).u64(..)));
        let name = format!("registry.example.com/platform/team-{}/service-{image:02}", image % 7);
        json!({"names": [format!("{name}@sha256:{digest}"), format!("{name}:v1.{image}")], "sizeBytes": 123_456_789})
    });
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": format!("Kubelet{kind}"), "message": format!("kubelet reports {kind}"),
               "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "pool": pool,
            "topology.kubernetes.io/zone": "zone-1", "node.kubernetes.io/instance-type": "numa-8",
        }},
        "spec": {"providerID": format!("example://{name}")},
        "status": {
            "capacity": amounts(0), "allocatable": amounts(1), "images": images.collect::<Vec<_>>(),
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "conditions": [condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
                           condition("PIDPressure", "False"), condition("Ready", "True")],
            "nodeInfo": {
                "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "6.1", "osImage": "Linux",
                "containerRuntimeVersion": "containerd://2", "kubeletVersion": "v1.36.3", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
        },
    })
}

/// Returns an object in which another amount of each resource is free in each zone.
fn object(name: &str, number: usize, fingerprint: &str) -> Value {
    let mut rng = Rng::with_seed(number as u64);
    let zones: Vec<Value> = (0..ZONES).map(|zone| zone_of(zone, &mut rng)).collect();
    let attribute = |name: &str, value: &str| json!({"name": name, "value": value});
    json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [
            attribute(POLICY, POLICIES[number % POLICIES.len()]),
            attribute(SCOPE, SCOPES[number / POLICIES.len() % SCOPES.len()]),
            attribute("cpuManagerPolicy", "static"),
            attribute("memoryManagerPolicy", "Static"),
            attribute(FINGERPRINT, fingerprint),
        ],
        "zones": zones,
    })
}

fn zone_of(zone: u64, rng: &mut Rng) -> Value {
    let mut resource = |name: &str, capacity: u64, allocatable: u64, unit: u64| {
        let [capacity, allocatable, available] =
            [capacity, allocatable, rng.u64(0..=allocatable)].map(|amount| (amount * unit).to_string());
        json!({"name": name, "capacity": capacity, "allocatable": allocatable, "available": available})
    };
    let resources = [
        resource("cpu", CPUS, CPUS - 1, 1),
        resource("hugepages-1Gi", HUGE_PAGES, HUGE_PAGES, 1 << 30),
        resource("memory", MEMORY, MEMORY - 1, 1 << 30),
        resource("nvidia.com/gpu", 1, 1, 1),
    ];
    let distance = |other: u64| {
        if other == zone {
            10
        } else if other / 4 == zone / 4 {
            12
        } else {
            32
        }
    };
    let costs: Vec<Value> =
        (0..ZONES).map(|other| json!({"name": format!("node-{other}"), "value": distance(other)})).collect();
    json!({"name": format!("node-{zone}"), "type": "Node", "costs": costs, "resources": resources})
}

/// Returns a namespace and a pod of it: first the agent's, then others that request CPUs of their own.
fn pod_of_node<'a>(node: &str, number: usize, index: usize, owner: &Value) -> (&'a str, Value) {
    let [ours, other] = NAMESPACES;
    if index > 0 {
        let cpus = [1, 2, 4, 8][(number + index) % 4];
        return (other, pod(&format!("app-{number:05}-{index}"), node, cpus, number));
    }
    let mut spec = agents()["spec"]["template"]["spec"].clone();
    spec["nodeName"] = json!(node);
    let metadata = json!({"name": format!("numacast-{number:05}"), "labels": {"app": "numacast"}, "ownerReferences": [owner]});
    (ours, json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
}

/// Returns a pod with CPUs of its own, for a node or pending.
fn pod(name: &str, node: &str, cpus: u64, number: usize) -> Value {
    let amounts = json!({"cpu": cpus.to_string(), "memory": format!("{}Gi", 2 * cpus)});
    let environment: Vec<Value> = (0..20)
        .map(|setting| json!({"name": format!("SETTING_{setting}"), "value": format!("the value of setting {setting}")}))
        .collect();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": format!("app-{}", number % 100), "pod-template-hash": "7c5ddbdf54"}},
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": format!("registry.example.com/app-{}:v1", number % 100), "env": environment,
                            "resources": {"requests": amounts, "limits": amounts}}],
        },
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

/// Returns the DaemonSet of the agents.
fn agents() -> Value {
    let labels = json!({"app": "numacast"});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "numacast"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "agent", "image": "ghcr.io/numacast/numacast:v0.1.0", "args": ["agent"],
                            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "96Mi"}}}],
        }}},
    })
}

/// Returns the status that a kubelet writes.
fn running() -> Value {
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let conditions = conditions
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}));
    json!({"status": {
        "phase": "Running", "conditions": conditions, "hostIP": "127.0.0.1", "podIP": "10.0.0.7",
        "startTime": "2026-01-01T00:00:00Z",
    }})
}
