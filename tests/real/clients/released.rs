//! The released clients: how each is run, and what is read from it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::cluster::free_port;
use crate::support::nrt::{self, Zones};
use crate::support::parts::repository;
use crate::support::podresources::{Allocation, allocations};
use crate::support::process::{Process, tethered};
use crate::support::wait::until;
use crate::support::{Parts, RealNode};

/// Where every client expects the kubelet's directory.
const DIRECTORY: &str = "/var/lib/kubelet/pod-resources";

/// A mount namespace in which a directory is at [`DIRECTORY`], as for a container. No later mount reaches it:
/// that is a container without `mountPropagation`.
pub(super) struct Container {
    process: Process,
}

impl Container {
    /// Starts it; creates the directory, as `DirectoryOrCreate` does.
    pub(super) async fn start(node: &RealNode, directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)?;
        let script = format!("mount --bind \"$0\" {DIRECTORY} && exec sleep infinity");
        let mut command = node.inside()?;
        command.args(["unshare", "-m", "--propagation", "private", "sh", "-ec", &script]).arg(directory);
        let mut process = Process::start("container", node.dir(), command)?;
        until("the directory is mounted", async || {
            process.still_runs()?;
            let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", process.id()))?;
            ensure!(mounts.contains(&format!(" {DIRECTORY} ")), "{mounts}");
            Ok(())
        })
        .await?;
        Ok(Self { process })
    }
}

/// Where a client runs.
#[derive(Clone, Copy)]
pub(super) enum Where<'a> {
    /// On the described machine, with the kubelet's own directory.
    Host,
    /// In a container that has the proxy's directory instead.
    Inside(&'a Container),
}

impl Where<'_> {
    fn command(self, node: &RealNode) -> Result<Command> {
        match self {
            Self::Host => node.inside(),
            Self::Inside(container) => {
                let mut command = tethered("nsenter");
                command.args(["-m", "-t", &container.process.id().to_string(), "--"]);
                Ok(command)
            }
        }
    }
}

/// What Multus makes of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Multus {
    /// Ids by resource.
    pub(super) devices: BTreeMap<String, Vec<String>>,
    /// In the order of the pod's annotation.
    pub(super) networks: Vec<MultusNetwork>,
    /// Empty if it succeeded.
    pub(super) error: String,
}

impl Multus {
    /// Sorts the kubelet's devices: it lists them in another order each time.
    pub(super) fn in_order(mut self) -> Self {
        self.devices.values_mut().for_each(|ids| ids.sort());
        self.networks.sort_by(|a, b| a.device_id.cmp(&b.device_id));
        self
    }
}

/// What Multus makes of one of a pod's networks.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct MultusNetwork {
    #[serde(rename = "deviceID")]
    pub(super) device_id: String,
    /// What the network's plugin would be called with.
    config: Value,
}

impl MultusNetwork {
    /// Returns a network with the id of a device in the configuration of its plugin.
    pub(super) fn of(name: &str, id: &str, mut config: Value) -> Self {
        config["name"] = json!(name);
        for key in ["deviceID", "pciBusID"] {
            config[key] = json!(id);
        }
        Self { device_id: id.to_owned(), config }
    }
}

/// The line that `tests/parts/clients/multus` prints. Go writes `null` for what is empty.
#[derive(Deserialize)]
struct Printed {
    devices: Option<BTreeMap<String, Vec<String>>>,
    networks: Option<Vec<MultusNetwork>>,
    #[serde(default)]
    error: String,
}

/// The paths of the programs.
pub(super) struct Programs {
    multus: PathBuf,
    topology_updater: PathBuf,
}

/// Returns what a client prints.
pub(super) async fn output(command: Command) -> Result<Output> {
    let mut command = tokio::process::Command::from(command);
    let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
    // Only ends what would never end.
    Ok(tokio::time::timeout(Duration::from_secs(180), run).await.context("a client does not end")??)
}

impl Programs {
    pub(super) fn of(parts: &Parts) -> Self {
        Self { multus: parts.program("multus"), topology_updater: parts.program("nfd-topology-updater") }
    }

