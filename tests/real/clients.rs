//! Clients of the podresources socket as their projects release them, unchanged, on a kubelet's socket and on
//! the proxy's. docs/internals/clients.md has the table.

mod manifests;
mod released;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::proxy::devices;
use crate::support::koordinator::{self, DEVICE_ALLOCATED};
use crate::support::nrt::{Figures, Zones};
use crate::support::podresources::{Allocation, ClientKind, Clients, Rpc, allocations};
use crate::support::process::tethered;
use crate::support::proxy::{Place, Proxy};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, document, metrics, nrt, pod};
use released::{Container, Multus, MultusNetwork, Programs, Where, networks};

const DOCUMENT: &str = "docs/internals/clients.md";
const NIC: &str = "example.com/nic";
const GPU: &str = "nvidia.com/gpu";
const RDMA: &str = "koordinator.sh/rdma";
/// The resources that only annotations allocate.
const MERGED: [&str; 2] = [GPU, RDMA];
/// Not in the order of their numbers.
const FUNCTIONS: [&str; 2] = ["0000:1f:00.3", "0000:1f:00.2"];

/// A node with pods, and a container that was started before the proxy.
struct World {
    container: Container,
    programs: Programs,
    clients: Clients,
    node: RealNode,
    cluster: Cluster,
}

/// What every client made of one socket.
#[derive(Debug)]
struct Seen {
    /// Multus, of each pod.
    multus: BTreeMap<&'static str, Multus>,
    /// NFD's topology updater.
    zones: Zones,
    /// Kubernetes' library, of each method.
    library: Vec<Vec<Allocation>>,
}

/// The requests of one [`World::see`]: two Lists of Multus for each pod, for the devices and for the networks;
/// List and GetAllocatableResources of the topology updater; one of each method of the library.
const REQUESTS: f64 = 2.0 * 2.0 + 2.0 + 4.0;

impl World {
    async fn start(parts: &Parts) -> Result<Self> {
        let cluster = Cluster::shared(parts).await?;
        let admin = cluster.client();
        koordinator::install(&admin).await?;
        released::install_networks(&admin).await?;
        let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
        koordinator::describe(&admin, node.name(), devices()).await?;
        for (name, resource) in [("nic", NIC), ("rdma", RDMA)] {
            let network = json!({
                "apiVersion": "k8s.cni.cncf.io/v1",
                "kind": "NetworkAttachmentDefinition",
                "metadata": {"name": name, "annotations": {"k8s.v1.cni.cncf.io/resourceName": resource}},
                "spec": {"config": json!({"cniVersion": "1.0.0", "name": name, "type": "sriov"}).to_string()},
            });
            let params = PatchParams::apply("tests").force();
            networks(&admin, node.namespace()).patch(name, &params, &Patch::Apply(network)).await?;
        }
        let container = Container::start(&node, &node.dir().join("proxy")).await?;
        Ok(Self { container, programs: Programs::of(parts), clients: Clients::of(parts), node, cluster })
    }

    /// Runs a pod that the kubelet alone knows, and one that Koordinator's scheduler annotated.
    async fn run_pods(&self) -> Result<()> {
        const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
        let functions: Vec<Value> = FUNCTIONS.map(|bus| json!({"minor": -1, "busID": bus})).to_vec();
        let allocated = json!({
            "gpu": [{"minor": 0, "id": "GPU-a", "resources": {"koordinator.sh/gpu-core": "100"}}],
            "rdma": [{
                "minor": 0, "id": "0000:1f:00.0", "resources": {RDMA: 1}, "extension": {"vfs": functions},
            }],
        });
        let plain = pod("plain").cpus(2).memory("1Gi").device(NIC, 2).annotation(NETWORKS, "nic,nic");
        let annotated = pod("annotated")
            .device("koordinator.sh/gpu", 100)
            .container("net")
            .device(NIC, 1)
            .device(RDMA, 100)
            .annotation(DEVICE_ALLOCATED, &allocated.to_string())
            .annotation(NETWORKS, "rdma,nic,rdma");
        self.node.run(plain).await?;
        self.node.run(annotated).await
    }

