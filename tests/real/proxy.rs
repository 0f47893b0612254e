//! The podresources proxy between a real kubelet and real clients.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::sim_node::Client;
use crate::support::koordinator::{self, DEVICE_ALLOCATED, RESOURCE_STATUS};
use crate::support::nrt::Figures;
use crate::support::podresources::{
    ALL_CLIENTS, Added, Allocation, ClientKind, Clients, Recorder, Rpc, Share, added, added_to_allocatable,
    allocations, allocations_of, encoded_allocations, in_order,
};
use crate::support::pods::PodSpec;
use crate::support::proxy::{Place, Proxy};
use crate::support::wait::{Fatal, until, until_every};
use crate::support::{Cluster, Needs, Parts, RealNode, nrt, oracle, pod};

const NIC: &str = "example.com/nic";

/// Checks that clients of every kind, including numacast's own, decode the same from a socket.
async fn all_clients_decode_the_same(clients: &Clients, socket: &Path, namespace: &str) -> Result<()> {
    let (usage, ..) = Client::new(socket.to_owned(), Duration::from_secs(5)).list().await?;
    let ours = allocations_of(&usage);
    for rpc in [Rpc::List, Rpc::ListV1alpha1, Rpc::Get(format!("{namespace}/a")), Rpc::Allocatable] {
        let mut first = None;
        for kind in ALL_CLIENTS {
            let response = clients
                .request(kind, socket, &rpc)
                .await?
                .ok()
                .with_context(|| format!("{kind:?} {rpc:?}"))?;
            let message = in_order(&response.message);
            let first = first.get_or_insert_with(|| message.clone());
            ensure!(*first == message, "{kind:?} {rpc:?}: {message}, and before {first}");
        }
        let first = first.context("no client")?;
        let right: BTreeSet<Allocation> = match &rpc {
            Rpc::Get(pod) => ours.iter().filter(|one| one.pod == *pod).cloned().collect(),
            Rpc::ListV1alpha1 => without_nodes(&ours).into_iter().collect(),
            _ => ours.clone(),
        };
        let theirs = BTreeSet::from_iter(allocations(&first)?);
        ensure!(!right.is_empty(), "no pod has a device");
        ensure!(rpc == Rpc::Allocatable || theirs == right, "{rpc:?}: {first}, and ours decodes {right:?}");
    }
    Ok(())
}

/// Checks the test clients: they receive what the kubelet sends, and the recorder adds only unknown fields.
#[tokio::test]
async fn clients_of_every_kind_decode_a_kubelets_responses_alike() -> Result<()> {
    let Some(parts) = Parts::with_clients(Needs::Kubelet)? else { return Ok(()) };
    let clients = Clients::of(&parts);
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    node.run(pod("a").cpus(1).memory("1Gi").device(NIC, 2).container("other").cpus(1).memory("64Mi")).await?;
    node.run(pod("b")).await?;
    all_clients_decode_the_same(&clients, &node.socket(), node.namespace()).await?;

    let recorder = Recorder::start(&clients, &node.socket(), &cluster.dir().join("recorder"), &[]).await?;
    all_clients_decode_the_same(&clients, recorder.socket(), node.namespace()).await?;
    let known = recorder.count()?;
    let response = clients.request(ClientKind::Python, recorder.socket(), &Rpc::List).await?.ok()?;
    let sent = recorder.sent_since(known)?;
    let [sent] = sent.as_slice() else { anyhow::bail!("{} responses to one request", sent.len()) };
    ensure!(sent.path == Rpc::List.path() && sent.sent == response.bytes);
    ensure!(added(&sent.sent, &response.bytes)?.is_nothing());

    // A client-side limit gives the client library's own error, and does not affect other clients.
    let large = ["--pad", "5242880"];
    let padded = Recorder::start(&clients, &node.socket(), &cluster.dir().join("padded"), &large).await?;
    for (kind, text) in [
        (ClientKind::Go, "grpc: received message larger than max"),
        (ClientKind::Python, "CLIENT: Received message larger than max"),
    ] {
        let response = clients.request(kind, padded.socket(), &Rpc::List).await?;
        ensure!(
            response.code == "ResourceExhausted" && response.text.contains(text),
            "{kind:?}: {response:?}"
        );
        let response =
            clients.request_with(kind, padded.socket(), &Rpc::List, &["--limit", "16777216"]).await?.ok()?;
        ensure!(response.bytes.len() > 5 << 20, "{} bytes", response.bytes.len());
    }
    Ok(())
}

