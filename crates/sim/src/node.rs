//! One simulated node in one simulated cluster: hardware files, kubelet and API server in a temporary
//! directory.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;

use super::api_server::{ApiServer, PODS, Rejected};
use super::kubelet::{Allocation, Options, PodSpec, Rejection, SimError, SimKubelet};
use super::machine::MachineSpec;

/// The annotation with the NUMA nodes of a pod's exclusive resources.
pub const ZONES: &str = "sim.numacast/zones";

/// An error at the start of the simulated node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The directory or the hardware's files.
    #[error("cannot write the files of the simulated node in {0}: {1}")]
    Directory(PathBuf, io::Error),
    /// The API server's address.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The kubelet.
    #[error(transparent)]
    Kubelet(#[from] SimError),
    /// The Node object.
    #[error(transparent)]
    Rejected(#[from] Rejected),
}

/// A node with its cluster.
#[derive(Debug)]
pub struct SimNode {
    /// The kubelet.
    pub kubelet: SimKubelet,
    /// The API server.
    pub server: Arc<ApiServer>,
    name: String,
    directory: Directory,
}

/// A temporary directory, removed on drop.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, NodeError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The paths of unix sockets have a small length limit, so keep the name short.
        let path = std::env::temp_dir().join(format!("numacast-{}-{number}", std::process::id()));
        let created = std::fs::DirBuilder::new().mode(0o700).create(&path);
        created.map_err(|error| NodeError::Directory(path.clone(), error))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Nothing can be done about a directory that cannot be removed.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl SimNode {
    /// Writes the machine's files, starts its kubelet and an API server on `address`, and registers the node.
    ///
    /// # Errors
    /// When files or sockets cannot be created.
    pub async fn start(
        name: &str,
        machine: &MachineSpec,
        address: SocketAddr,
        options: Options,
    ) -> Result<Self, NodeError> {
        let server = ApiServer::start(address, options.seed).await;
        let server = server.map_err(|error| NodeError::Listen(address, error))?;
        let node = Self::join(name, machine, Arc::new(server), options)?;
        node.server.add_node(name)?;
        Ok(node)
    }

    /// Writes the machine's files and starts its kubelet, for a cluster that has an API server and gets the Node.
    ///
    /// # Errors
    /// When files or sockets cannot be created.
    pub fn join(
        name: &str,
        machine: &MachineSpec,
        server: Arc<ApiServer>,
        options: Options,
    ) -> Result<Self, NodeError> {
        let directory = Directory::new()?;
        let explain = |error| NodeError::Directory(directory.0.clone(), error);
        machine.write_tree(&directory.0).map_err(explain)?;
        let kubelet = SimKubelet::start(machine, &directory.0.join("kubelet"), options)?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sim", "cluster": {"server": server.url()}}],
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim"}}],
            "users": [{"name": "sim", "user": {}}],
            "current-context": "sim",
        });
        std::fs::write(directory.0.join("kubeconfig"), kubeconfig.to_string()).map_err(explain)?;
        Ok(Self { kubelet, server, name: name.to_owned(), directory })
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of the node's files: `sys`, `proc`, `kubelet`, `kubeconfig`.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory.0
    }

    /// The flags that point an agent in another process to this node and its cluster.
    #[must_use]
    pub fn flags(&self) -> [OsString; 6] {
        let of = |flag: &str, path: PathBuf| [flag.into(), path.into_os_string()];
        let [root, root_path] = of("--host-root", self.directory.0.clone());
        let [kubelet, kubelet_path] = of("--kubelet-dir", self.kubelet.root().to_owned());
        let [cluster, cluster_path] = of("--kubeconfig", self.kubeconfig());
        [root, root_path, kubelet, kubelet_path, cluster, cluster_path]
    }

    /// The kubeconfig file of the cluster.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.0.join("kubeconfig")
    }

    /// Binds a pod to the node. Its kubelet runs or rejects it, and the API server has the pod object that a
    /// cluster would have.
    ///
    /// # Errors
    /// The kubelet's rejection.
    pub async fn start_pod(&self, spec: PodSpec) -> Result<Vec<Allocation>, Rejection> {
        self.put_pod(&spec, "Pending", None, &[]);
        let outcome = self.kubelet.start_pod(spec.clone()).await;
        match &outcome {
            Ok(allocations) => self.put_pod(&spec, "Running", None, allocations),
            Err(rejection) => self.put_pod(&spec, "Failed", Some(rejection), &[]),
        }
        outcome
    }

    /// Removes a pod from the kubelet, then from the cluster. Returns false if there is no such pod.
    pub fn stop_pod(&self, namespace: &str, name: &str) -> bool {
        let was_running = self.kubelet.stop_pod(namespace, name);
        self.server.delete(&PODS, namespace, name) || was_running
    }

    fn put_pod(
        &self,
        spec: &PodSpec,
        phase: &str,
        rejection: Option<&Rejection>,
        allocations: &[Allocation],
    ) {
        let mut object = spec.object(&self.name, phase);
        if let Some(rejection) = rejection {
            object["status"]["reason"] = json!(rejection.reason);
            object["status"]["message"] = json!(rejection.message);
        }
        if !allocations.is_empty() {
            let zones = self.kubelet.with_model(|model| model.zones_of(allocations)).to_string();
            object["metadata"]["annotations"] = json!({ZONES: zones});
        }
        // Cannot fail: the pod has a name, and pods are not validated.
        let _ = self.server.put(&PODS, object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pods_are_objects_and_the_directory_is_removed() {
        let spec = "{description: one node, nodes: [{id: 0, cpus: 0-3, memory: 4Gi}], \
                    kubelet: {cpuManagerPolicy: static}}";
        let spec = MachineSpec::from_yaml(spec).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let node = SimNode::start("w", &spec, address, Options::default()).await.unwrap();
        let directory = node.directory().to_owned();
        assert!(directory.join("sys/devices/system/node/node0/cpulist").is_file());
        node.start_pod(PodSpec::guaranteed("db", 2, 1 << 30)).await.unwrap();
        assert!(node.start_pod(PodSpec::guaranteed("big", 9, 1 << 30)).await.is_err());
        let object = |name: &str| node.server.get(&PODS, "default", name).unwrap();
        assert_eq!(object("db")["metadata"]["annotations"][ZONES], "0");
        assert_eq!(object("big")["status"]["phase"], "Failed");
        assert!(node.stop_pod("default", "db"));
        assert!(node.server.get(&PODS, "default", "db").is_none());
        drop(node);
        assert!(!directory.exists());
    }
}