    fn full_name(&self, pod: &str) -> String {
        format!("{}/{pod}", self.node.namespace())
    }

    async fn multus(&self, place: Where<'_>, pod: &str) -> Result<Multus> {
        let kubeconfig = self.cluster.admin_kubeconfig();
        self.programs.multus(&self.node, place, &kubeconfig, &self.full_name(pod)).await
    }

    /// Runs every client where it expects the kubelet's socket, which `place` decides.
    async fn see(&self, place: Where<'_>) -> Result<Seen> {
        let mut multus = BTreeMap::new();
        multus.insert("plain", self.multus(place, "plain").await?.in_order());
        multus.insert("annotated", self.multus(place, "annotated").await?);
        let kubeconfig = self.cluster.admin_kubeconfig();
        let zones = self.programs.topology_updater(&self.node, place, &kubeconfig).await??;
        let mut library = Vec::new();
        for rpc in self.methods() {
            let response = self.clients.request(ClientKind::Go, &self.socket(place), &rpc).await?.ok()?;
            let mut devices = allocations(&response.message)?;
            if rpc == Rpc::Allocatable {
                devices = released::allocatable(&response.message)?;
            }
            // The kubelet's pods and devices are in another order each time. Those merged into a container stay.
            let of_kubelet =
                |one: &Allocation| Some(one.id.clone()).filter(|_| !MERGED.contains(&&*one.resource));
            devices.sort_by_cached_key(|one| (one.pod.clone(), one.container.clone(), of_kubelet(one)));
            library.push(devices);
        }
        Ok(Seen { multus, zones, library })
    }

    fn methods(&self) -> [Rpc; 4] {
        [Rpc::List, Rpc::ListV1alpha1, Rpc::Get(self.full_name("annotated")), Rpc::Allocatable]
    }

    fn socket(&self, place: Where<'_>) -> std::path::PathBuf {
        match place {
            Where::Host => self.node.socket(),
            Where::Inside(_) => self.node.dir().join("proxy/kubelet.sock"),
        }
    }

    /// Returns how many requests the kubelet has counted.
    async fn kubelet_requests(&self) -> Result<f64> {
        let text = self.node.kubelet_metrics().await?;
        let sum = metrics::sum(&text, "kubelet_pod_resources_endpoint_requests_total", &[])?;
        Ok(sum.unwrap_or_default())
    }

    fn device(&self, container: &str, resource: &str, id: &str, nodes: &[i64]) -> Allocation {
        Allocation {
            pod: self.full_name("annotated"),
            container: container.to_owned(),
            resource: resource.to_owned(),
            id: id.to_owned(),
            nodes: nodes.to_vec(),
        }
    }
}

impl World {
    /// Returns what is merged into GetAllocatableResources: every device of [`devices`] but the card, which is
    /// allocated by its virtual functions.
    fn allocatable(&self) -> Vec<Allocation> {
        let gpus = [("GPU-a", 0), ("GPU-b", 1), ("GPU-c", 0), ("GPU-d", 1)].map(|(id, node)| (GPU, id, node));
        let functions = ["0000:1f:00.2", "0000:1f:00.3", "0000:1f:00.4"].map(|id| (RDMA, id, 1));
        let of_node = |(resource, id, node): (&str, &str, i64)| Allocation {
            pod: String::new(),
            ..self.device("", resource, id, &[node])
        };
        functions.into_iter().chain(gpus).map(of_node).collect()
    }
}

