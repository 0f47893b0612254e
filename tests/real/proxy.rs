//! The podresources proxy between a real kubelet and real clients.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use numacast::kubelet::Client;
use serde_json::json;

use crate::support::koordinator::{self, DEVICE_ALLOCATED};
use crate::support::nrt::Figures;
use crate::support::podresources::{
    Clients, EVERYBODY, Heard, Held, Recorder, Rpc, Who, added, held, held_of, in_order,
};
use crate::support::pods::PodSpec;
use crate::support::proxy::{Place, Proxy};
use crate::support::wait::{Hopeless, until};
use crate::support::{Cluster, Needs, Parts, RealNode, nrt, oracle, pod};

const NIC: &str = "example.com/nic";

/// Clients of every kind, our own among them, make the same of what is said at a socket.
async fn everybody_hears_the_same(clients: &Clients, socket: &Path) -> Result<()> {
    let (usage, ..) = Client::new(socket.to_owned(), Duration::from_secs(5)).list().await?;
    let ours = held_of(&usage);
    for rpc in [Rpc::List, Rpc::ListV1alpha1, Rpc::Get("default/a".to_owned()), Rpc::Allocatable] {
        let mut first = None;
        for who in EVERYBODY {
            let heard =
                clients.ask(who, socket, &rpc).await?.ok().with_context(|| format!("{who:?} {rpc:?}"))?;
            let answer = in_order(&heard.answer);
            let first = first.get_or_insert_with(|| answer.clone());
            ensure!(*first == answer, "{who:?} {rpc:?}: {answer}, and before {first}");
        }
        let first = first.context("nobody asked")?;
        let right: BTreeSet<Held> = match &rpc {
            Rpc::Get(pod) => ours.iter().filter(|one| one.pod == *pod).cloned().collect(),
            Rpc::ListV1alpha1 => ours.iter().map(|one| Held { nodes: Vec::new(), ..one.clone() }).collect(),
            _ => ours.clone(),
        };
        let theirs = held(&first)?;
        ensure!(!right.is_empty(), "nobody has a device");
        ensure!(rpc == Rpc::Allocatable || theirs == right, "{rpc:?}: {first}, and we hear {right:?}");
    }
    Ok(())
}

