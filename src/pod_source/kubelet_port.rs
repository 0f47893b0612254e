//! The kubelet's HTTPS port: its address, and how its certificate is verified.

use std::path::PathBuf;
use std::time::Duration;

use tracing::debug;

use crate::cluster::{Cluster, KubeletEndpoint};
use crate::kubelet::{Address, Https, PORT, Target};

/// How to reach the kubelet's HTTPS port.
#[derive(Clone, Debug, Default)]
pub struct KubeletPort {
    /// The node's name.
    pub node: String,
    /// Its address. Taken from the Node if not set; so is the port if the address has none.
    pub address: Option<Address>,
    /// The CA that signs its certificate; the cluster's CA if not set.
    pub ca_file: Option<PathBuf>,
    /// The name in its certificate; the address if not set.
    pub server_name: Option<String>,
    /// The deadline of one call.
    pub timeout: Duration,
}

impl KubeletPort {
    /// Returns a client with the credentials of `cluster`. The address is read from the Node if none is
    /// configured.
    ///
    /// # Errors
    /// One sentence.
    pub async fn connect(&self, cluster: &Cluster) -> Result<Https, String> {
        let config = cluster.config().ok_or("there are no credentials with which to ask the kubelet")?;
        let (host, port) = match &self.address {
            Some(Address { host, port: Some(port) }) => (host.clone(), *port),
            Some(Address { host, port: None }) => (host.clone(), self.ask_for_port(cluster).await),
            None => self.ask_for_address(cluster).await?,
        };
        let (ca_file, server_name, timeout) = (self.ca_file.clone(), self.server_name.clone(), self.timeout);
        let target = Target { host, port, ca_file, server_name, timeout };
        Https::new(config, &target).map_err(|error| error.to_string())
    }

    async fn ask_for_address(&self, cluster: &Cluster) -> Result<(String, u16), String> {
        let told = cluster.kubelet_endpoint(&self.node).await;
        let explain = |reason: String| {
            format!("nobody knows where the kubelet answers ({reason}): set `kubelet.address` (NODE_ADDRESS)")
        };
        let KubeletEndpoint { host, port } = told.map_err(|error| explain(error.to_string()))?;
        let host = host.ok_or_else(|| explain("the Node has no InternalIP yet".to_owned()))?;
        Ok((host, port.unwrap_or(PORT)))
    }

    /// Returns the port that the Node reports, or the kubelet's default port.
    async fn ask_for_port(&self, cluster: &Cluster) -> u16 {
        match cluster.kubelet_endpoint(&self.node).await {
            Ok(KubeletEndpoint { port, .. }) => port.unwrap_or(PORT),
            Err(error) => {
                debug!("the kubelet's port is taken to be {PORT}: {error}");
                PORT
            }
        }
    }
}