/// Multus sees what the kubelet has, and then what was merged, in the annotation's order.
fn multus_is_right(kubelet: &Seen, proxy: &Seen) -> Result<()> {
    let (plain, annotated) = (&kubelet.multus["plain"], &kubelet.multus["annotated"]);
    let ids = |multus: &Multus| multus.networks.iter().map(|one| one.device_id.clone()).collect::<Vec<_>>();
    // Each network of the pod gets another device.
    ensure!(plain.devices[NIC].len() == 2 && ids(plain) == plain.devices[NIC], "{plain:?}");
    ensure!(proxy.multus["plain"] == *plain, "{:?}, and on the kubelet {plain:?}", proxy.multus["plain"]);
    let nic = annotated.devices[NIC][0].clone();
    ensure!(ids(annotated) == ["", &nic, ""], "{annotated:?}");
    let merged = &proxy.multus["annotated"];
    ensure!(ids(merged) == [FUNCTIONS[0], &nic, FUNCTIONS[1]], "{merged:?}");
    let network =
        |name: &str, id: &str| MultusNetwork::of(name, id, json!({"cniVersion": "1.0.0", "type": "sriov"}));
    let networks = [network("rdma", FUNCTIONS[0]), network("nic", &nic), network("rdma", FUNCTIONS[1])];
    ensure!(merged.networks == networks, "{merged:?}, not {networks:?}");
    let devices =
        BTreeMap::from([(NIC, vec![nic.as_str()]), (GPU, vec!["GPU-a"]), (RDMA, FUNCTIONS.to_vec())]);
    let devices: BTreeMap<String, Vec<String>> = devices
        .into_iter()
        .map(|(name, ids)| (name.to_owned(), ids.into_iter().map(str::to_owned).collect()))
        .collect();
    ensure!(merged.devices == devices, "{merged:?}, not {devices:?}");
    Ok(())
}

/// The topology updater counts merged devices, and everything else as on the kubelet.
fn zones_are_right(kubelet: &Seen, proxy: &Seen) -> Result<()> {
    let mut zones = proxy.zones.clone();
    let mut merged = Vec::new();
    for (name, resources) in &mut zones {
        for resource in MERGED {
            merged.extend(resources.remove(resource).map(|figures| (name.clone(), resource, figures)));
        }
    }
    ensure!(zones == kubelet.zones, "{zones:#?}, and on the kubelet {:#?}", kubelet.zones);
    let free = |capacity: u64, available: u64| Figures { capacity, allocatable: capacity, available };
    // A card with virtual functions is allocated by these.
    let right = [("node-0", GPU, free(2, 1)), ("node-1", GPU, free(2, 2)), ("node-1", RDMA, free(3, 1))];
    let right = right.map(|(name, resource, figures)| (name.to_owned(), resource, figures));
    ensure!(merged == right, "{merged:?}, not {right:?}");
    Ok(())
}

/// Kubernetes' library decodes the kubelet's devices and the merged ones, these in the annotation's order.
fn library_is_right(world: &World, kubelet: &Seen, proxy: &Seen) -> Result<()> {
    let of_pod = [
        world.device("main", GPU, "GPU-a", &[0]),
        world.device("net", RDMA, FUNCTIONS[0], &[1]),
        world.device("net", RDMA, FUNCTIONS[1], &[1]),
    ];
    for ((rpc, before), after) in world.methods().iter().zip(&kubelet.library).zip(&proxy.library) {
        let is_merged = |one: &&Allocation| MERGED.contains(&&*one.resource);
        let own: Vec<&Allocation> = after.iter().filter(|one| !is_merged(one)).collect();
        let merged: Vec<&Allocation> = after.iter().filter(is_merged).collect();
        ensure!(
            !own.is_empty() && own.iter().copied().eq(before),
            "{rpc:?}: {own:#?}, and the kubelet {before:#?}"
        );
        let right = match rpc {
            Rpc::Allocatable => world.allocatable(),
            Rpc::ListV1alpha1 => of_pod.clone().map(|one| Allocation { nodes: Vec::new(), ..one }).to_vec(),
            _ => of_pod.to_vec(),
        };
        ensure!(merged.iter().copied().eq(&right), "{rpc:?}: {merged:#?}, not {right:#?}");
    }
    Ok(())
}

/// Checks the clients while nobody serves the socket.
async fn nobody_serves(world: &World) -> Result<()> {
    let place = Where::Inside(&world.container);
    let multus = world.multus(place, "annotated").await?;
    ensure!(multus.error.contains("connection refused"), "{multus:?}");
    ensure!(multus.devices.is_empty() && multus.networks.is_empty(), "{multus:?}");
    let kubeconfig = world.cluster.admin_kubeconfig();
    let zones = world.programs.topology_updater(&world.node, place, &kubeconfig).await?;
    let error = zones.err().context("the topology updater publishes zones")?.to_string();
    ensure!(error.contains("failed to obtain node resource information"), "{error}");
    let object = nrt::api(&world.cluster.client()).get_opt(world.node.name()).await?;
    ensure!(object.is_none(), "{object:?}");
    for rpc in world.methods() {
        let response = world.clients.request(ClientKind::Go, &world.socket(place), &rpc).await?;
        ensure!(response.code == "Unavailable", "{rpc:?}: {response:?}");
    }
    Ok(())
}