    /// Runs Multus for a pod, `namespace/name`.
    pub(super) async fn multus(
        &self,
        node: &RealNode,
        place: Where<'_>,
        kubeconfig: &Path,
        pod: &str,
    ) -> Result<Multus> {
        let mut command = place.command(node)?;
        command.arg(&self.multus).arg("--kubeconfig").arg(kubeconfig).args(["--pod", pod]);
        let output = output(command).await?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "Multus ends with {}: {error}", output.status);
        let Printed { devices, networks, error } = serde_json::from_slice(&output.stdout)?;
        Ok(Multus { devices: devices.unwrap_or_default(), networks: networks.unwrap_or_default(), error })
    }

    /// Runs NFD's topology updater once. The inner error is its own. Its object does not stay.
    pub(super) async fn topology_updater(
        &self,
        node: &RealNode,
        place: Where<'_>,
        kubeconfig: &Path,
    ) -> Result<Result<Zones>> {
        // Its library panics at a feature gate that is newer than itself.
        let config = node.dir().join("policy.json");
        let policy = node.machine().kubelet.get("topologyManagerPolicy");
        let kind = "KubeletConfiguration";
        let policy = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": kind, "topologyManagerPolicy": policy});
        std::fs::write(&config, policy.to_string())?;
        let mut command = place.command(node)?;
        command.arg("env").arg(format!("NODE_NAME={}", node.name())).arg(&self.topology_updater);
        command.args(["-oneshot", "-sleep-interval=1s"]);
        command.arg(format!("-kubelet-config-uri=file://{}", config.display()));
        command.arg(format!("-grpc-health={}", free_port()?)).arg(format!("-metrics={}", free_port()?));
        command.arg("-kubeconfig").arg(kubeconfig);
        command.arg(format!("-podresources-socket={DIRECTORY}/kubelet.sock"));
        let output = output(command).await?;
        let error = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Ok(Err(anyhow::anyhow!("the topology updater ends with {}: {error}", output.status)));
        }
        let zones = nrt::read(&node.client(), node.name()).await.with_context(|| error.into_owned())?.zones;
        nrt::api(&node.client()).delete(node.name(), &DeleteParams::default()).await?;
        Ok(Ok(zones))
    }
}

/// Returns the devices of a GetAllocatableResources response. They have no pod and no container.
pub(super) fn allocatable(message: &Value) -> Result<Vec<Allocation>> {
    let container = json!({"devices": message["devices"]});
    allocations(&json!({"podResources": {"containers": [container]}}))
        .map(|all| all.into_iter().map(|one| Allocation { pod: String::new(), ..one }).collect())
}

/// Returns the API of the networks of a namespace.
pub(super) fn networks(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Installs the CRD of networks.
pub(super) async fn install_networks(client: &Client) -> Result<()> {
    let name = "network-attachment-definitions.k8s.cni.cncf.io";
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "group": "k8s.cni.cncf.io",
            "scope": "Namespaced",
            "names": {
                "kind": "NetworkAttachmentDefinition",
                "plural": "network-attachment-definitions",
                "singular": "network-attachment-definition",
            },
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }))?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.patch(name, &PatchParams::apply("tests"), &Patch::Apply(&crd)).await?;
    until("networks are served", async || {
        networks(client, "default").list(&ListParams::default()).await?;
        Ok(())
    })
    .await
}

/// Returns the version of a module in a `go.mod` of `tests/parts`.
pub(super) fn version(part: &str, module: &str) -> Result<String> {
    let file = repository().join("tests/parts").join(part).join("go.mod");
    let text = std::fs::read_to_string(&file)?;
    let words = text.lines().map(|line| line.trim().split(' ').collect::<Vec<_>>());
    let mut versions =
        words.filter(|words| words.first() == Some(&module)).filter_map(|words| words.get(1).copied());
    let version = versions.next().with_context(|| format!("{} has no {module}", file.display()))?;
    Ok(version.to_owned())
}

/// Returns the table of docs/internals/clients.md, which `released_clients_run_unchanged` proves.
pub(super) fn table() -> Result<String> {
    let rows = [
        [
            "Multus".to_owned(),
            version("clients", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4")?,
            "its packages `kubeletclient` and `k8sclient`, called as its daemon does for a CNI ADD; pods and \
             NetworkAttachmentDefinitions from an API server"
                .to_owned(),
            "The kubelet's devices as from the kubelet, and merged ones: with the virtual functions' PCI addresses, \
             in the annotation's order, as `deviceID` of one network after the other. Stopped proxy: an error, so \
             the pod does not start. Before the proxy's first start: the kubelet's checkpoint, so the pod starts \
             without the merged devices"
                .to_owned(),
        ],
        [
            "NFD topology-updater".to_owned(),
            version("clients", "sigs.k8s.io/node-feature-discovery")?,
            "the program, `-oneshot`; `allocatable` in `proxy.annotations.koordinator`".to_owned(),
            "The zones as from the kubelet, and in them merged devices, total and available. Stopped proxy: it \
             exits with an error and writes nothing"
                .to_owned(),
        ],
        [
            "Kubernetes' client library".to_owned(),
            version("kubernetes", "k8s.io/kubernetes")?,
            "`podresources.GetV1Client` with the path of the socket: `List`, `Get`, `GetAllocatableResources`; `List` of v1alpha1".to_owned(),
            "The kubelet's devices as from the kubelet, and merged ones, in the annotation's order. Stopped proxy: `Unavailable`"
                .to_owned(),
        ],
    ];
    let mut text = "| client | version | how it was run | result |\n|---|---|---|---|\n".to_owned();
    for row in rows {
        text += &format!("| {} |\n", row.join(" | "));
    }
    Ok(text)
}