/// A node whose kubelet is behind a recorder, and a proxy in front of that.
struct World {
    proxy: Proxy,
    recorder: Recorder,
    clients: Clients,
    node: RealNode,
    cluster: Cluster,
}

/// The devices of each container of each pod, in the listed order, which matters to consumers that pick the
/// nth.
type Listed = BTreeMap<(String, String), Vec<Allocation>>;

fn listed(devices: impl IntoIterator<Item = Allocation>) -> Listed {
    let mut all = Listed::new();
    for device in devices {
        all.entry((device.pod.clone(), device.container.clone())).or_default().push(device);
    }
    all
}

/// Removes NUMA nodes, which v1alpha1 does not have.
fn without_nodes<'a>(devices: impl IntoIterator<Item = &'a Allocation>) -> Vec<Allocation> {
    devices.into_iter().map(|one| Allocation { nodes: Vec::new(), ..one.clone() }).collect()
}

/// What responses must contain in addition to the kubelet's.
#[derive(Clone, Debug, Default)]
struct Right {
    /// For each container in the order of its annotation.
    devices: Vec<Allocation>,
    shares: BTreeMap<String, Share>,
    /// For `GetAllocatableResources`, sorted.
    allocatable: Vec<Allocation>,
}

impl World {
    async fn start(parts: &Parts, place: Place, settings: &[&str]) -> Result<Self> {
        let cluster = Cluster::shared(parts).await?;
        Self::start_on(cluster, parts, place, settings, json!({}), devices()).await
    }

    /// Like [`World::start`], with these labels and devices of the node's Device.
    async fn start_on(
        cluster: Cluster,
        parts: &Parts,
        place: Place,
        settings: &[&str],
        labels: Value,
        devices: Value,
    ) -> Result<Self> {
        let clients = Clients::of(parts);
        koordinator::install(&cluster.client()).await?;
        let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
        koordinator::describe_labelled(&cluster.client(), node.name(), labels, devices).await?;
        let dir = cluster.dir().join("recorder");
        let recorder = Recorder::start(&clients, &node.socket(), &dir, &[]).await?;
        let upstream = format!("kubelet.socket={}", recorder.socket().display());
        let proxy = Proxy::start(&node, place, &[&[upstream.as_str()], settings].concat()).await?;
        Ok(Self { proxy, recorder, clients, node, cluster })
    }