/// Checks that the kubelet counts exactly numacast's own requests, by numacast's count.
async fn kubelet_counts_ours(world: &World, proxy: &Proxy, before: f64) -> Result<()> {
    until("the kubelet has counted the proxy's requests", async || {
        let ours = proxy.sum("numacast_kubelet_requests_total", &["outcome=\"ok\""]).await?;
        let kubelets = world.kubelet_requests().await? - before;
        ensure!(
            ours > 0.0 && ours == kubelets,
            "{kubelets} requests by the kubelet's count, and {ours} by ours"
        );
        Ok(())
    })
    .await
}

/// Checks that the kubelet gets only a part of the requests of many clients.
async fn clients_share_responses(world: &World) -> Result<()> {
    let known = world.kubelet_requests().await?;
    let mut command = tethered(world.clients.go());
    command.args(["load", "--clients", "16", "--seconds", "1", "--socket"]);
    command.arg(world.socket(Where::Inside(&world.container)));
    let output = released::output(command).await?;
    let figures: Value = serde_json::from_slice(&output.stdout)?;
    let (calls, accepted) = (figures["calls"].as_f64(), figures["accepted"].as_f64());
    let accepted =
        accepted.filter(|accepted| Some(*accepted) == calls).with_context(|| figures.to_string())?;
    let kubelets = world.kubelet_requests().await? - known;
    ensure!(kubelets < accepted / 2.0, "the kubelet handled {kubelets} requests of {accepted}");
    Ok(())
}

#[tokio::test]
async fn released_clients_run_unchanged() -> Result<()> {
    let Some(parts) = Parts::with_released_clients(Needs::Kubelet)? else { return Ok(()) };
    let world = World::start(&parts).await?;
    world.run_pods().await?;
    let place = Where::Inside(&world.container);

    // Nothing has served the proxy's directory since the node started.
    let early = world.multus(place, "annotated").await?;
    let known = world.multus(Where::Host, "annotated").await?;
    ensure!(early == known && early.error.is_empty(), "{early:?}, and on the kubelet {known:?}");

    let before = world.kubelet_requests().await?;
    let kubelet = world.see(Where::Host).await?;
    let counted = world.kubelet_requests().await?;
    ensure!(counted - before == REQUESTS, "the kubelet counts {} requests", counted - before);

    let settings = ["proxy.annotations.koordinator=[devices, allocatable]"];
    let mut proxy = Proxy::start(&world.node, Place::Standalone, &settings).await?;
    let seen = world.see(place).await?;
    multus_is_right(&kubelet, &seen)?;
    zones_are_right(&kubelet, &seen)?;
    library_is_right(&world, &kubelet, &seen)?;
    until("the proxy has counted the clients' requests", async || {
        let ours = proxy.sum("numacast_proxy_requests_total", &["code=\"OK\""]).await?;
        ensure!(ours == REQUESTS, "the proxy counts {ours} requests, not {REQUESTS}");
        Ok(())
    })
    .await?;
    clients_share_responses(&world).await?;
    kubelet_counts_ours(&world, &proxy, counted).await?;

    proxy.stop()?;
    ensure!(world.socket(place).exists(), "the socket's file is gone");
    nobody_serves(&world).await?;
    // The container's mount shows the new socket.
    let _proxy = Proxy::start(&world.node, Place::Standalone, &settings).await?;
    let again = world.see(place).await?;
    ensure!(again.multus == seen.multus && again.zones == seen.zones, "{again:?}, and before {seen:?}");
    ensure!(again.library == seen.library, "{again:?}, and before {seen:?}");

    document::section(DOCUMENT, "clients", &released::table()?, "--test real released_clients")
}
