//! Dynamic Resource Allocation without a scheduler: drivers beside a real kubelet ([`Driver`],
//! `tests/parts/dra-driver`), and claims whose allocations the test decides ([`Claims`]).
//!
//! ```ignore
//! let pool = Pool::of("gpus").device(device("gpu-0").numa_node(1));
//! let gpus = Driver::start(&cluster, &node, "gpu.example.com", &[pool]).await?;
//! let claims = Claims::of(&node);
//! claims.create("one", vec![gpus.allocated("gpus", "gpu-0")]).await?;
//! claims.run(&node, pod("a").claim("one")).await?;
//! ```

mod claims;
mod pools;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) use claims::{Allocated, Claims};
pub(crate) use pools::{Pool, device, ids};

use super::cluster::Cluster;
use super::driven::Driven;
use super::node::RealNode;
use super::parts;
use super::wait::until;

/// The user of every driver, and its ClusterRole.
const USER: &str = "dra-driver";

/// A running driver; killed when dropped, as the kubelet notices when it next needs it.
pub(crate) struct Driver {
    program: RefCell<Driven>,
    name: String,
    node: String,
    dir: PathBuf,
    cdi_dir: PathBuf,
    client: Client,
}

/// A claim in a driver's book.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) devices: Vec<PreparedDevice>,
}

/// A device of a prepared claim.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreparedDevice {
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    /// Whether the kubelet was told of it.
    pub(crate) returned: bool,
    /// The share's ID that the kubelet was told.
    #[serde(rename = "shareID")]
    pub(crate) share_id: Option<String>,
    /// The list of CPUs that it stands for: `4-7`.
    #[serde(default)]
    pub(crate) cpus: String,
}

impl Driver {
    /// Starts a driver and waits until the kubelet, which has to run, has registered it and the API server has
    /// its slices. It keeps its book across starts on the same node.
    pub(crate) async fn start(
        cluster: &Cluster,
        node: &RealNode,
        name: &str,
        pools: &[Pool],
    ) -> Result<Self> {
        let program = parts::fetched(&["dra-driver"])?.context("the driver cannot be built here")?;
        allow(&cluster.client()).await?;
        let dir = node.dir().join(name);
        std::fs::create_dir_all(&dir)?;
        write(&dir, pools)?;
        let cdi_dir = node.dir().join("var/run/cdi");
        // In the kubelet's mount namespace: it is told the path of the driver's socket.
        let mut command = node.inside()?;
        command.arg(program.join("dra-driver")).args(["--name", name, "--node", node.name()]);
        command.arg("--kubeconfig").arg(cluster.kubeconfig_as(USER, &[])?);
        command.arg("--pools").arg(dir.join(POOLS)).arg("--book").arg(dir.join(BOOK));
        command.arg("--cdi-dir").arg(&cdi_dir);
        let program = Driven::start(name, node.dir(), command)?;
        let driver = Self {
            program: RefCell::new(program),
            name: name.to_owned(),
            node: node.name().to_owned(),
            dir,
            cdi_dir,
            client: cluster.client(),
        };
        until(&format!("{name} is registered"), async || driver.request(&json!({ "do": "registered" })))
            .await?;
        driver.wait_until_published().await?;
        Ok(driver)
    }

    /// Ends the driver. Its slices stay until the kubelet removes them, half a minute later.
    pub(crate) fn stop(self) -> Result<()> {
        self.program.into_inner().end()
    }

    /// Changes its pools and waits until the API server has the slices.
    pub(crate) async fn set(&self, pools: &[Pool]) -> Result<()> {
        write(&self.dir, pools)?;
        self.request(&json!({ "do": "readPools" }))?;
        self.wait_until_published().await
    }

    /// Waits until the API server has exactly the slices of its pools. A kubelet that starts deletes them, and
    /// the driver writes them again half a minute later, or when it is started again.
    pub(crate) async fn wait_until_published(&self) -> Result<()> {
        until(&format!("the slices of {} are published", self.name), async || {
            self.request(&json!({ "do": "published" }))
        })
        .await
    }

    /// Makes claims fail to be prepared, with this error.
    pub(crate) fn fail_prepare(&self, why: &str) -> Result<()> {
        self.request(&json!({ "do": "failPrepare", "why": why }))
    }

    /// Makes claims wait to be prepared.
    pub(crate) fn hold_prepare(&self) -> Result<()> {
        self.request(&json!({ "do": "holdPrepare" }))
    }

    /// Prepares claims again, including those that wait.
    pub(crate) fn allow_prepare(&self) -> Result<()> {
        self.request(&json!({ "do": "allowPrepare" }))
    }

    /// Returns the prepared claims by their UIDs.
    pub(crate) fn book(&self) -> Result<BTreeMap<String, Prepared>> {
        Ok(serde_json::from_slice(&std::fs::read(self.dir.join(BOOK))?)?)
    }

    /// Returns the driver's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the host path of the node's directory for CDI files.
    pub(crate) fn cdi_dir(&self) -> &Path {
        &self.cdi_dir
    }

    /// Returns its ResourceSlices.
    pub(crate) async fn slices(&self) -> Result<Vec<Value>> {
        let mine = format!("spec.driver={},spec.nodeName={}", self.name, self.node);
        let slices: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind("ResourceSlice"));
        let list = slices.list(&ListParams::default().fields(&mine)).await?;
        list.items.into_iter().map(|slice| Ok(serde_json::to_value(slice)?)).collect()
    }

    /// Returns an allocation of one of its devices.
    pub(crate) fn allocated(&self, pool: &str, device: &str) -> Allocated {
        Allocated::new(&self.name, pool, device)
    }

    fn request(&self, request: &Value) -> Result<()> {
        self.program.borrow_mut().request(request)
    }
}

/// Files of a driver in its directory.
const POOLS: &str = "pools.json";
const BOOK: &str = "book.json";

fn write(dir: &Path, pools: &[Pool]) -> Result<()> {
    Ok(std::fs::write(dir.join(POOLS), serde_json::to_vec_pretty(pools)?)?)
}

/// Returns a kind of `resource.k8s.io/v1`, which the client library does not have.
fn kind(name: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", "v1", name))
}

/// Gives the drivers what the helper library needs.
async fn allow(client: &Client) -> Result<()> {
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": USER},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
            {
                "apiGroups": ["resource.k8s.io"],
                "resources": ["resourceslices"],
                "verbs": ["list", "watch", "create", "update", "delete"],
            },
        ],
    }))?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }))?;
    // Other tests on the same API server do it as well.
    let params = PatchParams::apply("tests");
    Api::<ClusterRole>::all(client.clone()).patch(USER, &params, &Patch::Apply(&role)).await?;
    Api::<ClusterRoleBinding>::all(client.clone()).patch(USER, &params, &Patch::Apply(&binding)).await?;
    Ok(())
}