    /// Returns what a client receives in addition to the kubelet's response. Checks that each container, once
    /// decoded, has the kubelet's own devices in the kubelet's order, followed by the added ones.
    async fn added(&self, kind: ClientKind, rpc: &Rpc) -> Result<Added> {
        let known = self.recorder.count()?;
        let response = self.clients.request(kind, &self.proxy.socket(), rpc).await?.ok()?;
        let mut reasons = Vec::new();
        // The unknown fields contain the response's number, so only one recorded response can match.
        for sent in self.recorder.sent_since(known)?.iter().filter(|sent| sent.path == rpc.path()) {
            let more = match rpc {
                Rpc::Allocatable => added_to_allocatable(&sent.sent, &response.bytes)
                    .map(|devices| Added { devices, ..Added::default() }),
                _ => added(&sent.sent, &response.bytes),
            };
            match more {
                Ok(more) if *rpc == Rpc::Allocatable => return Ok(more),
                Ok(more) => {
                    let mut all = listed(encoded_allocations(&sent.sent)?);
                    for (container, devices) in listed(more.devices.clone()) {
                        all.entry(container).or_default().extend(devices);
                    }
                    let theirs = listed(allocations(&response.message)?);
                    ensure!(theirs == all, "{kind:?} {rpc:?} makes of it {theirs:#?}, not {all:#?}");
                    return Ok(more);
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        bail!("{kind:?} {rpc:?}: no response of the kubelet since the request: {reasons:?}")
    }

    /// Checks that every client receives the kubelet's response plus exactly these devices.
    async fn adds(&self, right: &[Allocation]) -> Result<()> {
        let right = Right { devices: right.to_vec(), ..Right::default() };
        for kind in ALL_CLIENTS {
            self.adds_to(kind, &right).await?;
        }
        self.adds_to_each_pod(&right).await
    }

    /// Checks that one client receives the kubelet's response plus exactly `right`.
    async fn adds_to(&self, kind: ClientKind, right: &Right) -> Result<()> {
        for (rpc, devices, shares) in [
            (Rpc::List, right.devices.clone(), right.shares.clone()),
            (Rpc::ListV1alpha1, without_nodes(&right.devices), BTreeMap::new()),
        ] {
            let more = self.added(kind, &rpc).await?;
            let (more, theirs) = (listed(more.devices), more.shares);
            ensure!(more == listed(devices.clone()), "{kind:?} {rpc:?}: {more:#?}, not {devices:#?}");
            let count = theirs.len();
            let theirs = BTreeMap::from_iter(theirs);
            ensure!(
                theirs == shares && count == shares.len(),
                "{kind:?} {rpc:?}: {theirs:?}, not {shares:?}"
            );
        }
        let mut more = self.added(kind, &Rpc::Allocatable).await?.devices;
        more.sort();
        ensure!(more == right.allocatable, "{kind:?}, allocatable: {more:#?}, not {:#?}", right.allocatable);
        Ok(())
    }

    /// Like [`World::adds_to`], with a Get for each pod.
    async fn adds_to_each_pod(&self, right: &Right) -> Result<()> {
        for name in self.names().await? {
            let more = self.added(ClientKind::Go, &Rpc::Get(name.clone())).await?;
            let devices = right.devices.iter().filter(|one| one.pod == name).cloned();
            let devices = listed(devices);
            ensure!(listed(more.devices.clone()) == devices, "{name}: {more:?}, not {devices:?}");
            let share = right.shares.get(&name).map(|share| (name.clone(), share.clone()));
            ensure!(more.shares.iter().eq(&share), "{name}: {more:?}, not {share:?}");
        }
        Ok(())
    }

    async fn names(&self) -> Result<Vec<String>> {
        let pods = self.node.pods().await?;
        let name = |pod: Pod| self.full_name(&pod.metadata.name.unwrap_or_default());
        Ok(pods.into_iter().map(name).collect())
    }

    /// Returns `namespace/name` of a pod.
    fn full_name(&self, pod: &str) -> String {
        format!("{}/{pod}", self.node.namespace())
    }

    /// Binds a pod and polls: the first response that lists it must be complete.
    async fn binds(&self, spec: &PodSpec, right: &[Allocation]) -> Result<()> {
        let name = self.full_name(spec.name());
        let mut client = Client::new(self.proxy.socket(), Duration::from_secs(5));
        self.node.submit(spec).await?;
        until_every(&format!("{name} is listed"), Duration::from_millis(25), async || {
            let (usage, ..) = client.list().await?;
            ensure!(usage.pods.iter().any(|pod| format!("{}/{}", pod.namespace, pod.name) == name));
            let found = allocations_of(&usage);
            let missing: Vec<_> = right.iter().filter(|one| !found.contains(one)).collect();
            // Waiting cannot fix this.
            ensure!(missing.is_empty(), Fatal(format!("{name} is there without {missing:?}: {found:?}")));
            Ok(())
        })
        .await
        .with_context(|| self.proxy.log_tail())?;
        self.node.wait_for_outcome(spec.name()).await?;
        Ok(())
    }
}

/// The node's devices as Koordinator reports them.
pub(crate) fn devices() -> Value {
    let at = |node: i32, bus: &str| json!({"socketID": node, "nodeID": node, "pcieID": "pci0000:3a", "busID": bus});
    let gpu = |minor: i32, id: &str, node: i32| json!({"type": "gpu", "id": id, "minor": minor, "health": true, "topology": at(node, "")});
    json!([
        gpu(0, "GPU-a", 0),
        gpu(1, "GPU-b", 1),
        gpu(2, "GPU-c", 0),
        gpu(3, "GPU-d", 1),
        {
            "type": "rdma", "id": "0000:1f:00.0", "minor": 0, "health": true, "topology": at(1, "0000:1f:00.0"),
            "vfGroups": [{"vfs": [
                {"minor": -1, "busID": "0000:1f:00.2"},
                {"minor": -1, "busID": "0000:1f:00.3"},
                {"minor": -1, "busID": "0000:1f:00.4"},
            ]}],
        },
    ])
}

/// A device of a pod in the namespace `default`.
fn of(pod: &str, container: &str, resource: &str, id: &str, node: i64) -> Allocation {
    Allocation {
        pod: format!("default/{pod}"),
        container: container.to_owned(),
        resource: resource.to_owned(),
        id: id.to_owned(),
        nodes: vec![node],
    }
}

/// Pods as annotated by Koordinator's scheduler, and the devices that they are allocated in a namespace.
fn koordinated(namespace: &str) -> Vec<(PodSpec, Vec<Allocation>)> {
    const GPU: &str = "nvidia.com/gpu";
    let of = |pod: &str, container: &str, resource: &str, id: &str, node: i64| Allocation {
        pod: format!("{namespace}/{pod}"),
        ..of(pod, container, resource, id, node)
    };
    let annotated = |spec: PodSpec, devices: Value| spec.annotation(DEVICE_ALLOCATED, &devices.to_string());
    let core = |minor: i32, id: &str, core: &str| json!({"minor": minor, "id": id, "resources": {"koordinator.sh/gpu-core": core}});
    vec![
        // Together with a plugin's device, which is unaffected.
        (
            annotated(
                pod("whole").device("koordinator.sh/gpu", 100).device(NIC, 1),
                json!({"gpu": [core(0, "GPU-a", "100")]}),
            ),
            vec![of("whole", "main", GPU, "GPU-a", 0)],
        ),
        // Two pods share one GPU.
        (
            annotated(
                pod("half").device("koordinator.sh/gpu-core", 50),
                json!({"gpu": [core(1, "GPU-b", "50")]}),
            ),
            vec![of("half", "main", GPU, "GPU-b", 1)],
        ),
        (
            annotated(
                pod("other-half").device("koordinator.sh/gpu-core", 50),
                json!({"gpu": [core(1, "GPU-b", "50")]}),
            ),
            vec![of("other-half", "main", GPU, "GPU-b", 1)],
        ),
        // Assigned to the container that requests it, with virtual functions instead of the device; the other
        // GPU is given by minor number only.
        (
            annotated(
                pod("net")
                    .container("net")
                    .device("koordinator.sh/rdma", 100)
                    .container("gpu")
                    .device(GPU, 1),
                json!({
                    "gpu": [{"minor": 2}],
                    "rdma": [{
                        "minor": 0, "id": "0000:1f:00.0", "resources": {"koordinator.sh/rdma": 1},
                        "extension": {"vfs": [{"minor": -1, "busID": "0000:1f:00.3"}, {"minor": -1, "busID": "0000:1f:00.2"}]},
                    }],
                }),
            ),
            vec![
                of("net", "gpu", GPU, "GPU-c", 0),
                of("net", "net", "koordinator.sh/rdma", "0000:1f:00.3", 1),
                of("net", "net", "koordinator.sh/rdma", "0000:1f:00.2", 1),
            ],
        ),
        // Each requesting container gets its own, in spec order; the kubelet lists the sidecar first.
        (
            annotated(
                pod("two")
                    .device("koordinator.sh/gpu", 100)
                    .sidecar("mesh")
                    .container("second")
                    .device("koordinator.sh/gpu", 100),
                json!({"gpu": [core(3, "GPU-d", "100"), core(0, "GPU-a", "100")]}),
            ),
            vec![of("two", "main", GPU, "GPU-d", 1), of("two", "second", GPU, "GPU-a", 0)],
        ),
        // If no container requests it, the first one that is not a sidecar gets it.
        (
            annotated(pod("mesh").sidecar("mesh"), json!({"rdma": [{"minor": 0, "id": "0000:1f:00.0"}]})),
            vec![of("mesh", "main", "koordinator.sh/rdma", "0000:1f:00.0", 1)],
        ),
        (pod("invalid").annotation(DEVICE_ALLOCATED, "incorrect-device-allocation-annotation"), vec![]),
        (annotated(pod("none"), json!({"gpu": null})), vec![]),
        (pod("without"), vec![]),
    ]
}

/// Checks that errors are the kubelet's, code and message.
async fn errors_are_the_kubelets(world: &World) -> Result<()> {
    for rpc in [
        Rpc::Get("default/nobody".to_owned()),
        Rpc::Get("nowhere/plain".to_owned()),
        Rpc::Get("/".to_owned()),
        Rpc::Other("/v1.PodResourcesLister/Watch"),
        Rpc::Other("/v1alpha1.PodResourcesLister/GetAllocatableResources"),
        Rpc::Other("/v2.PodResourcesLister/List"),
        Rpc::Other("/grpc.health.v1.Health/Check"),
    ] {
        for kind in ALL_CLIENTS {
            let expected = world.clients.request(kind, &world.node.socket(), &rpc).await?;
            let response = world.clients.request(kind, &world.proxy.socket(), &rpc).await?;
            ensure!(expected.code != "OK", "{rpc:?}: {expected:?}");
            let same = (&expected.code, &expected.text) == (&response.code, &response.text);
            ensure!(same, "{kind:?} {rpc:?}: {response:?}, and the kubelet {expected:?}");
        }
    }
    Ok(())
}

async fn merges_what_is_annotated_and_nothing_else(place: Place) -> Result<()> {
    let Some(parts) = Parts::with_clients(Needs::Kubelet)? else { return Ok(()) };
    let mut world = World::start(&parts, place, &[]).await?;
    world
        .node
        .run(pod("plain").cpus(1).memory("1Gi").device(NIC, 1).container("b").cpus(1).memory("64Mi"))
        .await?;
    world.node.run(pod("best-effort")).await?;
    world.adds(&[]).await.context("no pod has an annotation")?;
    errors_are_the_kubelets(&world).await?;

    let mut right = Vec::new();
    for (spec, devices) in koordinated(world.node.namespace()) {
        world.binds(&spec, &devices).await?;
        right.extend(devices);
    }
    world.adds(&right).await.context("some have")?;
    let errors = world.proxy.sum("numacast_proxy_annotation_errors", &[]).await?;
    ensure!(errors > 0.0, "the invalid annotation is not counted");

    for (spec, _) in koordinated(world.node.namespace()) {
        world.node.delete(spec.name()).await?;
    }
    world.adds(&[]).await.context("they are gone")?;
    world.proxy.still_runs()
}

#[tokio::test]
async fn the_proxy_merges_what_is_annotated_and_nothing_else() -> Result<()> {
    merges_what_is_annotated_and_nothing_else(Place::Standalone).await
}

#[tokio::test]
async fn the_agents_proxy_merges_what_is_annotated_and_nothing_else() -> Result<()> {
    merges_what_is_annotated_and_nothing_else(Place::Agent).await
}

/// The devices of a node with Huawei accelerators, one of them unhealthy, and the network card of
/// [`devices`].
fn accelerators() -> Value {
    let npu = |minor: i32, id: &str, node: i32, health: bool| {
        json!({
            "type": "gpu", "id": id, "minor": minor, "health": health,
            "topology": {"socketID": node, "nodeID": node, "pcieID": "pci0000:3a", "busID": ""},
        })
    };
    json!([
        npu(0, "NPU-a", 0, true),
        npu(1, "NPU-b", 1, true),
        npu(2, "NPU-c", 1, true),
        npu(3, "NPU-broken", 0, false),
        devices()[4],
    ])
}

/// Pods with whole devices, mapped ones, and CPUs, and what every setting beyond the defaults adds to
/// responses.
fn by_every_setting() -> (Vec<PodSpec>, Right) {
    const NPU: &str = "huawei.com/npu";
    const RDMA: &str = "koordinator.sh/rdma";
    let function = |bus: &str| json!({"minor": -1, "busID": bus});
    let allocated = json!({
        "gpu": [{"minor": 2}, {"minor": 0, "id": "NPU-a", "resources": {"koordinator.sh/gpu-core": "100"}}],
        "rdma": [{
            "minor": 0, "id": "0000:1f:00.0",
            "extension": {"vfs": [function("0000:1f:00.4"), function("0000:1f:00.2")]},
        }],
    });
    let mapped =
        json!({"side": [{"uuid": "ACC-3"}], "main": [{"uuid": "ACC-2"}, {"uuid": "ACC-1"}], "none": []});
    let status = json!({
        "cpuset": "2-3,10",
        "numaNodeResources": [
            {"node": 1, "resources": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "64Mi"}},
            {"node": 0, "resources": {"memory": "1k"}},
        ],
    });
    let specs = vec![
        pod("whole").device(NIC, 2).annotation(DEVICE_ALLOCATED, &allocated.to_string()),
        pod("mapped").container("side").device(NIC, 1).annotation(ACCELERATORS, &mapped.to_string()),
        pod("cards").annotation(CARDS, "card-7, card-3"),
        pod("pinned").annotation(RESOURCE_STATUS, &status.to_string()),
        // The kubelet already lists its CPUs and memory, so none are added.
        pod("exclusive").cpus(2).memory("1Gi").annotation(RESOURCE_STATUS, &status.to_string()),
    ];
    let free = |pod: &str, container: &str, resource: &str, id: &str| Allocation {
        nodes: Vec::new(),
        ..of(pod, container, resource, id, 0)
    };
    let devices = vec![
        of("whole", "main", NPU, "NPU-c", 1),
        of("whole", "main", NPU, "NPU-a", 0),
        of("whole", "main", RDMA, "0000:1f:00.4", 1),
        of("whole", "main", RDMA, "0000:1f:00.2", 1),
        free("mapped", "main", "example.com/accelerator", "ACC-2"),
        free("mapped", "main", "example.com/accelerator", "ACC-1"),
        free("mapped", "side", "example.com/accelerator", "ACC-3"),
        free("cards", "main", "example.com/card", "card-7"),
        free("cards", "main", "example.com/card", "card-3"),
    ];
    let memory = [("hugepages-2Mi", 64 << 20, 1), ("memory", 1 << 30, 1), ("memory", 1000, 0)];
    let memory = memory.map(|(kind, bytes, node)| (kind.to_owned(), bytes, vec![node])).to_vec();
    let shares = BTreeMap::from([("default/pinned".to_owned(), Share { cpus: vec![2, 3, 10], memory })]);
    let of_node =
        |resource: &str, id: &str, node| Allocation { pod: String::new(), ..of("", "", resource, id, node) };
    let allocatable = vec![
        of_node(NPU, "NPU-a", 0),
        of_node(NPU, "NPU-b", 1),
        of_node(NPU, "NPU-c", 1),
        // A card with virtual functions is allocated by these.
        of_node(RDMA, "0000:1f:00.2", 1),
        of_node(RDMA, "0000:1f:00.3", 1),
        of_node(RDMA, "0000:1f:00.4", 1),
    ];
    (specs, Right { devices, shares, allocatable })
}

const ACCELERATORS: &str = "example.com/accelerators";
const CARDS: &str = "example.com/cards";

/// All settings that are off by default, together.
const EVERYTHING: [&str; 3] = [
    "proxy.failClosed=true",
    "proxy.annotations.koordinator=[devices, cpus, sharedIds, allocatable]",
    concat!(
        "proxy.annotations.mappings=[",
        "{annotation: example.com/accelerators, path: '*.*', resource: example.com/accelerator, ",
        "id: uuid, container: '*'}, ",
        "{annotation: example.com/cards, resource: example.com/card}]"
    ),
];

#[tokio::test]
async fn every_setting_that_is_off_by_default_works() -> Result<()> {
    let Some(parts) = Parts::with_clients(Needs::Kubelet)? else { return Ok(()) };
    let vendor = json!({"node.koordinator.sh/gpu-vendor": "huawei"});
    let cluster = Cluster::start(&parts).await?;
    let place = Place::Standalone;
    let mut world = World::start_on(cluster, &parts, place, &EVERYTHING, vendor, accelerators()).await?;
    let (specs, mut right) = by_every_setting();
    for spec in &specs {
        let name = format!("default/{}", spec.name());
        let devices: Vec<Allocation> = right.devices.iter().filter(|one| one.pod == name).cloned().collect();
        world.binds(spec, &devices).await?;
    }
    world.is_right(&right).await.context("before anything is shared")?;

    for name in ["half", "other-half"] {
        let part = json!({"minor": 1, "id": "NPU-b", "resources": {"koordinator.sh/gpu-core": "50"}});
        let annotation = json!({"gpu": [part]}).to_string();
        world.node.run(pod(name).annotation(DEVICE_ALLOCATED, &annotation)).await?;
    }
    let halves = [world.part("half", "NPU-b").await?, world.part("other-half", "NPU-b").await?];
    ensure!(halves[0].id != halves[1].id, "{halves:?}");
    right.devices.extend(halves);
    world.is_right(&right).await.context("two pods share one")?;

    world.cluster.kill_api_server()?;
    world.is_right_or_unavailable(&right).await.context("while the API server is down")?;
    // A proxy that has not listed pods yet does not know which devices are missing.
    world.proxy.kill()?;
    let upstream = format!("kubelet.socket={}", world.recorder.socket().display());
    let settings = [&[upstream.as_str()][..], &EVERYTHING].concat();
    world.proxy = Proxy::start(&world.node, Place::Standalone, &settings).await?;
    world.becomes_unavailable(&right).await?;
    world.cluster.restart_api_server().await?;
    let (what, pause) = ("requests are served again", Duration::from_millis(25));
    until_every(what, pause, async || world.is_right_or_unavailable(&right).await).await?;
    world.is_right(&right).await.context("the API server is back")?;

    // The devices of other pods do not change when pods are created and deleted.
    world.node.delete("half").await?;
    right.devices.retain(|one| one.pod != "default/half");
    let more = json!({"gpu": [{"minor": 0, "id": "NPU-a"}]}).to_string();
    let late = [of("late", "main", "huawei.com/npu", "NPU-a", 0)];
    world.node.delete("whole").await?;
    right.devices.retain(|one| one.pod != "default/whole");
    world.binds(&pod("late").annotation(DEVICE_ALLOCATED, &more), &late).await?;
    right.devices.extend(late);
    world.is_right(&right).await.context("some have gone, and one has come")?;
    world.proxy.still_runs()
}

impl World {
    /// Checks what Kubernetes' own client library receives from every method.
    async fn is_right(&self, right: &Right) -> Result<()> {
        self.adds_to(ClientKind::Go, right).await?;
        self.adds_to_each_pod(right).await
    }

    /// Returns the pod's share of an accelerator on NUMA node 1 that it shares with other pods.
    async fn part(&self, pod: &str, device: &str) -> Result<Allocation> {
        let more = self.added(ClientKind::Go, &Rpc::List).await?.devices;
        let mut its = more.into_iter().filter(|one| one.pod == format!("default/{pod}"));
        let one = its.next().context("it has none")?;
        let number = one.id.strip_prefix(device).and_then(|rest| rest.strip_prefix("::"));
        let number: u32 = number.with_context(|| format!("{one:?}"))?.parse()?;
        ensure!(number < 1 << 31 && its.next().is_none(), "{one:?}");
        let right = of(pod, "main", "huawei.com/npu", &one.id, 1);
        ensure!(one == right, "{one:?}, not {right:?}");
        Ok(one)
    }

    /// Waits until requests are rejected. Responses before that are complete.
    async fn becomes_unavailable(&self, right: &Right) -> Result<()> {
        let pause = Duration::from_millis(25);
        until_every("requests are rejected", pause, async || {
            match self.is_right_or_unavailable(right).await {
                Err(error) if error.is::<Fatal>() => Err(error),
                Err(_) => Ok(()),
                Ok(()) => bail!("they are served"),
            }
        })
        .await?;
        for rpc in [Rpc::List, Rpc::ListV1alpha1, Rpc::Allocatable, Rpc::Get("default/half".to_owned())] {
            let response = self.clients.request(ClientKind::Go, &self.proxy.socket(), &rpc).await?;
            let rejected = response.code == "Unavailable" && response.text.contains("proxy.failClosed");
            ensure!(rejected, "{rpc:?}: {response:?}");
        }
        Ok(())
    }

    /// Fails if a List is rejected; incomplete responses end the wait with [`Fatal`].
    async fn is_right_or_unavailable(&self, right: &Right) -> Result<()> {
        let response = self.clients.request(ClientKind::Go, &self.proxy.socket(), &Rpc::List).await?;
        ensure!(response.code == "OK", "{}: {}", response.code, response.text);
        let found = listed(allocations(&response.message)?);
        for (container, devices) in listed(right.devices.clone()) {
            // The kubelet's own devices come first.
            let whole = found.get(&container).is_some_and(|found| found.ends_with(&devices));
            ensure!(whole, Fatal(format!("{container:?} has {:?}, not {devices:?}", found.get(&container))));
        }
        Ok(())
    }
}

/// A client with a 4 MiB limit rejects larger responses itself; it and all others keep working.
#[tokio::test]
async fn a_response_above_a_clients_limit_fails_for_that_client_only() -> Result<()> {
    let Some(parts) = Parts::with_clients(Needs::Kubelet)? else { return Ok(()) };
    let clients = Clients::of(&parts);
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let large = ["--pad", "5242880", "--plain"];
    let padded = Recorder::start(&clients, &node.socket(), &cluster.dir().join("padded"), &large).await?;
    let upstream = format!("kubelet.socket={}", padded.socket().display());
    let mut proxy = Proxy::start(&node, Place::Standalone, &[&upstream]).await?;
    for kind in [ClientKind::Go, ClientKind::Python, ClientKind::GoPath] {
        let of_the_kubelet = clients.request(kind, padded.socket(), &Rpc::List).await?;
        let response = clients.request(kind, &proxy.socket(), &Rpc::List).await?;
        ensure!(
            response.code == "ResourceExhausted" && response.text == of_the_kubelet.text,
            "{kind:?}: {response:?}"
        );
        let response =
            clients.request_with(kind, &proxy.socket(), &Rpc::List, &["--limit", "16777216"]).await?.ok()?;
        let sent = padded.sent_since(0)?;
        ensure!(sent.iter().any(|sent| sent.sent == response.bytes), "{kind:?} receives something else");
        ensure!(response.bytes.len() > 5 << 20, "{} bytes", response.bytes.len());
        clients.request(kind, &proxy.socket(), &Rpc::Allocatable).await?.ok()?;
    }
    proxy.still_runs()
}

/// Annotated allocations are also subtracted in the node's object, and nothing else in it changes.
#[tokio::test]
async fn zones_count_what_is_merged() -> Result<()> {
    const GPU: &str = "nvidia.com/gpu";
    const RDMA: &str = "koordinator.sh/rdma";
    let Some(parts) = Parts::with_clients(Needs::Kubelet)? else { return Ok(()) };
    let mut world = World::start(&parts, Place::Agent, &["proxy.zones=true"]).await?;
    world.node.run(pod("plain").cpus(2).memory("1Gi").device(NIC, 1)).await?;
    let free = |capacity: u64, available: u64| Figures { capacity, allocatable: capacity, available };
    // A card with virtual functions is allocated by these.
    let all = [("node-0", GPU, free(2, 2)), ("node-1", GPU, free(2, 2)), ("node-1", RDMA, free(3, 3))];
    world.zones_have(&all).await.context("no pod has any")?;
    // None requests what it is allocated: the oracle would look for it in the kubelet's checkpoints.
    for (name, gpu) in [("whole", "GPU-a"), ("half", "GPU-b"), ("other-half", "GPU-b")] {
        let annotation = json!({"gpu": [{"minor": 0, "id": gpu}]}).to_string();
        world.node.run(pod(name).annotation(DEVICE_ALLOCATED, &annotation)).await?;
    }
    // A GPU shared by two pods is subtracted once.
    let left = [("node-0", GPU, free(2, 1)), ("node-1", GPU, free(2, 1)), ("node-1", RDMA, free(3, 3))];
    world.zones_have(&left).await.context("three pods have some")?;
    world.node.delete("half").await?;
    world.node.delete("whole").await?;
    let left = [("node-0", GPU, free(2, 2)), ("node-1", GPU, free(2, 1)), ("node-1", RDMA, free(3, 3))];
    world.zones_have(&left).await.context("one pod has one")?;
    world.proxy.still_runs()?;
    world.proxy.kill()?;
    Proxy::agent_once(&world.node, &["proxy.zones=true"]).await?;
    world.zones_have(&left).await.context("a single pass says the same")
}

impl World {
    /// Waits until the zones have exactly these Koordinator devices, and otherwise match the kubelet's
    /// checkpoints.
    async fn zones_have(&self, right: &[(&str, &str, Figures)]) -> Result<()> {
        until("the zones have what is left", async || {
            let mut zones = nrt::read(&self.node.client(), self.node.name()).await?.zones;
            let mut found = Vec::new();
            for (name, resources) in &mut zones {
                for resource in ["nvidia.com/gpu", "koordinator.sh/rdma"] {
                    let figures = resources.remove(resource).filter(|figures| figures.capacity > 0);
                    found.extend(figures.map(|figures| (name.clone(), resource, figures)));
                }
            }
            let mut right: Vec<_> =
                right.iter().map(|(zone, name, f)| ((*zone).to_owned(), *name, *f)).collect();
            right.sort_by_key(|(zone, name, _)| (zone.clone(), *name));
            found.sort_by_key(|(zone, name, _)| (zone.clone(), *name));
            ensure!(found == right, "{found:?}");
            let differences = oracle::expected(&self.node).await?.differences(&zones);
            ensure!(differences.is_empty(), "{}", differences.join("\n"));
            Ok(())
        })
        .await
        .with_context(|| self.proxy.log_tail())
    }
}