/// The clients by themselves: that they hear what a kubelet says, and that the recorder adds only what nobody knows.
#[tokio::test]
async fn clients_of_every_kind_agree_about_a_kubelet() -> Result<()> {
    let Some(parts) = Parts::with_clients(Needs::Kubelet).await? else { return Ok(()) };
    let clients = Clients::of(&parts);
    let cluster = Cluster::start(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    node.run(pod("a").cpus(1).memory("1Gi").device(NIC, 2).container("other").cpus(1).memory("64Mi")).await?;
    node.run(pod("b")).await?;
    everybody_hears_the_same(&clients, &node.socket()).await?;

    let recorder = Recorder::start(&clients, &node.socket(), &cluster.dir().join("recorder"), &[]).await?;
    everybody_hears_the_same(&clients, recorder.socket()).await?;
    let known = recorder.count()?;
    let heard = clients.ask(Who::Python, recorder.socket(), &Rpc::List).await?.ok()?;
    let sent = recorder.sent_since(known)?;
    let [sent] = sent.as_slice() else { anyhow::bail!("{} answers to one question", sent.len()) };
    ensure!(sent.path == Rpc::List.path() && sent.sent == heard.bytes);
    ensure!(added(&sent.sent, &heard.bytes)?.is_empty());

    // What a client refuses by itself, it refuses in words of its own, and others do not notice.
    let large = ["--pad", "5242880"];
    let padded = Recorder::start(&clients, &node.socket(), &cluster.dir().join("padded"), &large).await?;
    for (who, text) in [
        (Who::Go, "grpc: received message larger than max"),
        (Who::Python, "CLIENT: Received message larger than max"),
    ] {
        let heard = clients.ask(who, padded.socket(), &Rpc::List).await?;
        ensure!(heard.code == "ResourceExhausted" && heard.text.contains(text), "{who:?}: {heard:?}");
        let heard =
            clients.ask_with(who, padded.socket(), &Rpc::List, &["--limit", "16777216"]).await?.ok()?;
        ensure!(heard.bytes.len() > 5 << 20, "{} bytes", heard.bytes.len());
    }
    Ok(())
}

/// A node whose kubelet stands behind a recorder, and a proxy before that.
struct World {
    proxy: Proxy,
    recorder: Recorder,
    clients: Clients,
    node: RealNode,
    _cluster: Cluster,
}

impl World {
    async fn start(parts: &Parts, place: Place, settings: &[&str]) -> Result<Self> {
        let clients = Clients::of(parts);
        let cluster = Cluster::start(parts).await?;
        koordinator::install(&cluster.client()).await?;
        let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
        koordinator::describe(&cluster.client(), node.name(), devices()).await?;
        let dir = cluster.dir().join("recorder");
        let recorder = Recorder::start(&clients, &node.socket(), &dir, &[]).await?;
        let upstream = format!("kubelet.socket={}", recorder.socket().display());
        let proxy = Proxy::start(&node, place, &[&[upstream.as_str()], settings].concat()).await?;
        Ok(Self { proxy, recorder, clients, node, _cluster: cluster })
    }

    /// What a client hears, and what that has beyond what the kubelet said.
    async fn ask(&self, who: Who, rpc: &Rpc) -> Result<(Heard, BTreeSet<Held>)> {
        let known = self.recorder.count()?;
        let heard = self.clients.ask(who, &self.proxy.socket(), rpc).await?.ok()?;
        let mut reasons = Vec::new();
        // Unknown fields have a number of the answer in them: only one of these can be what was heard.
        for sent in self.recorder.sent_since(known)?.iter().filter(|sent| sent.path == rpc.path()) {
            match added(&sent.sent, &heard.bytes) {
                Ok(more) => {
                    let count = more.len();
                    let more: BTreeSet<Held> = more.into_iter().collect();
                    ensure!(more.len() == count, "a device is there twice: {more:?}");
                    return Ok((heard, more));
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        bail!("{who:?} {rpc:?}: nothing that the kubelet said since it was asked: {reasons:?}")
    }

    /// Everybody hears what the kubelet said and exactly these devices besides.
    async fn adds(&self, right: &BTreeSet<Held>) -> Result<()> {
        for who in EVERYBODY {
            let (heard, more) = self.ask(who, &Rpc::List).await?;
            ensure!(more == *right, "{who:?}: {more:#?}, not {right:#?}");
            // Who decodes it finds them, where there are others, too.
            ensure!(held(&heard.answer)?.is_superset(right), "{who:?} does not see all of {right:?}");
            let (_, more) = self.ask(who, &Rpc::ListV1alpha1).await?;
            let without: BTreeSet<Held> =
                right.iter().map(|one| Held { nodes: Vec::new(), ..one.clone() }).collect();
            ensure!(more == without, "{who:?}, v1alpha1: {more:#?}, not {without:#?}");
            let (_, more) = self.ask(who, &Rpc::Allocatable).await?;
            ensure!(more.is_empty(), "{who:?}, allocatable: {more:#?}");
        }
        for name in self.names().await? {
            let (_, more) = self.ask(Who::Go, &Rpc::Get(name.clone())).await?;
            let right: BTreeSet<Held> = right.iter().filter(|one| one.pod == name).cloned().collect();
            ensure!(more == right, "{name}: {more:?}, not {right:?}");
        }
        Ok(())
    }

    async fn names(&self) -> Result<Vec<String>> {
        let pods = self.node.pods().await?;
        Ok(pods.into_iter().map(|pod| format!("default/{}", pod.metadata.name.unwrap_or_default())).collect())
    }

    /// Binds a pod, and asks from then on: the first answer that names it has all of it.
    async fn binds(&self, spec: &PodSpec, right: &[Held]) -> Result<()> {
        let name = format!("default/{}", spec.name());
        let mut client = Client::new(self.proxy.socket(), Duration::from_secs(5));
        self.node.submit(spec).await?;
        until(&format!("{name} is listed"), async || {
            let (usage, ..) = client.list().await?;
            ensure!(usage.pods.iter().any(|pod| pod.full_name() == ("default".into(), spec.name().into())));
            let found = held_of(&usage);
            let missing: Vec<_> = right.iter().filter(|one| !found.contains(one)).collect();
            // No wait may mend this.
            ensure!(missing.is_empty(), Hopeless(format!("{name} is there without {missing:?}: {found:?}")));
            Ok(())
        })
        .await
        .with_context(|| self.proxy.last_words())?;
        self.node.fate_of(spec.name()).await?;
        Ok(())
    }
}

/// The devices of the node as Koordinator reports them.
fn devices() -> serde_json::Value {
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

fn of(pod: &str, container: &str, resource: &str, id: &str, node: i64) -> Held {
    Held {
        pod: format!("default/{pod}"),
        container: container.to_owned(),
        resource: resource.to_owned(),
        id: id.to_owned(),
        nodes: vec![node],
    }
}

/// Pods as Koordinator's scheduler leaves them, and the devices that they have by that.
fn koordinated() -> Vec<(PodSpec, Vec<Held>)> {
    const GPU: &str = "nvidia.com/gpu";
    let given =
        |spec: PodSpec, devices: serde_json::Value| spec.annotation(DEVICE_ALLOCATED, &devices.to_string());
    let core = |minor: i32, id: &str, core: &str| json!({"minor": minor, "id": id, "resources": {"koordinator.sh/gpu-core": core}});
    vec![
        // Beside a device of a plugin, which stays where it is.
        (
            given(
                pod("whole").device("koordinator.sh/gpu", 100).device(NIC, 1),
                json!({"gpu": [core(0, "GPU-a", "100")]}),
            ),
            vec![of("whole", "main", GPU, "GPU-a", 0)],
        ),
        // Two pods share one.
        (
            given(
                pod("half").device("koordinator.sh/gpu-core", 50),
                json!({"gpu": [core(1, "GPU-b", "50")]}),
            ),
            vec![of("half", "main", GPU, "GPU-b", 1)],
        ),
        (
            given(
                pod("other-half").device("koordinator.sh/gpu-core", 50),
                json!({"gpu": [core(1, "GPU-b", "50")]}),
            ),
            vec![of("other-half", "main", GPU, "GPU-b", 1)],
        ),
        // The container that asks for it, and virtual functions instead of the device; the other GPU is known by its number.
        (
            given(
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
        // Each container that asks has its own, in their order; the kubelet lists the sidecar first.
        (
            given(
                pod("two")
                    .device("koordinator.sh/gpu", 100)
                    .sidecar("mesh")
                    .container("second")
                    .device("koordinator.sh/gpu", 100),
                json!({"gpu": [core(3, "GPU-d", "100"), core(0, "GPU-a", "100")]}),
            ),
            vec![of("two", "main", GPU, "GPU-d", 1), of("two", "second", GPU, "GPU-a", 0)],
        ),
        // Where no container asks it is the first that is no sidecar.
        (
            given(pod("mesh").sidecar("mesh"), json!({"rdma": [{"minor": 0, "id": "0000:1f:00.0"}]})),
            vec![of("mesh", "main", "koordinator.sh/rdma", "0000:1f:00.0", 1)],
        ),
        (pod("nonsense").annotation(DEVICE_ALLOCATED, "incorrect-device-allocation-annotation"), vec![]),
        (given(pod("none"), json!({"gpu": null})), vec![]),
        (pod("without"), vec![]),
    ]
}

/// Errors are the kubelet's, code and text.
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
        for who in EVERYBODY {
            let kubelets = world.clients.ask(who, &world.node.socket(), &rpc).await?;
            let proxys = world.clients.ask(who, &world.proxy.socket(), &rpc).await?;
            ensure!(kubelets.code != "OK", "{rpc:?}: {kubelets:?}");
            let same = (&kubelets.code, &kubelets.text) == (&proxys.code, &proxys.text);
            ensure!(same, "{who:?} {rpc:?}: {proxys:?}, and the kubelet {kubelets:?}");
        }
    }
    Ok(())
}

async fn merges_what_is_annotated_and_nothing_else(place: Place) -> Result<()> {
    let Some(parts) = Parts::with_clients(Needs::Kubelet).await? else { return Ok(()) };
    let mut world = World::start(&parts, place, &[]).await?;
    world
        .node
        .run(pod("plain").cpus(1).memory("1Gi").device(NIC, 1).container("b").cpus(1).memory("64Mi"))
        .await?;
    world.node.run(pod("best-effort")).await?;
    world.adds(&BTreeSet::new()).await.context("nobody has an annotation")?;
    errors_are_the_kubelets(&world).await?;

    let mut right = BTreeSet::new();
    for (spec, devices) in koordinated() {
        world.binds(&spec, &devices).await?;
        right.extend(devices);
    }
    world.adds(&right).await.context("some have")?;
    let problems = world.proxy.sum("numacast_proxy_annotation_problems", &[]).await?;
    ensure!(problems > 0.0, "nobody complains of the nonsense");

    for (spec, _) in koordinated() {
        world.node.delete(spec.name()).await?;
    }
    world.adds(&BTreeSet::new()).await.context("they are gone")?;
    world.proxy.still_runs()
}

#[tokio::test]
async fn the_proxy_merges_what_is_annotated_and_nothing_else() -> Result<()> {
    merges_what_is_annotated_and_nothing_else(Place::Alone).await
}

#[tokio::test]
async fn the_agents_proxy_merges_what_is_annotated_and_nothing_else() -> Result<()> {
    merges_what_is_annotated_and_nothing_else(Place::Agent).await
}

/// A client that takes 4 MiB refuses more by itself; it and everybody else go on.
#[tokio::test]
async fn an_answer_above_a_clients_limit_is_that_clients_affair() -> Result<()> {
    let Some(parts) = Parts::with_clients(Needs::Kubelet).await? else { return Ok(()) };
    let clients = Clients::of(&parts);
    let cluster = Cluster::start(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let large = ["--pad", "5242880", "--plain"];
    let padded = Recorder::start(&clients, &node.socket(), &cluster.dir().join("padded"), &large).await?;
    let upstream = format!("kubelet.socket={}", padded.socket().display());
    let mut proxy = Proxy::start(&node, Place::Alone, &[&upstream]).await?;
    for who in [Who::Go, Who::Python, Who::GoPath] {
        let of_the_kubelet = clients.ask(who, padded.socket(), &Rpc::List).await?;
        let heard = clients.ask(who, &proxy.socket(), &Rpc::List).await?;
        ensure!(heard.code == "ResourceExhausted" && heard.text == of_the_kubelet.text, "{who:?}: {heard:?}");
        let heard =
            clients.ask_with(who, &proxy.socket(), &Rpc::List, &["--limit", "16777216"]).await?.ok()?;
        let sent = padded.sent_since(0)?;
        ensure!(sent.iter().any(|sent| sent.sent == heard.bytes), "{who:?} hears something else");
        ensure!(heard.bytes.len() > 5 << 20, "{} bytes", heard.bytes.len());
        clients.ask(who, &proxy.socket(), &Rpc::Allocatable).await?.ok()?;
    }
    proxy.still_runs()
}

/// What annotations give away is gone from the node's object, too, and nothing else in it changes.
#[tokio::test]
async fn zones_count_what_is_merged() -> Result<()> {
    const GPU: &str = "nvidia.com/gpu";
    const RDMA: &str = "koordinator.sh/rdma";
    let Some(parts) = Parts::with_clients(Needs::Kubelet).await? else { return Ok(()) };
    let mut world = World::start(&parts, Place::Agent, &["proxy.zones=true"]).await?;
    world.node.run(pod("plain").cpus(2).memory("1Gi").device(NIC, 1)).await?;
    let free = |capacity: u64, available: u64| Figures { capacity, allocatable: capacity, available };
    // Of a card with virtual functions these are what is given away.
    let all = [("node-0", GPU, free(2, 2)), ("node-1", GPU, free(2, 2)), ("node-1", RDMA, free(3, 3))];
    world.zones_have(&all).await.context("nobody has any")?;
    // None asks for what it is given: the oracle would look for that in the kubelet's books.
    for (name, gpu) in [("whole", "GPU-a"), ("half", "GPU-b"), ("other-half", "GPU-b")] {
        let given = json!({"gpu": [{"minor": 0, "id": gpu}]}).to_string();
        world.node.run(pod(name).annotation(DEVICE_ALLOCATED, &given)).await?;
    }
    // Two pods share a GPU, which is gone once.
    let left = [("node-0", GPU, free(2, 1)), ("node-1", GPU, free(2, 1)), ("node-1", RDMA, free(3, 3))];
    world.zones_have(&left).await.context("three pods have some")?;
    world.node.delete("half").await?;
    world.node.delete("whole").await?;
    let left = [("node-0", GPU, free(2, 2)), ("node-1", GPU, free(2, 1)), ("node-1", RDMA, free(3, 3))];
    world.zones_have(&left).await.context("one pod has one")?;
    world.proxy.still_runs()
}

impl World {
    /// The zones have these devices of Koordinator's, no others, and the rest as the kubelet's books say.
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
        .with_context(|| self.proxy.last_words())
    }
}
